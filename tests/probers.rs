//! A drain that ends when the balancers have let go: who they are and how often they ask is learnt from their health checks.
//! The probers here are clients of our own, each with its address, name, period and patience; for real balancers see
//! tests/released.rs.

mod common;
#[path = "common/http.rs"]
mod http;

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::instance::{Instance, Launch, between, secs, until};

/// What the drain has without anybody's sign.
const STATED: Duration = Duration::from_secs(4);
/// Between a prober's sign and the end: looks, and a busy machine.
const SLACK: Duration = Duration::from_millis(2000);

fn app(options: &[&str]) -> (Instance, SocketAddr) {
    let address = http::free_address();
    let own = ["--http", &address.to_string(), "--log-format", "text", "--drain-delay", "4s", "--drain-timeout", "9s"];
    let launch =
        Launch::sundown(&[&own[..], &["--drain-until", "released", "--drain-quiet", "200ms"], options].concat());
    let instance = launch.start(&["{app}", "catch=TERM", "port=0"]);
    instance.wait_record("app up");
    // Asked beside the endpoint, or we would be a prober too.
    until("it is ready", || common::run(&mut client(&instance, &["ready"])).code == Some(0));
    (instance, address)
}

/// A subcommand that talks to it.
fn client(instance: &Instance, words: &[&str]) -> Command {
    let mut command = Command::new(common::SUNDOWN);
    command.args(words).args(["--pid", &instance.pid.to_string()]);
    command
}

/// Something that asks /readyz time and again.
struct Prober {
    asked: Arc<AtomicU32>,
    refused: Arc<AtomicU32>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Prober {
    /// Asks from now on; with `patience`, until it has been refused so often.
    fn start(address: SocketAddr, agent: &'static str, period: Duration, patience: u32) -> Self {
        let mut prober = Self { asked: Arc::default(), refused: Arc::default(), ends: Arc::default(), thread: None };
        let (asked, refused, ends) = (prober.asked.clone(), prober.refused.clone(), prober.ends.clone());
        prober.thread = Some(thread::spawn(move || {
            let mut next = Instant::now();
            while !ends.load(Ordering::Relaxed) && refused.load(Ordering::Relaxed) < patience {
                match ask(address, agent) {
                    200 => {}
                    503 => drop(refused.fetch_add(1, Ordering::Relaxed)),
                    // The endpoint is gone.
                    _ => return,
                }
                asked.fetch_add(1, Ordering::Relaxed);
                next += period;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        }));
        prober
    }

    /// Waits until it has come so often that its period is known.
    fn known(self) -> Self {
        until("the prober is known", || self.asked.load(Ordering::Relaxed) >= 3);
        self
    }

    /// How often it was refused up to the end.
    fn finish(mut self) -> u32 {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
        self.refused.load(Ordering::Relaxed)
    }
}

/// One question, with this User-Agent: the answer's status.
fn ask(address: SocketAddr, agent: &str) -> u16 {
    let request = format!("GET /readyz HTTP/1.1\r\nHost: x\r\nUser-Agent: {agent}\r\nConnection: close\r\n\r\n");
    http::exchange(address, request.as_bytes()).map_or(0, |answer| http::status(&answer))
}

/// Stops it, and gives how long that took.
fn stop(instance: &mut Instance) -> Duration {
    let began = Instant::now();
    instance.signal(libc::SIGTERM);
    instance.wait();
    began.elapsed()
}

#[track_caller]
fn says(instance: &Instance, text: &str) {
    assert!(instance.log().contains(text), "{text:?} is not in {}", instance.log());
}

const RELEASED: &str = "(every balancer had let go and the traffic was quiet)";
const TIME: &str = "(its least time was over and the traffic quiet)";

#[test]
fn the_drain_ends_soon_after_the_balancer_has_heard_enough() {
    let (mut instance, address) = app(&["--lb-unhealthy-threshold", "3"]);
    let prober = Prober::start(address, "ELB-HealthChecker/2.0", secs(0.4), u32::MAX).known();
    let took = stop(&mut instance);
    // Two periods between three answers at the least, and one and a half more.
    between(took, secs(1.3), secs(1.8) + SLACK);
    assert!(prober.finish() >= 3, "{}", instance.log());
    says(&instance, RELEASED);
    says(&instance, "the drain ends when these have let go: 127.0.0.1 (ELB-HealthChecker/2.0), every ");
}

#[test]
fn the_slowest_balancer_decides() {
    let (mut instance, address) = app(&[]);
    let quick = Prober::start(address, "quick", secs(0.1), u32::MAX).known();
    let slow = Prober::start(address, "slow", secs(0.8), u32::MAX).known();
    let took = stop(&mut instance);
    between(took, secs(1.9), secs(2.8) + SLACK);
    assert!(quick.finish() >= 10 && slow.finish() >= 2, "{}", instance.log());
    says(&instance, RELEASED);
}

#[test]
fn a_balancer_that_stops_asking_has_let_go() {
    let (mut instance, address) = app(&["--lb-unhealthy-threshold", "10"]);
    let prober = Prober::start(address, "leaves", secs(0.4), 1).known();
    let took = stop(&mut instance);
    between(took, secs(0.9), secs(1.4) + SLACK);
    assert_eq!(prober.finish(), 1);
    says(&instance, RELEASED);
}

#[test]
fn a_balancer_that_has_not_let_go_is_waited_for_beyond_the_stated_time() {
    let (mut instance, address) = app(&["--lb-unhealthy-threshold", "12", "--drain-delay", "500ms"]);
    let prober = Prober::start(address, "patient", secs(0.2), u32::MAX).known();
    let took = stop(&mut instance);
    between(took, secs(2.4), secs(2.7) + SLACK);
    prober.finish();
    says(&instance, RELEASED);
}

#[test]
fn a_prober_that_lies_silent_is_told_and_the_stated_time_kept() {
    let (mut instance, address) = app(&[]);
    assert_eq!(ask(address, "old-scrape/1.0"), 200);
    let prober = Prober::start(address, "balancer", secs(0.2), u32::MAX).known();
    let took = stop(&mut instance);
    between(took, STATED, STATED + SLACK);
    prober.finish();
    says(&instance, TIME);
    says(&instance, "the drain had its stated time: a prober asked once and never again");
}

#[test]
fn where_no_balancer_asks_the_stated_time_is_kept() {
    let (mut instance, address) = app(&[]);
    let kubelet = Prober::start(address, "kube-probe/1.31", secs(0.2), u32::MAX).known();
    let took = stop(&mut instance);
    between(took, STATED, STATED + SLACK);
    kubelet.finish();
    says(&instance, "no balancer has asked /readyz yet");
    says(&instance, TIME);
}

#[test]
fn status_shows_who_asks() {
    let (mut instance, address) = app(&[]);
    let prober = Prober::start(address, "HAProxy", secs(0.2), u32::MAX).known();
    let text = common::run(&mut client(&instance, &["status"])).stdout;
    assert!(text.contains("prober   127.0.0.1 (HAProxy), every "), "{text}");
    let json = common::run(&mut client(&instance, &["status", "--json"])).stdout;
    assert!(json.contains(r#"{"address":"127.0.0.1","agent":"HAProxy","visits":"#), "{json}");
    instance.signal(libc::SIGTERM);
    instance.wait();
    prober.finish();
}

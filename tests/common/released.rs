//! Pods that are stopped behind real balancers which check sundown's `/readyz`, with `--drain-until released`: a drain that
//! ends when every balancer has let go, however long the stated time is.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::checkers::{Balancer, Checking, Kind, LetsGo, Target};
use super::load::{Dice, Load, Tally, Traffic};
use super::pod::{self, Init, Pod, Stopped};
use super::rates::{QUIET, SLACK, answer_after};

/// What a drain takes where nobody is known to let go: `--lb alb`.
pub const STATED: Duration = Duration::from_secs(30);
/// The same where a stranger has asked; shorter, since that is what it will take.
pub const STATED_TO_STRANGERS: Duration = Duration::from_secs(10);
/// What the line says that tells why the drain ended.
const RELEASED: &str = "every balancer had let go";
/// From one look at whom a balancer routes to, to the next.
const LOOK: Duration = Duration::from_millis(25);
/// A stop that takes longer hangs.
const STOP_BOUND: Duration = Duration::from_secs(60);
/// For how long the clients go on after the pod's end: a balancer that still knew it would lose their requests.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// Pods that are stopped, behind what, and under which load.
#[derive(Clone, Copy)]
pub struct Trial<'a> {
    pub balancers: &'a [Checking],
    pub lets_go: LetsGo,
    /// Requests per second and pod.
    pub rates: &'a [f64],
    /// Pods of each rate.
    pub pods: usize,
    /// Whether somebody has asked each pod's `/readyz` once, and never again.
    pub stranger: bool,
}

/// What came of one pod.
pub struct Released {
    pub rate: f64,
    pub tally: Tally,
    pub stopped: Stopped,
    /// From the stop request until each balancer routed nothing more to it.
    pub let_go: Vec<Duration>,
    /// For how long it may be held after that.
    within: Duration,
    /// From the stop request until sundown can know that a balancer has let go which goes on checking.
    sign: Duration,
    /// The longest that a balancer said nothing meanwhile, on a machine with too much to do. Then it does not check either, and
    /// whether its silence was rightly taken for its leave cannot be judged.
    pub stalled: Duration,
}

/// See [`Released::stalled`].
const STALL: Duration = Duration::from_millis(500);

impl Checking {
    /// Each second, with this threshold.
    pub fn each_second(kind: Kind, threshold: u32) -> Checking {
        Checking { kind, period: Duration::from_secs(1), threshold, source: Ipv4Addr::new(127, 0, 0, 9) }
    }
}

impl Released {
    /// From the stop request until the last balancer let go.
    pub fn last_let_go(&self) -> Duration {
        self.let_go.iter().copied().max().unwrap_or_default()
    }

    /// From that moment, or from where the traffic was quiet if that came later, to the end.
    pub fn held(&self) -> Duration {
        self.stopped.took.saturating_sub(self.last_let_go().max(self.quiet()))
    }

    /// What speaks against it, if all balancers were to be waited for, and nothing else; `spare` is for a busy machine.
    pub fn faults(&self, spare: Duration) -> Vec<String> {
        let Stopped { number, took, last_words, .. } = &self.stopped;
        let (let_go, quiet) = (self.last_let_go(), self.quiet());
        let mut faults = Vec::new();
        if self.tally.lost() > 0 {
            faults.push(format!("lost {}", self.tally.kinds()));
        }
        let judged = self.stalled < STALL;
        if judged && *took < let_go {
            faults.push("went before the last balancer let go".to_owned());
        }
        if judged && *took > ((let_go + self.within).max(self.sign) + spare).max(quiet + SLACK) {
            faults.push("was held for too long".to_owned());
        }
        if !last_words.contains(RELEASED) {
            faults.push("did not say that every balancer had let go".to_owned());
        }
        let context = format!(
            "gone after {took:.1?}, let go after {:.1?}, quiet after {quiet:.1?}, {} requests/s:\n{last_words}",
            self.let_go, self.rate
        );
        faults.iter().map(|fault| format!("pod {number} {fault}; {context}")).collect()
    }

    /// From the stop request to a quiet window after the last answer.
    fn quiet(&self) -> Duration {
        let last = self.tally.last_answer.and_then(|last| last.checked_duration_since(self.stopped.asked));
        last.map_or(Duration::ZERO, |last| last + QUIET)
    }
}

impl Trial<'_> {
    /// What is missing to run it, if anything is.
    pub fn obstacle(&self) -> Option<String> {
        let name = |checking: &Checking| if checking.kind == Kind::Envoy { "envoy" } else { "haproxy" };
        pod::missing(&self.balancers.iter().map(name).collect::<Vec<_>>())
    }

    /// Runs it. The same seed gives the same traffic and the same moments.
    ///
    /// # Errors
    ///
    /// Where a part of the set-up fails, or a pod does not end. What was lost is no error here.
    pub fn run(&self, seed: u64) -> io::Result<Vec<Released>> {
        let scratch = tempfile::tempdir()?;
        let rates: Vec<f64> = self.rates.iter().flat_map(|rate| vec![*rate; self.pods]).collect();
        let mut rest = Pod::start(Init::Rest, 0, scratch.path())?;
        let mut pods = (1..=rates.len())
            .map(|number| Pod::start(self.init(), number, scratch.path()))
            .collect::<io::Result<Vec<_>>>()?;
        rest.wait_ready()?;
        pods.iter_mut().try_for_each(Pod::wait_ready)?;
        let targets: Vec<Target> = pods.iter().map(target).collect();
        let balancers = self.balancers.iter().map(|one| Balancer::start(*one, &targets, rest.app, scratch.path()));
        let balancers = balancers.collect::<io::Result<Vec<_>>>()?;
        if self.stranger {
            targets.iter().try_for_each(|target| ask_once(target.readyz))?;
        }

        let watch = Watch::new(&balancers, pods.len());
        thread::scope(|scope| {
            scope.spawn(|| watch.look_until_told());
            let stop = |(at, pod)| self.stop_one(at, pod, rates[at], &balancers, &watch, seed);
            let stopping: Vec<_> = pods.into_iter().enumerate().map(|one| scope.spawn(move || stop(one))).collect();
            let stopped = stopping.into_iter().map(|thread| thread.join().expect("stopping does not panic"));
            let stopped = stopped.collect::<Vec<io::Result<_>>>();
            watch.enough.store(true, Ordering::Relaxed);
            stopped.into_iter().collect()
        })
    }

    fn stop_one(
        &self,
        at: usize,
        pod: Pod,
        rate: f64,
        balancers: &[Balancer],
        watch: &Watch<'_>,
        seed: u64,
    ) -> io::Result<Released> {
        let mut dice = Dice::new(seed ^ (at as u64) << 32);
        let share = rate / balancers.len() as f64;
        let traffic = |seed| Traffic { per_second: share, random: true, answer_after, seed };
        let loads: Vec<_> =
            balancers.iter().map(|balancer| Load::of(balancer.fronts[at], traffic(dice.seed()))).collect();
        // Each has checked some times by then.
        let slowest = balancers.iter().map(|balancer| balancer.checking.period).max().unwrap_or_default();
        thread::sleep(slowest * 3 + dice.seconds(0.0, 4.0));
        let told_after = match self.lets_go {
            // Its check would do so first.
            LetsGo::Silenced => dice.seconds(0.0, 1.0),
            _ => dice.seconds(1.0, 8.0),
        };
        let stopping = pod.stop()?;
        let (told, stopped) = thread::scope(|scope| {
            let told = scope.spawn(|| {
                thread::sleep(told_after);
                balancers.iter().try_for_each(|balancer| balancer.take_out(at, self.lets_go))
            });
            let stopped = stopping.wait_gone(STOP_BOUND);
            (told.join().expect("telling does not panic"), stopped)
        });
        told?;
        let stopped = stopped?;
        thread::sleep(AFTERWARDS);
        // The failing answers, the first of which is a period away, and a period and a half to spare.
        let sign = |balancer: &Balancer| balancer.checking.period * (balancer.checking.threshold * 2 + 3) / 2;
        let sign = balancers.iter().map(sign).max().unwrap_or_default();
        let let_go = watch.let_go(at, stopped.asked);
        let stalled = watch.longest_stall(stopped.asked, stopped.asked + stopped.took);
        let tally = loads.into_iter().map(Load::finish).fold(Tally::default(), |sum, tally| sum.with(&tally));
        Ok(Released { rate, tally, stopped, let_go, within: slowest * 3, sign, stalled })
    }

    fn init(&self) -> Init {
        let thrice = self.balancers.iter().any(|one| one.threshold == 3);
        let options = match (self.stranger, thrice) {
            (true, _) => &SHORT[..],
            (false, true) => &THRICE[..],
            (false, false) => &TWICE[..],
        };
        Init::Alone { options, endpoint: true }
    }
}

const TWICE: [&str; 6] = ["--lb", "alb", "--grace-period", "60s", "--drain-until", "released"];
const THRICE: [&str; 8] =
    ["--lb", "alb", "--grace-period", "60s", "--drain-until", "released", "--lb-unhealthy-threshold", "3"];
const SHORT: [&str; 8] = ["--lb", "alb", "--grace-period", "60s", "--drain-until", "released", "--drain-delay", "10s"];

fn target(pod: &Pod) -> Target {
    Target { app: pod.app, readyz: pod.readyz.expect("it has an endpoint") }
}

/// Somebody who looks once, long before anything happens.
fn ask_once(readyz: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(readyz)?;
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: pod\r\nUser-Agent: scrape/1.0\r\nConnection: close\r\n\r\n")?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

/// Notes when each balancer let go of each pod.
struct Watch<'a> {
    balancers: &'a [Balancer],
    /// By pod, then by balancer.
    since: Mutex<Vec<Vec<Option<Instant>>>>,
    /// From one look to the next, where that took long.
    stalls: Mutex<Vec<(Instant, Instant)>>,
    enough: AtomicBool,
}

impl<'a> Watch<'a> {
    fn new(balancers: &'a [Balancer], pods: usize) -> Self {
        let since = Mutex::new(vec![vec![None; balancers.len()]; pods]);
        Watch { balancers, since, stalls: Mutex::default(), enough: AtomicBool::new(false) }
    }

    fn look_until_told(&self) {
        let mut last = Instant::now();
        while !self.enough.load(Ordering::Relaxed) {
            for (which, balancer) in self.balancers.iter().enumerate() {
                // One that does not answer is asked again.
                let Ok(routes) = balancer.routes() else { continue };
                let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
                for (pod, _) in routes.iter().enumerate().filter(|(_, routes)| !**routes) {
                    since[pod][which].get_or_insert_with(Instant::now);
                }
            }
            let now = Instant::now();
            if now - last > STALL {
                self.stalls.lock().unwrap_or_else(PoisonError::into_inner).push((last, now));
            }
            last = now;
            thread::sleep(LOOK);
        }
    }

    fn longest_stall(&self, from: Instant, to: Instant) -> Duration {
        let stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        let meanwhile = stalls.iter().filter(|(began, ended)| *ended > from && *began < to);
        meanwhile.map(|(began, ended)| *ended - *began).max().unwrap_or_default()
    }

    /// From `asked` until each let go of this pod. One that never did has let go by now.
    fn let_go(&self, pod: usize, asked: Instant) -> Vec<Duration> {
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since[pod].iter().map(|at| at.unwrap_or_else(Instant::now).saturating_duration_since(asked)).collect()
    }
}

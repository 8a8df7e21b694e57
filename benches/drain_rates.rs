//! What a drain loses, and how long it takes, by the rate of the traffic: behind a balancer that goes on routing to a stopping
//! pod for a random 1 to 8 s and never looks at sundown's endpoint.
//!
//!     cargo bench --bench drain_rates                 # about two and a half minutes
//!     cargo bench --bench drain_rates -- --short      # four pods in place of twenty
//!     cargo bench --bench drain_rates -- --seed 7     # the traffic and the moments of a run that printed this
//!
//! Needs node on PATH, or in `bin/` of `SUNDOWN_TEST_TOOLS`, and the right to make a PID namespace. Fails if a request is
//! lost where the balancer's time is stated or the traffic is dense, if a stop takes longer than it must, or if the look at the
//! traffic does not end it at least 15 % sooner than the shortest fixed drain that loses nothing.

#[path = "../tests/common"]
mod common {
    pub mod load;
    pub mod pod;
    pub mod rates;
    pub mod wire;
}

use std::env;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use common::rates::{Drain, Group, ONE_IN, Outcome, QUICK, ROUTES_ON, SLOW};

const LOW: [f64; 3] = [0.2, 1.0, 5.0];
const HIGH: f64 = 75.0;
/// What the look at the traffic is to leave of the shortest fixed drain.
const SHARE: f64 = 0.85;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("drain_rates takes minutes: run it with `cargo bench --bench drain_rates`");
        return ExitCode::SUCCESS;
    }
    if let Some(obstacle) = common::pod::missing(&[]) {
        eprintln!("SKIPPED: {obstacle}");
        return ExitCode::SUCCESS;
    }
    let pods = if arguments.iter().any(|argument| argument == "--short") { 4 } else { 20 };
    let told = arguments.iter().skip_while(|argument| *argument != "--seed").nth(1);
    let seed = told.map_or_else(any_seed, |seed| seed.parse().expect("--seed takes a number"));
    println!(
        "{pods} pods of node for each line, their gaps random, one request in {ONE_IN} answered after {SLOW:?} and the others \
         within {QUICK:?};\na balancer that routes on for {} to {} s after the stop request; seed {seed}\n",
        ROUTES_ON.0, ROUTES_ON.1
    );

    let group = |rate, drain| Group { drain, rate, pods, serves: Duration::from_secs(12) };
    let low = |drain| LOW.map(|rate| group(rate, drain)).to_vec();
    // What is dense goes by itself: two cores bear 1,500 requests a second, and not twice as many.
    let runs = [
        low(Drain::STATED),
        vec![group(HIGH, Drain::STATED)],
        low(Drain::UNSTATED),
        vec![group(HIGH, Drain::UNSTATED)],
        vec![group(HIGH, Drain::FIXED)],
    ];
    println!("{HEAD}");
    let (mut outcomes, mut faults) = (Vec::new(), Vec::new());
    for (at, run) in runs.iter().enumerate() {
        match common::rates::run(run, seed + at as u64) {
            Ok(done) => {
                done.iter().for_each(|outcome| println!("{}", line(outcome)));
                outcomes.extend(done);
            }
            Err(error) => faults.push(error.to_string()),
        }
    }
    faults.extend(outcomes.iter().filter(|outcome| is_to_lose_nothing(&outcome.group)).flat_map(Outcome::faults));
    faults.extend(too_slow(&outcomes));
    for fault in &faults {
        println!("FAILED: {fault}");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

const HEAD: &str = "\
| requests/s | drain | failed | pods that lost one | stop, median | longest | after the last answer, at most | of that needless, at most |
|---|---|---|---|---|---|---|---|";

fn line(outcome: &Outcome) -> String {
    let Group { rate, drain, pods, .. } = outcome.group;
    let (failed, sent, losers) = (outcome.lost(), outcome.sent(), outcome.losers());
    let (median, longest) = outcome.stops();
    let after = outcome.pods.iter().filter_map(|pod| pod.after_last_answer()).max().unwrap_or_default();
    let needless = outcome.pods.iter().map(|pod| pod.needless()).max().unwrap_or_default();
    format!(
        "| {rate} | {} | {failed} of {sent} | {losers} of {pods} | {} | {} | {} | {} |",
        drain.name,
        seconds(median),
        seconds(longest),
        seconds(after),
        seconds(needless),
    )
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Where the traffic is thin and the balancer's time is not stated, nothing is promised.
fn is_to_lose_nothing(group: &Group) -> bool {
    group.drain != Drain::UNSTATED || group.rate == HIGH
}

fn too_slow(outcomes: &[Outcome]) -> Option<String> {
    let median = |drain| {
        let mut of_it = outcomes.iter().filter(|outcome| outcome.group.drain == drain && outcome.group.rate == HIGH);
        of_it.next().map(|outcome| outcome.stops().0.as_secs_f64())
    };
    let share = median(Drain::UNSTATED)? / median(Drain::FIXED)?;
    println!("\nat {HIGH}/s the look at the traffic takes {:.0} % of the shortest fixed drain's time", share * 100.0);
    (share > SHARE).then(|| format!("that is more than {:.0} %", SHARE * 100.0))
}

fn any_seed() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs())
}

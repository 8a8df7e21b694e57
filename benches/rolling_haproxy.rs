//! Ten pods replaced under load behind a real HAProxy, under sundown and under what people run today.
//!
//!     cargo bench --bench rolling_haproxy               # about four minutes
//!     cargo bench --bench rolling_haproxy -- --short    # under a minute
//!     cargo bench --bench rolling_haproxy -- tini       # only those whose name holds the word
//!
//! Needs haproxy, tini, dumb-init, node and yarn 1 on PATH, or in `bin/` of `SUNDOWN_TEST_TOOLS`, and the right to make a
//! PID namespace. Fails if sundown, or the run in which nothing is replaced, lost a request, or if another init lost next to none.

#[path = "../tests/common"]
mod common {
    pub mod haproxy;
    pub mod load;
    pub mod pod;
    pub mod rolling;
    pub mod wire;
}

use std::env;
use std::process::ExitCode;

use common::load::{QUICKEST, SLOWEST};
use common::pod::Init;
use common::rolling::{DEREGISTRATION, DRAIN, LEAST_LOST, Outcome, PODS, RATE, Rollout, YARN_SAW_TERM};

const DUMB_INIT: Rollout = Rollout { name: "dumb-init", init: Init::Other("dumb-init"), ..Rollout::TINI };

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("rolling_haproxy takes minutes: run it with `cargo bench --bench rolling_haproxy`");
        return ExitCode::SUCCESS;
    }
    let short = arguments.iter().any(|argument| argument == "--short");
    let only = arguments.iter().find(|argument| !argument.starts_with("--"));

    println!(
        "{PODS} pods of yarn 1 and node behind HAProxy, {RATE} POST/s answered after {QUICKEST:?} to {SLOWEST:?};\n\
         a stopped pod's target is taken out after {DEREGISTRATION:?}; sundown --drain-delay {DRAIN:?}\n"
    );
    let all = [Rollout::CONTROL, Rollout::SUNDOWN, Rollout::SUNDOWN_READYZ, Rollout::TINI, DUMB_INIT];
    let (mut outcomes, mut failures) = (Vec::new(), Vec::new());
    for rollout in all.into_iter().filter(|rollout| only.is_none_or(|word| rollout.name.contains(word.as_str()))) {
        if let Some(obstacle) = rollout.obstacle() {
            eprintln!("SKIPPED: {}: {obstacle}", rollout.name);
            continue;
        }
        eprintln!("{}", rollout.name);
        let rollout = if short { rollout.short() } else { rollout };
        match rollout.run() {
            Ok(outcome) => outcomes.push((rollout, outcome)),
            Err(error) => failures.push(format!("{}: {error}", rollout.name)),
        }
    }

    println!("\n{}", table(outcomes.iter().map(|(_, outcome)| outcome)));
    failures.extend(outcomes.iter().filter_map(|(rollout, outcome)| failure(rollout, outcome)));
    for failure in &failures {
        println!("FAILED: {failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn table<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> String {
    let mut table = format!(
        "{:<29}{:>9}{:>7}  {:<44}{:>9}{:>15}  {}\n",
        "", "requests", "lost", "how", "replaced", "a stop took", "exit"
    );
    for outcome in outcomes {
        let Outcome { name, tally, stopped } = outcome;
        let seconds = || stopped.iter().map(|pod| pod.took.as_secs_f64());
        let (least, most) = (seconds().fold(f64::INFINITY, f64::min), seconds().fold(0.0, f64::max));
        let took = if stopped.is_empty() { "-".to_owned() } else { format!("{least:.2} to {most:.2} s") };
        let (sent, lost, how, replaced) = (tally.sent, tally.lost(), tally.kinds(), stopped.len());
        let exits = exit_codes(outcome);
        table += &format!("{name:<29}{sent:>9}{lost:>7}  {how:<44}{replaced:>9}{took:>15}  {exits}\n");
    }
    table
}

/// Each exit code that was seen, once.
fn exit_codes(outcome: &Outcome) -> String {
    let mut codes: Vec<_> = outcome.stopped.iter().map(|pod| pod.code).collect();
    codes.sort_unstable();
    codes.dedup();
    let codes: Vec<_> = codes.iter().map(i32::to_string).collect();
    if codes.is_empty() { "-".to_owned() } else { codes.join(", ") }
}

/// What speaks against the outcome, if anything does.
fn failure(rollout: &Rollout, outcome: &Outcome) -> Option<String> {
    let (name, lost) = (rollout.name, outcome.tally.lost());
    match rollout.init {
        Init::Other(_) if lost >= LEAST_LOST * outcome.stopped.len() as u64 => None,
        Init::Other(_) => Some(format!("{name} lost only {lost}: this set-up proves nothing")),
        _ if lost > 0 => Some(format!("{name}: {lost} lost ({})", outcome.tally.kinds())),
        _ => outcome.stopped.iter().find(|pod| pod.code != YARN_SAW_TERM).map(|pod| {
            format!("{name}: pod {} exited with {}, not {YARN_SAW_TERM}\n{}", pod.number, pod.code, pod.last_words)
        }),
    }
}

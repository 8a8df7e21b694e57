//! Ten pods replaced under load behind a real HAProxy. Their image knows nothing of sundown: a sidecar is the app's hook, or
//! there is none.
//!
//!     cargo bench --bench beside               # about four minutes
//!     cargo bench --bench beside -- --short    # a minute and a half
//!
//! Needs root, haproxy, tini and node. Fails if a request was lost with the hook, or none without it where TERM or KILL cuts
//! the app off.

#[allow(dead_code, reason = "rolling_haproxy uses the rest")]
#[path = "../tests/common"]
mod common {
    pub mod beside;
    pub mod haproxy;
    pub mod load;
    pub mod pod;
    pub mod podrig;
    pub mod wire;
}

use std::process::ExitCode;

use common::beside::{Outcome, PODS, RATE, Rollout};
use common::load::{QUICKEST, SLOWEST};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("beside takes minutes: run it with `cargo bench --bench beside`");
        return ExitCode::SUCCESS;
    }
    let short = arguments.iter().any(|argument| argument == "--short");
    println!(
        "{PODS} pods of node and a native sidecar behind HAProxy, {RATE} POST/s answered after {QUICKEST:?} to {SLOWEST:?}\n"
    );
    println!(
        "{:<42}{:>9}{:>6}  {:<38}{:>9}{:>16}{:>16}",
        "", "requests", "lost", "how", "replaced", "hook held", "app gone"
    );
    let mut is_good = true;
    for rollout in [Rollout::NODE, Rollout::NODE_WITHOUT, Rollout::TINI, Rollout::TINI_WITHOUT] {
        if let Some(obstacle) = rollout.obstacle() {
            eprintln!("SKIPPED: {}: {obstacle}", rollout.name);
            continue;
        }
        let rollout = if short { rollout.short() } else { rollout };
        // Each in a network of its own, which is a thread's.
        let outcome = std::thread::spawn(move || rollout.run()).join().expect("no panic");
        match outcome {
            Ok(outcome) => {
                println!("{}", row(&outcome));
                is_good &= (outcome.tally.lost() == 0) == rollout.hook;
            }
            Err(error) => {
                println!("FAILED: {}: {error}", rollout.name);
                is_good = false;
            }
        }
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn row(outcome: &Outcome) -> String {
    let Outcome { name, tally, pods } = outcome;
    let apps = || pods.iter().filter_map(|(ended, _)| ended.iter().find(|ended| ended.name == "app"));
    let held = range(apps().filter_map(|app| app.hook.as_ref().map(|(_, held)| held.as_secs_f64())));
    let gone = range(apps().map(|app| app.gone.as_secs_f64()));
    let (sent, lost, how, replaced) = (tally.sent, tally.lost(), tally.kinds(), pods.len());
    format!("{name:<42}{sent:>9}{lost:>6}  {how:<38}{replaced:>9}{held:>16}{gone:>16}")
}

fn range(values: impl Iterator<Item = f64> + Clone) -> String {
    let (least, most) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
    if least > most { "-".into() } else { format!("{least:.2}-{most:.2} s") }
}

//! No request is lost while pods are replaced behind a real HAProxy, though the app has no SIGTERM handler; with tini in
//! sundown's place many are. The short form of `cargo bench --bench rolling_haproxy`.

mod common {
    pub mod haproxy;
    pub mod load;
    pub mod pod;
    pub mod rolling;
    pub mod wire;
}

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::rolling::{DRAIN, LEAST_LOST, Outcome, Rollout, YARN_SAW_TERM};

#[test]
fn nothing_is_lost_while_nothing_is_replaced() {
    let Some(outcome) = run(Rollout::CONTROL) else { return };
    assert_eq!(outcome.tally.lost(), 0, "lost: {}", outcome.tally.kinds());
}

#[test]
fn nothing_is_lost_where_the_balancer_checks_the_apps_own_port() {
    let Some(outcome) = run(Rollout::SUNDOWN) else { return };
    assert_each_pod_drained_and_nothing_was_lost(&outcome);
}

#[test]
fn nothing_is_lost_where_the_balancer_checks_readyz() {
    let Some(outcome) = run(Rollout::SUNDOWN_READYZ) else {
        return;
    };
    assert_each_pod_drained_and_nothing_was_lost(&outcome);
}

#[test]
fn requests_are_lost_with_tini_in_sundowns_place() {
    let Some(outcome) = run(Rollout::TINI) else { return };
    let Outcome { name, tally, stopped } = outcome;
    let (lost, sent) = (tally.lost(), tally.sent);
    assert!(lost >= LEAST_LOST * stopped.len() as u64, "only {lost} of {sent} lost under {name}: {}", tally.kinds());
}

fn assert_each_pod_drained_and_nothing_was_lost(outcome: &Outcome) {
    assert_eq!(outcome.tally.lost(), 0, "lost: {}", outcome.tally.kinds());
    for pod in &outcome.stopped {
        assert_eq!(pod.code, YARN_SAW_TERM, "pod {}:\n{}", pod.number, pod.last_words);
        let took = pod.took;
        assert!(took >= DRAIN && took < DRAIN + Duration::from_secs(1), "{took:?}:\n{}", pod.last_words);
    }
}

/// Runs the short form, one at a time: four of them at once would measure the machine.
fn run(rollout: Rollout) -> Option<Outcome> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(obstacle) = rollout.obstacle() {
        eprintln!("SKIPPED: {}: {obstacle}", rollout.name);
        return None;
    }
    let outcome = rollout.short().run();
    Some(outcome.unwrap_or_else(|error| panic!("{}: {error}", rollout.name)))
}

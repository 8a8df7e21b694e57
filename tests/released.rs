//! `--drain-until released`: the drain ends when every balancer that checks `/readyz` has let go, far below the stated time,
//! and loses nothing. The short form of `cargo bench --bench released`.

mod common {
    pub mod checkers;
    pub mod haproxy;
    pub mod load;
    pub mod pod;
    pub mod rates;
    pub mod released;
    pub mod wire;
}

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use common::checkers::{Checking, Kind, LetsGo};
use common::rates::SLACK;
use common::released::{Released, STATED_TO_STRANGERS, Trial};

const RATES: [f64; 2] = [1.0, 75.0];

#[test]
fn a_balancer_that_goes_by_its_check_is_waited_for_and_no_longer() {
    for_all(LetsGo::ByCheck, 2);
}

#[test]
fn a_balancer_that_wants_three_failures_is_waited_for_and_no_longer() {
    for_all(LetsGo::ByCheck, 3);
}

#[test]
fn a_balancer_that_is_told_and_goes_on_checking_is_waited_for_and_no_longer() {
    for_all(LetsGo::Deregistered, 3);
}

#[test]
fn a_balancer_that_stops_checking_has_let_go() {
    for_all(LetsGo::Silenced, 2);
}

#[test]
fn the_slower_of_two_balancers_is_waited_for() {
    let quick = Checking::each_second(Kind::Haproxy, 2);
    let slow = Checking { period: Duration::from_secs(2), source: Ipv4Addr::new(127, 0, 0, 10), ..quick };
    let trial = Trial { balancers: &[quick, slow], lets_go: LetsGo::ByCheck, rates: &[5.0], pods: 2, stranger: false };
    let Some(pods) = run(&trial) else { return };
    assert!(pods.iter().any(|pod| pod.let_go[0] < pod.let_go[1]), "one is slower than the other");
}

#[test]
fn where_one_asked_once_and_never_again_the_stated_time_is_kept_and_told() {
    let trial = Trial {
        balancers: &[Checking::each_second(Kind::Haproxy, 2)],
        lets_go: LetsGo::ByCheck,
        rates: &[1.0],
        pods: 1,
        stranger: true,
    };
    let Some(pods) = run_unjudged(&trial) else { return };
    for pod in pods {
        let words = &pod.stopped.last_words;
        assert_eq!(pod.tally.lost(), 0, "{words}");
        let took = pod.stopped.took;
        assert!(took >= STATED_TO_STRANGERS && took < STATED_TO_STRANGERS + SLACK, "{took:?}: {words}");
        for told in ["(scrape/1.0), once", "a prober asked once and never again"] {
            assert!(words.contains(told), "{told:?} is not in {words}");
        }
    }
}

fn for_all(lets_go: LetsGo, threshold: u32) {
    thread::scope(|scope| {
        for kind in [Kind::Haproxy, Kind::Envoy] {
            let balancers = [Checking::each_second(kind, threshold)];
            scope.spawn(move || {
                run(&Trial { balancers: &balancers, lets_go, rates: &RATES, pods: 1, stranger: false });
            });
        }
    });
}

/// Runs it, and holds that each pod went when all had let go.
fn run(trial: &Trial) -> Option<Vec<Released>> {
    let pods = run_unjudged(trial)?;
    let faults: Vec<_> = pods.iter().flat_map(|pod| pod.faults(SLACK)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    Some(pods)
}

fn run_unjudged(trial: &Trial) -> Option<Vec<Released>> {
    if let Some(obstacle) = trial.obstacle() {
        eprintln!("SKIPPED: {:?}: {obstacle}", trial.balancers);
        return None;
    }
    Some(trial.run(1).unwrap_or_else(|error| panic!("{:?}: {error}", trial.balancers)))
}

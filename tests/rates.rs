//! A drain whose least length is the balancer's time loses nothing, at a request in five seconds as at 75 in one, and takes no
//! longer than it must. The short form of `cargo bench --bench drain_rates`.

mod common {
    pub mod load;
    pub mod pod;
    pub mod rates;
    pub mod wire;
}

use std::time::Duration;

use common::rates::{Drain, Group};

#[test]
fn nothing_is_lost_at_any_rate_where_the_balancers_time_is_stated() {
    if let Some(obstacle) = common::pod::missing(&[]) {
        eprintln!("SKIPPED: {obstacle}");
        return;
    }
    let group = |rate| Group { drain: Drain::STATED, rate, pods: 4, serves: Duration::from_secs(3) };
    let outcomes = common::rates::run(&[group(0.2), group(75.0)], 1).expect("the pods start and end");
    let faults: Vec<_> = outcomes.iter().flat_map(common::rates::Outcome::faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

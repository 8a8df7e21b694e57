//! A rolling deploy under load, once as most run it and once with sundown: `cargo run --release --example rolling_deploy`.
//!
//! All parts are here, on loopback: an app that has never heard of SIGTERM (this program once more, see `app`), a load
//! balancer that reuses connections and repeats nothing (`balancer`), and clients that repeat nothing either. Each instance
//! is replaced as Kubernetes does it: the new one serves before the old one gets its SIGTERM, and the balancer hears of
//! that 3 s late. Takes about 40 s. Fails if a request was lost with sundown.

mod app;
mod balancer;
mod board;
#[path = "../../tests/common"]
mod common {
    pub mod load;
    pub mod wire;
}
mod instance;
mod screen;

use std::collections::VecDeque;
use std::env;
use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use balancer::Balancer;
use board::{Board, State};
use common::load::{Load, QUICKEST, SLOWEST, Tally};
use instance::{Init, Instance, Stopped};
use screen::Screen;

/// Instances that serve at any time.
const INSTANCES: usize = 4;
/// Requests per second.
const RATE: u32 = 100;
/// From a SIGTERM until the balancer knows. In a cluster 1 to 3 s; behind a cloud's balancer much longer.
const LATE: Duration = Duration::from_secs(3);
/// The drain that follows: until the balancer knows, then the slowest answer, and 0.5 s to spare.
const DRAIN: Duration = LATE.saturating_add(SLOWEST).saturating_add(Duration::from_millis(500));
/// How long the first instances serve undisturbed.
const STEADY: Duration = Duration::from_secs(2);
/// From one SIGTERM to the next new instance.
const PACE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    if let Some(address) = app::address_from_arguments(env::args()) {
        return app::serve(address);
    }
    match compare() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rolling_deploy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare() -> io::Result<ExitCode> {
    let sundown = instance::built_sundown()?;
    println!(
        "\nRolling {INSTANCES} instances of an app without a SIGTERM handler, under {RATE} POST/s that it answers after\n\
         {QUICKEST:?} to {SLOWEST:?}. The balancer learns {LATE:?} late whom it must not ask any more. Nobody retries.\n"
    );
    let without = roll(&Init::None, "Plain: SIGTERM ends the app at once, as it does under tini")?;
    let with = roll(
        &Init::Sundown { binary: sundown, drain: DRAIN },
        &format!("sundown --drain-delay {DRAIN:?}: the app serves on, and hears then"),
    )?;
    screen::summary(&[("plain", &without.tally), ("sundown", &with.tally)]);
    if let Some(account) = with.stopped.first().and_then(|stopped| stopped.last_words.as_deref()) {
        println!("  What sundown said at the end of the first stop:\n    {account}\n");
    }
    if without.tally.lost() == 0 {
        println!("  Nothing was lost without sundown either: this machine was too busy to show a difference.\n");
    }
    if with.tally.lost() > 0 {
        println!(
            "  Requests were lost with sundown. Unless this machine stood still meanwhile, that is a bug: please report it.\n"
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// What came of one rolling deploy.
struct Outcome {
    tally: Tally,
    stopped: Vec<Stopped>,
}

fn roll(init: &Init, title: &str) -> io::Result<Outcome> {
    let board = Board::new();
    let balancer = Balancer::start(board.clone())?;
    let screen = Screen::start(title, board.clone());
    let start = || -> io::Result<Instance> {
        let instance = Instance::start(init, board.add())?;
        balancer.add(instance.number, instance.address);
        board.set(instance.number, State::Serving);
        Ok(instance)
    };
    let mut serving = (0..INSTANCES).map(|_| start()).collect::<io::Result<VecDeque<_>>>()?;

    let load = Load::start(balancer.address, RATE);
    thread::sleep(STEADY);
    let stopped: io::Result<Vec<Stopped>> = thread::scope(|scope| {
        let mut retiring = Vec::new();
        for _ in 0..INSTANCES {
            serving.push_back(start()?);
            let old = serving.pop_front().expect("there are always some");
            retiring.push(scope.spawn(|| retire(old, &balancer, &board)));
            thread::sleep(PACE);
        }
        retiring.into_iter().map(|thread| thread.join().expect("retiring does not panic")).collect()
    });
    let (stopped, tally) = (stopped?, load.finish());
    drop(screen);
    Ok(Outcome { tally, stopped })
}

/// What happens to an instance from its SIGTERM on.
fn retire(old: Instance, balancer: &Balancer, board: &Board) -> io::Result<Stopped> {
    let number = old.number;
    board.set(number, State::Asked);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(LATE);
            balancer.remove(number);
        });
        let stopped = old.stop();
        board.set(number, State::Gone);
        stopped
    })
}

//! Whole drains, measured: how often early, and how late.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Client, Server};

/// How the clients of a drain behave.
#[derive(Clone, Copy)]
struct Habit {
    name: &'static str,
    ask: fn(&mut Client, &str),
    /// The longest pause before the next request.
    think: Duration,
}

/// Whole drains: traffic, every twentieth request of which takes 3 s, stops 2 s after the looking begins. Nothing may be in
/// flight when it is quiet for a second, and that must be seen soon.
#[test]
#[ignore = "it takes three minutes; run it alone: cargo test drains -- --ignored --nocapture"]
fn drains_end_neither_early_nor_late() {
    let think = Duration::from_millis(800);
    let habits = [
        Habit { name: "busy proxy", ask: Client::ask, think: Duration::ZERO },
        Habit { name: "thinking clients", ask: Client::ask, think },
        Habit { name: "busy proxy, requests in parts", ask: Client::ask_in_parts, think: Duration::ZERO },
        Habit { name: "thinking clients, requests in parts", ask: Client::ask_in_parts, think },
    ];
    for habit in habits {
        let mut late: Vec<Duration> = (0..10).flat_map(|round| drain_both(habit, round)).collect();
        late.sort_unstable();
        println!(
            "{}: {} drains, none early, late by {:?}, {:?}, {:?}",
            habit.name,
            late.len(),
            late[0],
            late[late.len() / 2],
            late[late.len() - 1]
        );
    }
}

/// One drain of each server, side by side.
fn drain_both(habit: Habit, round: u64) -> Vec<Duration> {
    let (_shared, servers) = Server::all();
    std::thread::scope(|scope| {
        let drains: Vec<_> = servers.iter().map(|server| scope.spawn(move || drain(server, habit, round))).collect();
        drains.into_iter().map(|drain| drain.join().expect("a drain")).collect()
    })
}

/// From the last answer to the end of the drain.
fn drain(server: &Server, habit: Habit, round: u64) -> Duration {
    let (stop, waiting) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|at| {
                scope.spawn({
                    let (stop, waiting) = (&stop, &waiting);
                    move || be_a_client(server, habit, round * 8 + at, stop, waiting)
                })
            })
            .collect();
        let mut watch = server.watch();
        watch.until("two seconds", |watch, _| watch.start.elapsed() > Duration::from_secs(2));
        stop.store(true, Ordering::SeqCst);
        watch.until_quiet(Duration::from_secs(1));
        let ended = Instant::now();
        assert_eq!(waiting.load(Ordering::SeqCst), 0, "{}: early", habit.name);
        let last = clients.into_iter().map(|client| client.join().expect("a client").1).max().expect("an answer");
        ended.saturating_duration_since(last)
    })
}

/// Asks until it is told to stop. The connection stays open.
fn be_a_client(
    server: &Server,
    habit: Habit,
    seed: u64,
    stop: &AtomicBool,
    waiting: &AtomicUsize,
) -> (Client, Instant) {
    let (mut client, mut last) = (server.connect(), Instant::now());
    for turn in 0.. {
        let chance = (seed * 7919 + turn).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        std::thread::sleep(habit.think.mul_f64((chance % 1000) as f64 / 1000.0));
        if stop.load(Ordering::SeqCst) {
            break;
        }
        waiting.fetch_add(1, Ordering::SeqCst);
        (habit.ask)(&mut client, if chance.is_multiple_of(20) { "/slow" } else { "/" });
        client.answer();
        last = Instant::now();
        waiting.fetch_sub(1, Ordering::SeqCst);
    }
    (client, last)
}

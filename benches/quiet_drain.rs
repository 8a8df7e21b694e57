//! Whole drains of a node service under load that stops: how often a drain ends before the last answer, and how late after
//! it. Then what it costs to look at ten thousand connections.
//!
//!     cargo bench --bench quiet_drain                # about three minutes
//!     cargo bench --bench quiet_drain -- --short     # under half a minute
//!     cargo bench --bench quiet_drain -- thinking    # only what has the word in its name
//!
//! Needs root, node and ip(8). Fails if a request was lost, if more than one drain in twenty was late, and if looking takes
//! more than 5 % of a core.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/http.rs"]
mod http;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::clients::{Client, Clients, Habit};
use common::instance::{Instance, Launch, until};
use common::network;

const SERVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/node-service/server.js");
/// Of each habit.
const DRAINS: usize = 20;
/// Side by side: more would measure the machine.
const AT_ONCE: usize = 5;
/// The load goes on for this long after the stop request.
const LOAD: Duration = Duration::from_millis(1500);
/// The window of quiet, and a second for the rest.
const IN_TIME: Duration = Duration::from_secs(2);
/// The same with the time for which what cannot be decided counts as busy.
const UNDECIDED: Duration = Duration::from_secs(7);

/// Habits, and how late a drain may be.
const HABITS: [(Habit, Duration); 7] = [
    (Habit::BUSY_PROXY, IN_TIME),
    (Habit::THINKING, IN_TIME),
    (Habit::BUSY_PROXY.with_a_slow_last("busy proxy, slow last"), IN_TIME),
    (Habit::THINKING.with_a_slow_last("thinking, slow last"), IN_TIME),
    (Habit { name: "thinking, answered at once", answer: (0, 1), ..Habit::THINKING }, IN_TIME),
    (Habit { name: "thinking, sent in two", in_two: true, ..Habit::THINKING }, IN_TIME),
    // A request in several segments and its answer in one tick of the kernel: nothing tells which came last.
    (Habit { name: "thinking, in two, at once", in_two: true, answer: (0, 1), ..Habit::THINKING }, UNDECIDED),
];
/// How many of them `--short` tries.
const SHORT: usize = 2;

const CONNECTIONS: usize = 10_000;
/// How long those are looked at.
const LOOK: Duration = Duration::from_secs(5);
/// The most of a core that it may take. It is 3 % where nothing else runs; the same work is dearer on a busy machine.
const SHARE: f64 = 0.05;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("quiet_drain takes minutes: run it with `cargo bench --bench quiet_drain`");
        return ExitCode::SUCCESS;
    }
    if !network::own() || !common::has_tools(&["node"]) {
        return ExitCode::SUCCESS;
    }
    let wanted = |name: &str| arguments.iter().all(|word| word.starts_with("--") || name.contains(word.as_str()));
    let is_short = arguments.iter().any(|argument| argument == "--short");
    let (habits, drains) = if is_short { (&HABITS[..SHORT], AT_ONCE) } else { (&HABITS[..], DRAINS) };
    println!("8 connections to each service; the load stops {LOAD:?} after the stop request, and the window is 1 s\n");
    let wanted_habits = habits.iter().filter(|(habit, _)| wanted(habit.name));
    let mut failures: Vec<String> =
        wanted_habits.filter_map(|(habit, in_time)| drain_often(*habit, drains, *in_time)).collect();
    if wanted("many connections") {
        failures.extend(look_at_many());
    }
    failures.iter().for_each(|failure| println!("FAILED: {failure}"));
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what came of the drains, and gives what speaks against it.
fn drain_often(habit: Habit, count: usize, in_time: Duration) -> Option<String> {
    let seeds: Vec<u64> = (0..count as u64).collect();
    let some_at_once = |seeds: &[u64]| {
        let begun: Vec<_> = seeds.iter().map(|&seed| std::thread::spawn(move || drain(habit, seed, in_time))).collect();
        begun.into_iter().map(|drain| drain.join().expect("a drain")).collect::<Vec<_>>()
    };
    let drains: Vec<Drain> = seeds.chunks(AT_ONCE).flat_map(some_at_once).collect();
    let early = drains.iter().filter(|drain| drain.failed > 0).count();
    let answered: usize = drains.iter().map(|drain| drain.answered).sum();
    let mut late: Vec<Duration> = drains.iter().map(|drain| drain.late).collect();
    late.sort_unstable();
    let too_late = late.iter().filter(|late| **late > in_time).count();
    println!(
        "{:<28}early {early} of {count}, {answered} answers; late by {:.2?}, 95 % by {:.2?}, most by {:.2?}",
        habit.name,
        late[count / 2],
        late[count * 19 / 20 - 1],
        late[count - 1]
    );
    let fails = early > 0 || too_late > count / 20;
    fails.then(|| format!("{}: {early} early, {too_late} late by more than {in_time:?}", habit.name))
}

/// How one drain went.
struct Drain {
    answered: usize,
    failed: usize,
    /// From the last answer to the end.
    late: Duration,
}

fn service(options: &[&str]) -> (Instance, SocketAddr) {
    let address = http::free_address();
    let launch = Launch::sundown(&[&["--log-format", "text", "--drain-delay", "200ms"], options].concat());
    let launch = launch.env("PORT", address.port().to_string()).env("HOST", address.ip().to_string());
    // Its idle connections stay open for as long as anybody looks at them.
    let patient = "require(process.argv[1]).keepAliveTimeout = 60e3";
    let instance = launch.start(&["node", "-e", patient, SERVICE]);
    http::wait_for_status(address, "/health", 200);
    (instance, address)
}

fn drain(habit: Habit, seed: u64, in_time: Duration) -> Drain {
    let (mut instance, address) = service(&["--drain-timeout", "18s"]);
    let clients = Clients::start(address, habit, seed);
    until("each has had some answers", || clients.answered() >= habit.connections * 4);
    instance.signal(libc::SIGTERM);
    std::thread::sleep(LOAD);
    clients.enough();
    instance.wait();
    let ended = Instant::now();
    let outcome = clients.outcome();
    let late = ended.saturating_duration_since(outcome.last);
    if late > in_time || outcome.failed > 0 {
        eprintln!("{}: late by {late:?}, {} failed: {}", habit.name, outcome.failed, instance.log());
    }
    Drain { answered: outcome.answered, failed: outcome.failed, late }
}

/// What it costs to look at idle connections, while a request is in flight.
fn look_at_many() -> Option<String> {
    let most = common::raise_open_files() as usize;
    let count = CONNECTIONS.min(most.saturating_sub(200));
    let (instance, address) = service(&["--drain-timeout", "18s"]);
    let mut clients: Vec<Client> = (0..count).map(|_| Client::connect(address)).collect();
    for client in &mut clients {
        assert_eq!(client.work(0).expect("an answer"), 200);
    }
    clients[0].ask(15_000).expect("a request");
    instance.signal(libc::SIGTERM);
    std::thread::sleep(Duration::from_secs(1));
    let (before, resident) = (common::cpu_time(instance.pid), common::memory(instance.pid).0);
    let began = Instant::now();
    std::thread::sleep(LOOK);
    let share = (common::cpu_time(instance.pid) - before).as_secs_f64() / began.elapsed().as_secs_f64();
    let grown = common::memory(instance.pid).0;
    println!(
        "{count} connections: {:.1} % of a core; resident {} kB after 1 s, {} kB after 6 s",
        share * 100.0,
        resident / 1024,
        grown / 1024
    );
    (share > SHARE).then(|| format!("{count} connections: {:.1} % of a core", share * 100.0))
}

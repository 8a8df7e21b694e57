//! How many TERMs are lost by an init that has only just been started: `docker stop` right after `docker run`.
//!
//! Each init is started as PID 1 of a PID namespace with `sleep` behind it, and gets one SIGTERM a random 0 to 1 ms after
//! /proc/PID/cmdline shows it, which is when its exec has begun. PID 1 is not killed by a signal that it has no handler
//! for: the kernel throws it away. So the TERM is lost if the container still runs a second later. The inits take turns,
//! so that a busy moment of the machine hits them alike.
//!
//!     cargo bench --bench start_signals [-- ROUNDS]      250 rounds if not said otherwise

#[path = "../tests/common/bare.rs"]
mod bare;

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bare::{Bare, Process};

const SUNDOWN: &str = env!("CARGO_BIN_EXE_sundown");
/// For comparison, where they are installed.
const OTHERS: [&str; 3] = ["/usr/bin/tini-static", "/usr/bin/dumb-init", "/usr/bin/catatonit"];

const ROUNDS: usize = 250;
/// The TERM comes within this time of the exec.
const WINDOW: Duration = Duration::from_millis(1);
/// A container that still runs after this time has lost it.
const PATIENCE: Duration = Duration::from_secs(1);

struct Init {
    path: &'static str,
    sent: usize,
    lost: usize,
}

/// Started and signalled, not known to have ended.
struct Open {
    init: usize,
    process: Process,
    limit: Instant,
}

fn main() -> ExitCode {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: signals at start: a PID namespace needs root");
        return ExitCode::SUCCESS;
    }
    let rounds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(ROUNDS);
    let mut random = Random::by_the_clock();
    let mut inits: Vec<Init> = [SUNDOWN].into_iter().chain(OTHERS).filter_map(Init::find).collect();
    let mut open = Vec::new();
    for _ in 0..rounds {
        for (at, init) in inits.iter_mut().enumerate() {
            let process = init.start_and_stop(random.below(WINDOW));
            open.push(Open { init: at, process, limit: Instant::now() + PATIENCE });
        }
        settle(&mut open, &mut inits);
    }
    while !open.is_empty() {
        std::thread::sleep(Duration::from_millis(5));
        settle(&mut open, &mut inits);
    }
    report(&inits)
}

impl Init {
    fn find(path: &'static str) -> Option<Self> {
        let found = std::path::Path::new(path).exists();
        if !found {
            println!("SKIPPED: {path} is not installed");
        }
        found.then_some(Self { path, sent: 0, lost: 0 })
    }

    fn start_and_stop(&mut self, delay: Duration) -> Process {
        let process = Bare::new(&[self.path, "--", "/bin/sleep", "30"]).pid1(true).start();
        while !process.command_line().starts_with(self.path.as_bytes()) {
            std::hint::spin_loop();
        }
        let then = Instant::now() + delay;
        while Instant::now() < then {
            std::hint::spin_loop();
        }
        process.signal(libc::SIGTERM);
        self.sent += 1;
        process
    }
}

/// Drops those that have ended, and counts those that have not in time.
fn settle(open: &mut Vec<Open>, inits: &mut [Init]) {
    open.retain(|open| {
        let running = open.process.ended().is_none();
        let lost = running && Instant::now() > open.limit;
        inits[open.init].lost += usize::from(lost);
        running && !lost
    });
}

fn report(inits: &[Init]) -> ExitCode {
    println!("TERM within {WINDOW:?} of the start, as PID 1:");
    for init in inits {
        let name = init.path.rsplit('/').next().unwrap_or_default();
        println!("  {name:<12} lost {:>3} of {}", init.lost, init.sent);
    }
    let best = inits.iter().skip(1).map(|init| init.lost).min();
    match (inits.first(), best) {
        // One is let off: at so few, chance decides.
        (Some(ours), Some(best)) if ours.lost > best / 2 + 1 => {
            println!("FAILED: sundown loses more than half of the best of the others");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Xorshift (Marsaglia 2003): the delays need no better.
struct Random(u64);

impl Random {
    fn by_the_clock() -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(time.as_nanos() as u64 | 1)
    }

    fn below(&mut self, limit: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_nanos(self.0 % limit.as_nanos() as u64)
    }
}

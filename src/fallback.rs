//! What takes over after a panic of ours: a bug in the luxury must not be the app's end.
//!
//! The panic hook never returns. It says what happened and then does the least that an init must do, with no runtime, no
//! endpoint and no drain: it forwards signals to the child, reaps, keeps the stated deadline, and exits with the child's
//! code. All that it needs to know stands in a few words that the supervisor keeps up.

use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::child::end::Ended;
use crate::report::log;
use crate::signals::{self, DefaultAction, SigSet, Signal};
use crate::tree::process::{Reader, Stat};

/// The child's pid; 0 before it is started.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// The child's wait status once it has been reaped; -1 before.
static STATUS: AtomicI32 = AtomicI32::new(-1);
/// The stated limit less the margin, in milliseconds; -1 where none is stated.
static LIMIT: AtomicI64 = AtomicI64::new(-1);
/// What is left of it, counted from when a stop was asked for; -1 before.
static DEADLINE: AtomicI64 = AtomicI64::new(-1);
/// Whether a stop was asked for.
static ASKED: AtomicBool = AtomicBool::new(false);
/// Whether the apps have been told.
static TOLD: AtomicBool = AtomicBool::new(false);

/// How long leftovers may take after the child's end.
const LINGER: Duration = Duration::from_secs(5);
/// How long one wait is: for the deadline's sake, and because the kernel need not say SIGCHLD twice.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long the killing may take.
const KILLING: Duration = Duration::from_secs(1);

/// Sets the hook. `limit` is the stated grace period less the margin.
pub fn install(limit: Option<Duration>) {
    LIMIT.store(limit.map_or(-1, |limit| limit.as_millis() as i64), Ordering::Relaxed);
    std::panic::set_hook(Box::new(|info| take_over(info)));
}

/// The child has been started.
pub fn note_child(pid: i32) {
    CHILD.store(pid, Ordering::Relaxed);
}

/// The child has been reaped.
pub fn note_status(status: i32) {
    STATUS.store(status, Ordering::Relaxed);
}

/// A stop was asked for; all must be over at this moment of CLOCK_MONOTONIC, in milliseconds.
pub fn note_stop(deadline: Option<Duration>) {
    ASKED.store(true, Ordering::Relaxed);
    DEADLINE.store(deadline.map_or(-1, |left| monotonic() + left.as_millis() as i64), Ordering::Relaxed);
}

/// The apps have been told.
pub fn note_told() {
    TOLD.store(true, Ordering::Relaxed);
}

fn monotonic() -> i64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() * 1000 + time.tv_nsec() / 1_000_000)
}

fn take_over(info: &PanicHookInfo<'_>) -> ! {
    log::plain(format_args!(
        "error: a bug in sundown: {info}; readiness and the drain are lost, signals and exit codes are not"
    ));
    let child = CHILD.load(Ordering::Relaxed);
    if child == 0 {
        exit(1);
    }
    let mut minimal =
        Minimal { child, status: Some(STATUS.load(Ordering::Relaxed)).filter(|status| *status >= 0), left: None };
    if ASKED.load(Ordering::Relaxed) && !TOLD.load(Ordering::Relaxed) {
        minimal.stop(Signal::TERM);
    }
    minimal.run()
}

fn exit(code: u8) -> ! {
    // SAFETY: ends the process; nothing of ours has to be run before.
    unsafe { libc::_exit(i32::from(code)) }
}

struct Minimal {
    child: i32,
    status: Option<i32>,
    /// When leftovers are no longer waited for.
    left: Option<Instant>,
}

impl Minimal {
    fn run(mut self) -> ! {
        loop {
            self.reap();
            if self.deadline_is_over() {
                self.kill();
            }
            if let Some(arrival) = signals::wait(SigSet::ALL, Some(PATIENCE)) {
                self.take(arrival.signal);
            }
        }
    }

    /// Reaps all there is to reap, and exits when nothing is left to wait for.
    fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: the pointer is to a number of ours.
            match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
                0 => break,
                pid if pid == self.child => self.status = Some(status),
                pid if pid > 0 => {}
                _ if nix::errno::Errno::last() == nix::errno::Errno::EINTR => {}
                _ => exit(self.code()),
            }
        }
        if self.status.is_some() && self.left.get_or_insert_with(|| Instant::now() + LINGER) <= &mut Instant::now() {
            exit(self.code());
        }
    }

    fn code(&self) -> u8 {
        self.status.and_then(Ended::from_status).map_or(1, Ended::code)
    }

    fn deadline_is_over(&self) -> bool {
        let deadline = DEADLINE.load(Ordering::Relaxed);
        deadline >= 0 && monotonic() >= deadline
    }

    /// As PID 1 our exit kills the rest. As another PID we kill our children until none is left: what they leave behind
    /// comes to us, the subreaper, and is killed in turn.
    fn kill(&mut self) -> ! {
        let limit = Instant::now() + KILLING;
        if self.status.is_none() {
            let _ = signals::send(-self.child, Signal::KILL);
        }
        while std::process::id() != 1 && Instant::now() < limit && kill_children() {
            std::thread::sleep(Duration::from_millis(5));
        }
        exit(128 + Signal::KILL.number() as u8)
    }

    fn take(&mut self, signal: Signal) {
        match signal {
            Signal::CHLD => {}
            Signal::TERM | Signal::INT | Signal::HALT => self.stop(Signal::TERM),
            _ if self.status.is_none() && self.is_safe(signal) => {
                let _ = signals::send(self.child, signal);
            }
            _ => {}
        }
    }

    /// Once: many programs take the second for "abort".
    fn stop(&mut self, signal: Signal) {
        if !ASKED.swap(true, Ordering::Relaxed) {
            let limit = LIMIT.load(Ordering::Relaxed);
            DEADLINE.store(if limit < 0 { -1 } else { monotonic() + limit }, Ordering::Relaxed);
        }
        if !TOLD.swap(true, Ordering::Relaxed) && self.status.is_none() {
            let _ = signals::send(self.child, signal);
        }
    }

    /// Whether the signal would not kill or stop a child that does not catch it.
    fn is_safe(&self, signal: Signal) -> bool {
        let mut reader = Reader::default();
        let catches = reader.mask(self.child, true).surely_catches(signal);
        catches || matches!(signal.default_action(), DefaultAction::Ignore | DefaultAction::Continue)
    }
}

/// Reaps, and kills whoever is a child of ours; false if nobody is.
fn kill_children() -> bool {
    // SAFETY: null asks for no status.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
    let me = std::process::id() as i32;
    let mut reader = Reader::default();
    let mut found = false;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let stat = pid.and_then(|pid| reader.read(pid, "stat").ok().and_then(Stat::parse));
        if let Some(stat) = stat.filter(|stat| stat.parent == me) {
            found = true;
            let _ = signals::send(stat.key.pid, Signal::KILL);
        }
    }
    found
}

//! How it ended, told apart: an exit code of 137 alone says neither who killed nor why. Pure.

use std::fmt;

use crate::cgroup::bytes;
use crate::child::end::Ended;
use crate::lifecycle::{KillReason, Outcome};
use crate::signals::{SigSet, Signal};

#[cfg(test)]
mod tests;

/// The kinds of end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It exited, on its own account or because it was told to.
    ByItself {
        /// With this code.
        code: u8,
    },
    /// A signal that sundown sent or passed on has ended it.
    BySignalOfOurs {
        /// Which.
        signal: Signal,
        /// Whether a core was dumped.
        core: bool,
    },
    /// sundown has killed it.
    KilledBySundown {
        /// Why; none where SIGKILL is one of the stop signals.
        why: Option<KillReason>,
    },
    /// The kernel has killed it, or the one whose end it tells by its code, for want of memory.
    OutOfMemory {
        /// How it ended itself.
        ended: Ended,
        /// The limit in bytes, if there is one.
        limit: Option<u64>,
    },
    /// A signal has ended it that came neither from sundown nor from what it did itself.
    KilledFromOutside {
        /// Which.
        signal: Signal,
        /// Whether it is known that it was not for want of memory.
        certain: bool,
    },
    /// It did what is not allowed, and a signal for that has ended it.
    Crashed {
        /// Which.
        signal: Signal,
        /// Whether a core was dumped.
        core: bool,
    },
    /// It could not be executed.
    NotStarted,
}

/// Whether the kernel has killed it for want of memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Oom {
    /// It does not tell us.
    #[default]
    Untold,
    /// It has not.
    No,
    /// It has.
    Yes {
        /// The limit in bytes, if there is one: without it, the machine's memory or that of a group above was used up.
        limit: Option<u64>,
    },
}

impl Ending {
    /// Tells it from what has been seen: the signals that we sent or passed on, and whether it was for want of memory.
    pub fn of(outcome: &Outcome, sent: SigSet, oom: Oom) -> Self {
        // The leftovers' kill does not concern the one whose end counts.
        let enforced = outcome.killed.filter(|why| *why != KillReason::Linger || outcome.survivors);
        let Some(ended) = outcome.ended.filter(|_| enforced.is_none()) else {
            return Self::KilledBySundown { why: outcome.killed };
        };
        match (ended, oom) {
            (Ended::Signalled { signal: Signal::KILL, .. }, _) if sent.contains(Signal::KILL) => {
                Self::KilledBySundown { why: None }
            }
            (Ended::Signalled { signal: Signal::KILL, .. } | Ended::Exited(KILLED), Oom::Yes { limit }) => {
                Self::OutOfMemory { ended, limit }
            }
            (Ended::Exited(code), _) => Self::ByItself { code },
            (Ended::Signalled { signal, core }, _) if sent.contains(signal) => Self::BySignalOfOurs { signal, core },
            (Ended::Signalled { signal, core }, _) if core || is_fault(signal) || is_own_doing(signal) => {
                Self::Crashed { signal, core }
            }
            (Ended::Signalled { signal, .. }, oom) => Self::KilledFromOutside { signal, certain: oom != Oom::Untold },
        }
    }

    /// The name that a machine goes by. It stays.
    pub fn name(self) -> &'static str {
        match self {
            Self::ByItself { .. } => "exited",
            Self::BySignalOfOurs { .. } => "stopped",
            Self::KilledBySundown { .. } => "killed_by_sundown",
            Self::OutOfMemory { .. } => "oom_killed",
            Self::KilledFromOutside { .. } => "killed_from_outside",
            Self::Crashed { .. } => "crashed",
            Self::NotStarted => "not_started",
        }
    }

    /// The signal that has ended it.
    pub fn signal(self) -> Option<Signal> {
        match self {
            Self::BySignalOfOurs { signal, .. }
            | Self::KilledFromOutside { signal, .. }
            | Self::Crashed { signal, .. }
            | Self::OutOfMemory { ended: Ended::Signalled { signal, .. }, .. } => Some(signal),
            Self::KilledBySundown { .. } => Some(Signal::KILL),
            Self::OutOfMemory { ended: Ended::Exited(_), .. } | Self::ByItself { .. } | Self::NotStarted => None,
        }
    }

    /// Whether it is worth a word although nobody asked for a stop. What a terminal's key or a closed pipe has ended is not.
    pub fn is_a_mishap(self) -> bool {
        match self {
            Self::OutOfMemory { .. } | Self::KilledFromOutside { signal: Signal::KILL, .. } => true,
            Self::Crashed { signal, core } => core || is_fault(signal),
            _ => false,
        }
    }

    /// Whether what the app has said itself tells more than we can.
    pub fn speaks_for_itself(self) -> bool {
        matches!(self, Self::Crashed { .. })
    }
}

/// What the kernel sends for what a program must not do, or libc for what it found broken.
fn is_fault(signal: Signal) -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSTKFLT, SIGSYS, SIGTRAP, SIGXCPU, SIGXFSZ};
    matches!(
        signal.number(),
        SIGILL | SIGTRAP | SIGABRT | SIGBUS | SIGFPE | SIGSEGV | SIGSTKFLT | SIGXCPU | SIGXFSZ | SIGSYS
    )
}

/// What the kernel sends since the program has asked for it, or writes to nobody.
fn is_own_doing(signal: Signal) -> bool {
    matches!(signal.number(), libc::SIGPIPE | libc::SIGALRM | libc::SIGVTALRM | libc::SIGPROF)
}

/// What a shell gives for a SIGKILL.
const KILLED: u8 = 128 + 9;

impl fmt::Display for Ending {
    /// What has become of "the app".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ByItself { code } => write!(f, "{}", Ended::Exited(code)),
            Self::BySignalOfOurs { signal, core } => write!(f, "{}", Ended::Signalled { signal, core }),
            Self::KilledBySundown { .. } => f.write_str("was killed by sundown"),
            Self::OutOfMemory { ended, limit } => {
                match ended {
                    Ended::Exited(code) => write!(f, "exited with {code} since what it ran ")?,
                    Ended::Signalled { .. } => {}
                }
                f.write_str("was killed for want of memory (OOM: SIGKILL from the kernel")?;
                match limit {
                    Some(limit) => write!(f, "; the limit is {})", bytes(limit)),
                    None => f.write_str(")"),
                }
            }
            Self::KilledFromOutside { signal: Signal::KILL, certain: true } => {
                f.write_str("was killed from outside (SIGKILL, not by sundown)")
            }
            Self::KilledFromOutside { signal: Signal::KILL, certain: false } => f.write_str(
                "was killed from outside (SIGKILL, not by sundown; whether for want of memory cannot be seen here)",
            ),
            Self::KilledFromOutside { signal, .. } => write!(f, "was ended by {signal}, not by sundown"),
            Self::Crashed { signal, core: false } => write!(f, "crashed by {signal}"),
            Self::Crashed { signal, core: true } => write!(f, "crashed by {signal} and dumped core"),
            Self::NotStarted => f.write_str("could not be started"),
        }
    }
}

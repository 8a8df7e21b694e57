//! How a process ended, and the exit code that says it.

use std::fmt;

use crate::signals::Signal;

/// The end of a process, from its wait status (wait(2)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ended {
    /// It exited with this code.
    Exited(u8),
    /// A signal ended it.
    Signalled {
        /// Which.
        signal: Signal,
        /// Whether a core was dumped.
        core: bool,
    },
}

impl Ended {
    /// Reads a wait status; none if it tells of a stop or a continuation.
    pub fn from_status(status: i32) -> Option<Self> {
        if libc::WIFEXITED(status) {
            return Some(Self::Exited(libc::WEXITSTATUS(status) as u8));
        }
        if !libc::WIFSIGNALED(status) {
            return None;
        }
        Some(Self::Signalled { signal: Signal::new(libc::WTERMSIG(status))?, core: libc::WCOREDUMP(status) })
    }

    /// The exit code as a shell gives it: its own, or 128 and the signal's number.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled { signal, .. } => 128 + signal.number() as u8,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with {code}"),
            Self::Signalled { signal, core: false } => write!(f, "was ended by {signal}"),
            Self::Signalled { signal, core: true } => write!(f, "was ended by {signal} and dumped core"),
        }
    }
}

//! How one init differs from another, and what it says when.

use std::ffi::OsStr;

use nix::errno::Errno;

use super::{catatonit, dumb_init, tini};
use crate::child::end::Ended;
use crate::signals::{SigSet, Signal};

/// How a child is looked after.
#[derive(Debug)]
pub(super) struct Habits {
    /// What is said of it.
    pub(super) voice: Voice,
    /// Who hears a signal.
    pub(super) whom: Whom,
    /// Where the child is put.
    pub(super) home: Home,
    /// The signals whose default action is let happen to us: the marks of a bug.
    pub(super) left_alone: SigSet,
    /// The signals that end with us.
    pub(super) unheard: SigSet,
    /// As what signals are passed on.
    pub(super) rewrites: Rewrites,
    /// Whether a stop signal of a terminal's stops us as well, once it has been passed on.
    pub(super) stops_too: bool,
    /// Whether the child gets no blocked and no ignored signals, whatever we were given.
    pub(super) clears_signals: bool,
    /// What the group hears when the child has ended.
    pub(super) farewell: Option<Signal>,
    /// The exit codes that count as 0.
    pub(super) forgiven: Vec<u8>,
    /// Whether orphans are to come to us.
    pub(super) subreaper: Subreaper,
    /// What we hear when our parent ends.
    pub(super) parent_death: Option<Signal>,
    /// Whether we leave the directory that we were started in.
    pub(super) leaves_directory: bool,
    /// Whether we close what we were given beside 0, 1 and 2.
    pub(super) closes_files: bool,
    /// Whether the child gets the sockets that were meant for us (LISTEN_PID).
    pub(super) hands_listeners_on: bool,
    /// Whether there is no child at all.
    pub(super) pauses: bool,
}

/// Who hears a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whom {
    /// The child.
    Child,
    /// Its group.
    Group,
}

/// Where the child is put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Home {
    /// Into our group.
    Ours,
    /// Into a group of its own, with the terminal.
    Group,
    /// Into a session of its own, with the terminal.
    Session,
}

/// Whether orphans are to come to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subreaper {
    /// To PID 1 only.
    No,
    /// Yes.
    Yes,
    /// To a PID 1 they come anyway.
    UnlessPid1,
}

/// As what signals are passed on, 1 to 31.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Rewrites(Vec<(Signal, Option<Signal>)>);

impl Rewrites {
    /// Notes one; the last for a signal holds. None drops it.
    pub(super) fn set(&mut self, from: Signal, to: Option<Signal>) {
        self.0.retain(|(known, _)| *known != from);
        self.0.push((from, to));
    }

    /// What was noted for a signal.
    pub(super) fn get(&self, from: Signal) -> Option<Option<Signal>> {
        self.0.iter().find(|(known, _)| *known == from).map(|(_, to)| *to)
    }

    /// All of them.
    pub(super) fn pairs(&self) -> Vec<(Signal, Option<Signal>)> {
        self.0.clone()
    }
}

/// The marks of a bug, which the C inits leave to the kernel.
pub(super) const BUGS: [Signal; 7] =
    [Signal::ILL, Signal::TRAP, Signal::ABRT, Signal::BUS, Signal::FPE, Signal::SEGV, Signal::SYS];

/// The signals by which a terminal stops a job.
pub(super) const STOPS: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];

/// What has happened.
pub(super) enum News<'a> {
    /// We begin.
    Begun,
    /// Orphans come to us from now on.
    Subreaper,
    /// They could not be made to.
    NoSubreaper(Errno),
    /// They do not, and we are not PID 1.
    NoReaper,
    /// The signal for our parent's end could not be set.
    NoParentDeath,
    /// We have let go of the terminal, as its session's leader or as another process of it.
    Detached(nix::Result<Leader>),
    /// There could be no child.
    NoChild(Errno),
    /// There is one.
    Spawned { pid: i32, program: &'a OsStr },
    /// It could not become its program.
    NotExecuted { pid: i32, program: &'a OsStr, errno: Errno },
    /// A signal has come.
    Arrived(Signal),
    /// The terminal's change of hands made it; it means nothing.
    HandOff(Signal),
    /// It ends with us.
    Unheard(Signal),
    /// It is to be another.
    Rewritten(Signal, Signal),
    /// It is to be none.
    Dropped(Signal),
    /// It is about to be passed on.
    Passing(Signal),
    /// It was, or could not be.
    Passed(Signal, nix::Result<()>),
    /// We stop as well.
    Stopping,
    /// A child was reaped.
    Reaped { pid: i32, ended: Ended, is_ours: bool },
    /// None is left to reap now, or at all.
    NoneToReap { none_left: bool },
    /// We exit with this code.
    Leaving(u8),
}

/// Whether we led the session whose terminal we have let go of.
pub(super) struct Leader(pub(super) bool);

/// What is said of all that, to whom and when.
#[derive(Debug)]
pub(super) enum Voice {
    Tini(tini::Voice),
    DumbInit(dumb_init::Voice),
    Catatonit(catatonit::Voice),
}

impl Voice {
    pub(super) fn tell(&self, news: News) {
        match self {
            Self::Tini(voice) => voice.tell(news),
            Self::DumbInit(voice) => voice.tell(news),
            Self::Catatonit(voice) => voice.tell(news),
        }
    }
}

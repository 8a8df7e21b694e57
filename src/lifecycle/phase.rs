//! Where a container is in its life.

use super::{KillReason, Lull, Moment};

/// The phases.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Not ready yet.
    Starting,
    /// Serving.
    Running,
    /// Serving, and readiness fails.
    Draining {
        /// When the app is told at the soonest.
        least: Moment,
        /// And at the latest, whatever the traffic does.
        greatest: Moment,
        /// How the traffic stands.
        lull: Lull,
    },
    /// The app has been told.
    Stopping(Stopping),
    /// SIGKILL has been sent.
    Killing {
        /// Why.
        why: KillReason,
        /// When we go all the same.
        until: Moment,
    },
    /// Over.
    Exited,
}

impl Phase {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Draining { .. } => "draining",
            Self::Stopping(_) => "stopping",
            Self::Killing { .. } => "killing",
            Self::Exited => "exited",
        }
    }
}

/// The names of all phases, in order.
pub const PHASES: [&str; 6] = ["starting", "running", "draining", "stopping", "killing", "exited"];

/// Where we are in the stopping phase.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stopping {
    /// The next rung of the ladder and its moment.
    pub(super) climb: Option<(usize, Moment)>,
    /// When those who got more time are told.
    pub(super) patient: Option<Moment>,
    /// When KILL comes, and why.
    pub(super) kill: Option<(Moment, KillReason)>,
    /// How far an impatient user has come.
    pub(super) interrupts: Interrupts,
}

/// How far somebody at the keyboard has come since the app was told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Interrupts {
    /// Nowhere.
    None,
    /// It was said that the next one kills.
    Warned,
}

/// Whether the ready check passes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Readiness {
    /// It never has.
    Never,
    /// It does.
    Yes,
    /// It does not any more.
    No,
}

/// The one clock: it starts at the first stop request and is never set again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Clock {
    /// When the stop was asked for.
    pub start: Moment,
    /// When all must be over.
    pub deadline: Option<Moment>,
}

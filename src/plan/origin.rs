//! Where a value came from.

use std::fmt;

use crate::cli::{Settings, Source};

/// Where a value came from, and whether it is still what it was there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    pub by: By,
    /// Whether it was made less to fit the grace period.
    pub is_cut: bool,
}

/// Who or what chose a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// The command line.
    Flag,
    /// A variable.
    Environment,
    /// The balancer that was named.
    Balancer,
    /// What is usual on the platform.
    Platform,
    /// What the grace period leaves.
    Spare,
    /// The drain's least length, which the greatest cannot be below.
    Least,
    /// The program, by its name.
    Program,
    /// Nobody.
    Default,
}

impl Origin {
    /// Where the user said it, else the default.
    pub(super) fn of(settings: &Settings, name: &str) -> Self {
        Self::from(match settings.get(name).map(|said| said.source) {
            Some(Source::Flag | Source::OtherInit) => By::Flag,
            Some(Source::Environment) => By::Environment,
            None => By::Default,
        })
    }
}

impl From<By> for Origin {
    fn from(by: By) -> Self {
        Self { by, is_cut: false }
    }
}

impl By {
    /// Its name for machines.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::Balancer => "balancer",
            Self::Platform => "platform",
            Self::Spare => "spare",
            Self::Least => "least",
            Self::Program => "program",
            Self::Default => "default",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.by {
            By::Balancer => "by --lb",
            By::Spare => "what the grace period can spare",
            By::Least => "no less than --drain-delay",
            By::Program => "by the program's name",
            by => by.word(),
        })?;
        if self.is_cut { f.write_str(", cut to fit the grace period") } else { Ok(()) }
    }
}

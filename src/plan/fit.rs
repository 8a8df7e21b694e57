//! Whether a plan fits its limit, and which limit it would fit.

use std::time::Duration;

use super::budget::Budget;
use super::{Limit, Plan, Platform, margin};
use crate::report::advice::Id;

impl Plan {
    /// Whether no warning is given of a sum that does not fit.
    pub(super) fn fits(&self) -> bool {
        !self.advice.iter().any(|advice| advice.id.is_budget_warning())
    }

    /// The length of the drain that was asked for and would not fit this limit, if one would not.
    pub(super) fn excess(&self, limit: Duration) -> Option<Duration> {
        let limit = Limit::Stated(limit);
        let budget = Budget { limit, margin: margin(self.budget.asked_margin, limit), ..self.budget };
        let mut advice = Vec::new();
        let drain = budget.fit(self.wanted, &mut advice);
        budget.stretch(drain, self.said_greatest, &mut advice);
        match advice.last()?.id {
            Id::DrainTimeout => Some(self.wanted.greatest),
            _ => Some(self.wanted.least),
        }
    }

    /// The limit to set on a platform, in whole seconds: the stated or the usual one if all fits, else the one that is needed,
    /// as far as the platform gives it.
    pub(super) fn suitable_limit(&self, platform: Platform) -> Duration {
        let limit = match self.limit.time().map(whole_seconds) {
            Some(limit) => self.excess(limit).map_or(limit, |drain| self.budget.needed(drain)),
            None => self.budget.needed(self.wanted.least),
        };
        platform.longest_limit().map_or(limit, |longest| limit.min(longest))
    }
}

impl Limit {
    /// How long it is, stated or assumed.
    pub(super) fn time(self) -> Option<Duration> {
        match self {
            Self::Stated(limit) | Self::Assumed(limit, _) => Some(limit),
            Self::Unknown => None,
        }
    }
}

/// Orchestrators take no fractions.
pub(super) fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0))
}

//! The sums: the drain, the app's own stop and the margin, against the limit.

use std::time::Duration;

use super::fit::whole_seconds;
use super::{By, Drain, DrainUntil, Limit, Origin, human};
use crate::keepalive;
use crate::report::advice::{Advice, Id};

/// What an app keeps of a stated limit at the very least.
const LEAST_STOP: Duration = Duration::from_secs(1);
/// Without a stated limit and a stated balancer, traffic does not make a drain longer than this.
const LONGEST_UNSTATED_DRAIN: Duration = Duration::from_secs(10);

/// The balancers whose deregistration takes a known time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LoadBalancer {
    /// A Kubernetes Service.
    Service,
    /// AWS's for HTTP.
    Alb,
    /// Google's.
    Gclb,
    /// AWS's for TCP.
    Nlb,
}

impl LoadBalancer {
    /// Reads its name.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        match text {
            "none" => Ok(None),
            "service" => Ok(Some(Self::Service)),
            "alb" => Ok(Some(Self::Alb)),
            "gclb" => Ok(Some(Self::Gclb)),
            "nlb" => Ok(Some(Self::Nlb)),
            _ => Err("not one of service, alb, gclb, nlb, none (for another balancer give --drain-delay)".into()),
        }
    }

    /// How long it goes on sending after a target is to go.
    pub(super) fn deregistration(self) -> Duration {
        Duration::from_secs(match self {
            Self::Service => 5,
            Self::Alb => 30,
            Self::Gclb => 60,
            Self::Nlb => 130,
        })
    }

    /// For how long it keeps an idle connection to the app, by default; none where it passes connections through, or is
    /// not known.
    pub(super) fn idle_timeout(self) -> Option<Duration> {
        match self {
            Self::Alb => Some(keepalive::ALB),
            Self::Gclb => Some(keepalive::GCLB),
            Self::Service | Self::Nlb => None,
        }
    }
}

/// Drain, the app's own stop and the margin, against the limit.
#[derive(Debug)]
pub(super) struct Budget {
    /// The orchestrator's limit.
    pub limit: Limit,
    /// What is kept of it for the kill.
    pub margin: Duration,
    /// The same before a short limit made it less: what a longer limit has to hold.
    pub asked_margin: Duration,
    /// What the ladder takes; 0 without one.
    pub ladder: Duration,
    /// The balancer, if one was named.
    pub lb: Option<LoadBalancer>,
    /// Whether there is something to outlive, which takes as long as it takes.
    pub outlives: bool,
}

impl Budget {
    /// The drain that is kept, and what has to be said of it.
    pub(super) fn fit(&self, wanted: Drain, advice: &mut Vec<Advice>) -> Drain {
        let (limit, name) = match self.limit {
            Limit::Stated(limit) => (limit, "--grace-period"),
            Limit::Assumed(limit, platform) => (limit, platform.setting()),
            Limit::Unknown => return self.unlimited(wanted, advice),
        };
        let stated = matches!(self.limit, Limit::Stated(_));
        let available = limit.saturating_sub(self.margin);
        let reserve = self.reserve(available);
        if wanted.least + reserve <= available {
            return wanted;
        }
        let sum = format!(
            "drain {} + the app's stop {} + margin {} = {} does not fit {}{name} {}",
            human(wanted.least),
            human(reserve),
            human(self.margin),
            human(wanted.least + reserve + self.margin),
            if stated { "" } else { "the assumed " },
            human(limit),
        );
        let fix = format!(
            "set {name_of_limit} to {needed} and SUNDOWN_GRACE_PERIOD={needed}, or lower the drain",
            name_of_limit = if stated { "the orchestrator's limit" } else { name },
            needed = human(self.needed(wanted.least)),
        );
        let least = match (wanted.automatic, stated) {
            (true, _) => available.saturating_sub(reserve),
            (false, true) if available.saturating_sub(wanted.least) < LEAST_STOP => {
                available.saturating_sub(LEAST_STOP)
            }
            (false, _) => wanted.least,
        };
        let consequence = if least < wanted.least {
            format!("the drain is cut to {}", human(least))
        } else if stated {
            format!("the app keeps {} for its stop", human(available.saturating_sub(least)))
        } else {
            "if that limit holds, the app is cut off".to_owned()
        };
        advice.push(Advice::new(Id::Budget, sum, consequence, fix));
        Drain { least, ..wanted }
    }

    /// How long the drain may become while traffic is still seen: as long as it was said, or as the budget can spare once
    /// the app's own stop is kept. With where that length came from.
    pub(super) fn stretch(
        &self,
        drain: Drain,
        said: Option<(Duration, Origin)>,
        advice: &mut Vec<Advice>,
    ) -> (Drain, Origin) {
        let spare = |limit: Duration, kept: Option<Duration>| {
            let available = limit.saturating_sub(self.margin);
            available.saturating_sub(kept.unwrap_or(self.reserve(available)))
        };
        let (greatest, from) = match (said, self.limit) {
            (Some((said, from)), Limit::Stated(limit)) if said > spare(limit, Some(LEAST_STOP)) => {
                let cut = spare(limit, Some(LEAST_STOP));
                advice.push(Advice::new(
                    Id::DrainTimeout,
                    format!("--drain-timeout {} does not fit --grace-period {}", human(said), human(limit)),
                    format!("it is cut to {}, so that the app keeps {}", human(cut), human(LEAST_STOP)),
                    "lower it, or raise the grace period",
                ));
                (cut, Origin { is_cut: true, ..from })
            }
            (Some(said), _) => said,
            // Who wants no drain gets none; who says what is to hold it wants one.
            (None, _) if drain.least.is_zero() && !drain.held && drain.until != DrainUntil::Released => {
                (Duration::ZERO, By::Least.into())
            }
            (None, Limit::Stated(limit)) => (spare(limit, None), By::Spare.into()),
            (None, Limit::Assumed(limit, _)) if self.lb.is_some() || self.outlives => {
                (spare(limit, None), By::Spare.into())
            }
            (None, Limit::Assumed(limit, _)) if spare(limit, None) < LONGEST_UNSTATED_DRAIN => {
                (spare(limit, None), By::Spare.into())
            }
            (None, Limit::Assumed(..) | Limit::Unknown) => (LONGEST_UNSTATED_DRAIN, By::Default.into()),
        };
        if greatest < drain.least {
            return (Drain { greatest: drain.least, ..drain }, By::Least.into());
        }
        (Drain { greatest, ..drain }, from)
    }

    /// What the app's own stop is to keep.
    pub(super) fn reserve(&self, available: Duration) -> Duration {
        if self.ladder > Duration::ZERO { self.ladder } else { available * 2 / 5 }
    }

    fn unlimited(&self, wanted: Drain, advice: &mut Vec<Advice>) -> Drain {
        if self.lb.is_some() && wanted.automatic {
            let needed = human(self.needed(wanted.least));
            advice.push(Advice::new(
                Id::NoGracePeriod,
                format!("--lb needs a grace period of {needed}, and none is stated"),
                "a drain so long may be killed from outside before its end",
                format!("set the orchestrator's limit to it, and SUNDOWN_GRACE_PERIOD={needed}"),
            ));
        }
        wanted
    }

    /// The limit in whole seconds that such a drain needs.
    pub(super) fn needed(&self, drain: Duration) -> Duration {
        let stop = if self.ladder > Duration::ZERO { self.ladder } else { drain * 2 / 3 };
        whole_seconds(drain + stop.max(LEAST_STOP) + self.asked_margin)
    }
}

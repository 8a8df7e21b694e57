//! What a stop takes, against what it has: the drain, the app's own stop and the margin, as a table for people.

use std::fmt;
use std::time::Duration;

use super::{Limit, Plan, human};
use crate::report::json::seconds;

/// One column: the parts of one stop.
#[derive(Clone, Copy)]
struct Sum {
    title: &'static str,
    drain: Duration,
    stop: Duration,
    margin: Duration,
}

/// The shortest and the longest stop, and in front of them the one that was asked for where it does not fit.
pub(super) struct Sums {
    columns: Vec<Sum>,
    limit: Limit,
    has_ladder: bool,
}

impl Sum {
    fn all(self) -> Duration {
        self.drain + self.stop + self.margin
    }
}

impl Sums {
    pub(super) fn of(plan: &Plan) -> Self {
        let limit = plan.limit.time().unwrap_or_else(|| plan.budget.needed(plan.wanted.least));
        let available = limit.saturating_sub(plan.kill_margin);
        let reserve = plan.budget.reserve(available);
        let column = |title, drain, stop| Sum { title, drain, stop, margin: plan.kill_margin };
        // What the drain takes of it is not the app's.
        let kept = |drain| reserve.min(available.saturating_sub(drain));
        let asked = plan.excess(limit).map(|drain| column("asked for", drain, reserve));
        let least = column("least", plan.drain.least, kept(plan.drain.least));
        let greatest = column("greatest", plan.drain.greatest, kept(plan.drain.greatest));
        Self {
            columns: asked.into_iter().chain([least, greatest]).collect(),
            limit: plan.limit,
            has_ladder: plan.budget.ladder > Duration::ZERO,
        }
    }

    /// The same for a machine, in seconds.
    pub(super) fn json(&self) -> String {
        let limit = self.limit.time();
        let column = |sum: &Sum| {
            format!(
                "\"{}\":{{\"drain_seconds\":{},\"stop_seconds\":{},\"margin_seconds\":{},\"sum_seconds\":{}}}",
                sum.title.replace(' ', "_"),
                seconds(Some(sum.drain)),
                seconds(Some(sum.stop)),
                seconds(Some(sum.margin)),
                seconds(Some(sum.all())),
            )
        };
        let columns: Vec<String> = self.columns.iter().map(column).collect();
        let stated = matches!(self.limit, Limit::Stated(_));
        format!(
            "{{{},\"grace_period_seconds\":{},\"grace_period_stated\":{stated}}}",
            columns.join(","),
            seconds(limit)
        )
    }

    fn row(&self, f: &mut fmt::Formatter<'_>, name: &str, of: impl Fn(&Sum) -> String, note: &str) -> fmt::Result {
        write!(f, "  {name:<20}")?;
        for sum in &self.columns {
            write!(f, "{:>11}", of(sum))?;
        }
        writeln!(f, "{}{note}", if note.is_empty() { "" } else { "   " })
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stop_note =
            if self.has_ladder { "the times of --stop-signal" } else { "40 % of the grace period less the margin" };
        let (limit, limit_note) = match self.limit {
            Limit::Stated(limit) => (Some(limit), "stated: what is left at the margin is killed".to_owned()),
            Limit::Assumed(limit, platform) => {
                (Some(limit), format!("the default of {}, assumed and not enforced", platform.title()))
            }
            Limit::Unknown => (None, "not stated".to_owned()),
        };
        self.row(f, "", |sum| sum.title.to_owned(), "")?;
        self.row(f, "drain", |sum| human(sum.drain), "readiness fails, the app serves")?;
        self.row(f, "the app's own stop", |sum| human(sum.stop), stop_note)?;
        self.row(f, "margin", |sum| human(sum.margin), "for the kill of what is left")?;
        self.row(f, "together", |sum| human(sum.all()), "")?;
        self.row(f, "grace period", |_| limit.map_or("-".to_owned(), human), &limit_note)?;
        self.row(f, "left over", |sum| limit.map_or("-".to_owned(), |limit| difference(limit, sum.all())), "")
    }
}

fn difference(limit: Duration, sum: Duration) -> String {
    match limit.checked_sub(sum) {
        Some(left) => human(left),
        None => format!("-{}", human(sum - limit)),
    }
}

//! `sundown plan`: each setting, its value and where it came from, the sums, the advice of a start, and the manifest that
//! fits. Pure.

use std::fmt::Write;

use super::manifest::Manifest;
use super::sums::Sums;
use super::words::{DRAIN_UNTIL, NOTIFY, SIGNAL_TO, word_of};
use super::{BadSetting, By, Limit, Origin, Plan, Platform, Surroundings, human};
use crate::check::Check;
use crate::cli::{OPTIONS, Opt, Settings};
use crate::report::advice::{Advice, Severity};
use crate::report::json::{list, quote};
use crate::signals::Signal;
use crate::tree::program::usual_stop_signal;

/// A value longer than this stands out of its column.
const WIDEST_VALUE: usize = 28;

/// A plan, and what the user said that led to it.
pub struct Outline {
    settings: Settings,
    plan: Plan,
    platform: Platform,
    /// Why it is that platform.
    chosen: &'static str,
}

/// A line of the settings.
struct Row {
    option: &'static Opt,
    value: String,
    origin: Origin,
}

impl Outline {
    /// Plans for the platform that is named, else for that which was seen, else for Kubernetes.
    ///
    /// # Errors
    /// The first value that cannot be used, with its reason.
    pub fn new(settings: Settings, target: Option<&str>, seen: Option<Platform>) -> Result<Self, BadSetting> {
        let (platform, chosen) = match (target, seen) {
            (Some(name), _) => {
                let platform = Platform::parse(name).map_err(|why| BadSetting(format!("--for {name}: {why}")))?;
                (platform, "by --for")
            }
            (None, Some(platform)) => (platform, "where this runs"),
            (None, None) => (Platform::Kubernetes, "no platform is seen here; --for names another"),
        };
        let around = Surroundings { platform: Some(platform), stderr_is_terminal: false };
        let plan = Plan::new(settings.clone(), &around)?;
        Ok(Self { settings, plan, platform, chosen })
    }

    /// Whether a start would not warn of the sums.
    pub fn fits(&self) -> bool {
        self.plan.fits()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("plan for {} ({}); nothing is started\n", self.platform.title(), self.chosen);
        self.write_settings(&mut text);
        let _ = write!(text, "\nsums\n{}\n", Sums::of(&self.plan));
        self.write_advice(&mut text);
        let manifest = self.manifest();
        let _ = write!(text, "\nmanifest: {}\n\n{manifest}", manifest.place());
        for note in manifest.notes() {
            let _ = write!(text, "\n{note}\n");
        }
        text
    }

    /// For machines: one object on a line. The texts in it are those of [`text`](Self::text).
    pub fn json(&self) -> String {
        let setting = |row: Row| {
            format!(
                "{{\"name\":\"{}\",\"variable\":\"{}\",\"value\":{},\"origin\":\"{}\",\"cut\":{}}}",
                row.option.name,
                row.option.variable(),
                quote(&row.value),
                row.origin.by.word(),
                row.origin.is_cut,
            )
        };
        let advice = |advice: &Advice| {
            let Advice { id, seen, leads_to, fix } = advice;
            format!(
                "{{\"id\":\"{}\",\"severity\":\"{}\",\"seen\":{},\"leads_to\":{},\"fix\":{}}}",
                id.code(),
                severity(advice),
                quote(seen),
                quote(leads_to),
                quote(fix),
            )
        };
        let manifest = self.manifest();
        format!(
            concat!(
                "{{\"version\":\"{}\",\"platform\":\"{}\",\"fits\":{},\"settings\":{},\"sums\":{},\"advice\":{},",
                "\"warnings\":{},\"manifest\":{},\"notes\":{}}}\n"
            ),
            env!("CARGO_PKG_VERSION"),
            self.platform.word(),
            self.fits(),
            list(self.rows().map(setting)),
            Sums::of(&self.plan).json(),
            list(self.plan.advice.iter().map(advice)),
            list(self.plan.warnings.iter().map(|warning| quote(warning))),
            quote(&manifest.to_string()),
            list(manifest.notes().iter().map(|note| quote(note))),
        )
    }

    fn write_settings(&self, text: &mut String) {
        let rows: Vec<Row> = self.rows().collect();
        let widest = |width: &dyn Fn(&Row) -> usize| rows.iter().map(width).max().unwrap_or_default();
        let name = widest(&|row| row.option.name.len());
        let value = widest(&|row| row.value.chars().count()).min(WIDEST_VALUE);
        text.push_str("\nsettings\n");
        for Row { option, value: shown, origin } in &rows {
            let _ = writeln!(text, "  {:<name$}  {shown:<value$}  {origin}", option.name);
        }
    }

    fn write_advice(&self, text: &mut String) {
        let has_excess = self.plan.limit.time().is_some_and(|limit| self.plan.excess(limit).is_some());
        text.push_str(match (self.fits(), has_excess) {
            (false, _) => "it does not fit\n",
            // A start says nothing: you may have set a longer one than is assumed.
            (true, true) => {
                "the greatest drain does not fit the assumed grace period; the manifest has one that it fits\n"
            }
            (true, false) => "all fits\n",
        });
        for advice in &self.plan.advice {
            let _ = writeln!(text, "{}: {advice}", severity(advice));
        }
        for warning in &self.plan.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
    }

    fn manifest(&self) -> Manifest {
        Manifest::of(&self.settings, &self.plan, self.platform)
    }

    fn rows(&self) -> impl Iterator<Item = Row> {
        OPTIONS.iter().filter(|option| option.is_of_a_run()).map(|option| Row {
            option,
            value: self.value(option.name).unwrap_or_default(),
            origin: self.origin(option.name),
        })
    }

    /// What holds in the end; none for an option that is not known here, which a test forbids.
    fn value(&self, name: &str) -> Option<String> {
        let plan = &self.plan;
        let said_or = |default: &str| self.said(name).unwrap_or_else(|| default.to_owned());
        let on_off = |is_on| if is_on { "on" } else { "off" }.to_owned();
        let words = |words: &[String]| if words.is_empty() { "none".to_owned() } else { words.join(" ") };
        Some(match name {
            "http" => plan.http.map_or("off".into(), |address| address.to_string()),
            "ready-check" => said_or(if plan.ready_check == Check::Listening { "listening" } else { "running" }),
            "check-period" => human(plan.pace.period),
            "check-timeout" => human(plan.pace.timeout),
            "throttle-patience" => on_off(plan.throttle_patience),
            "check-failures" => plan.pace.failures.to_string(),
            "check-successes" => plan.pace.successes.to_string(),
            "drain-delay" => human(plan.drain.least),
            "lb-idle-timeout" => plan.lb_idle_timeout.map_or("none".into(), human),
            "drain-timeout" => human(plan.drain.greatest),
            "drain-until" => word_of(DRAIN_UNTIL, &plan.drain.until).into(),
            "drain-quiet" => human(plan.drain.quiet),
            "lb-unhealthy-threshold" => plan.drain.unhealthy_threshold.to_string(),
            "live-check" | "lb" | "drain-while" | "outlive" | "on-drain" => said_or("none"),
            "ports" => said_or("found"),
            "prestop-elapsed" => human(plan.prestop_elapsed),
            "grace-period" => match plan.limit {
                Limit::Stated(limit) => human(limit),
                Limit::Assumed(limit, _) => format!("{} assumed", human(limit)),
                Limit::Unknown => "not stated".into(),
            },
            "kill-margin" => human(plan.kill_margin),
            "linger" => human(plan.linger),
            "stop-signal" => said_or(&usual_stop_signal(&plan.command).unwrap_or(Signal::TERM).to_string()),
            "stop-on" => said_or("TERM,INT,RTMIN+3, the app's"),
            "signal-to" => word_of(SIGNAL_TO, &plan.signal_to).into(),
            "wrapper" => words(&plan.wrappers),
            "wait-for" => listed(&plan.neighbours.wait_for),
            "wait-timeout" => plan.neighbours.wait_timeout.map_or("for ever".into(), human),
            "on-exit" => listed(&plan.neighbours.on_exit),
            "on-exit-timeout" => human(plan.neighbours.on_exit_timeout),
            "notify" => word_of(NOTIFY, &plan.neighbours.notify).into(),
            "expand-env" => on_off(plan.expand_env),
            "exit-zero-on-stop" => on_off(plan.exit.zero_on_stop),
            "remap-exit" => words(&plan.exit.remap.iter().map(|(from, to)| format!("{from}={to}")).collect::<Vec<_>>()),
            "termination-log" => said_or("/dev/termination-log"),
            "control" => on_off(plan.control),
            "log-format" => said_or("text on a terminal, or json"),
            "log-level" => plan.log_level.to_string().to_ascii_lowercase(),
            _ => return None,
        })
    }

    fn said(&self, name: &str) -> Option<String> {
        self.settings.get(name).map(|said| said.value.trim().to_owned())
    }

    fn origin(&self, name: &str) -> Origin {
        let plan = &self.plan;
        let said = Origin::of(&self.settings, name);
        match name {
            "drain-delay" => plan.least_from,
            "drain-timeout" => plan.greatest_from,
            // Not what was said: this balancer's checks do not tell what `released` asks.
            "drain-until" if said.by != By::Default && self.value(name) != self.said(name) => By::Balancer.into(),
            "lb-idle-timeout" if said.by == By::Default && plan.lb_idle_timeout.is_some() => By::Balancer.into(),
            "grace-period" if matches!(plan.limit, Limit::Assumed(..)) => By::Platform.into(),
            "kill-margin" => Origin { is_cut: plan.kill_margin < plan.budget.asked_margin, ..said },
            "stop-signal" if said.by == By::Default && usual_stop_signal(&plan.command).is_some() => By::Program.into(),
            _ => said,
        }
    }
}

fn listed<T: std::fmt::Display>(items: &[T]) -> String {
    match items {
        [] => "none".into(),
        items => items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn severity(advice: &Advice) -> &'static str {
    match advice.id.severity() {
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

#[cfg(test)]
mod tests;

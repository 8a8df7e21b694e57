//! The validated settings, and the sums on them: which limit holds, how long the drain is, what is left for the app. Pure.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use crate::check::{self, Check};
use crate::cli::{Said, Settings};
use crate::http::{Address, Key};
use crate::report::advice::Advice;
use crate::signals::{SigSet, Signal};

mod budget;
mod fit;
mod ladder;
mod manifest;
mod neighbours;
mod origin;
mod platform;
pub mod show;
mod sidecar;
mod sums;
mod words;

use budget::{Budget, LoadBalancer};
pub use ladder::Ladder;
#[cfg(test)]
pub use ladder::Step;
pub use neighbours::{Neighbours, Notify};
use origin::{By, Origin};
pub use platform::Platform;
use words::{
    auto_or_duration, count, drain_check, drain_until, log_format, ports, positive_duration, signal_list, signal_to,
    switch,
};
pub use words::{duration, human};

/// All settings, checked.
#[derive(Debug)]
pub struct Plan {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The endpoint's address.
    pub http: Option<Address>,
    /// When the app counts as ready.
    pub ready_check: Check,
    /// What /livez answers by.
    pub live_check: Option<Check>,
    /// How the checks are run.
    pub pace: Pace,
    /// Whether a live check that fails for want of CPU time is not counted.
    pub throttle_patience: bool,
    /// The app's ports, where they were said.
    pub ports: Vec<u16>,
    /// The drain.
    pub drain: Drain,
    /// Whether neither the balancer nor the drain's length was stated.
    pub balancer_is_unnamed: bool,
    /// For how long the balancer keeps an idle connection, where that is stated or known.
    pub lb_idle_timeout: Option<Duration>,
    /// The drain goes on while this passes.
    pub drain_while: Option<Check>,
    /// The command to run at the stop request.
    pub on_drain: Option<Vec<String>>,
    /// What the program starts after and ends before.
    pub neighbours: Neighbours,
    /// The time that a foreign preStop hook has used when TERM comes.
    pub prestop_elapsed: Duration,
    /// The orchestrator's limit.
    pub limit: Limit,
    /// How long before a stated limit we kill.
    pub kill_margin: Duration,
    /// How long leftovers may take once the child has ended by itself.
    pub linger: Duration,
    /// The stop signals that were said, if any were.
    pub ladder: Option<Ladder>,
    /// The signals that ask us to stop, where they were said.
    pub stop_on: Option<SigSet>,
    /// Who hears.
    pub signal_to: SignalTo,
    /// More wrappers by name.
    pub wrappers: Vec<String>,
    /// Whether `${PORT}` is replaced in arguments.
    pub expand_env: bool,
    /// Signals that are passed on as others, or not at all.
    pub rewrites: Vec<(Signal, Option<Signal>)>,
    /// What becomes of exit codes.
    pub exit: ExitPolicy,
    /// Where the termination message goes, where it was said.
    pub termination_log: Option<String>,
    /// Whether there is a control socket.
    pub control: bool,
    /// How the log looks.
    pub log_format: LogFormat,
    /// What the log tells.
    pub log_level: tracing::Level,
    /// Who may call /prestop, where that was said.
    pub prestop: Option<Key>,
    /// For tests: the endpoint panics.
    pub panic_on_request: bool,
    /// What to tell at start, a line each.
    pub warnings: Vec<String>,
    /// What to advise at start.
    pub advice: Vec<Advice>,
    budget: Budget,
    /// The drain before it was cut to the budget.
    wanted: Drain,
    said_greatest: Option<(Duration, Origin)>,
    /// Where the drain's lengths came from.
    least_from: Origin,
    greatest_from: Origin,
}

/// How checks are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// From one to the next.
    pub period: Duration,
    /// How long one may take.
    pub timeout: Duration,
    /// Failures in a row that turn it.
    pub failures: u32,
    /// Passes in a row that turn it back.
    pub successes: u32,
}

/// The drain's length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drain {
    /// How long it is at least.
    pub least: Duration,
    /// How long it is at most, while traffic is still seen.
    pub greatest: Duration,
    /// What ends it between the two.
    pub until: DrainUntil,
    /// How long the traffic must have been quiet for that.
    pub quiet: Duration,
    /// How many failing answers in a row make a balancer let go.
    pub unhealthy_threshold: u32,
    /// Whether it is there for what the app is to outlive (`--outlive`).
    pub outlives: bool,
    /// Whether a check or a command may hold it up (`--drain-while`, `--on-drain`).
    pub held: bool,
    /// Whether we chose it. One that was asked for is kept also for an app that seems to need none.
    pub automatic: bool,
}

/// What ends a drain between its least and its greatest length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrainUntil {
    /// Nothing: it has the least length.
    Delay,
    /// No request is in flight, and none was within the window.
    Quiet,
    /// No new connection came within the window: for connections that never go quiet (gRPC, WebSockets).
    NoNew,
    /// As `Quiet`; and before the least length too, as soon as every balancer that probes us has let go.
    Released,
}

/// The moment at which the orchestrator kills, counted from the stop request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The user said so: it is enforced.
    Stated(Duration),
    /// The platform's default: it sizes and warns, and never kills.
    Assumed(Duration, Platform),
    /// Nobody knows.
    Unknown,
}

/// Who hears the stop signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalTo {
    /// The app behind the wrappers.
    App,
    /// Our child and nobody else.
    Child,
    /// Our child's process group.
    Group,
    /// Everything in the tree.
    Tree,
}

/// What becomes of exit codes at the end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExitPolicy {
    /// 128+n after a stop that was asked for, and not enforced, is 0.
    pub zero_on_stop: bool,
    /// From, to.
    pub remap: Vec<(u8, u8)>,
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines: one object a line.
    Json,
}

/// A setting that cannot be used: what was said, why not, and how it is said right.
#[derive(Debug)]
pub struct BadSetting(String);

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl BadSetting {
    fn new(said: &Said, why: impl fmt::Display) -> Self {
        Self(format!("{said}: {why}"))
    }
}

/// What the plan needs to know of its surroundings.
pub struct Surroundings {
    /// Where we run.
    pub platform: Option<Platform>,
    /// Whether stderr is a terminal.
    pub stderr_is_terminal: bool,
}

impl Plan {
    /// Checks what the user said and does the sums.
    ///
    /// # Errors
    /// The first value that cannot be used, with its reason.
    pub fn new(settings: Settings, around: &Surroundings) -> Result<Self, BadSetting> {
        let is_sidecar = settings.is_sidecar;
        if is_sidecar {
            sidecar::refuse(&settings)?;
        }
        let platform = around.platform;
        let drain_while = read(&settings, "drain-while", drain_check)?;
        let on_drain = read(&settings, "on-drain", check::command)?;
        let neighbours = Neighbours::read(&settings)?;
        let outlives = neighbours.outlive.is_some();
        let held = drain_while.is_some() || on_drain.is_some() || outlives;
        let http = read(&settings, "http", |text| match text {
            "off" => Ok(None),
            _ => Address::parse(text).map(Some),
        })?
        .unwrap_or_else(|| is_sidecar.then(|| Address::parse(sidecar::PORT).ok()).flatten());
        let default_check = if http.is_some() { Check::Listening } else { Check::Running };
        let mut warnings = settings.warnings.clone();
        let prestop = sidecar::key(&settings, &mut warnings)?;
        let limit = match (read(&settings, "grace-period", duration)?, platform) {
            (Some(stated), _) => Limit::Stated(stated),
            (None, Some(platform)) => Limit::Assumed(platform.default_limit(), platform),
            (None, None) => Limit::Unknown,
        };
        let lb = read(&settings, "lb", LoadBalancer::parse)?.flatten();
        let asked_margin = read(&settings, "kill-margin", duration)?.unwrap_or(Duration::from_secs(2));
        let kill_margin = margin(asked_margin, limit);
        let ladder = read(&settings, "stop-signal", Ladder::parse)?;
        let stated_drain = read(&settings, "drain-delay", auto_or_duration)?.flatten();
        let greatest = drain_timeout(&settings, stated_drain)?;
        let (least, least_from) = match (stated_drain, lb, platform) {
            (Some(least), ..) => (least, Origin::of(&settings, "drain-delay")),
            (None, Some(lb), _) => (lb.deregistration(), By::Balancer.into()),
            // Whoever is outlived says when it is over.
            (None, None, Some(platform)) if !outlives => (platform.default_drain(), By::Platform.into()),
            (None, None, _) => (Duration::ZERO, By::Default.into()),
        };
        let usual = if outlives { DrainUntil::Delay } else { DrainUntil::Quiet };
        let mut until = read(&settings, "drain-until", drain_until)?.unwrap_or(usual);
        if until == DrainUntil::Released && lb == Some(LoadBalancer::Nlb) {
            warnings.push(
                "--drain-until released does not go with --lb nlb, which sends on for 30 to 40 s after its check has failed: the drain has its stated time"
                    .into(),
            );
            until = DrainUntil::Quiet;
        }
        let wanted = Drain {
            least,
            greatest: greatest.unwrap_or(least).max(least),
            until,
            quiet: read(&settings, "drain-quiet", duration)?.unwrap_or(Duration::from_secs(1)),
            unhealthy_threshold: read(&settings, "lb-unhealthy-threshold", count)?.unwrap_or(2),
            outlives,
            held,
            automatic: stated_drain.is_none() && !held,
        };
        if wanted.until == DrainUntil::Released && http.is_none() {
            warnings.push(
                "--drain-until released: whether a balancer has let go is seen by its checks of --http, which is off: the drain keeps its stated time"
                    .into(),
            );
        }
        let budget = Budget {
            limit,
            margin: kill_margin,
            asked_margin,
            ladder: ladder.as_ref().map_or(Duration::ZERO, Ladder::sum),
            lb,
            outlives,
        };
        let mut advice = platform.and_then(|platform| platform.too_long(limit)).into_iter().collect();
        let fitted = budget.fit(wanted, &mut advice);
        let said_greatest = greatest.map(|greatest| (greatest, Origin::of(&settings, "drain-timeout")));
        let (drain, greatest_from) = budget.stretch(fitted, said_greatest, &mut advice);
        let plan = Self {
            ready_check: read(&settings, "ready-check", Check::parse)?.unwrap_or(default_check),
            live_check: read(&settings, "live-check", Check::parse)?,
            pace: Pace {
                period: read(&settings, "check-period", positive_duration)?.unwrap_or(Duration::from_secs(5)),
                timeout: read(&settings, "check-timeout", positive_duration)?.unwrap_or(Duration::from_secs(1)),
                failures: read(&settings, "check-failures", count)?.unwrap_or(3),
                successes: read(&settings, "check-successes", count)?.unwrap_or(1),
            },
            throttle_patience: read(&settings, "throttle-patience", switch)?.unwrap_or(false),
            ports: read(&settings, "ports", ports)?.unwrap_or_default(),
            drain,
            balancer_is_unnamed: lb.is_none() && stated_drain.is_none(),
            lb_idle_timeout: read(&settings, "lb-idle-timeout", duration)?
                .or(lb.and_then(LoadBalancer::idle_timeout))
                .filter(|time| !time.is_zero()),
            drain_while,
            on_drain,
            neighbours,
            prestop_elapsed: read(&settings, "prestop-elapsed", duration)?.unwrap_or_default(),
            limit,
            kill_margin,
            linger: read(&settings, "linger", duration)?.unwrap_or(Duration::from_secs(5)),
            ladder,
            stop_on: read(&settings, "stop-on", signal_list)?,
            signal_to: read(&settings, "signal-to", signal_to)?.unwrap_or(SignalTo::App),
            wrappers: words(&settings, "wrapper"),
            expand_env: read(&settings, "expand-env", switch)?.unwrap_or(false),
            exit: ExitPolicy {
                zero_on_stop: read(&settings, "exit-zero-on-stop", switch)?.unwrap_or(false),
                remap: remaps(&settings)?,
            },
            termination_log: settings.get("termination-log").map(|said| said.value.clone()),
            control: read(&settings, "control", switch)?.unwrap_or(true),
            log_format: read(&settings, "log-format", log_format)?.unwrap_or(if around.stderr_is_terminal {
                LogFormat::Text
            } else {
                LogFormat::Json
            }),
            log_level: read(&settings, "log-level", |text| {
                text.parse().map_err(|_| "not one of error, warn, info, debug, trace".to_owned())
            })?
            .unwrap_or(tracing::Level::INFO),
            panic_on_request: read(&settings, "x-panic-on-request", switch)?.unwrap_or(false),
            prestop,
            http,
            rewrites: settings.rewrites,
            command: settings.command,
            warnings,
            advice,
            budget,
            wanted,
            said_greatest,
            least_from: Origin { is_cut: drain.least < wanted.least, ..least_from },
            greatest_from,
        };
        if is_sidecar {
            sidecar::complete(&plan)?;
        }
        Ok(plan)
    }

    /// What a signal is passed on as; none if it is not to be.
    pub fn rewritten(&self, signal: Signal) -> Option<Signal> {
        let of_it = |(from, _): &&(Signal, _)| *from == signal;
        self.rewrites.iter().rev().find(of_it).map_or(Some(signal), |(_, to)| *to)
    }

    /// When everything has to be over, counted from the stop request; only where the limit was stated.
    pub fn deadline(&self) -> Option<Duration> {
        match self.limit {
            Limit::Stated(limit) => Some(limit.saturating_sub(self.kill_margin)),
            Limit::Assumed(..) | Limit::Unknown => None,
        }
    }
}

/// A margin that is not below the limit would leave no time at all: a quarter of the limit then.
fn margin(asked: Duration, limit: Limit) -> Duration {
    match limit {
        Limit::Stated(limit) | Limit::Assumed(limit, _) if asked >= limit => limit / 4,
        _ => asked,
    }
}

/// The greatest length, if it was said.
fn drain_timeout(settings: &Settings, least: Option<Duration>) -> Result<Option<Duration>, BadSetting> {
    let greatest = read(settings, "drain-timeout", auto_or_duration)?.flatten();
    match (greatest, least, settings.get("drain-timeout")) {
        (Some(greatest), Some(least), Some(said)) if greatest < least => Err(BadSetting::new(
            said,
            format!("below --drain-delay {}: the greatest length cannot be less than the least", human(least)),
        )),
        _ => Ok(greatest),
    }
}

fn read<T>(
    settings: &Settings,
    name: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, BadSetting> {
    settings.get(name).map(|said| parse(said.value.trim()).map_err(|why| BadSetting::new(said, why))).transpose()
}

fn words(settings: &Settings, name: &str) -> Vec<String> {
    settings
        .all(name)
        .flat_map(|said| said.value.split([',', ' ']))
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn remaps(settings: &Settings) -> Result<Vec<(u8, u8)>, BadSetting> {
    let mut pairs = Vec::new();
    for said in settings.all("remap-exit") {
        for word in said.value.split([',', ' ']).filter(|word| !word.is_empty()) {
            let pair = word.split_once('=').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
            pairs.push(
                pair.ok_or_else(|| BadSetting::new(said, "two exit codes from 0 to 255 are wanted, such as 143=0"))?,
            );
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests;

//! The validated settings, and the sums on them: which limit holds, how long the drain is, what is left for the app. Pure.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use crate::check::Check;
use crate::cli::{Said, Settings};
use crate::http::Address;
use crate::signals::{SigSet, Signal};

/// Without a stated limit and a stated balancer an automatic drain is never longer.
const LONGEST_UNSTATED_DRAIN: Duration = Duration::from_secs(10);
/// What an app keeps of a stated limit at the very least.
const LEAST_STOP: Duration = Duration::from_secs(1);
/// Two signals closer together than this may arrive in any order.
const LEAST_STEP: Duration = Duration::from_millis(100);
/// Longer than this a duration is a typing error.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

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
    /// The app's ports, where they were said.
    pub ports: Vec<u16>,
    /// The drain.
    pub drain: Drain,
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
    /// For tests: the endpoint panics.
    pub panic_on_request: bool,
    /// What to tell at start, a line each.
    pub warnings: Vec<String>,
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
    /// Whether we chose it. One that was asked for is kept also for an app that seems to need none.
    pub automatic: bool,
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

/// Where we run, by what its runtime leaves in the environment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Platform {
    /// A pod.
    Kubernetes,
    /// An ECS task.
    Ecs,
    /// A Cloud Run instance.
    CloudRun,
    /// A Nomad allocation.
    Nomad,
    /// Docker or podman.
    Docker,
}

impl Platform {
    /// Recognises the platform. `has` tells whether a variable is set, `exists` whether a file is there.
    pub fn detect(has: impl Fn(&str) -> bool, exists: impl Fn(&str) -> bool) -> Option<Self> {
        if has("K_SERVICE") || has("CLOUD_RUN_JOB") {
            Some(Self::CloudRun)
        } else if has("KUBERNETES_SERVICE_HOST") {
            Some(Self::Kubernetes)
        } else if has("ECS_CONTAINER_METADATA_URI_V4") || has("ECS_CONTAINER_METADATA_URI") {
            Some(Self::Ecs)
        } else if has("NOMAD_ALLOC_ID") {
            Some(Self::Nomad)
        } else if exists("/.dockerenv") || exists("/run/.containerenv") {
            Some(Self::Docker)
        } else {
            None
        }
    }

    /// The limit where nobody set another.
    fn default_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Kubernetes | Self::Ecs => 30,
            Self::CloudRun | Self::Docker => 10,
            Self::Nomad => 5,
        })
    }

    /// How long a balancer of the platform goes on sending at the least, where none was named.
    fn default_drain(self) -> Duration {
        match self {
            Self::Kubernetes | Self::Ecs => Duration::from_secs(5),
            Self::CloudRun | Self::Nomad | Self::Docker => Duration::ZERO,
        }
    }

    /// The name of its own setting for the limit.
    fn setting(self) -> &'static str {
        match self {
            Self::Kubernetes => "terminationGracePeriodSeconds",
            Self::Ecs => "stopTimeout",
            Self::CloudRun => "the platform's fixed 10 s",
            Self::Nomad => "kill_timeout",
            Self::Docker => "docker stop -t, stop_grace_period",
        }
    }
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

/// One rung: a signal, and how long until the next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// The signal.
    pub signal: Signal,
    /// The time until the next rung, or until KILL after the last.
    pub wait: Option<Duration>,
}

/// The stop signals in their order. Never empty.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ladder(Vec<Step>);

impl Ladder {
    /// The rungs.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// A ladder of these rungs, for tests.
    #[cfg(test)]
    pub fn of(steps: Vec<Step>) -> Self {
        Self(steps)
    }

    fn sum(&self) -> Duration {
        self.0.iter().filter_map(|step| step.wait).sum()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut steps: Vec<Step> = Vec::new();
        for word in text.split_whitespace() {
            // A bare number between two signals is a wait in seconds; the first word is always a signal.
            let expects_signal = steps.last().is_none_or(|step| step.wait.is_some());
            if !expects_signal && Signal::parse(word).is_none_or(|_| word.starts_with(|c: char| c.is_ascii_digit())) {
                let wait = duration(word)?;
                if wait < LEAST_STEP {
                    return Err(format!(
                        "a step of {word} is under 100ms, and two signals so close arrive in any order"
                    ));
                }
                if let Some(step) = steps.last_mut() {
                    step.wait = Some(wait);
                }
                continue;
            }
            let signal = Signal::parse(word).ok_or_else(|| no_such_signal(word))?;
            if let Some(step) = steps.last()
                && step.wait.is_none()
            {
                return Err(format!(
                    "{} and {signal} need a time between them, such as \"{} 10s {word}\"",
                    step.signal, step.signal
                ));
            }
            steps.push(Step { signal, wait: None });
        }
        if steps.is_empty() { Err("no signal in it".into()) } else { Ok(Self(steps)) }
    }
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
        let platform = around.platform;
        let http = read(&settings, "http", |text| match text {
            "off" => Ok(None),
            _ => Address::parse(text).map(Some),
        })?
        .flatten();
        let default_check = if http.is_some() { Check::Listening } else { Check::Running };
        let mut warnings = settings.warnings.clone();
        for idle in ["drain-timeout", "drain-quiet"] {
            if let Some(said) = settings.get(idle) {
                warnings
                    .push(format!("{said} has no effect yet: this version's drain has a fixed length, --drain-delay"));
            }
        }
        let limit = match (read(&settings, "grace-period", duration)?, platform) {
            (Some(stated), _) => Limit::Stated(stated),
            (None, Some(platform)) => Limit::Assumed(platform.default_limit(), platform),
            (None, None) => Limit::Unknown,
        };
        let lb = read(&settings, "lb", LoadBalancer::parse)?.flatten();
        let kill_margin = margin(read(&settings, "kill-margin", duration)?.unwrap_or(Duration::from_secs(2)), limit);
        let ladder = read(&settings, "stop-signal", Ladder::parse)?;
        let stated_drain = read(&settings, "drain-delay", auto_or_duration)?.flatten();
        check_drain_timeout(&settings, stated_drain)?;
        read(&settings, "drain-quiet", duration)?;
        let wanted = match (stated_drain, lb, platform) {
            (Some(least), ..) => Drain { least, automatic: false },
            (None, Some(lb), _) => Drain { least: lb.deregistration(), automatic: true },
            (None, None, Some(platform)) => {
                Drain { least: platform.default_drain().min(LONGEST_UNSTATED_DRAIN), automatic: true }
            }
            (None, None, None) => Drain { least: Duration::ZERO, automatic: true },
        };
        let budget =
            Budget { limit, margin: kill_margin, ladder: ladder.as_ref().map_or(Duration::ZERO, Ladder::sum), lb };
        let drain = budget.fit(wanted, &mut warnings);
        Ok(Self {
            ready_check: read(&settings, "ready-check", Check::parse)?.unwrap_or(default_check),
            live_check: read(&settings, "live-check", Check::parse)?,
            pace: Pace {
                period: read(&settings, "check-period", positive_duration)?.unwrap_or(Duration::from_secs(5)),
                timeout: read(&settings, "check-timeout", positive_duration)?.unwrap_or(Duration::from_secs(1)),
                failures: read(&settings, "check-failures", count)?.unwrap_or(3),
                successes: read(&settings, "check-successes", count)?.unwrap_or(1),
            },
            ports: read(&settings, "ports", ports)?.unwrap_or_default(),
            drain,
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
            http,
            command: settings.command,
            warnings,
        })
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

/// The balancers whose deregistration takes a known time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LoadBalancer {
    Service,
    Alb,
    Gclb,
    Nlb,
}

impl LoadBalancer {
    fn parse(text: &str) -> Result<Option<Self>, String> {
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
    fn deregistration(self) -> Duration {
        Duration::from_secs(match self {
            Self::Service => 5,
            Self::Alb => 30,
            Self::Gclb => 60,
            Self::Nlb => 130,
        })
    }
}

/// Drain, the app's own stop and the margin, against the limit.
struct Budget {
    limit: Limit,
    margin: Duration,
    ladder: Duration,
    lb: Option<LoadBalancer>,
}

impl Budget {
    /// The drain that is kept, and what has to be said of it.
    fn fit(&self, wanted: Drain, warnings: &mut Vec<String>) -> Drain {
        let (limit, name) = match self.limit {
            Limit::Stated(limit) => (limit, "--grace-period"),
            Limit::Assumed(limit, platform) => (limit, platform.setting()),
            Limit::Unknown => return self.unlimited(wanted, warnings),
        };
        let stated = matches!(self.limit, Limit::Stated(_));
        let available = limit.saturating_sub(self.margin);
        let reserve = if self.ladder > Duration::ZERO { self.ladder } else { available * 2 / 5 };
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
        warnings.push(format!("{sum}: {consequence}; {fix}"));
        Drain { least, ..wanted }
    }

    fn unlimited(&self, wanted: Drain, warnings: &mut Vec<String>) -> Drain {
        if self.lb.is_some() && wanted.automatic {
            warnings.push(format!(
                "--lb needs a grace period of {needed}, and none is stated: set the orchestrator's limit and SUNDOWN_GRACE_PERIOD={needed}",
                needed = human(self.needed(wanted.least)),
            ));
        }
        wanted
    }

    /// The limit in whole seconds that such a drain needs.
    fn needed(&self, drain: Duration) -> Duration {
        let work = if self.ladder > Duration::ZERO { drain + self.ladder } else { drain * 5 / 3 };
        let sum = work + self.margin;
        Duration::from_secs(sum.as_secs() + u64::from(sum.subsec_nanos() > 0))
    }
}

fn check_drain_timeout(settings: &Settings, least: Option<Duration>) -> Result<(), BadSetting> {
    let greatest = read(settings, "drain-timeout", auto_or_duration)?.flatten();
    match (greatest, least, settings.get("drain-timeout")) {
        (Some(greatest), Some(least), Some(said)) if greatest < least => Err(BadSetting::new(
            said,
            format!("below --drain-delay {}: the greatest length cannot be less than the least", human(least)),
        )),
        _ => Ok(()),
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

fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "1" | "true" | "yes" => Ok(true),
        "off" | "0" | "false" | "no" => Ok(false),
        _ => Err("not on or off".into()),
    }
}

fn signal_to(text: &str) -> Result<SignalTo, String> {
    match text {
        "app" => Ok(SignalTo::App),
        "child" => Ok(SignalTo::Child),
        "group" => Ok(SignalTo::Group),
        "tree" => Ok(SignalTo::Tree),
        _ => Err("not one of app, child, group, tree".into()),
    }
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("not text or json".into()),
    }
}

fn count(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "a whole number from 1 is wanted".into())
}

fn ports(text: &str) -> Result<Vec<u16>, String> {
    let port = |word: &str| {
        word.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("`{word}` is no port from 1 to 65535"))
    };
    text.split([',', ' ']).filter(|word| !word.is_empty()).map(port).collect()
}

fn signal_list(text: &str) -> Result<SigSet, String> {
    let signal = |word: &str| match Signal::parse(word) {
        Some(Signal::KILL | Signal::STOP) => Err(format!("{word} cannot be caught, and so never asks for anything")),
        Some(signal) => Ok(signal),
        None => Err(no_such_signal(word)),
    };
    text.split([',', ' ']).filter(|word| !word.is_empty()).map(signal).collect()
}

fn no_such_signal(word: &str) -> String {
    format!("`{word}` is no signal (TERM, SIGTERM, 15, RTMIN+3)")
}

fn auto_or_duration(text: &str) -> Result<Option<Duration>, String> {
    if text == "auto" { Ok(None) } else { duration(text).map(Some) }
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time.is_zero() { Err("longer than 0 is wanted".into()) } else { Ok(time) })
}

/// Reads `15s`, `500ms`, `1m30s`, `1.5s`, `2h`; a bare number is seconds.
///
/// # Errors
/// What is wrong with the text, in words for the user.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration (15s, 500ms, 1m30s; a bare number is seconds)");
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let amount: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => 0.001,
            "s" => 1.0,
            "" if digits == text.len() => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        rest = &rest[letters..];
        let part = Duration::try_from_secs_f64(amount * unit).map_err(|_| wrong())?;
        total = total
            .checked_add(part)
            .filter(|total| *total <= LONGEST)
            .ok_or_else(|| format!("`{text}` is longer than a year"))?;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// A duration as people write it: `1m30s`, `2.5s`, `40ms`.
pub fn human(time: Duration) -> String {
    let millis = time.as_millis();
    match millis {
        0 => "0s".into(),
        1..1000 => format!("{millis}ms"),
        _ if millis >= 60_000 && millis % 1000 == 0 => match (millis / 60_000, millis / 1000 % 60) {
            (minutes, 0) => format!("{minutes}m"),
            (minutes, seconds) => format!("{minutes}m{seconds}s"),
        },
        _ if millis % 1000 == 0 => format!("{}s", millis / 1000),
        _ => format!("{:.1}s", time.as_secs_f64()),
    }
}

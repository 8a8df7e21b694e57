//! What the user said: the command line first, then `SUNDOWN_*` of the environment, as text with its source.
//!
//! One table names every option; clap's parser, `--help`, the environment and the README are all held to it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::ops::ControlFlow;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::signals::Signal;

/// One option: `--name VALUE`, or `SUNDOWN_NAME=VALUE`.
pub struct Opt {
    /// Its long name.
    pub name: &'static str,
    /// The value's name in the help; none for a switch.
    value: Option<&'static str>,
    heading: &'static str,
    help: &'static str,
}

const READINESS: &str = "Readiness and health";
const DRAIN: &str = "Drain: between the stop request and the app hearing of it";
const STOP: &str = "Stop: how the app is told, and how long it has";
const START: &str = "Start and end";
const SIDECAR: &str = "Sidecar: beside an app in another container of the pod";

/// Every option. A name that starts with `x-` is hidden: a switch for tests.
pub const OPTIONS: &[Opt] = &[
    opt(
        "http",
        "ADDR",
        READINESS,
        "Serve /readyz, /servez, /livez and /metrics there; `:9180` is every address [default: off]",
    ),
    opt(
        "ready-check",
        "CHECK",
        READINESS,
        "When the app counts as ready: `running`, `listening`, `http://127.0.0.1:3000/health`, `tcp://:3000`, `exec:CMD` [default: listening with --http, else running]",
    ),
    opt("live-check", "CHECK", READINESS, "What /livez answers by; the same grammar [default: none, /livez is 404]"),
    opt("check-period", "D", READINESS, "How often a check runs [default: 5s]"),
    opt("check-timeout", "D", READINESS, "How long a check may take [default: 1s]"),
    switch(
        "throttle-patience",
        READINESS,
        "A live check that fails while the CPU limit holds the container back is told and not counted",
    ),
    opt("check-failures", "N", READINESS, "Failures in a row that turn a check [default: 3]"),
    opt("check-successes", "N", READINESS, "Passes in a row that turn it back [default: 1]"),
    opt("ports", "PORTS", READINESS, "The app's TCP ports, where they cannot be found: `3000,3001`"),
    opt(
        "drain-delay",
        "D",
        DRAIN,
        "The drain's least length [default: auto, that is by --lb; else 5s on Kubernetes and ECS, else 0]",
    ),
    opt(
        "lb",
        "KIND",
        DRAIN,
        "The balancer in front: `service` drains 5s, `alb` 30s, `gclb` 60s, `nlb` 130s [default: none]",
    ),
    opt(
        "lb-idle-timeout",
        "D",
        DRAIN,
        "For how long the balancer keeps an idle connection, which the app must outlast; 0 is not stated [default: by --lb: `alb` 60s, `gclb` 600s]",
    ),
    opt(
        "drain-timeout",
        "D",
        DRAIN,
        "The drain's greatest length, while traffic is still seen [default: auto, what the grace period can spare; 10s where none is stated]",
    ),
    opt(
        "drain-until",
        "WHAT",
        DRAIN,
        "What ends the drain between the two: `quiet`, no request in flight; `no-new`, no new connection, for gRPC and WebSockets; `delay`, nothing, it has the least length; `released`, as quiet, and before the least length too once every balancer that probes /readyz has let go [default: quiet]",
    ),
    opt("drain-quiet", "D", DRAIN, "For how long it must have been so [default: 1s]"),
    opt(
        "lb-unhealthy-threshold",
        "N",
        DRAIN,
        "The balancer's own: so many failing answers in a row make it let go, for `released` [default: 2]",
    ),
    opt(
        "drain-while",
        "CHECK",
        DRAIN,
        "The drain goes on while this passes, to its greatest length: `http://`, `tcp://` or `exec:CMD`",
    ),
    opt(
        "on-drain",
        "CMD",
        DRAIN,
        "Run this at the stop request, say to deregister; the drain waits for it, to its greatest length",
    ),
    opt(
        "outlive",
        "CHECK",
        DRAIN,
        "For a helper of another program: it is not told to stop while this passes, as long as the grace period can spare",
    ),
    opt(
        "prestop-elapsed",
        "D",
        DRAIN,
        "Time that a foreign preStop hook, such as `sleep 15`, has used when TERM comes [default: 0]",
    ),
    opt(
        "grace-period",
        "D",
        STOP,
        "The orchestrator's own limit (terminationGracePeriodSeconds, stopTimeout). Only a stated limit is enforced [default: not stated]",
    ),
    opt("kill-margin", "D", STOP, "How long before that limit sundown kills what is left [default: 2s]"),
    opt("linger", "D", STOP, "How long leftovers may take once the child has ended by itself [default: 5s]"),
    opt("stop-signal", "LADDER", STOP, "`QUIT`, or a ladder: `\"TSTP 10s TERM 15s\"` [default: by program, else TERM]"),
    opt("stop-on", "SIGNALS", STOP, "The signals that are stop requests [default: TERM,INT,RTMIN+3 and the app's own]"),
    opt("signal-to", "WHO", STOP, "Who hears: `app`, `child`, `group`, `tree` [default: app]"),
    opt("wrapper", "NAME", STOP, "One more program that only starts another; may be repeated"),
    opt(
        "wait-for",
        "CHECK",
        START,
        "Start the program once this has passed: `tcp://10.0.0.5:5432`, `http://` or `exec:CMD`; may be repeated",
    ),
    opt(
        "wait-timeout",
        "D",
        START,
        "How long that may take before sundown exits with 124; 0 is for ever [default: 60s]",
    ),
    opt(
        "on-exit",
        "ACTION",
        START,
        "Do this when everything has ended: `POST http://127.0.0.1:15020/quitquitquit`, `GET` or `exec:CMD`; may be repeated",
    ),
    opt("on-exit-timeout", "D", START, "How long each of those may take [default: 5s]"),
    opt(
        "notify",
        "child|self|off",
        START,
        "Who tells systemd, where NOTIFY_SOCKET is set [default: self with --ready-check or --http, else child]",
    ),
    switch("expand-env", START, "Replace `${PORT}` in the command's arguments, so that no shell is needed"),
    switch(
        "exit-zero-on-stop",
        START,
        "Exit 0 after a stop that was asked for and did not have to be enforced. Not for Jobs",
    ),
    opt("remap-exit", "CODE=CODE", START, "Exit with another code; may be repeated"),
    opt("termination-log", "PATH", START, "Where the last words go [default: /dev/termination-log if there]"),
    opt(
        "control",
        "on|off",
        START,
        "The control socket, which `sundown prestop`, `status` and the rest talk to [default: on]",
    ),
    opt("prestop-token", "WORD", SIDECAR, "Who may call /prestop: who sends `Authorization: Bearer WORD`"),
    opt("prestop-token-file", "PATH", SIDECAR, "The same, with the word in a file"),
    switch("prestop-open", SIDECAR, "Anybody who reaches the port may call /prestop"),
    opt("log-format", "text|json", START, "On stderr [default: text on a terminal, else json]"),
    opt("log-level", "LEVEL", START, "error, warn, info, debug, trace [default: info]"),
    switch("x-panic-on-request", START, "For tests: the endpoint's next request makes sundown panic"),
];

const fn opt(name: &'static str, value: &'static str, heading: &'static str, help: &'static str) -> Opt {
    Opt { name, value: Some(value), heading, help }
}

const fn switch(name: &'static str, heading: &'static str, help: &'static str) -> Opt {
    Opt { name, value: None, heading, help }
}

impl Opt {
    /// Whether it is one that a user may give to a run; the others are a sidecar's, or hidden.
    pub fn is_of_a_run(&self) -> bool {
        !self.is_hidden() && self.heading != SIDECAR
    }

    /// Whether it is no part of what users are told.
    pub fn is_hidden(&self) -> bool {
        self.name.starts_with("x-")
    }

    /// Its name in the environment.
    pub fn variable(&self) -> String {
        format!("SUNDOWN_{}", self.name.replace('-', "_").to_ascii_uppercase())
    }
}

/// The one subcommand that is a container's command itself.
const SIDECAR_WORD: &str = "sidecar";

/// The subcommands, by the first word. As PID 1 such a word without `--` is refused, but for `sidecar`: it was meant as a program.
pub const SUBCOMMANDS: &[(&str, &str)] = &[
    ("prestop", "Drain the running instance and return when the drain is over: for lifecycle.preStop.exec"),
    ("stop", "Stop the running instance; --now leaves out the drain"),
    ("ready", "Exit 0 if /readyz would say 200, for an exec probe"),
    ("serve", "Exit 0 if /servez would say 200: the app serves, through the drain too"),
    ("live", "Exit 0 if /livez would say 200"),
    ("status", "Say what the running instance is doing; --json for machines"),
    (SIDECAR_WORD, "Stand beside an app in another container of the pod: its endpoint and its preStop hook"),
    ("explain", "Explain an advice: `sundown explain SD101`; without a code list them all"),
    ("test", "Try a command's stop: `sundown test -- yarn start`; exit 0 if it stops by itself in time"),
    ("plan", "Say which numbers a run with these options has, if they fit, and the manifest for them; starts nothing"),
    ("keepalive", "Measure how long a server keeps an idle connection: `sundown keepalive http://127.0.0.1:3000`"),
    ("sleep", "Sleep: `sundown sleep 15`, for images without sleep"),
];

/// Those that have a point as PID 1 too: they need no instance, and are what a pipeline runs an image for.
const ALONE: &[&str] = &["explain", PLAN, "test", "keepalive"];

/// Where a value was said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// On the command line.
    Flag,
    /// In the environment.
    Environment,
    /// By an option of the init under whose name we were called.
    OtherInit,
}

/// One value that the user gave.
#[derive(Clone, Debug)]
pub struct Said {
    /// The option's name.
    pub name: &'static str,
    /// Where.
    pub source: Source,
    /// The text.
    pub value: String,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Flag | Source::OtherInit => write!(f, "--{} {}", self.name, self.value),
            Source::Environment => {
                write!(f, "SUNDOWN_{}={}", self.name.replace('-', "_").to_ascii_uppercase(), self.value)
            }
        }
    }
}

/// All that the user said.
#[derive(Clone, Default, Debug)]
pub struct Settings {
    said: Vec<Said>,
    /// Whether this is for a sidecar, which has no child.
    pub is_sidecar: bool,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// What to warn of: variables that look like ours and are not.
    pub warnings: Vec<String>,
    /// Signals to pass on as others, or not at all (dumb-init's `--rewrite`).
    pub rewrites: Vec<(Signal, Option<Signal>)>,
}

/// These only say how the log looks: they do not ask for any of what there is to tell.
const OF_THE_LOG: &[&str] = &["log-format", "log-level"];

impl Settings {
    /// What the environment says, for a program whose command line was that of another init. `implied` is what that
    /// asks for in our words: a variable of ours that says it otherwise wins.
    pub fn of_other_init(
        command: Vec<OsString>,
        implied: Vec<(&'static str, String)>,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Self {
        let said = implied.into_iter().map(|(name, value)| Said { name, source: Source::OtherInit, value }).collect();
        let mut settings = Self { said, command, ..Self::default() };
        from_environment(&mut settings, environment);
        settings
    }

    /// Whether the environment asks for anything that only we do.
    pub fn ask_for_ours(&self) -> bool {
        self.said.iter().any(|said| {
            said.source == Source::Environment && !said.value.is_empty() && !OF_THE_LOG.contains(&said.name)
        })
    }

    /// Every value of an option: those of the command line if there are any, else the environment's.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &Said> {
        let flagged = self.said.iter().any(|said| said.name == name && said.source == Source::Flag);
        self.said.iter().filter(move |said| said.name == name && (!flagged || said.source == Source::Flag))
    }

    /// The value of an option that is given once; the last one wins. An empty one counts as not given.
    pub fn get(&self, name: &str) -> Option<&Said> {
        self.all(name).last().filter(|said| !said.value.is_empty())
    }
}

/// What the command line asks for.
pub enum Call {
    /// Start the program and bring it down.
    Run(Settings),
    /// Stand beside an app in another container.
    Sidecar(Settings),
    /// Talk to a running instance, or sleep: the subcommand's name and the words after it.
    Subcommand(&'static str, Vec<OsString>),
    /// Show the numbers that such a run would have.
    Plan(Planned),
    /// Print this on stdout and exit 0: the help, the version.
    Print(String),
}

/// What `sundown plan` is to show.
pub struct Planned {
    /// What a run would be told.
    pub settings: Settings,
    /// The platform to plan for, where it was said.
    pub target: Option<String>,
    /// Whether a machine is to read it.
    pub json: bool,
}

/// Reads the command line and the environment.
///
/// # Errors
/// The text to print on stderr before exit 2: what was wrong and how it is said right.
pub fn parse(
    args: &[OsString],
    environment: impl Iterator<Item = (OsString, OsString)>,
    is_pid_1: bool,
) -> Result<Call, String> {
    let words = args.get(1..).unwrap_or_default();
    if let Some(first) = words.first().and_then(|word| word.to_str())
        && let Some((name, _)) = SUBCOMMANDS.iter().find(|(name, _)| *name == first)
    {
        if *name == SIDECAR_WORD {
            return sidecar(words, environment);
        }
        if is_pid_1 && !ALONE.contains(name) {
            return Err(format!(
                "`{name}` is a subcommand of sundown; to run a program of that name as PID 1 write: sundown -- {name} ..."
            ));
        }
        if *name == PLAN {
            return parse_plan(words, environment);
        }
        return Ok(Call::Subcommand(name, words[1..].to_vec()));
    }
    let mut settings = Settings::default();
    from_environment(&mut settings, environment);
    match words.first().map(OsString::as_os_str) {
        // The usual entrypoint has no options: clap need not be built to read it.
        Some(first) if first == "--" => settings.command = words[1..].to_vec(),
        _ => match read(command(), args)? {
            ControlFlow::Continue(matches) => from_command_line(&mut settings, &matches),
            ControlFlow::Break(print) => return Ok(Call::Print(print)),
        },
    }
    if settings.command.is_empty() {
        return Err("no program to start: sundown [OPTIONS] [--] COMMAND [ARGS]... (see sundown --help)".into());
    }
    Ok(Call::Run(settings))
}

/// `words` begin with the subcommand, which stands where the parser looks for the program's name. Unlike the others it is an
/// instance, and so its options may come from the environment.
fn sidecar(words: &[OsString], environment: impl Iterator<Item = (OsString, OsString)>) -> Result<Call, String> {
    let mut settings = Settings { is_sidecar: true, ..Settings::default() };
    from_environment(&mut settings, environment);
    Ok(match read(command(), words)? {
        ControlFlow::Continue(matches) => {
            from_command_line(&mut settings, &matches);
            Call::Sidecar(settings)
        }
        ControlFlow::Break(print) => Call::Print(print),
    })
}

fn from_environment(settings: &mut Settings, environment: impl Iterator<Item = (OsString, OsString)>) {
    for (key, value) in environment {
        let Some(name) = key.to_str().and_then(|key| key.strip_prefix("SUNDOWN_")) else { continue };
        if is_service_link(name, &value) || name == crate::tree::MARK_SUFFIX {
            continue;
        }
        let option = OPTIONS.iter().find(|option| option.variable()["SUNDOWN_".len()..] == *name);
        match (option, value.to_str()) {
            (Some(option), Some(value)) => {
                settings.said.push(Said { name: option.name, source: Source::Environment, value: value.to_owned() });
            }
            (Some(_), None) => settings.warnings.push(format!("SUNDOWN_{name} is not UTF-8 and is passed over")),
            (None, _) => settings
                .warnings
                .push(format!("SUNDOWN_{name} is no option of this version and is passed over (see sundown --help)")),
        }
    }
}

/// Kubernetes sets `SUNDOWN_SERVICE_HOST`, `SUNDOWN_PORT=tcp://...` and their like for a Service named sundown.
fn is_service_link(name: &str, value: &OsStr) -> bool {
    let links_value = value.to_str().is_some_and(|value| {
        value.starts_with("tcp://") || value.starts_with("udp://") || value.starts_with("sctp://")
    });
    // A check of ours has such a value too: SUNDOWN_OUTLIVE=tcp://127.0.0.1:8080.
    let links_port = (name == "PORT" || name.ends_with("_PORT")) && links_value;
    let links_name = name.starts_with("SERVICE_")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_SERVICE_HOST")
        || name.split_once("PORT_").is_some_and(|(before, after)| {
            (before.is_empty() || before.ends_with('_')) && after.starts_with(|first: char| first.is_ascii_digit())
        });
    links_port || links_name
}

/// The only subcommand that is about the options of a run.
const PLAN: &str = "plan";

fn parse_plan(words: &[OsString], environment: impl Iterator<Item = (OsString, OsString)>) -> Result<Call, String> {
    let mut settings = Settings::default();
    from_environment(&mut settings, environment);
    let matches = match read(plan_command(), words)? {
        ControlFlow::Continue(matches) => matches,
        ControlFlow::Break(print) => return Ok(Call::Print(print)),
    };
    from_command_line(&mut settings, &matches);
    Ok(Call::Plan(Planned { settings, target: matches.get_one("for").cloned(), json: matches.get_flag("json") }))
}

/// What clap makes of the words, or the help that they ask for.
fn read(command: Command, args: &[OsString]) -> Result<ControlFlow<String, ArgMatches>, String> {
    match command.try_get_matches_from(args) {
        Ok(matches) => Ok(ControlFlow::Continue(matches)),
        Err(error) if error.use_stderr() => Err(error.to_string().trim_start_matches("error: ").trim_end().to_owned()),
        Err(help) => Ok(ControlFlow::Break(help.to_string())),
    }
}

fn from_command_line(settings: &mut Settings, matches: &ArgMatches) {
    for option in OPTIONS {
        if option.value.is_none() {
            if matches.get_flag(option.name) {
                settings.said.push(Said { name: option.name, source: Source::Flag, value: "on".into() });
            }
            continue;
        }
        for value in matches.get_many::<String>(option.name).into_iter().flatten() {
            settings.said.push(Said { name: option.name, source: Source::Flag, value: value.clone() });
        }
    }
    settings.command = matches.get_many::<OsString>("command").into_iter().flatten().cloned().collect();
}

fn command() -> Command {
    let options = OPTIONS.iter().map(|option| {
        let arg = Arg::new(option.name)
            .long(option.name)
            .help(option.help)
            .help_heading(option.heading)
            .hide(option.is_hidden());
        match option.value {
            Some(value) => arg.value_name(value).action(ArgAction::Append),
            None => arg.action(ArgAction::SetTrue),
        }
    });
    let program = Arg::new("command")
        .value_name("COMMAND")
        .help("The program to start, and its arguments")
        .num_args(0..)
        .trailing_var_arg(true)
        .value_parser(clap::value_parser!(OsString));
    Command::new("sundown")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A container's PID 1 that drains: starts the program, finds the app behind its wrappers,\nand brings it down without losing a request.")
        .override_usage("sundown [OPTIONS] [--] COMMAND [ARGS]...\n       sundown sidecar [OPTIONS]\n       sundown prestop | stop | ready | serve | live | status | explain | plan | test | keepalive | sleep")
        .after_help(after_help())
        .args(options)
        .arg(program)
        .max_term_width(110)
}

/// The command line of a run, and what is `sundown plan`'s own.
fn plan_command() -> Command {
    let target = Arg::new("for").long("for").value_name("PLATFORM").help(
        "Plan for `kubernetes`, `ecs`, `fargate`, `cloudrun`, `nomad` or `compose` [default: where it runs, else kubernetes]",
    );
    command()
        .override_usage("sundown plan [OPTIONS] [--for PLATFORM] [--json] [-- COMMAND]")
        .about("Shows each setting and where it came from, the sums, what a start would warn of, and the manifest. Starts nothing.")
        .after_help("Exit codes: 0 all fits, 1 it does not (SD2xx), 2 bad values.")
        .arg(target)
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("For machines"))
}

fn after_help() -> String {
    let mut text = String::from("Subcommands (the first word, without `--`):\n");
    for (name, help) in SUBCOMMANDS {
        text.push_str(&format!("  {name:<9} {help}\n"));
    }
    text.push_str(concat!(
        "\nEvery option is also an environment variable: --drain-delay 6s is SUNDOWN_DRAIN_DELAY=6s. The command line wins.\n",
        "Durations: 15s, 500ms, 1m30s; a bare number is seconds.\n",
        "\nIn an image:      ENTRYPOINT [\"/sundown\", \"--\"]\n",
        "                  CMD [\"yarn\", \"start\"]\n",
        "In its manifest:  SUNDOWN_HTTP=:9180  SUNDOWN_GRACE_PERIOD=60s  SUNDOWN_LB=alb\n",
        "\nExit codes: the program's own; 128+n if signal n ended it; 127 not found, 126 cannot be executed, 124 --wait-for took too long, 2 bad usage, 1 our own failure.",
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn run(words: &[&str], environment: &[(&str, &str)]) -> Settings {
        let environment = environment.iter().map(|(key, value)| (OsString::from(key), OsString::from(value)));
        match parse(&os(words), environment, true) {
            Ok(Call::Run(settings)) => settings,
            Ok(_) => panic!("not a run"),
            Err(text) => panic!("{text}"),
        }
    }

    fn value(settings: &Settings, name: &str) -> Option<String> {
        settings.get(name).map(|said| said.value.clone())
    }

    #[test]
    fn the_command_line_wins_over_the_environment() {
        let environment = [("SUNDOWN_DRAIN_DELAY", "3s"), ("SUNDOWN_LB", "alb"), ("SUNDOWN_HTTP", "")];
        let settings = run(&["sundown", "--drain-delay", "6s", "--", "app"], &environment);
        assert_eq!(value(&settings, "drain-delay").as_deref(), Some("6s"));
        assert_eq!(value(&settings, "lb").as_deref(), Some("alb"));
        assert_eq!(value(&settings, "http"), None, "empty counts as not given");
    }

    #[test]
    fn options_end_where_the_program_begins() {
        for words in [
            &["sundown", "--lb", "alb", "node", "--http", "x"][..],
            &["sundown", "--lb=alb", "--", "node", "--http", "x"],
        ] {
            let settings = run(words, &[]);
            assert_eq!(settings.command, os(&["node", "--http", "x"]));
            assert_eq!(value(&settings, "http"), None);
        }
        assert_eq!(run(&["sundown", "--", "-weird", "--"], &[]).command, os(&["-weird", "--"]));
    }

    #[test]
    fn a_kubernetes_service_named_sundown_is_passed_over() {
        let environment = [
            ("SUNDOWN_PORT", "tcp://10.0.0.1:80"),
            ("SUNDOWN_PORT_80_TCP", "tcp://10.0.0.1:80"),
            ("SUNDOWN_PORT_80_TCP_ADDR", "10.0.0.1"),
            ("SUNDOWN_SERVICE_HOST", "10.0.0.1"),
            ("SUNDOWN_HTTP_SERVICE_PORT", "80"),
            ("SUNDOWN_HTTP_PORT", "tcp://10.0.0.1:80"),
            ("SUNDOWN_HTTP_PORT_80_TCP_PROTO", "tcp"),
            ("SUNDOWN_SERVICE_PORT_HTTP", "80"),
        ];
        let settings = run(&["sundown", "--", "app"], &environment);
        assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
        assert_eq!(value(&settings, "http"), None);
        let settings = run(&["sundown", "--", "app"], &[("SUNDOWN_DRIAN_DELAY", "6s")]);
        assert!(settings.warnings[0].contains("SUNDOWN_DRIAN_DELAY"), "{:?}", settings.warnings);
    }

    #[test]
    fn an_option_whose_value_looks_like_a_services_is_taken_all_the_same() {
        for option in OPTIONS {
            let variable = option.variable();
            let settings = run(&["sundown", "--", "app"], &[(&variable, "tcp://127.0.0.1:8080")]);
            assert_eq!(value(&settings, option.name).as_deref(), Some("tcp://127.0.0.1:8080"), "{variable}");
        }
    }

    #[test]
    fn a_subcommand_as_pid_1_is_refused_with_the_way_out() {
        let text = parse(&os(&["sundown", "sleep", "infinity"]), std::iter::empty(), true).err().expect("refused");
        assert!(text.contains("sundown -- sleep"), "{text}");
        let call = parse(&os(&["sundown", "sleep", "infinity"]), std::iter::empty(), false);
        assert!(matches!(call, Ok(Call::Subcommand("sleep", _))));
        assert_eq!(run(&["sundown", "--", "sleep", "infinity"], &[]).command, os(&["sleep", "infinity"]));
        // An image is run for these: docker run --entrypoint /sundown IMAGE test -- yarn start.
        for name in ALONE {
            let call = parse(&os(&["sundown", name]), std::iter::empty(), true);
            assert!(!matches!(call, Err(text) if text.contains("is a subcommand")), "{name}");
        }
    }

    #[test]
    fn a_sidecar_is_a_containers_command_and_reads_the_environment() {
        let environment = [(OsString::from("SUNDOWN_PORTS"), OsString::from("3000"))];
        for is_pid_1 in [true, false] {
            let call = parse(&os(&["sundown", "sidecar", "--lb", "alb"]), environment.clone().into_iter(), is_pid_1);
            let Ok(Call::Sidecar(settings)) = call else { panic!("not a sidecar") };
            assert_eq!(
                (value(&settings, "lb").as_deref(), value(&settings, "ports").as_deref()),
                (Some("alb"), Some("3000"))
            );
            assert!(settings.is_sidecar);
        }
        assert_eq!(run(&["sundown", "--", "sidecar"], &[]).command, os(&["sidecar"]));
    }

    #[test]
    fn bad_usage_is_told() {
        for words in [&["sundown"][..], &["sundown", "--"], &["sundown", "--no-such", "x"], &["sundown", "--lb"]] {
            assert!(parse(&os(words), std::iter::empty(), false).is_err(), "{words:?}");
        }
    }

    #[test]
    fn clap_accepts_the_table() {
        command().debug_assert();
        plan_command().debug_assert();
    }
}

//! `sundown test`: starts an image's command under sundown as a deploy would, looks at it, stops it, and says what a stop in
//! production would have come to. For a team's pipeline.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::check::Check;
use crate::check::idle::{self, Measured};
use crate::cli::{self, Call};
use crate::control::client::{self, Failure};
use crate::control::{Ask, Reply};
use crate::keepalive;
use crate::plan::{Limit, Plan, Surroundings, duration, human};
use crate::report::json;
use crate::tree::walk::GROWN_UP;

mod outcome;

use outcome::{Log, Outcome};

/// The grace period where none is stated: Kubernetes' and ECS' own.
const GRACE: Duration = Duration::from_secs(30);
/// What a stop may take beyond its grace period before it is given up.
const BEYOND: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

/// The words behind `test`, up to the command.
struct Options {
    json: bool,
    /// How long the app may take until it is ready.
    ready: Duration,
    /// How long a close of an idle connection is waited for; 0 leaves that out.
    keepalive: Duration,
    /// Options for the instance, and the command behind `--`.
    options: Vec<OsString>,
    command: Vec<OsString>,
}

/// What was seen before the stop.
struct Looked {
    ready_after: Option<Duration>,
    status: String,
    status_json: String,
    keepalive: Vec<(u16, Result<Measured, String>)>,
}

/// Runs it.
///
/// # Errors
/// Bad usage, or that it could not be started.
pub fn run(words: &[OsString]) -> Result<Reply, Failure> {
    let options = Options::parse(words).map_err(Failure::Usage)?;
    let plan = options.plan().map_err(Failure::Usage)?;
    let mut trial = Trial::start(&options, &plan)?;
    let looked = trial.look(&options)?;
    let outcome = trial.stop(&plan)?;
    let text = if options.json { to_json(&options, &looked, &outcome) } else { to_text(&options, &looked, &outcome) };
    Ok(Reply { code: u8::from(!outcome.is_well()), text })
}

impl Options {
    fn parse(words: &[OsString]) -> Result<Self, String> {
        let mut options = Self {
            json: false,
            ready: Duration::from_secs(30),
            keepalive: Duration::from_secs(10),
            options: Vec::new(),
            command: Vec::new(),
        };
        let Some(end) = words.iter().position(|word| word == "--") else {
            return Err("the command stands behind `--`: sundown test [OPTIONS] -- yarn start".into());
        };
        options.command = words[end + 1..].to_vec();
        let mut words = words[..end].iter();
        while let Some(word) = words.next() {
            let (name, value) = match word.to_str().and_then(|word| word.split_once('=')) {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.to_str().unwrap_or_default(), None),
            };
            let target = match name {
                "--json" => {
                    options.json = true;
                    continue;
                }
                "--ready-timeout" => &mut options.ready,
                "--keepalive-timeout" => &mut options.keepalive,
                _ => {
                    options.options.push(word.clone());
                    continue;
                }
            };
            let said = value.or_else(|| words.next()?.to_str().map(str::to_owned)).unwrap_or_default();
            *target = duration(&said).map_err(|why| format!("{name} {said}: {why}"))?;
        }
        Ok(options)
    }

    /// The settings as the instance will see them.
    fn plan(&self) -> Result<Plan, String> {
        let words = [OsString::from("sundown")].into_iter().chain(self.options.iter().cloned());
        let args: Vec<OsString> = words.chain(["--".into()]).chain(self.command.iter().cloned()).collect();
        let Call::Run(settings) = cli::parse(&args, std::env::vars_os(), false)? else {
            return Err("--help and --version are sundown's own: sundown --help".into());
        };
        let around = Surroundings { platform: None, stderr_is_terminal: false };
        Plan::new(settings, &around).map_err(|error| error.to_string())
    }
}

/// The instance that is tried.
struct Trial {
    instance: Child,
    began: Instant,
    log: File,
    /// Whether we said ourselves what readiness is.
    assumes_listening: bool,
}

impl Trial {
    fn start(options: &Options, plan: &Plan) -> Result<Self, Failure> {
        let broken = |what: &str, error: io::Error| Failure::Run(format!("{what}: {error}"));
        let log =
            memfd_create(c"sundown-test", MFdFlags::MFD_CLOEXEC).map_err(|error| broken("the log", error.into()))?;
        let log = File::from(log);
        let assumes_listening = plan.ready_check == Check::Running;
        let mut command = Command::new("/proc/self/exe");
        // Ours come last, and so count.
        command.args(&options.options).args(["--log-format", "text", "--log-level", "info", "--control", "on"]);
        if assumes_listening {
            command.args(["--ready-check", "listening"]);
        }
        if !matches!(plan.limit, Limit::Stated(_)) {
            command.args(["--grace-period", &human(GRACE)]);
        }
        command.arg("--").args(&options.command).stdin(Stdio::null());
        command.stderr(log.try_clone().map_err(|error| broken("the log", error))?);
        // What the app prints is no part of the report.
        command.stdout(log.try_clone().map_err(|error| broken("the log", error))?);
        let instance = command.spawn().map_err(|error| broken("sundown cannot be started", error))?;
        Ok(Self { instance, began: Instant::now(), log, assumes_listening })
    }

    /// Waits until it is ready and grown up, and looks at it.
    fn look(&mut self, options: &Options) -> Result<Looked, Failure> {
        let ready_after = self.wait_until_ready(options)?;
        while self.began.elapsed() < GROWN_UP {
            self.still_runs()?;
            std::thread::sleep(LOOK);
        }
        let status = self.ask(Ask::Status)?;
        let status_json = self.ask(Ask::StatusJson)?;
        let ports = outcome::ports(&status);
        let wanted = ports.into_iter().filter(|_| !options.keepalive.is_zero());
        let keepalive = wanted.map(|port| (port, measure(port, options.keepalive))).collect();
        self.still_runs()?;
        Ok(Looked { ready_after, status, status_json, keepalive })
    }

    /// How long it took; none for a worker that never listens.
    fn wait_until_ready(&mut self, options: &Options) -> Result<Option<Duration>, Failure> {
        while self.began.elapsed() < options.ready {
            self.still_runs()?;
            if client::ask(self.instance.id(), Ask::Ready).is_ok_and(|reply| reply.code == 0) {
                return Ok(Some(self.began.elapsed()));
            }
            std::thread::sleep(LOOK);
        }
        if self.assumes_listening {
            return Ok(None);
        }
        let log = self.end();
        Err(Failure::Run(format!("it was not ready within {} (--ready-timeout)\n{log}", human(options.ready))))
    }

    fn ask(&self, ask: Ask) -> Result<String, Failure> {
        client::ask(self.instance.id(), ask).map(|reply| reply.text)
    }

    fn still_runs(&mut self) -> Result<(), Failure> {
        match self.instance.try_wait() {
            Ok(Some(status)) => {
                let log = self.read_log();
                Err(Failure::Run(format!("it ended before it was stopped, {status}\n{log}")))
            }
            _ => Ok(()),
        }
    }

    /// Stops it as an orchestrator does.
    fn stop(mut self, plan: &Plan) -> Result<Outcome, Failure> {
        let limit = match plan.limit {
            Limit::Stated(limit) => limit,
            Limit::Assumed(..) | Limit::Unknown => GRACE,
        };
        let began = Instant::now();
        self.ask(Ask::Stop)?;
        let status = self.wait_for_end(limit + BEYOND);
        let took = began.elapsed();
        let log = if status.is_some() { self.read_log() } else { self.end() };
        Ok(Outcome { status, took, limit, log: Log::of(&log) })
    }

    fn wait_for_end(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if let Ok(Some(status)) = self.instance.try_wait() {
                return Some(status);
            }
            std::thread::sleep(LOOK);
        }
        None
    }

    /// Ends it at once, with what it has started, and gives its log.
    fn end(&mut self) -> String {
        for _ in 0..3 {
            // An interrupt stops it, the next is a warning, and the one after that kills.
            let _ = crate::signals::send(self.instance.id() as i32, crate::signals::Signal::INT);
            if self.wait_for_end(Duration::from_millis(300)).is_some() {
                return self.read_log();
            }
        }
        let _ = self.instance.kill();
        let _ = self.instance.wait();
        self.read_log()
    }

    fn read_log(&mut self) -> String {
        let mut log = String::new();
        // Where it was not UTF-8, it is as good as empty.
        let _ = self.log.seek(SeekFrom::Start(0)).and_then(|_| self.log.read_to_string(&mut log));
        log
    }
}

/// For how long the app keeps an idle connection to this port.
fn measure(port: u16, limit: Duration) -> Result<Measured, String> {
    match Check::parse(&format!("http://localhost:{port}/"))? {
        Check::Http(check) => idle::measure(&check, limit),
        _ => Err("no address".into()),
    }
}

fn shown(command: &[OsString]) -> String {
    command.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

fn to_text(options: &Options, looked: &Looked, outcome: &Outcome) -> String {
    let mut text = format!("command    {}\n", shown(&options.command));
    let _ = match looked.ready_after {
        Some(time) => writeln!(text, "ready      after {}", human(time)),
        None => writeln!(text, "ready      never listened in {}: tried as a worker", human(options.ready)),
    };
    for line in looked.status.lines().filter(|line| ["app ", "ports "].iter().any(|start| line.starts_with(start))) {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let _ = writeln!(text, "{name:<10} {}", rest.trim_start());
    }
    for (port, measured) in &looked.keepalive {
        let _ = match measured {
            Ok(measured) => {
                writeln!(text, "keepalive  {}", of_ours(&keepalive::to_text(measured)))
            }
            Err(why) => writeln!(text, "keepalive  port {port} was not measured: {why}"),
        };
    }
    text.push_str(&outcome.to_text());
    text
}

/// Below its heading, and with the option's name here.
fn of_ours(text: &str) -> String {
    text.replace("--timeout", "--keepalive-timeout").replace('\n', "\n           ")
}

fn to_json(options: &Options, looked: &Looked, outcome: &Outcome) -> String {
    let keepalive = json::list(looked.keepalive.iter().map(|(port, measured)| match measured {
        Ok(measured) => format!("{{\"port\":{port},\"measured\":{}}}", keepalive::to_json(measured)),
        Err(why) => format!("{{\"port\":{port},\"measured\":null,\"why\":{}}}", json::quote(why)),
    }));
    let command = json::list(options.command.iter().map(|word| json::quote(&word.to_string_lossy())));
    format!(
        "{{\"command\":{command},\"ready_after_seconds\":{},\"status\":{},\"keepalive\":{keepalive},{}}}",
        json::seconds(looked.ready_after),
        looked.status_json.trim_end(),
        outcome.to_json(),
    )
}

//! From the command line to the running child, in the order that loses nothing.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::child::args::expand_env;
use crate::child::program::Program as ChildProgram;
use crate::child::start::{How, Place, Role, start};
use crate::child::std_fds::sanitize_std_fds;
use crate::child::terminal::Terminal;
use crate::child::why::StartError;
use crate::cli::{self, Call, Planned};
use crate::compat::{self, Original};
use crate::control;
use crate::fallback;
use crate::http::Guard;
use crate::notify::{NOTIFY_SOCKET, Notifier};
use crate::plan::show::Outline;
use crate::plan::{Notify, Plan, Platform, Surroundings};
use crate::report::advice::Given;
use crate::report::log;
use crate::report::termination::TerminationLog;
use crate::sidecar;
use crate::signals::{self, Arrivals, Inherited, SigSet, Signal};
use crate::supervisor::{self, Cut, Ears, Setup};
use crate::tree::MARK;
use crate::tree::program::usual_stop_signal;

const OWN_FAILURE: u8 = 1;
const BAD_USAGE: u8 = 2;

/// Why we do not get to supervise anything: what to say, and the exit code.
struct Failure(u8, String);

/// Does what the command line says, and gives the exit code.
pub fn main(args: &[OsString], inherited: Inherited) -> u8 {
    if let Err(error) = sanitize_std_fds() {
        log::plain(format_args!("descriptors 0 to 2 cannot be secured: {error}"));
        return OWN_FAILURE;
    }
    if let Some(original) = Original::of(args) {
        return compat::main(original, args, inherited);
    }
    let call = match cli::parse(args, std::env::vars_os(), std::process::id() == 1) {
        Ok(call) => call,
        Err(text) => {
            log::plain(text);
            return BAD_USAGE;
        }
    };
    match call {
        Call::Print(text) => {
            let _ = io::stdout().write_all(text.as_bytes());
            0
        }
        Call::Subcommand(name, words) => {
            // A hook or a probe is an ordinary program, and dies of a signal as one.
            let _ = signals::set_mask(inherited.mask);
            control::client::run(name, &words)
        }
        Call::Plan(asked) => {
            let _ = signals::set_mask(inherited.mask);
            show_plan(asked)
        }
        Call::Run(settings) => supervise(settings, inherited),
        Call::Sidecar(settings) => or_say_why(stand_beside(settings, inherited)),
    }
}

/// Runs the program under supervision, and gives the exit code.
pub fn supervise(settings: cli::Settings, inherited: Inherited) -> u8 {
    or_say_why(launch(settings, inherited))
}

fn or_say_why(code: Result<u8, Failure>) -> u8 {
    code.unwrap_or_else(|Failure(code, text)| {
        log::not_started(code, &text);
        code
    })
}

/// Prints the plan, and tells by the exit code whether all fits.
fn show_plan(Planned { settings, target, json }: Planned) -> u8 {
    let outline = match Outline::new(settings, target.as_deref(), platform()) {
        Ok(outline) => outline,
        Err(error) => {
            log::plain(error);
            return BAD_USAGE;
        }
    };
    let text = if json { outline.json() } else { outline.text() };
    // A reader that has gone away has seen enough.
    let _ = io::stdout().write_all(text.as_bytes());
    u8::from(!outline.fits())
}

fn platform() -> Option<Platform> {
    Platform::detect(|name| std::env::var_os(name), |path| Path::new(path).exists())
}

/// The settings and the log, and what is to be said at the start.
fn prepare(settings: cli::Settings) -> Result<(Plan, Given), Failure> {
    let around = Surroundings { platform: platform(), stderr_is_terminal: io::stderr().is_terminal() };
    let plan = Plan::new(settings, &around).map_err(|error| Failure(BAD_USAGE, error.to_string()))?;
    log::init(plan.log_format, plan.log_level);
    fallback::install(plan.deadline());
    for warning in &plan.warnings {
        tracing::warn!("{warning}");
    }
    let given = Given::default();
    plan.advice.iter().for_each(|advice| given.give(advice));
    Ok((plan, given))
}

fn launch(settings: cli::Settings, inherited: Inherited) -> Result<u8, Failure> {
    let (plan, given) = prepare(settings)?;
    let mut notifier = Notifier::open(take_notify_socket(plan.neighbours.notify));
    match begin(&plan, inherited, &mut notifier) {
        Ok(Begun { child, mark, terminal, termination, ears }) => {
            let setup = Setup { plan, child, mark, terminal, inherited, termination, given, notifier };
            Ok(supervisor::run(setup, ears))
        }
        Err(failure) if plan.neighbours.on_exit.is_empty() => Err(failure),
        // Whoever waits for our end is told of it, or a Job would hang on a program that was never there.
        Err(Failure(code, text)) => {
            log::not_started(code, &text);
            // Of all failures only a stop request gives such a code.
            supervisor::say_goodbye(&plan, inherited, code > 128);
            Ok(code)
        }
    }
}

/// What there is once the program has been started.
struct Begun {
    child: i32,
    mark: String,
    terminal: Option<Terminal>,
    termination: TerminationLog,
    ears: Ears,
}

/// Opens our ears, waits for what the program needs, and starts it.
fn begin(plan: &Plan, inherited: Inherited, notifier: &mut Notifier) -> Result<Begun, Failure> {
    // The port first: one that is taken is an error without a child.
    let endpoint = open_endpoint(plan)?;
    let control = if plan.control { open_control() } else { None };
    let mut termination = open_termination_log(plan);
    become_subreaper();
    let mark = new_mark();
    let program = child_program(plan, &mark, &mut termination)?;
    let ears = Ears { endpoint, control, arrivals: open_arrivals()? };
    if !plan.neighbours.wait_for.is_empty() {
        let waited = supervisor::wait_for(plan, inherited, &ears, notifier);
        waited.map_err(|Cut { code, text }| Failure(code, text))?;
    }
    if let Some(signal) = pending_stop(plan) {
        return Err(Failure(
            128 + signal.number() as u8,
            format!("{signal} came before the program was started, so it is not started"),
        ));
    }
    // What stops on a resize must not be sent the terminal's: we keep the terminal then.
    let terminal = if stops_on_resize(plan) { None } else { Terminal::of_stdin() };
    // Never stolen: started with `&`, we have it to hand over only after the shell's `fg`.
    let handed = terminal.filter(|terminal| terminal.is_foreground());
    let how = How { inherited, terminal: handed, place: Place::OwnGroup, role: Role::Program };
    let child = start(&program, how).map_err(|error| not_started(&error, &mut termination))?;
    fallback::note_child(child);
    Ok(Begun { child, mark, terminal, termination, ears })
}

/// The same without a program.
fn stand_beside(settings: cli::Settings, inherited: Inherited) -> Result<u8, Failure> {
    let (plan, given) = prepare(settings)?;
    let endpoint = open_endpoint(&plan)?;
    let guard = plan.prestop.as_ref().map(Guard::new).transpose().map_err(|error| Failure(BAD_USAGE, error))?;
    let control = if plan.control { open_control() } else { None };
    let termination = open_termination_log(&plan);
    let arrivals = open_arrivals()?;
    let setup = sidecar::Setup { plan, guard, inherited, termination, given };
    Ok(sidecar::run(setup, Ears { endpoint, control, arrivals }))
}

fn open_endpoint(plan: &Plan) -> Result<Option<std::net::TcpListener>, Failure> {
    let endpoint = plan.http.as_ref().map(crate::http::Address::bind).transpose();
    endpoint.map_err(|error| Failure(BAD_USAGE, error.to_string()))
}

/// Systemd's socket, where it is ours to speak to. What is not the program's is not left in its environment: it would hear from
/// two, and believe either.
fn take_notify_socket(notify: Notify) -> Option<OsString> {
    if notify == Notify::Child {
        return None;
    }
    let address = std::env::var_os(NOTIFY_SOCKET);
    // SAFETY: we are the only thread.
    unsafe { std::env::remove_var(NOTIFY_SOCKET) };
    address.filter(|_| notify == Notify::Own)
}

fn open_arrivals() -> Result<Arrivals, Failure> {
    Arrivals::open().map_err(|error| Failure(OWN_FAILURE, format!("signals cannot be received: {error}")))
}

/// The stop request that has arrived already, if one has.
fn pending_stop(plan: &Plan) -> Option<Signal> {
    let asks = plan.stop_on.unwrap_or([Signal::TERM, Signal::INT, Signal::HALT].into_iter().collect::<SigSet>());
    signals::pending().intersection(asks).iter().next()
}

/// What came to us by adoption is ours to reap and to wait for, as PID 1 or not (PR_SET_CHILD_SUBREAPER).
fn become_subreaper() {
    // SAFETY: takes numbers.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } != 0 && std::process::id() != 1 {
        tracing::warn!("orphans of the app cannot be seen: {}", io::Error::last_os_error());
    }
}

fn open_control() -> Option<std::os::unix::net::UnixListener> {
    control::server::open()
        .inspect_err(|error| {
            tracing::warn!("no control socket: {error}; the subcommands prestop, stop, ready, status do not work here")
        })
        .ok()
}

fn open_termination_log(plan: &Plan) -> TerminationLog {
    TerminationLog::open(plan.termination_log.as_deref()).unwrap_or_else(|error| {
        tracing::warn!(
            "--termination-log {}: {error}; no termination message is written",
            plan.termination_log.as_deref().unwrap_or_default()
        );
        TerminationLog::default()
    })
}

/// The program cannot be executed: it leaves no word behind, so we do.
fn not_started(error: &StartError, termination: &mut TerminationLog) -> Failure {
    let text = error.to_string();
    let _ = termination.write(&text);
    Failure(error.code, text)
}

/// A value that no other instance has: its pid and the nanosecond of its start.
fn new_mark() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    format!("{}-{time}", std::process::id())
}

fn child_program(plan: &Plan, mark: &str, termination: &mut TerminationLog) -> Result<ChildProgram, Failure> {
    let lookup = |name: &std::ffi::OsStr| std::env::var_os(name);
    let expand = |arg: &OsString| match plan.expand_env {
        true => expand_env(arg, lookup).map_err(|error| Failure(BAD_USAGE, format!("--expand-env: {error}"))),
        false => Ok(arg.clone()),
    };
    let argv = plan.command.iter().map(expand).collect::<Result<_, _>>()?;
    ChildProgram::new(argv, child_environment(mark)).map_err(|error| not_started(&error, termination))
}

/// Our options are kept from the child, or a sundown below us would drain as well. The mark stands behind those of any
/// instance above us.
fn child_environment(mark: &str) -> Vec<(OsString, OsString)> {
    let is_ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"SUNDOWN_");
    let mut environment: Vec<_> = std::env::vars_os().filter(|(name, _)| !is_ours(name)).collect();
    let mut value = std::env::var_os(MARK).unwrap_or_default();
    if !value.is_empty() {
        value.push("/");
    }
    value.push(mark);
    environment.push((MARK.into(), value));
    environment
}

/// Whether the program that is about to be started stops on a terminal's resize: it was told to, or it is Apache, by its
/// name or by that of a script which starts it.
fn stops_on_resize(plan: &Plan) -> bool {
    let signal = match &plan.ladder {
        Some(ladder) => ladder.steps().first().map(|step| step.signal),
        None => usual_stop_signal(&plan.command),
    };
    signal == Some(Signal::WINCH)
}

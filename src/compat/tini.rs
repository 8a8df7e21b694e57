//! tini 0.19.0, as Debian builds it.

use std::ffi::{OsStr, OsString};
use std::fmt::Arguments;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::getopt::{Getopt, Grammar, Opt};
use super::habits::{self, BUGS, Habits, Home, News, Subreaper, Whom};
use super::line::{Called, Words, say};
use super::{Answer, Asked, Lookup, Rewrites, licence, number, own_name};
use crate::child::end::Ended;
use crate::signals::Signal;

const VERSION: &str = "tini version 0.19.0";

const GRAMMAR: Grammar = Grammar { short: "p:hvwgle:s", long: &[], stops_at_first: false };

/// The three that `-p` does not know of the signals that have names.
const UNNAMED: [Signal; 3] = [Signal::STKFLT, Signal::IO, Signal::PWR];

/// Reads the command line and the environment.
pub(super) fn read(args: &[OsString], variable: Lookup) -> Result<Asked, Answer> {
    if args.len() == 2 && args[1] == "--version" {
        return Err(Answer::out(format!("{VERSION}\n")));
    }
    let mut voice = Voice { verbosity: 1, warns_of_reaping: false };
    let mut habits = habits();
    let mut getopt = Getopt::new(&GRAMMAR, args, variable("POSIXLY_CORRECT").is_some());
    while let Some(opt) = getopt.next() {
        let Opt { letter, value } = opt.map_err(|error| Answer::err(1, error + &usage(args)))?;
        match letter {
            b'h' => return Err(Answer::out(usage(args))),
            b'l' => return Err(Answer::out(licence("tini"))),
            b's' => habits.subreaper = Subreaper::Yes,
            b'p' => habits.parent_death = Some(named(&value).ok_or_else(|| unusable("-p", &value))?),
            b'v' => voice.verbosity += 1,
            b'w' => voice.warns_of_reaping = true,
            b'g' => habits.whom = Whom::Group,
            _ => habits.forgiven.push(status(&value).ok_or_else(|| unusable("-e", &value))?),
        }
    }
    let command = getopt.operands();
    if command.is_empty() {
        return Err(Answer::err(1, usage(args)));
    }
    if variable("TINI_SUBREAPER").is_some() {
        habits.subreaper = Subreaper::Yes;
    }
    if variable("TINI_KILL_PROCESS_GROUP").is_some() {
        habits.whom = Whom::Group;
    }
    if let Some(text) = variable("TINI_VERBOSITY") {
        // What is below zero is a great number to tini.
        voice.verbosity = number::leading(text.as_bytes()).map_or(0, |(value, _)| value as u32);
    }
    let mut implied: Vec<_> = habits.forgiven.iter().map(|code| ("remap-exit", format!("{code}=0"))).collect();
    if habits.whom == Whom::Group {
        implied.push(("signal-to", "group".into()));
    }
    habits.voice = habits::Voice::Tini(voice);
    Ok(Asked { command, habits, implied })
}

fn habits() -> Habits {
    Habits {
        voice: habits::Voice::Tini(Voice { verbosity: 1, warns_of_reaping: false }),
        whom: Whom::Child,
        home: Home::Group,
        left_alone: BUGS.into_iter().collect(),
        unheard: [Signal::TTIN, Signal::TTOU].into_iter().collect(),
        rewrites: Rewrites::default(),
        stops_too: false,
        clears_signals: false,
        farewell: None,
        forgiven: Vec::new(),
        subreaper: Subreaper::No,
        parent_death: None,
        leaves_directory: false,
        closes_files: false,
        hands_listeners_on: false,
        pauses: false,
    }
}

/// `SIGTERM`, and no other way to write it.
fn named(text: &OsStr) -> Option<Signal> {
    let signal = Signal::parse(text.to_str()?)?;
    (signal.number() <= 31 && !UNNAMED.contains(&signal) && *text == *signal.to_string()).then_some(signal)
}

/// As strtol(3) reads the whole of it; nothing is zero.
fn status(text: &OsStr) -> Option<u8> {
    match text.as_bytes() {
        [] => Some(0),
        bytes => number::leading(bytes).filter(|(_, rest)| rest.is_empty())?.0.try_into().ok(),
    }
}

fn unusable(option: &str, value: &OsStr) -> Answer {
    let pid = std::process::id();
    Answer::err(1, format!("[FATAL tini ({pid})] Not a valid option for {option}: {}\n", value.display()))
}

fn usage(args: &[OsString]) -> String {
    let name = own_name(args);
    let name = Path::new(&name).file_name().unwrap_or_default().display();
    format!(
        "{name} ({VERSION})
Usage: {name} [OPTIONS] PROGRAM -- [ARGS] | --version

Execute a program under the supervision of a valid init process ({name})

Command line options:

  --version: Show version and exit.
  -h: Show this help message and exit.
  -s: Register as a process subreaper (requires Linux >= 3.4).
  -p SIGNAL: Trigger SIGNAL when parent dies, e.g. \"-p SIGKILL\".
  -v: Generate more verbose output. Repeat up to 3 times.
  -w: Print a warning when processes are getting reaped.
  -g: Send signals to the child's process group.
  -e EXIT_CODE: Remap EXIT_CODE (from 0 to 255) to 0.
  -l: Show license and exit.

Environment variables:

  TINI_SUBREAPER: Register as a process subreaper (requires Linux >= 3.4).
  TINI_VERBOSITY: Set the verbosity level (default: 1).
  TINI_KILL_PROCESS_GROUP: Send signals to the child's process group.

"
    )
}

/// What tini says.
#[derive(Debug)]
pub(super) struct Voice {
    /// 1 warns, 2 informs, 3 is for debugging, 4 tells everything.
    verbosity: u32,
    warns_of_reaping: bool,
}

const FATAL: (u32, &str) = (0, "FATAL");
const WARN: (u32, &str) = (1, "WARN ");
const INFO: (u32, &str) = (2, "INFO ");
const DEBUG: (u32, &str) = (3, "DEBUG");
const TRACE: (u32, &str) = (4, "TRACE");

impl Voice {
    pub(super) fn tell(&self, news: News) {
        match news {
            News::Subreaper => self.say(TRACE, format_args!("Registered as child subreaper")),
            News::NoSubreaper(errno) => {
                self.say(FATAL, format_args!("Failed to register as child subreaper: {}", Words(errno)))
            }
            News::NoReaper => self.say(WARN, format_args!("{NO_REAPER}")),
            News::NoParentDeath => self.say(FATAL, format_args!("Failed to set up parent death signal")),
            News::NoChild(errno) => self.say(FATAL, format_args!("fork failed: {}", Words(errno))),
            News::Spawned { pid, program } => {
                self.say(INFO, format_args!("Spawned child process '{}' with pid '{pid}'", program.display()))
            }
            // It says so itself, before it ends.
            News::NotExecuted { pid, program, errno } => {
                self.say_as(pid, FATAL, format_args!("exec {} failed: {}", program.display(), Words(errno)))
            }
            News::Arrived(Signal::CHLD) => self.say(DEBUG, format_args!("Received SIGCHLD")),
            News::Passing(signal) => self.say(DEBUG, format_args!("Passing signal: '{}'", Called(signal))),
            News::Passed(_, Err(nix::errno::Errno::ESRCH)) => {
                self.say(WARN, format_args!("Child was dead when forwarding signal"))
            }
            News::Passed(_, Err(errno)) => {
                self.say(FATAL, format_args!("Unexpected error when forwarding signal: '{}'", Words(errno)))
            }
            News::Reaped { pid, ended, is_ours } => self.tell_of_end(pid, ended, is_ours),
            News::NoneToReap { none_left: true } => self.say(TRACE, format_args!("No child to wait")),
            News::NoneToReap { none_left: false } => self.say(TRACE, format_args!("No child to reap")),
            News::Leaving(_) => self.say(TRACE, format_args!("Exiting: child has exited")),
            _ => {}
        }
    }

    fn tell_of_end(&self, pid: i32, ended: Ended, is_ours: bool) {
        self.say(DEBUG, format_args!("Reaped child with pid: '{pid}'"));
        match ended {
            Ended::Exited(code) if is_ours => {
                self.say(INFO, format_args!("Main child exited normally (with status '{code}')"))
            }
            Ended::Signalled { signal, .. } if is_ours => {
                self.say(INFO, format_args!("Main child exited with signal (with signal '{}')", Called(signal)))
            }
            _ if self.warns_of_reaping => self.say(WARN, format_args!("Reaped zombie process with pid={pid}")),
            _ => {}
        }
    }

    fn say(&self, level: (u32, &str), text: Arguments) {
        self.say_as(std::process::id() as i32, level, text);
    }

    fn say_as(&self, pid: i32, (least, name): (u32, &str), text: Arguments) {
        if self.verbosity >= least {
            let fd = if least <= WARN.0 { libc::STDERR_FILENO } else { libc::STDOUT_FILENO };
            say(fd, format_args!("[{name} tini ({pid})] {text}"));
        }
    }
}

const NO_REAPER: &str = "Tini is not running as PID 1 and isn't registered as a child subreaper.
Zombie processes will not be re-parented to Tini, so zombie reaping won't work.
To fix the problem, use the -s option or set the environment variable TINI_SUBREAPER to register Tini as a child subreaper, or run Tini as PID 1.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_named_in_one_way() {
        let count = (1..=64)
            .filter_map(Signal::new)
            .filter(|signal| named(OsStr::new(&signal.to_string())) == Some(*signal))
            .count();
        assert_eq!(count, 28);
        for wrong in ["TERM", "sigterm", "15", "SIGRTMIN", "SIGIOT", "SIGPWR", "SIGSTKFLT", "SIGIO", ""] {
            assert_eq!(named(OsStr::new(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn a_code_is_read_as_c_reads_it() {
        for (text, expected) in [
            ("0", Some(0)),
            ("255", Some(255)),
            (" +7", Some(7)),
            ("", Some(0)),
            ("-0", Some(0)),
            ("256", None),
            ("-1", None),
            ("1x", None),
            (" ", None),
            ("0x1", None),
        ] {
            assert_eq!(status(OsStr::new(text)), expected, "{text:?}");
        }
    }
}

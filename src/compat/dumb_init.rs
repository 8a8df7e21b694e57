//! dumb-init 1.2.5.

use std::ffi::{OsStr, OsString};
use std::fmt::Arguments;
use std::os::unix::ffi::OsStrExt;

use super::getopt::{Getopt, Grammar, Opt};
use super::habits::{self, Habits, Home, Leader, News, STOPS, Subreaper, Whom};
use super::line::{Words, say};
use super::{Answer, Asked, Lookup, Rewrites, number, own_name};
use crate::child::end::Ended;
use crate::signals::{SigSet, Signal};

const VERSION: &str = "dumb-init v1.2.5\n";

const GRAMMAR: Grammar = Grammar {
    short: "hvVcr:",
    long: &[("help", b'h'), ("single-child", b'c'), ("rewrite", b'r'), ("verbose", b'v'), ("version", b'V')],
    stops_at_first: true,
};

/// Reads the command line and the environment.
pub(super) fn read(args: &[OsString], variable: Lookup) -> Result<Asked, Answer> {
    let mut habits = habits();
    let mut voice = Voice::default();
    let mut implied = Vec::new();
    let mut getopt = Getopt::new(&GRAMMAR, args, false);
    while let Some(opt) = getopt.next() {
        let Opt { letter, value } = opt.map_err(|error| Answer::err(1, error))?;
        match letter {
            b'h' => return Err(Answer::err(0, help(&own_name(args)))),
            b'V' => return Err(Answer::err(0, VERSION)),
            b'v' => voice.is_on = true,
            b'c' => habits.home = Home::Ours,
            _ => {
                let (from, to) = rewrite(&value).ok_or_else(|| Answer::err(1, REWRITE_USAGE))?;
                habits.rewrites.set(from, to);
            }
        }
    }
    let command = getopt.operands();
    if command.is_empty() {
        return Err(Answer::err(1, usage(&own_name(args))));
    }
    if variable("DUMB_INIT_DEBUG").is_some_and(|value| value == "1") {
        (voice.is_on, voice.by_variable) = (true, true);
    }
    if variable("DUMB_INIT_SETSID").is_some_and(|value| value == "0") {
        habits.home = Home::Ours;
        voice.no_session_by_variable = true;
    }
    if let Some(Some(stop)) = habits.rewrites.get(Signal::TERM) {
        implied.push(("stop-signal", stop.to_string()));
    }
    if habits.home == Home::Ours {
        habits.whom = Whom::Child;
        implied.push(("signal-to", "child".into()));
    }
    habits.voice = habits::Voice::DumbInit(voice);
    Ok(Asked { command, habits, implied })
}

fn habits() -> Habits {
    Habits {
        voice: habits::Voice::DumbInit(Voice::default()),
        whom: Whom::Group,
        home: Home::Session,
        left_alone: SigSet::EMPTY,
        unheard: SigSet::EMPTY,
        rewrites: Rewrites::default(),
        stops_too: true,
        clears_signals: true,
        farewell: Some(Signal::TERM),
        forgiven: Vec::new(),
        subreaper: Subreaper::No,
        parent_death: None,
        leaves_directory: true,
        closes_files: false,
        hands_listeners_on: false,
        pauses: false,
    }
}

/// `15:3`; what follows the second number does not matter.
fn rewrite(text: &OsStr) -> Option<(Signal, Option<Signal>)> {
    let (from, rest) = number::leading(text.as_bytes())?;
    let (to, _) = number::leading(rest.strip_prefix(b":")?)?;
    let signal = |number| i32::try_from(number).ok().filter(|number| (0..=31).contains(number)).map(Signal::new);
    Some((signal(from)??, signal(to)?))
}

const REWRITE_USAGE: &str = "Usage: -r option takes <signum>:<signum>, where <signum> is between 1 and 31.
This option can be specified multiple times.
Use --help for full usage.
";

fn usage(name: &str) -> String {
    format!("Usage: {name} [option] program [args]\nTry {name} --help for full usage.\n")
}

fn help(name: &str) -> String {
    format!(
        "{VERSION}Usage: {name} [option] command [[arg] ...]

dumb-init is a simple process supervisor that forwards signals to children.
It is designed to run as PID1 in minimal container environments.

Optional arguments:
   -c, --single-child   Run in single-child mode.
                        In this mode, signals are only proxied to the
                        direct child and not any of its descendants.
   -r, --rewrite s:r    Rewrite received signal s to new signal r before proxying.
                        To ignore (not proxy) a signal, rewrite it to 0.
                        This option can be specified multiple times.
   -v, --verbose        Print debugging information to stderr.
   -h, --help           Print this help message and exit.
   -V, --version        Print the current version and exit.

Full help is available online at https://github.com/Yelp/dumb-init
"
    )
}

impl Habits {
    /// What a signal becomes. In a session of its own the child has no shell that could make it go on after a stop that
    /// it may catch, so it gets the one that it cannot.
    pub(super) fn rewritten(&self, signal: Signal) -> Option<Signal> {
        match self.rewrites.get(signal) {
            Some(to) => to,
            None if self.home == Home::Session && STOPS.contains(&signal) => Some(Signal::STOP),
            None => Some(signal),
        }
    }
}

/// What dumb-init says.
#[derive(Default, Debug)]
pub(super) struct Voice {
    is_on: bool,
    by_variable: bool,
    no_session_by_variable: bool,
}

impl Voice {
    pub(super) fn tell(&self, news: News) {
        match news {
            News::NoChild(_) => error(format_args!("Unable to fork. Exiting.")),
            News::NotExecuted { program, errno, .. } => {
                error(format_args!("{}: {}", program.display(), Words(errno)));
            }
            _ if self.is_on => self.tell_all(news),
            _ => {}
        }
    }

    fn tell_all(&self, news: News) {
        match news {
            News::Begun => {
                if self.by_variable {
                    error(format_args!("Running in debug mode."));
                }
                if self.no_session_by_variable {
                    error(format_args!("Not running in setsid mode."));
                }
            }
            News::Detached(Ok(Leader(true))) => {
                error(format_args!("Detached from controlling tty, ignoring the first SIGHUP and SIGCONT we receive."))
            }
            News::Detached(Ok(Leader(false))) => {
                error(format_args!("Detached from controlling tty, but was not session leader."));
            }
            News::Detached(Err(errno)) => {
                error(format_args!("Unable to detach from controlling tty (errno={} {}).", errno as i32, Words(errno)))
            }
            News::Spawned { pid, .. } => error(format_args!("Child spawned with PID {pid}.")),
            News::Arrived(signal) => error(format_args!("Received signal {}.", signal.number())),
            News::HandOff(signal) => error(format_args!("Ignoring tty hand-off signal {}.", signal.number())),
            News::Rewritten(from, to) => translating(from, to.number()),
            News::Dropped(from) => {
                translating(from, 0);
                error(format_args!("Not forwarding signal 0 to children (ignored)."));
            }
            News::Passed(signal, _) => error(format_args!("Forwarded signal {} to children.", signal.number())),
            News::Stopping => error(format_args!("Suspending self due to TTY signal.")),
            News::Reaped { pid, ended: Ended::Exited(code), .. } => {
                error(format_args!("A child with PID {pid} exited with exit status {code}."));
            }
            News::Reaped { pid, ended: Ended::Signalled { signal, .. }, .. } => {
                error(format_args!("A child with PID {pid} was terminated by signal {}.", signal.number()));
            }
            News::Leaving(code) => error(format_args!("Child exited with status {code}. Goodbye.")),
            _ => {}
        }
    }

    /// What is called in the child, once it has its session and perhaps its terminal.
    pub(super) fn of_session(&self) -> fn(nix::Result<()>) {
        if self.is_on { session_is_there } else { |_| {} }
    }
}

fn session_is_there(terminal: nix::Result<()>) {
    if let Err(errno) = terminal {
        error(format_args!("Unable to attach to controlling tty (errno={} {}).", errno as i32, Words(errno)));
    }
    error(format_args!("setsid complete."));
}

fn translating(from: Signal, to: i32) {
    error(format_args!("Translating signal {} to {to}.", from.number()));
}

fn error(text: Arguments) {
    say(libc::STDERR_FILENO, format_args!("[dumb-init] {text}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewrite_is_read_as_c_reads_it() {
        let pair = |from, to| Some((Signal::new(from).expect("a signal"), Signal::new(to)));
        for (text, expected) in [
            ("15:3", pair(15, 3)),
            ("1:31", pair(1, 31)),
            ("2:0", pair(2, 0)),
            (" 15: 12x", pair(15, 12)),
            ("", None),
            ("herp:derp", None),
            ("15", None),
            ("15::12", None),
            ("15 :12", None),
            ("0:1", None),
            ("1:32", None),
            ("32:1", None),
            ("-1:1", None),
            ("4294967297:1", None),
        ] {
            assert_eq!(rewrite(OsStr::new(text)), expected, "{text:?}");
        }
    }
}

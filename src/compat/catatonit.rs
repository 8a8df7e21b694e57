//! catatonit 0.1.7. Its options, codes and errors are the original's; what it says for debugging is in words of ours.

use std::ffi::OsString;
use std::fmt::Arguments;

use super::getopt::{Getopt, Grammar, Opt};
use super::habits::{self, BUGS, Habits, Home, News, STOPS, Subreaper, Whom};
use super::line::{Words, say};
use super::{Answer, Asked, Lookup, Rewrites, licence};

/// It begins as tini's does, for dockerd's sake.
const VERSION: &str = "tini version 0.1.7_catatonit\n";

const GRAMMAR: Grammar = Grammar { short: "ghLPV", long: &[("version", b'V')], stops_at_first: false };

/// Reads the command line and the environment.
pub(super) fn read(args: &[OsString], variable: Lookup) -> Result<Asked, Answer> {
    let voice = Voice { is_debugging: variable("CATATONIT_DEBUG").is_some() };
    if variable("CATATONIT_LOG").is_some() {
        return Err(Answer::err(1, error("CATATONIT_LOG is reserved for future use")));
    }
    let mut habits = habits(voice);
    let mut implied = Vec::new();
    let mut getopt = Getopt::new(&GRAMMAR, args, variable("POSIXLY_CORRECT").is_some());
    while let Some(opt) = getopt.next() {
        let Opt { letter, .. } = opt.map_err(|error| Answer::err(1, error + USAGE))?;
        match letter {
            b'g' => {
                habits.whom = Whom::Group;
                implied.push(("signal-to", "group".into()));
            }
            b'h' => return Err(Answer::err(0, help())),
            b'L' => return Err(Answer::out(licence("catatonit"))),
            b'P' => habits.pauses = true,
            _ => return Err(Answer::out(VERSION)),
        }
    }
    let command = getopt.operands();
    if command.is_empty() && !habits.pauses {
        return Err(Answer::err(1, error("missing program name") + USAGE));
    }
    Ok(Asked { command, habits, implied })
}

fn habits(voice: Voice) -> Habits {
    Habits {
        voice: habits::Voice::Catatonit(voice),
        whom: Whom::Child,
        home: Home::Group,
        left_alone: BUGS.into_iter().collect(),
        unheard: STOPS.into_iter().collect(),
        rewrites: Rewrites::default(),
        stops_too: false,
        clears_signals: false,
        farewell: None,
        forgiven: Vec::new(),
        subreaper: Subreaper::UnlessPid1,
        parent_death: None,
        // Later versions do so, or podman could not unmount it.
        leaves_directory: true,
        closes_files: true,
        hands_listeners_on: true,
        pauses: false,
    }
}

fn error(text: &str) -> String {
    format!("ERROR (catatonit:{}): {text}\n", std::process::id())
}

const USAGE: &str = "usage: catatonit [-ghLPV] [--] <progname> [<arguments>...]\n";

fn help() -> String {
    format!(
        "{USAGE}
options:
  -g              Signals go to the process group of the program.
  -h              This help.
  -L              The licence.
  -P              Pause: start no program, reap, and exit at SIGTERM or SIGINT.
  -V, --version   The version.

This is sundown, called as catatonit.
"
    )
}

/// What catatonit says.
#[derive(Debug)]
pub(super) struct Voice {
    is_debugging: bool,
}

impl Voice {
    pub(super) fn tell(&self, news: News) {
        let me = std::process::id() as i32;
        match news {
            News::NoSubreaper(errno) => {
                tell("ERROR", me, format_args!("failed to set child-reaper as non-pid1: {}", Words(errno)))
            }
            News::NoChild(errno) => tell("ERROR", me, format_args!("failed to fork child: {}", Words(errno))),
            // It says so itself, before it ends.
            News::NotExecuted { pid, errno, .. } => {
                tell("ERROR", pid, format_args!("failed to exec pid1: {}", Words(errno)))
            }
            _ if self.is_debugging => self.debug(news),
            _ => {}
        }
    }

    fn debug(&self, news: News) {
        let me = std::process::id() as i32;
        match news {
            News::Spawned { pid, program } => {
                tell("DEBUG", me, format_args!("pid1 ({pid}) spawned: {}", program.display()))
            }
            News::Unheard(signal) => tell("DEBUG", me, format_args!("{signal} from the terminal changes nothing")),
            News::Passed(signal, Err(errno)) => {
                tell("WARN", me, format_args!("{signal} could not be passed on: {}", Words(errno)))
            }
            News::Reaped { pid, ended, is_ours: false } => {
                tell("DEBUG", me, format_args!("child process {pid} {ended}"))
            }
            News::NoneToReap { none_left: true } => tell("DEBUG", me, format_args!("no children left")),
            _ => {}
        }
    }
}

fn tell(level: &str, pid: i32, text: Arguments) {
    say(libc::STDERR_FILENO, format_args!("{level} (catatonit:{pid}): {text}"));
}

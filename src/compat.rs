//! In place of another init: called by its name, sundown takes that program's command line and environment, and keeps its
//! habits, texts and exit codes.
//!
//! ```text
//! argv[0] -> the init's own options -> Habits -> a stand-in, which starts the child, forwards, reaps and exits
//!                                   \-> sundown's options, and its lifecycle, where a SUNDOWN_* variable asks for it
//! ```
//!
//! The stand-in waits for signals and does nothing else: no event loop, no log, no endpoint, no process table.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::cli::Settings;
use crate::launch;
use crate::report::log;
use crate::signals::Inherited;

mod catatonit;
mod dumb_init;
mod getopt;
mod habits;
mod line;
mod number;
mod stand_in;
mod tini;

use habits::Habits;
use habits::Rewrites;

/// An init that we stand in for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Original {
    /// tini, which is also Docker's.
    Tini,
    /// dumb-init.
    DumbInit,
    /// catatonit, which is also podman's.
    Catatonit,
}

/// The names of their files. Docker and podman put the file of their `--init` in the container under one of their own.
const NAMES: &[(&str, Original)] = &[
    ("tini", Original::Tini),
    ("tini-static", Original::Tini),
    ("docker-init", Original::Tini),
    ("dumb-init", Original::DumbInit),
    ("catatonit", Original::Catatonit),
    ("podman-init", Original::Catatonit),
];

impl Original {
    /// The one by whose name we were called.
    pub fn of(args: &[OsString]) -> Option<Self> {
        let name = Path::new(args.first()?).file_name()?;
        NAMES.iter().find(|(known, _)| name == *known).map(|(_, original)| *original)
    }
}

/// A variable's value, if it is set.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// What a command line asks for.
struct Asked {
    /// The program and its arguments.
    command: Vec<OsString>,
    /// How it is to be looked after.
    habits: Habits,
    /// The same in options of ours, as far as there are such.
    implied: Vec<(&'static str, String)>,
}

/// What ends it before a program is started: a text that was asked for, or an error.
#[derive(Default, Debug)]
struct Answer {
    code: u8,
    out: String,
    err: String,
}

impl Answer {
    fn out(text: impl Into<String>) -> Self {
        Self { out: text.into(), ..Self::default() }
    }

    fn err(code: u8, text: impl Into<String>) -> Self {
        Self { code, err: text.into(), ..Self::default() }
    }

    fn give(self) -> u8 {
        line::write(libc::STDOUT_FILENO, self.out.as_bytes());
        line::write(libc::STDERR_FILENO, self.err.as_bytes());
        self.code
    }
}

/// Does what the init's command line says, and gives the exit code.
pub fn main(original: Original, args: &[OsString], inherited: Inherited) -> u8 {
    let read = match original {
        Original::Tini => tini::read,
        Original::DumbInit => dumb_init::read,
        Original::Catatonit => catatonit::read,
    };
    let Asked { command, habits, implied } = match read(args, &|name| std::env::var_os(name)) {
        Ok(asked) => asked,
        Err(answer) => return answer.give(),
    };
    let environment: Vec<_> = std::env::vars_os().collect();
    let ours = environment.iter().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"SUNDOWN_")).cloned();
    let mut settings = Settings::of_other_init(command, implied, ours);
    if settings.ask_for_ours() && !habits.pauses {
        settings.rewrites = habits.rewrites.pairs();
        if let Err(code) = stand_in::bind_to_parent(&habits) {
            return code;
        }
        return launch::supervise(settings, inherited);
    }
    for warning in settings.warnings {
        log::plain(format_args!("warning: {warning}"));
    }
    stand_in::run(settings.command, environment, habits, inherited)
}

/// sundown's own licence, which is what `-l` and `-L` are asked for of a sundown, whatever it is called.
fn licence(name: &str) -> String {
    format!(
        concat!(
            "This is sundown {}, called as {}.\n\n",
            "It is licensed under the MIT License or the Apache License, Version 2.0, at your option.\n\n{}"
        ),
        env!("CARGO_PKG_VERSION"),
        name,
        include_str!("../LICENSE-MIT"),
    )
}

/// The name under which a program was called, as it was given.
fn own_name(args: &[OsString]) -> String {
    args.first().map_or(OsStr::new(""), |name| name).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_the_name_tells_whom_we_stand_in_for() {
        for (name, init) in [
            ("tini", Some(Original::Tini)),
            ("/sbin/docker-init", Some(Original::Tini)),
            ("./tini-static", Some(Original::Tini)),
            ("/usr/bin/dumb-init", Some(Original::DumbInit)),
            ("/run/podman-init", Some(Original::Catatonit)),
            ("/catatonit", Some(Original::Catatonit)),
            ("/tini/sundown", None),
            ("tini.sh", None),
            ("", None),
        ] {
            assert_eq!(Original::of(&[name.into()]), init, "{name}");
        }
        assert_eq!(Original::of(&[]), None);
    }
}

//! Checks of the app: what `--ready-check` and `--live-check` can ask, the asking over the network, and the verdict
//! that a run of results adds up to; and how long it keeps an idle connection. `running`, `listening` and `exec` need the process table and a child, so the
//! supervisor asks those.

pub mod answer;
mod errand;
pub mod idle;
mod judge;
mod own;
mod probe;
mod target;
mod words;

use std::fmt;
use std::net::SocketAddr;

pub use errand::{Errand, Method};
pub use judge::Judge;
pub use own::OwnConnections;
pub use probe::{http, send, tcp};
pub use target::{HttpCheck, TcpCheck};
pub use words::split as command;

/// A way to tell whether the app is well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Check {
    /// The tree is not empty.
    Running,
    /// The app listens on something.
    Listening,
    /// It answers a GET with 200 to 399.
    Http(HttpCheck),
    /// It accepts a connection.
    Tcp(TcpCheck),
    /// This program, run with these arguments, exits with 0. No shell is involved, so that it works in an image without
    /// one; `exec:sh -c '...'` asks for it by name. Never empty.
    Exec(Vec<String>),
}

const FORMS: &str = "running, listening, http://127.0.0.1:3000/health, tcp://:3000, exec:COMMAND";

impl Check {
    /// Reads an option's value. The error is the reason alone, to stand behind the option's name and value.
    ///
    /// In `exec:COMMAND`, words are split at white space; `'...'` keeps all as it is, `"..."` all but `\"` and `\\`, and
    /// outside of both a backslash keeps the next character. Nothing else is special: no variable, no `*`, no pipe.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match (kind, rest.strip_prefix("//")) {
            ("running", _) if text == kind => Ok(Self::Running),
            ("listening", _) if text == kind => Ok(Self::Listening),
            ("http", Some(rest)) => HttpCheck::parse(rest).map(Self::Http),
            ("tcp", Some(rest)) => TcpCheck::parse(rest).map(Self::Tcp),
            ("https", Some(_)) => Err(format!("sundown does not speak TLS; ask with a client: exec:curl -fks {text}")),
            ("exec", _) if text != kind => words::split(rest).map(Self::Exec),
            _ => Err(format!("not a check (there are: {FORMS})")),
        }
    }
}

/// For whoever may read it: no argument of a command and no query, since both may hold a password.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("running"),
            Self::Listening => f.write_str("listening"),
            Self::Http(check) => check.fmt(f),
            Self::Tcp(check) => write!(f, "tcp://{}", check.endpoint.authority),
            Self::Exec(_) => f.write_str("a command"),
        }
    }
}

impl fmt::Display for HttpCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.split('?').next().unwrap_or_default();
        write!(f, "http://{}{path}", self.endpoint.authority)
    }
}

/// Addresses to try in turn, and how they were written.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Endpoint {
    authority: String,
    addresses: Vec<SocketAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read() {
        assert_eq!(Check::parse("running"), Ok(Check::Running));
        assert_eq!(Check::parse("listening"), Ok(Check::Listening));
        assert!(matches!(Check::parse("http://127.0.0.1:3000/health"), Ok(Check::Http(_))));
        assert!(matches!(Check::parse("tcp://:3000"), Ok(Check::Tcp(_))));
        let words = ["/bin/ok", "a:b", "c d"].map(str::to_owned).to_vec();
        assert_eq!(Check::parse("exec:/bin/ok a:b 'c d'"), Ok(Check::Exec(words)));
    }

    #[test]
    fn what_is_shown_of_a_check_holds_no_password() {
        for (text, shown) in [
            ("http://127.0.0.1:3000/health?token=x", "http://127.0.0.1:3000/health"),
            ("tcp://:3000", "tcp://localhost:3000"),
            ("exec:psql --password x", "a command"),
        ] {
            assert_eq!(Check::parse(text).expect("a check").to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_check_is_refused_with_the_way_out() {
        for (text, said) in [
            ("", "not a check"),
            ("ready", "not a check"),
            ("running:", "not a check"),
            ("http:127.0.0.1", "not a check"),
            ("exec", "not a check"),
            ("exec:", "no command"),
            ("https://127.0.0.1/x", "exec:curl -fks https://127.0.0.1/x"),
        ] {
            let error = Check::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}

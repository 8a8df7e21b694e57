//! What is done once the program has ended (`--on-exit`): a request that tells a proxy to go, or a command.

use std::fmt;

use super::{HttpCheck, words};

/// One thing to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Errand {
    /// A request without a body.
    Ask(Method, HttpCheck),
    /// This program, run with these arguments. Never empty.
    Run(Vec<String>),
}

/// How it is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Only asks.
    Get,
    /// Has something done.
    Post,
}

impl Errand {
    /// Reads `POST http://127.0.0.1:15020/quitquitquit`, the same with GET, or `exec:COMMAND`. The error is the reason
    /// alone.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(command) = text.strip_prefix("exec:") {
            return words::split(command).map(Self::Run);
        }
        let (method, url) = match text.split_once(char::is_whitespace) {
            Some(("POST", url)) => (Method::Post, url.trim_start()),
            Some(("GET", url)) => (Method::Get, url.trim_start()),
            _ => return Err("not one of `POST http://...`, `GET http://...`, `exec:COMMAND`".to_owned()),
        };
        match url.strip_prefix("http://") {
            Some(rest) => HttpCheck::parse(rest).map(|check| Self::Ask(method, check)),
            None => Err(format!("`{url}` is no http:// URL; sundown does not speak TLS, but exec:curl ... does")),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Post { "POST" } else { "GET" })
    }
}

/// For the log: no argument of a command and no query.
impl fmt::Display for Errand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(method, check) => write!(f, "{method} {check}"),
            Self::Run(command) => f.write_str(&command[0]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read() {
        for (text, shown) in [
            ("POST http://127.0.0.1:15020/quitquitquit", "POST http://127.0.0.1:15020/quitquitquit"),
            ("GET  http://localhost:9091/quit?token=x", "GET http://localhost:9091/quit"),
            ("exec:curl -XPOST 'https://x y'", "curl"),
        ] {
            assert_eq!(Errand::parse(text).expect("an errand").to_string(), shown);
        }
    }

    #[test]
    fn what_is_none_is_refused_with_the_way_out() {
        for (text, said) in [
            ("", "not one of"),
            ("http://127.0.0.1:15020/quitquitquit", "not one of"),
            ("post http://127.0.0.1/", "not one of"),
            ("POST https://127.0.0.1/", "exec:curl"),
            ("POST http://proxy/quit", "resolves no names"),
            ("exec:", "no command"),
        ] {
            let error = Errand::parse(text).expect_err("it is none");
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}

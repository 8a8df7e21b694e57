//! The control socket: how `sundown prestop`, `status` and the rest talk to the running instance.
//!
//! An abstract Unix socket (unix(7)) needs no file, no writable disk and no root. Its names are shared by all containers of
//! a pod, so ours holds the mount and the PID namespace and the instance's pid; and each end requires the other's
//! credentials (SO_PEERCRED) to show the same user or root, and a pid in its own PID namespace, which is 0 across namespaces.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

pub mod client;
mod paint;
pub mod server;

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Drain, and say when it is over.
    PreStop,
    /// Stop.
    Stop,
    /// Stop without a drain.
    StopNow,
    /// What /readyz says.
    Ready,
    /// What /servez says.
    Serve,
    /// What /livez says.
    Live,
    /// The state, for a person.
    Status,
    /// The state, for a machine.
    StatusJson,
}

const WORDS: [(&str, Ask); 8] = [
    ("prestop", Ask::PreStop),
    ("stop", Ask::Stop),
    ("stop-now", Ask::StopNow),
    ("ready", Ask::Ready),
    ("serve", Ask::Serve),
    ("live", Ask::Live),
    ("status", Ask::Status),
    ("status-json", Ask::StatusJson),
];

impl Ask {
    fn word(self) -> &'static str {
        WORDS.iter().find(|(_, ask)| *ask == self).map_or("", |(word, _)| word)
    }

    fn parse(word: &str) -> Option<Self> {
        WORDS.iter().find(|(known, _)| *known == word).map(|(_, ask)| *ask)
    }
}

/// What the client prints and exits with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The exit code.
    pub code: u8,
    /// The text.
    pub text: String,
}

impl Reply {
    /// A reply for exit 0.
    pub fn ok(text: impl Into<String>) -> Self {
        Self { code: 0, text: text.into() }
    }

    /// A reply for exit 1.
    pub fn no(text: impl Into<String>) -> Self {
        Self { code: 1, text: text.into() }
    }
}

/// What the names of all instances in this container start with.
fn prefix() -> String {
    format!("sundown/{}-{}/", namespace("mnt"), namespace("pid"))
}

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{}{pid}", prefix()))
}

/// The number in `mnt:[4026531841]`; 0 where /proc does not say.
fn namespace(kind: &str) -> u64 {
    let number = || {
        let link = fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
        link.to_str()?.split(['[', ']']).nth(1)?.parse().ok()
    };
    number().unwrap_or(0)
}

/// Whether a peer with these credentials is one of us: the same user or root, and of our PID namespace.
fn is_trusted(peer_uid: u32, peer_pid: i32) -> bool {
    // SAFETY: geteuid has no preconditions.
    let own = unsafe { libc::geteuid() };
    peer_pid > 0 && (peer_uid == 0 || peer_uid == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_back() {
        for (word, ask) in WORDS {
            assert_eq!(Ask::parse(word), Some(ask));
            assert_eq!(ask.word(), word);
        }
        assert_eq!(Ask::parse("no"), None);
    }

    #[test]
    fn only_our_own_user_and_root_of_our_namespace_are_trusted() {
        // SAFETY: geteuid has no preconditions.
        let own = unsafe { libc::geteuid() };
        assert!(is_trusted(own, 1));
        assert!(is_trusted(0, 7));
        assert!(!is_trusted(own + 1, 7));
        assert!(!is_trusted(0, 0), "another PID namespace shows as pid 0");
    }
}

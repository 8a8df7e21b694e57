//! What is left when the time is over: a line for each process that is about to be killed. Pure.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::plan::human;
use crate::signals::Signal;
use crate::tree::process::{Comm, Reaction};

/// More than this many connections of one process are counted and not named.
const NAMED: usize = 4;

/// A process that has not ended.
#[derive(Debug)]
pub struct Left {
    /// Its short name.
    pub comm: Comm,
    /// Its pid.
    pub pid: i32,
    /// Its state, a letter of proc_pid_stat(5).
    pub state: u8,
    /// Where in the kernel it waits (proc_pid_wchan(5)).
    pub waits_in: Option<String>,
    /// The CPU time that it has used, and in how long.
    pub cpu: Option<(Duration, Duration)>,
    /// What it does with the stop signal.
    pub signal: Signal,
    /// That.
    pub reaction: Option<Reaction>,
    /// The app's connections that it holds.
    pub connections: Vec<Held>,
}

/// A connection of a process that is left.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The client.
    pub remote: SocketAddr,
    /// Whether a request waits for its answer, where that can be seen.
    pub waits: Option<bool>,
    /// Since a byte last moved.
    pub still: Duration,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}): {}", self.comm.as_str(), self.pid, state(self.state))?;
        if let Some(place) = &self.waits_in {
            write!(f, " in {place}")?;
        }
        if let Some((used, time)) = self.cpu {
            write!(f, ", {} of CPU in the last {}", human(used), human(time))?;
        }
        match self.reaction {
            Some(reaction) => write!(f, ", {} {reaction}", self.signal)?,
            None => write!(f, ", what it does with {} cannot be seen", self.signal)?,
        }
        if !self.connections.is_empty() {
            let count = self.connections.len();
            write!(f, "; {count} connection{}: ", if count == 1 { "" } else { "s" })?;
        }
        for (at, connection) in self.connections.iter().take(NAMED).enumerate() {
            write!(f, "{}{connection}", if at > 0 { ", " } else { "" })?;
        }
        match self.connections.len().checked_sub(NAMED) {
            Some(more @ 1..) => write!(f, " and {more} more"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { remote, waits, still } = self;
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        match waits {
            Some(true) => write!(f, "{remote} with a request for {}", human(*still)),
            Some(false) => write!(f, "{remote} idle for {}", human(*still)),
            None => write!(f, "{remote}"),
        }
    }
}

fn state(letter: u8) -> &'static str {
    match letter {
        b'R' => "running",
        b'S' | b'I' => "asleep",
        b'D' => "in a wait that no signal ends (a disk, NFS)",
        b'T' => "stopped",
        b't' => "stopped by a debugger",
        b'Z' | b'X' => "dead but for its threads",
        _ => "in a state that cannot be seen",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left() -> Left {
        Left {
            comm: Comm::new(b"node"),
            pid: 18,
            state: b'S',
            waits_in: Some("ep_poll".into()),
            cpu: Some((Duration::from_millis(12), Duration::from_millis(1100))),
            signal: Signal::TERM,
            reaction: Some(Reaction::Caught),
            connections: Vec::new(),
        }
    }

    #[test]
    fn a_line_says_what_it_does_and_what_it_waits_for() {
        let held = |last: u8, waits, seconds| Held {
            remote: format!("[::ffff:10.0.0.{last}]:4000").parse().expect("an address"),
            waits,
            still: Duration::from_secs(seconds),
        };
        let connections = vec![held(1, Some(true), 12), held(2, Some(false), 40)];
        assert_eq!(
            Left { connections, ..left() }.to_string(),
            "node (pid 18): asleep in ep_poll, 12ms of CPU in the last 1.1s, SIGTERM caught; 2 connections: 10.0.0.1:4000 with a request for 12s, 10.0.0.2:4000 idle for 40s"
        );
        let many = Left { connections: (0..9).map(|at| held(at, None, 0)).collect(), ..left() };
        assert!(many.to_string().ends_with("10.0.0.3:4000 and 5 more"), "{many}");
    }

    #[test]
    fn what_cannot_be_seen_is_not_made_up() {
        let hidden = Left { waits_in: None, cpu: None, reaction: None, state: b'?', ..left() };
        assert_eq!(
            hidden.to_string(),
            "node (pid 18): in a state that cannot be seen, what it does with SIGTERM cannot be seen"
        );
        let stuck = Left { state: b'D', reaction: Some(Reaction::Default), waits_in: None, cpu: None, ..left() };
        assert!(stuck.to_string().contains("no signal ends (a disk, NFS), SIGTERM not handled"), "{stuck}");
    }
}

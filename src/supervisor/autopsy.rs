//! The look at what is left before it is killed.

use std::time::Duration;

use super::Supervisor;
use crate::lifecycle::Moment;
use crate::report::autopsy::{Held, Left};
use crate::traffic::diag::Connection;
use crate::traffic::listeners;
use crate::tree::process::{Key, Node};

/// A line each for so many processes; the last words name them all.
const EXAMINED: usize = 8;
/// CPU time is told of the last second or so.
const SPAN: Duration = Duration::from_secs(1);

/// The CPU time that each process had used at some moment, in ticks.
#[derive(Default)]
pub(super) struct CpuBefore {
    at: Moment,
    used: Vec<(Key, u64)>,
}

impl Supervisor {
    /// Takes down, once a second while the app stops, what CPU time each process has used.
    pub(super) fn note_cpu(&mut self) {
        let now = self.now();
        if now.saturating_sub(self.cpu_before.at) >= SPAN {
            let used = self.teller.tree.nodes().iter().map(|node| (node.stat.key, node.stat.cpu)).collect();
            self.cpu_before = CpuBefore { at: now, used };
        }
    }

    /// Says of each process that is left what it does.
    pub(super) fn autopsy(&mut self) {
        // Not closely: the command line of one that hangs in the kernel may not be had, and we are about to kill it.
        self.teller.tree.look();
        let connections = self.app_connections();
        let nodes: Vec<Node> = self.teller.tree.nodes().iter().take(EXAMINED).copied().collect();
        for node in nodes {
            tracing::warn!("left: {}", self.left(&node, &connections));
        }
    }

    fn left(&mut self, node: &Node, connections: &[Connection]) -> Left {
        let Key { pid, .. } = node.stat.key;
        let told = self.teller.ledger.told().iter().find(|told| told.key == node.stat.key).map(|told| told.signal);
        let signal = told.unwrap_or_else(|| self.teller.stop_signal(node));
        let inodes: Vec<u64> =
            connections.iter().map(|connection| connection.inode).filter(|inode| *inode > 0).collect();
        let held = listeners::held(std::iter::once(pid), &inodes).inodes;
        Left {
            comm: node.stat.comm,
            pid,
            state: node.stat.state,
            waits_in: self.teller.tree.waits_in(pid),
            cpu: self.cpu_since(node),
            signal,
            reaction: self.teller.tree.reaction(pid, signal),
            connections: connections.iter().filter(|one| held.binary_search(&one.inode).is_ok()).map(told_of).collect(),
        }
    }

    fn cpu_since(&self, node: &Node) -> Option<(Duration, Duration)> {
        let (_, before) = self.cpu_before.used.iter().find(|(key, _)| *key == node.stat.key)?;
        // The kernel tells CPU time in hundredths of a second, whatever its own HZ (USER_HZ).
        let used = Duration::from_millis(node.stat.cpu.saturating_sub(*before) * 10);
        Some((used, self.now().saturating_sub(self.cpu_before.at)))
    }
}

fn told_of(connection: &Connection) -> Held {
    Held { remote: connection.remote, waits: connection.waits_for_answer(), still: connection.still() }
}

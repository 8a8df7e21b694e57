//! Who has been told what, who is told later, and who is next: the book that keeps "each once".

use crate::signals::{SigSet, Signal};
use crate::tree::process::{Comm, Key, Node};
use crate::tree::program::Kind;

/// Somebody who has been told.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// Who.
    pub key: Key,
    /// By which signal first.
    pub signal: Signal,
    /// Its name at that time.
    pub comm: Comm,
    /// Whether it was a shell: it may wait for its child before it looks at its trap.
    is_shell: bool,
}

/// The book.
#[derive(Default, Debug)]
pub struct Ledger {
    told: Vec<Told>,
    /// They are told when they can hear.
    early: Vec<Key>,
    /// What was below somebody who was told, and whether it catches TERM: it may be cleaning up on its behalf.
    below: Vec<(Key, bool)>,
    /// Every signal that was sent to stop somebody.
    sent: SigSet,
}

impl Ledger {
    /// All who were told.
    pub fn told(&self) -> &[Told] {
        &self.told
    }

    /// Whether this one was told.
    pub fn was_told(&self, key: Key) -> bool {
        self.told.iter().any(|told| told.key == key)
    }

    /// Every signal that was sent.
    pub fn sent(&self) -> SigSet {
        self.sent
    }

    /// Those who are told later.
    pub fn early(&self) -> &[Key] {
        &self.early
    }

    /// Puts down who is told later.
    pub fn set_early(&mut self, early: Vec<Key>) {
        self.early = early;
    }

    /// Puts down that this one is told. False if it was already: nobody hears twice.
    pub fn tell(&mut self, node: &Node, signal: Signal) -> bool {
        let key = node.stat.key;
        if self.was_told(key) {
            return false;
        }
        self.told.push(Told { key, signal, comm: node.stat.comm, is_shell: node.program.kind == Kind::Shell });
        self.sent = self.sent.with(signal);
        true
    }

    /// Puts down that the ladder's next signal is sent.
    pub fn climb(&mut self, signal: Signal) {
        self.sent = self.sent.with(signal);
    }

    /// Notes who lives below those who were told, while the kinship can be seen.
    pub fn note_kin(&mut self, nodes: &[Node]) {
        for node in nodes {
            let is_kin = |parent: usize| {
                let key = nodes[parent].stat.key;
                self.was_told(key) || self.is_below(key)
            };
            if node.parent.is_some_and(is_kin) && !self.is_below(node.stat.key) {
                self.below.push((node.stat.key, node.mask.catches(Signal::TERM)));
            }
        }
    }

    fn is_below(&self, key: Key) -> bool {
        self.below.iter().any(|(known, _)| *known == key)
    }

    /// Whether the process with this pid, which has just been reaped, was an app: it was told, or catches the signal and
    /// was below one who was.
    pub fn was_app(&self, pid: i32) -> bool {
        let below = self.below.iter().any(|(key, catches)| key.pid == pid && *catches);
        below || self.told.iter().any(|told| told.key.pid == pid)
    }

    /// Whether all who were told are gone, and nobody is still to be told.
    pub fn all_gone(&self, nodes: &[Node]) -> bool {
        self.early.is_empty() && !nodes.iter().any(|node| self.was_told(node.stat.key))
    }

    /// Who hears in this round, once those who were told are gone: all who have not heard, but for those who catch the
    /// signal and may be cleaning up for one who was told; they wait for the patient round.
    pub fn is_next(&self, node: &Node, patient: bool, signal: Signal) -> bool {
        let key = node.stat.key;
        let cleans_up = self.is_below(key) && node.mask.catches(signal) && !node.program.wrapper;
        !self.was_told(key) && (patient || !cleans_up)
    }

    /// Who hears in the patient round although somebody who was told is still there: the children of a shell that defers
    /// its trap until they end, and what cleans up for one who is gone.
    pub fn is_waited_for(&self, nodes: &[Node], at: usize, signal: Signal) -> bool {
        let node = &nodes[at];
        if self.was_told(node.stat.key) {
            return false;
        }
        let told_shell = |parent: usize| {
            let key = nodes[parent].stat.key;
            self.told.iter().any(|told| told.key == key && told.is_shell)
        };
        let orphaned = self.is_below(node.stat.key) && node.mask.catches(signal) && !self.has_told_ancestor(nodes, at);
        node.parent.is_some_and(told_shell) || orphaned
    }

    fn has_told_ancestor(&self, nodes: &[Node], at: usize) -> bool {
        let mut up = nodes[at].parent;
        while let Some(parent) = up {
            if self.was_told(nodes[parent].stat.key) {
                return true;
            }
            up = nodes[parent].parent;
        }
        false
    }
}

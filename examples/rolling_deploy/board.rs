//! What is known of each instance, for all parts to write to and for the screen to show.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Where an instance stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Starting,
    Serving,
    /// It has got its SIGTERM.
    Asked,
    Gone,
}

/// What became of the requests that the balancer sent to an instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub sent: u64,
    pub ok: u64,
    pub lost: u64,
}

/// An instance as the screen shows it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub state: State,
    /// When it came into that state.
    pub since: Instant,
    /// Whether the balancer sends requests to it.
    pub routed: bool,
    pub counts: Counts,
}

/// The rows of all instances, in the order of their start. Clones show the same.
#[derive(Clone)]
pub struct Board(Arc<Mutex<Vec<Row>>>);

impl Board {
    pub fn new() -> Board {
        Board(Arc::default())
    }

    /// A row for a new instance; returns its number.
    pub fn add(&self) -> usize {
        let row = Row { state: State::Starting, since: Instant::now(), routed: false, counts: Counts::default() };
        let mut rows = self.lock();
        rows.push(row);
        rows.len() - 1
    }

    pub fn set(&self, number: usize, state: State) {
        let row = &mut self.lock()[number];
        (row.state, row.since) = (state, Instant::now());
    }

    pub fn set_routed(&self, number: usize, routed: bool) {
        self.lock()[number].routed = routed;
    }

    pub fn count(&self, number: usize, change: impl FnOnce(&mut Counts)) {
        change(&mut self.lock()[number].counts);
    }

    /// All rows as they are now.
    pub fn rows(&self) -> Vec<Row> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Row>> {
        self.0.lock().expect("no holder panics")
    }
}

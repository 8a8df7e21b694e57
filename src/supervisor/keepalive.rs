//! The look at how long the app keeps idle connections, for a minute once it is ready, and only where a balancer's idle
//! timeout is known: while it goes on, each close of a connection in this network namespace wakes us.

use std::io;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::{Order, Supervisor};
use crate::keepalive::too_short;
use crate::lifecycle::{Moment, Phase};
use crate::traffic::closed::Closed;
use crate::traffic::closers::Closers;
use crate::traffic::diag::{Connection, Error};
use crate::traffic::keepalive::{Closes, Estimate, idle_for};
use crate::traffic::ours::{Hints, own_cgroup};

/// How long it is listened for, at most.
const WINDOW: Duration = Duration::from_secs(60);
/// What ends within this is looked at together, so that a busy service does not wake us for each.
const PACE: Duration = Duration::from_millis(100);
/// Of those no more than so many; the kernel keeps fewer for us.
const MOST: usize = 512;
/// From one search for the app's listeners to the next. With the pace it is below the age from which a close counts, so that
/// the listener of such a connection was there at the last search.
const SEARCH: Duration = Duration::from_millis(300);

/// What is known of the app's keep-alive.
#[derive(Default)]
pub(super) struct KeepAlive {
    watch: Option<Watch>,
    has_begun: bool,
    /// What it came to.
    pub(super) estimate: Option<Estimate>,
}

struct Watch {
    task: AbortHandle,
    closers: Closers,
    searched: Option<Moment>,
    closes: Closes,
}

/// With it goes the socket, and nothing wakes us any more.
impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Supervisor {
    /// Begins the look when the app is ready for the first time, and ends it at a stop.
    pub(super) fn mind_keepalive(&mut self, phase: Phase) {
        if !matches!(phase, Phase::Starting | Phase::Running) {
            self.keepalive.watch = None;
        } else if phase == Phase::Running
            && self.lifecycle.is_ready()
            && self.plan.lb_idle_timeout.is_some()
            && !std::mem::replace(&mut self.keepalive.has_begun, true)
        {
            match self.watch_closes() {
                Ok(watch) => self.keepalive.watch = Some(watch),
                Err(error) => tracing::debug!("how long the app keeps idle connections cannot be seen: {error}"),
            }
        }
    }

    fn watch_closes(&self) -> Result<Watch, Error> {
        let hints = Hints { ports: self.plan.ports.clone(), own_endpoint: self.own_endpoint, cgroup: own_cgroup() };
        let closers = Closers::open(hints)?;
        let task = tokio::task::spawn_local(hear(Closed::open()?, self.orders.clone())).abort_handle();
        Ok(Watch { task, closers, searched: None, closes: Closes::default() })
    }

    pub(super) fn end_keepalive_watch(&mut self) {
        self.keepalive.watch = None;
    }

    /// Connections have ended, of whomever, that were idle.
    pub(super) fn note_closes(&mut self, mut ended: Vec<Connection>) {
        let now = self.now();
        let Some(watch) = &mut self.keepalive.watch else { return };
        // It may not have listened on all of its ports before, and other programs' connections are told as well.
        let is_strange = |row| !watch.closers.has(row);
        let is_due = watch.searched.is_none_or(|at| now.saturating_sub(at) >= SEARCH);
        if is_due && ended.iter().any(is_strange) {
            watch.searched = Some(now);
            let pids = self.teller.tree.look().iter().map(|node| node.stat.key.pid);
            if watch.closers.find(pids).is_err() {
                return self.end_keepalive_watch();
            }
        }
        ended.retain(|row| watch.closers.has(row));
        if ended.is_empty() {
            return;
        }
        if watch.closers.keep_closed_by_app(&mut ended).is_err() {
            return self.end_keepalive_watch();
        }
        let mut note = |row: &Connection| watch.closes.note(now, row.local.port(), idle_for(row)?);
        if let Some(estimate) = ended.iter().find_map(&mut note) {
            self.end_keepalive_watch();
            self.keepalive.estimate = Some(estimate);
            self.warn_of_keepalive(estimate);
        }
    }

    fn warn_of_keepalive(&mut self, estimate: Estimate) {
        let Some(balancer) = self.plan.lb_idle_timeout else { return };
        self.teller.look();
        match too_short(estimate, balancer, self.teller.server()) {
            Some(advice) => self.board.given.give(&advice),
            None => tracing::debug!("the app keeps idle connections for longer than the balancer: {estimate:?}"),
        }
    }
}

/// Hands on the connections that end and may have been idle, until the window is over.
async fn hear(closed: Closed, orders: UnboundedSender<Order>) {
    let _ = tokio::time::timeout(WINDOW, hear_on(closed, &orders)).await;
    let _ = orders.send(Order::KeepAliveSeen);
}

/// # Errors
/// The reactor's.
async fn hear_on(mut closed: Closed, orders: &UnboundedSender<Order>) -> io::Result<()> {
    loop {
        closed = first_to_end(closed).await?;
        tokio::time::sleep(PACE).await;
        let mut ended = Vec::new();
        closed.each(&mut |row| {
            if ended.len() < MOST && idle_for(row).is_some() {
                ended.push(*row);
            }
        });
        if !ended.is_empty() {
            let _ = orders.send(Order::IdleEnded(ended));
        }
    }
}

/// Waits until a connection has ended. The reactor lets go of the socket then: each further one would wake it as well.
async fn first_to_end(closed: Closed) -> io::Result<Closed> {
    // SAFETY: the descriptor is owned, and closed only after the reactor has let go of it.
    let closed = unsafe { AsyncFd::register_with_interest(closed, Interest::READABLE) }?;
    closed.readable().await?.retain_ready();
    Ok(closed.into_inner())
}

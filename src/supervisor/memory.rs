//! Processes of our group that the kernel kills for want of memory. Who dies of it is mostly a worker, whose master lives on
//! and starts another: nobody outside sees it.

use std::time::Duration;

use super::{Order, Supervisor};
use crate::cgroup::{Cgroup, Kills, Snapshot, bytes};
use crate::child::end::Ended;
use crate::lifecycle::Moment;
use crate::plan::human;
use crate::report::advice::{Advice, Id};
use crate::report::ending::Oom;
use crate::report::pressure::Pressure;
use crate::signals::{SigSet, Signal};

/// Where nothing wakes us for it, we look when we are awake anyway, but no more often than this.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Where something does, it also wakes us when the limit is only touched, which may go on and on.
const REST: Duration = Duration::from_millis(500);
/// A killed process with much memory takes a while to end: for so long its end is put down to a count that has grown.
const LAST_THROES: Duration = Duration::from_secs(5);
/// From this share of the limit on, in percent, the next request for memory may be the last.
const NEAR: u128 = 90;

/// What is known of them.
#[derive(Default)]
pub(super) struct Memory {
    cgroup: Cgroup,
    kills: Kills,
    pressure: Pressure,
    looked: Moment,
    grown: Option<Moment>,
    /// Whether the termination message holds what is to be read if we are killed with the rest.
    is_written_ahead: bool,
    /// Whether it was the child, or the app that outlived it.
    pub(super) ended_the_app: Oom,
    /// Signals that were passed on, of which an app may end as well.
    pub(super) passed_on: SigSet,
}

impl Supervisor {
    /// Finds our group, takes down where its count stands, and where there is a file for it waits for it to grow.
    pub(super) fn watch_memory(&mut self) {
        let cgroup = Cgroup::find();
        // Opened before the count is read, so that nothing falls in between.
        let events = cgroup.memory_events();
        self.memory.kills = Kills::begin(&cgroup);
        if self.oom_kills().is_some() {
            self.memory.ended_the_app = Oom::No;
        }
        self.memory.cgroup = cgroup;
        let Some(events) = events else { return };
        let orders = self.orders.clone();
        tokio::task::spawn_local(async move {
            while events.changed().await.is_ok() && orders.send(Order::LookAtMemory).is_ok() {
                tokio::time::sleep(REST).await;
            }
        });
    }

    /// The group's figures, for whoever asks. Kills that show are told.
    pub(super) fn look_at_cgroup(&mut self) -> Snapshot {
        self.look_for_oom_kills();
        let mut snapshot = self.memory.cgroup.snapshot();
        snapshot.oom_kills = self.memory.kills.since_start();
        self.advise_on(&snapshot);
        snapshot
    }

    fn advise_on(&mut self, figures: &Snapshot) {
        let now = self.now();
        for advice in self.memory.pressure.look(now, figures) {
            self.board.given.give(&advice);
        }
    }

    /// How many processes were killed for want of memory since we started, up to the last look.
    pub(super) fn oom_kills(&self) -> Option<u64> {
        self.memory.kills.since_start()
    }

    /// A moment when we are awake anyway.
    pub(super) fn look_for_oom_kills_again(&mut self) {
        if self.now().saturating_sub(self.memory.looked) >= LOOK_AGAIN {
            self.look_for_oom_kills();
        }
    }

    pub(super) fn look_for_oom_kills(&mut self) {
        let killed = self.new_oom_kills();
        self.oom_killed(killed);
    }

    /// The kernel has told of an event: a kill, or a limit that was touched.
    pub(super) fn memory_has_changed(&mut self) {
        self.look_for_oom_kills();
        if self.memory.is_written_ahead || self.lifecycle.clock().is_some() {
            return;
        }
        let figures = self.memory.cgroup.snapshot();
        self.advise_on(&figures);
        if let Some(line) = ahead(&figures, self.now()) {
            self.memory.is_written_ahead = true;
            if let Err(error) = self.termination.write_ahead(&line) {
                tracing::warn!("the termination message cannot be written: {error}");
            }
        }
    }

    fn new_oom_kills(&mut self) -> u64 {
        let now = self.now();
        self.memory.looked = now;
        let killed = self.memory.kills.look(&self.memory.cgroup);
        if killed > 0 {
            self.memory.grown = Some(now);
        }
        killed
    }

    /// Tells apart who sent the SIGKILL that has ended the child, or the app that outlived it: the last words say it, and
    /// of these kills only those of others are told here.
    pub(super) fn note_end(&mut self, ended: Ended) {
        let mut killed = self.new_oom_kills();
        let now = self.now();
        let recently = self.memory.grown.is_some_and(|grown| now.saturating_sub(grown) <= LAST_THROES);
        // A shell that ends with what it ran says so by its code.
        let is_kill = ended.code() == 128 + Signal::KILL.number() as u8;
        if is_kill && recently {
            killed = killed.saturating_sub(1);
            self.memory.ended_the_app = Oom::Yes { limit: self.memory.cgroup.snapshot().memory_limit };
        }
        self.oom_killed(killed);
    }

    /// Tells that so many more were killed.
    fn oom_killed(&self, killed: u64) {
        if killed == 0 {
            return;
        }
        let (processes, were) = if killed == 1 { ("process", "was") } else { ("processes", "were") };
        let all = self.oom_kills().filter(|all| *all > killed);
        let all = all.map_or(String::new(), |all| format!(", {all} since the start"));
        let figures = self.memory.cgroup.snapshot();
        let memory = figures.memory().map_or(String::new(), |memory| format!("; {memory}"));
        let limit = figures.memory_limit.map_or("the limit".into(), |limit| format!("the limit of {}", bytes(limit)));
        let advice = Advice::new(
            Id::OomKilled,
            format!("{killed} {processes} in this container {were} killed for want of memory{all}{memory}"),
            "what a worker had in hand is cut off, and where its master lives on nobody outside sees it",
            format!("raise {limit} (limits.memory), or lower what the workers use"),
        );
        self.board.given.repeat(&advice);
    }
}

/// What is to be read if the kernel kills the whole group for want of memory, where it would: we get no chance then.
fn ahead(figures: &Snapshot, now: Moment) -> Option<String> {
    let (used, limit) = figures.memory_used.zip(figures.memory_limit)?;
    let is_near = figures.oom_group == Some(true) && u128::from(used) * 100 >= u128::from(limit) * NEAR;
    is_near.then(|| {
        format!(
            "{} after the start, {} of {} of memory were in use. If you read this, the whole container was probably killed for want of memory (memory.oom.group is set): raise limits.memory, or lower what the app uses",
            human(now),
            bytes(used),
            bytes(limit)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_written_ahead_where_the_whole_group_would_be_killed() {
        let figures = |used, limit, oom_group| Snapshot {
            memory_used: Some(used),
            memory_limit: limit,
            oom_group,
            ..Snapshot::default()
        };
        let (limit, now) = (Some(100 << 20), Duration::from_secs(125));
        let line = ahead(&figures(90 << 20, limit, Some(true)), now).expect("near");
        assert!(line.starts_with("2m5s after the start, 90 MiB of 100 MiB of memory were in use. "), "{line}");
        assert_eq!(ahead(&figures(89 << 20, limit, Some(true)), now), None);
        assert_eq!(ahead(&figures(99 << 20, limit, Some(false)), now), None, "we would outlive it");
        assert_eq!(ahead(&figures(99 << 20, limit, None), now), None);
        assert_eq!(ahead(&figures(99 << 20, None, Some(true)), now), None);
        assert_eq!(ahead(&Snapshot::default(), now), None);
    }
}

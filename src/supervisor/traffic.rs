//! The look at the traffic while the app drains: when it may end, and what is to be said of it. Nothing of this runs before a
//! stop is asked for.

use std::fmt::Write;
use std::time::Duration;

use super::Supervisor;
use crate::lifecycle::{DrainEnd, Event, Hold, Lull, Moment, Phase};
use crate::plan::{DrainUntil, human};
use crate::traffic::ours::{Found, Hints, own_cgroup};
use crate::traffic::sampler::{Level, Sampler, Seen};

/// The watch over one drain.
pub(super) struct Watch {
    sampler: Sampler,
    began: Moment,
    due: Option<Moment>,
    last: Option<Seen>,
    lull: Lull,
}

impl Supervisor {
    /// Opens the eyes at the stop request. A drain of fixed length is watched too, to say afterwards whether it was long
    /// enough; without a drain the app's ports are taken down, as long as it listens on them, and no more.
    pub(super) fn watch_traffic(&mut self, hold: Hold) {
        let began = self.now();
        let (mut sampler, found) = self.new_sampler();
        if found == Found::Not && matches!(hold, Hold::Drain { .. }) && self.listens() {
            tracing::warn!(
                "the app's traffic cannot be seen, since its listeners cannot be told from others': the drain has its least length (--ports names them)"
            );
        }
        let (lull, due) = match hold {
            Hold::None(_) => (Lull::Over(DrainEnd::TimeUp), None),
            Hold::Drain { least, greatest } => {
                let next = sampler.sample(began, &|_| false).next;
                let lull = if greatest > least { Lull::Busy } else { Lull::Over(DrainEnd::TimeUp) };
                (lull, Some(began + next))
            }
        };
        self.traffic = Some(Watch { sampler, began, due, last: None, lull });
    }

    fn new_sampler(&self) -> (Sampler, Found) {
        let hints = Hints { ports: self.plan.ports.clone(), own_endpoint: self.own_endpoint, cgroup: own_cgroup() };
        let mut sampler = Sampler::new(hints);
        let found = sampler.find(self.teller.tree.nodes().iter().map(|node| node.stat.key.pid));
        (sampler, found)
    }

    pub(super) fn traffic_due(&self) -> Option<Moment> {
        self.traffic.as_ref().and_then(|watch| watch.due)
    }

    /// Takes a sample, and tells the lifecycle if that changes what it may do.
    pub(super) async fn look_at_traffic(&mut self) {
        let now = self.now();
        let Some(mut watch) = self.traffic.take() else { return };
        let seen = watch.sampler.sample(now, &|_| false);
        if let Some(reason) = watch.sampler.take_reason() {
            tracing::warn!("{}: {reason}", watch.sampler.level());
        }
        if seen.listeners_changed {
            watch.sampler.find(self.teller.tree.look().iter().map(|node| node.stat.key.pid));
        }
        watch.last = Some(seen);
        let drains = matches!(self.lifecycle.phase(), Phase::Draining { .. });
        watch.due = (drains && seen.level != Level::Blind).then(|| now + seen.next);
        let extends = watch.lull != Lull::Over(DrainEnd::TimeUp);
        let lull = judge(self.plan.drain.until, self.plan.drain.quiet, &seen, now, watch.began);
        let changed = extends && lull != watch.lull;
        if changed {
            watch.lull = lull;
        }
        self.traffic = Some(watch);
        if changed {
            self.handle(Event::Traffic(lull)).await;
        }
    }

    /// What was seen in the drain, to stand behind its length; nothing if nothing came.
    pub(super) fn end_of_traffic_watch(&mut self) -> String {
        let Some(watch) = &mut self.traffic else { return String::new() };
        watch.due = None;
        let Some(seen) = watch.last else { return String::new() };
        let totals = seen.totals;
        let mut text = String::new();
        if let Some(last) = totals.last_new {
            let floor = if seen.new_is_a_floor { "at least " } else { "" };
            let _ = write!(
                text,
                ", {floor}{} new connection{} meanwhile, the last after {}",
                totals.new,
                plural(totals.new),
                human(last.saturating_sub(watch.began))
            );
        }
        if totals.in_flight > 0 {
            let _ = write!(text, ", {} request{} still in flight", totals.in_flight, plural(totals.in_flight));
        }
        text
    }

    /// The app takes long to stop: says which connections it may be waiting for.
    pub(super) fn say_what_holds_the_stop(&mut self) {
        if let Some(text) = self.connections_now() {
            tracing::info!("the app is still stopping: {text}");
        }
    }

    /// The app's connections as they are now, for a person; none if it has none or they cannot be seen.
    pub(super) fn connections_now(&mut self) -> Option<String> {
        let now = self.now();
        let seen = match &mut self.traffic {
            // It may have closed its listeners by now, and its ports are known only from before.
            Some(watch) => watch.sampler.sample(now, &|_| false),
            None => {
                self.teller.tree.look();
                self.new_sampler().0.sample(now, &|_| false)
            }
        };
        let totals = seen.totals;
        if seen.level == Level::Blind || totals.connections == 0 {
            return None;
        }
        let mut text = format!("{} connection{}", totals.connections, plural(totals.connections));
        if seen.level == Level::Diag {
            let _ = write!(text, ", {} with a request in flight", totals.in_flight);
            if !totals.oldest_request.is_zero() {
                let _ = write!(text, " (the oldest for {})", human(totals.oldest_request));
            }
            if totals.connections > totals.in_flight {
                let _ = write!(text, ", idle for up to {}", human(totals.longest_idle));
            }
        }
        if totals.accept_queue > 0 {
            let _ = write!(text, ", {} not accepted yet", totals.accept_queue);
        }
        Some(text)
    }
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Whether the traffic lets the drain end, once its least time is over.
fn judge(until: DrainUntil, window: Duration, seen: &Seen, now: Moment, began: Moment) -> Lull {
    let totals = &seen.totals;
    if until == DrainUntil::Delay || seen.level == Level::Blind || seen.listeners == 0 && totals.connections == 0 {
        return Lull::Over(DrainEnd::TimeUp);
    }
    // Where no connection is and none has come, there is no window to wait for.
    let nothing = totals.connections == 0 && totals.new == 0 && totals.accept_queue == 0;
    let none_new = now.saturating_sub(totals.last_new.unwrap_or(began)) >= window;
    let quiet = totals.in_flight == 0 && totals.quiet_for(now, began) >= window;
    match until {
        DrainUntil::NoNew if nothing || none_new => Lull::Over(DrainEnd::NoNew),
        DrainUntil::Quiet if nothing || quiet => Lull::Over(DrainEnd::Quiet),
        _ => Lull::Busy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::inflight::Totals;

    const SECOND: Duration = Duration::from_secs(1);
    const BEGAN: Moment = Duration::from_secs(100);

    fn seen(level: Level, totals: Totals) -> Seen {
        Seen {
            level,
            listeners: 1,
            totals,
            listeners_changed: false,
            new_is_a_floor: false,
            accepted_by_all: None,
            cost: Duration::ZERO,
            next: SECOND,
        }
    }

    fn judged(until: DrainUntil, totals: Totals, after: u32) -> Lull {
        judge(until, SECOND, &seen(Level::Diag, totals), BEGAN + SECOND * after, BEGAN)
    }

    #[test]
    fn a_request_in_flight_keeps_the_drain_and_quiet_ends_it() {
        let idle = Totals { connections: 3, last_active: Some(BEGAN + SECOND * 4), ..Totals::default() };
        assert_eq!(judged(DrainUntil::Quiet, Totals { in_flight: 1, ..idle }, 9), Lull::Busy);
        assert_eq!(judged(DrainUntil::Quiet, idle, 4), Lull::Busy, "the window is not over");
        assert_eq!(judged(DrainUntil::Quiet, idle, 5), Lull::Over(DrainEnd::Quiet));
    }

    #[test]
    fn connections_that_never_go_quiet_are_judged_by_the_new_ones() {
        let streams =
            Totals { connections: 9, in_flight: 9, new: 2, last_new: Some(BEGAN + SECOND), ..Totals::default() };
        assert_eq!(judged(DrainUntil::NoNew, streams, 1), Lull::Busy);
        assert_eq!(judged(DrainUntil::NoNew, streams, 2), Lull::Over(DrainEnd::NoNew));
    }

    #[test]
    fn nothing_is_waited_for_where_nothing_is_to_be_seen() {
        assert_eq!(judged(DrainUntil::Quiet, Totals::default(), 0), Lull::Over(DrainEnd::Quiet));
        let busy = Totals { connections: 1, in_flight: 1, ..Totals::default() };
        assert_eq!(judged(DrainUntil::Delay, busy, 0), Lull::Over(DrainEnd::TimeUp));
        let blind = judge(DrainUntil::Quiet, SECOND, &seen(Level::Blind, busy), BEGAN, BEGAN);
        assert_eq!(blind, Lull::Over(DrainEnd::TimeUp));
    }
}

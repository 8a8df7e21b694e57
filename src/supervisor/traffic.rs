//! The look at the traffic while the app drains: when it may end, and what is to be said of it. Nothing of this runs before a
//! stop is asked for.

use std::fmt;
use std::time::Duration;

use super::Supervisor;
use crate::lifecycle::{DrainEnd, Event, Hold, Lull, Moment, Phase};
use crate::plan::{Drain, DrainUntil, human};
use crate::report::drained::{Arrivals, Drained};
use crate::traffic::diag::Connection;
use crate::traffic::inflight::Totals;
use crate::traffic::ours::{Found, Hints, own_cgroup};
use crate::traffic::probers::Release;
use crate::traffic::sampler::{Level, Sampler, Seen};

/// More probers than this are not named one by one.
const SHOWN: usize = 8;

/// The watch over one drain.
pub(crate) struct Watch {
    sampler: Sampler,
    began: Moment,
    least: Duration,
    due: Option<Moment>,
    last: Option<Seen>,
    lull: Lull,
    /// Whether what is seen can change when the drain ends.
    matters: bool,
    release: Release,
    connections: Arrivals,
    requests: Arrivals,
}

impl Supervisor {
    /// Opens the eyes at the stop request. A drain of fixed length is watched too, to say afterwards whether it was long
    /// enough; without a drain the app's ports are taken down, as long as it listens on them, and no more.
    pub(super) fn watch_traffic(&mut self, hold: Hold) {
        let began = self.now();
        let (sampler, found) = self.new_sampler();
        if found == Found::Not && matches!(hold, Hold::Drain { .. }) && self.listens() {
            tracing::warn!(
                "the app's traffic cannot be seen, since its listeners cannot be told from others': the drain has its least length (--ports names them)"
            );
        }
        let watch = Watch::begin(sampler, began, hold, self.lifecycle.phase(), &self.not_clients());
        let due = watch.due;
        self.traffic = Some(watch);
        if due.is_some() && self.plan.drain.until == DrainUntil::Released {
            self.say_who_probes();
        }
    }

    /// Says on whom the drain's end depends.
    fn say_who_probes(&self) {
        let probers = self.board.probers.borrow();
        let balancers: Vec<String> = probers.balancers().take(SHOWN).map(ToString::to_string).collect();
        let more = probers.balancers().count() - balancers.len();
        match (self.plan.http.is_some(), balancers.is_empty()) {
            (false, _) => {}
            (true, true) => tracing::warn!(
                "no balancer has asked /readyz yet: if none does, the drain has its stated time, since nobody can be seen to let go"
            ),
            (true, false) => tracing::info!(
                "the drain ends when these have let go: {}{}",
                balancers.join("; "),
                if more > 0 { format!("; and {more} more") } else { String::new() }
            ),
        }
    }

    fn new_sampler(&self) -> (Sampler, Found) {
        let hints = Hints { ports: self.plan.ports.clone(), own_endpoint: self.own_endpoint, cgroup: own_cgroup() };
        let mut sampler = Sampler::new(hints);
        let found = sampler.find(self.teller.tree.nodes().iter().map(|node| node.stat.key.pid));
        (sampler, found)
    }

    /// Which of the app's connections are our own checks'.
    fn not_clients(&self) -> impl Fn(&Connection) -> bool + use<> {
        let own = self.around.own.clone();
        move |connection| own.has(connection.remote)
    }

    pub(super) fn traffic_due(&self) -> Option<Moment> {
        self.traffic.as_ref().and_then(|watch| watch.due)
    }

    /// Takes a sample, and tells the lifecycle if that changes what it may do.
    pub(super) async fn look_at_traffic(&mut self) {
        let now = self.now();
        let Phase::Draining { .. } = self.lifecycle.phase() else { return };
        let Some(mut watch) = self.traffic.take() else { return };
        let (held, release) = (self.holders.hold(), self.board.probers.borrow().released(now));
        let skip = self.not_clients();
        let find = |sampler: &mut Sampler| {
            sampler.find(self.teller.tree.look().iter().map(|node| node.stat.key.pid));
        };
        let changed = watch.look(now, &self.plan.drain, held, release, &skip, find);
        self.traffic = Some(watch);
        if let Some(lull) = changed {
            self.handle(Event::Traffic(lull)).await;
        }
    }

    /// What was seen in the drain, which has ended for this reason; nothing if nobody looked.
    pub(super) fn end_of_traffic_watch(&mut self, why: DrainEnd) -> Option<Drained> {
        let wants_release = self.plan.drain.until == DrainUntil::Released && self.plan.http.is_some();
        self.traffic.as_mut()?.end(why, wants_release)
    }

    /// The app's connections, one by one.
    pub(super) fn app_connections(&mut self) -> Vec<Connection> {
        let skip = self.not_clients();
        let mut connections = Vec::new();
        let mut take = |connection: &Connection| connections.push(*connection);
        match &mut self.traffic {
            Some(watch) => watch.sampler.each_connection(&skip, &mut take),
            None => self.new_sampler().0.each_connection(&skip, &mut take),
        }
        connections
    }

    /// Connections that came since the drain was over.
    pub(super) fn late_arrivals(&mut self) -> u32 {
        let now = self.now();
        let skip = self.not_clients();
        let Some(watch) = self.traffic.as_mut().filter(|watch| watch.last.is_some()) else { return 0 };
        let seen = watch.sampler.sample(now, &skip);
        seen.totals.new.saturating_sub(watch.connections.count)
    }

    /// The app takes long to stop: says which connections it may be waiting for.
    pub(super) fn say_what_holds_the_stop(&mut self) {
        if let Some(connections) = self.connections_now().filter(|seen| seen.totals.connections > 0) {
            tracing::info!("the app is still stopping: {connections}");
        }
    }

    /// The app's connections as they are now; none if they cannot be seen.
    pub(super) fn connections_now(&mut self) -> Option<Connections> {
        self.teller.tree.look();
        self.connections_of_last_look()
    }

    /// The same, where the tree has just been looked at.
    pub(super) fn connections_of_last_look(&mut self) -> Option<Connections> {
        let now = self.now();
        let skip = self.not_clients();
        match &mut self.traffic {
            // It may have closed its listeners by now, and its ports are known only from before.
            Some(watch) => connections(&mut watch.sampler, now, &skip),
            None => connections(&mut self.new_sampler().0, now, &skip),
        }
    }
}

/// The connections as they are now; none if they cannot be seen.
pub(crate) fn connections(
    sampler: &mut Sampler,
    now: Moment,
    skip: &dyn Fn(&Connection) -> bool,
) -> Option<Connections> {
    let Seen { level, totals, .. } = sampler.sample(now, skip);
    let ports = sampler.ports().to_vec();
    (level != Level::Blind).then_some(Connections { level, totals, ports })
}

/// The app's connections at one moment.
pub(crate) struct Connections {
    /// How well they were seen.
    pub(crate) level: Level,
    /// What they come to.
    pub(crate) totals: Totals,
    /// The ports that the app listens on, sorted.
    pub(crate) ports: Vec<u16>,
}

impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, totals, .. } = self;
        if totals.connections == 0 {
            return f.write_str("no connection");
        }
        write!(f, "{} connection{}", totals.connections, plural(totals.connections))?;
        if *level == Level::Diag {
            write!(f, ", {} with a request in flight", totals.in_flight)?;
            if !totals.oldest_request.is_zero() {
                write!(f, " (the oldest for {})", human(totals.oldest_request))?;
            }
            if totals.connections > totals.in_flight {
                write!(f, ", idle for up to {}", human(totals.longest_idle))?;
            }
        }
        if totals.accept_queue > 0 {
            write!(f, ", {} not accepted yet", totals.accept_queue)?;
        }
        Ok(())
    }
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The drain kept its stated time.
fn say_why_not_released(release: Release) {
    let why = match release {
        Release::NoneSeen => "no balancer has asked /readyz",
        Release::Silent => {
            "a prober asked once and never again, so that what its silence means cannot be told (`sundown status` names it)"
        }
        Release::TooMany => "more probers have asked than can be told apart",
        Release::NotYet | Release::All => return,
    };
    tracing::warn!("the drain had its stated time: {why}");
}

impl Watch {
    /// Takes the first look, where there is a drain.
    pub(crate) fn begin(
        mut sampler: Sampler,
        began: Moment,
        hold: Hold,
        phase: Phase,
        skip: &dyn Fn(&Connection) -> bool,
    ) -> Self {
        let (least, due) = match hold {
            Hold::None(_) => (Duration::ZERO, None),
            Hold::Drain { least, .. } => (least, Some(began + sampler.sample(began, skip).next)),
        };
        let lull = match phase {
            Phase::Draining { lull, .. } => lull,
            _ => Lull::Over(DrainEnd::TimeUp),
        };
        Self {
            sampler,
            began,
            least,
            due,
            last: None,
            lull,
            matters: lull == Lull::Busy,
            release: Release::NotYet,
            connections: Arrivals::default(),
            requests: Arrivals::default(),
        }
    }

    /// When the next look is due, if one is.
    pub(crate) fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Takes a sample, and gives how the traffic stands if that has changed what the drain may do. `find` is called where
    /// other listeners have come or gone.
    pub(crate) fn look(
        &mut self,
        now: Moment,
        drain: &Drain,
        held: bool,
        release: Release,
        skip: &dyn Fn(&Connection) -> bool,
        find: impl FnOnce(&mut Sampler),
    ) -> Option<Lull> {
        let seen = self.sampler.sample(now, skip);
        if let Some(reason) = self.sampler.take_reason() {
            tracing::warn!("{}: {reason}", self.sampler.level());
        }
        if seen.listeners_changed {
            find(&mut self.sampler);
        }
        self.note(&seen, now);
        self.due = (seen.level != Level::Blind).then(|| now + seen.next);
        // A prober may be waiting for us to read what it asks: it is silent only if it still is at the next look.
        let known = if release == self.release { release } else { Release::NotYet };
        self.release = release;
        let lull = match held {
            true => Lull::Busy,
            false => judge(drain, &seen, now, self.began, known),
        };
        let changed = self.matters && lull != self.lull;
        if changed {
            self.lull = lull;
        }
        changed.then_some(lull)
    }

    /// What was seen in the drain, which has ended for this reason; nothing if nobody looked.
    pub(crate) fn end(&mut self, why: DrainEnd, wants_release: bool) -> Option<Drained> {
        self.due = None;
        let seen = self.last?;
        if wants_release && why != DrainEnd::Released {
            say_why_not_released(self.release);
        }
        Some(Drained {
            least: self.least,
            why,
            connections: self.connections,
            is_a_floor: seen.new_is_a_floor,
            requests: self.requests,
            in_flight: seen.totals.in_flight,
        })
    }

    fn note(&mut self, seen: &Seen, now: Moment) {
        self.last = Some(*seen);
        let (totals, passed) = (&seen.totals, now.saturating_sub(self.began));
        let since = |at: Option<Moment>| at.map(|at| at.saturating_sub(self.began));
        let (last_new, last_request) = (since(totals.last_new), since(totals.last_request));
        self.connections.note(totals.new, last_new, passed, self.least);
        self.requests.note(totals.requests, last_request, passed, self.least);
    }
}

/// Whether the traffic lets the drain end, once its least time is over or, if all balancers have let go, before.
fn judge(drain: &Drain, seen: &Seen, now: Moment, began: Moment, release: Release) -> Lull {
    let Drain { until, quiet: window, .. } = *drain;
    let totals = &seen.totals;
    if until == DrainUntil::Delay || seen.level == Level::Blind || seen.listeners == 0 && totals.connections == 0 {
        return Lull::Over(if drain.outlives { DrainEnd::Outlived } else { DrainEnd::TimeUp });
    }
    // Where no connection is and none has come, there is no window to wait for.
    let nothing = totals.connections == 0 && totals.new == 0 && totals.accept_queue == 0;
    let none_new = now.saturating_sub(totals.last_new.unwrap_or(began)) >= window;
    let quiet = totals.in_flight == 0 && totals.quiet_for(now, began) >= window;
    match (until, release) {
        (DrainUntil::NoNew, _) if nothing || none_new => Lull::Over(DrainEnd::NoNew),
        (DrainUntil::Quiet, _) if nothing || quiet => Lull::Over(DrainEnd::Quiet),
        (DrainUntil::Released, Release::All) if nothing || quiet => Lull::Released,
        // Who is known to count on us still is waited for, beyond the least time too.
        (DrainUntil::Released, Release::All | Release::NotYet) => Lull::Busy,
        (DrainUntil::Released, _) if nothing || quiet => Lull::Over(DrainEnd::Quiet),
        _ => Lull::Busy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn drain(until: DrainUntil) -> Drain {
        let (least, greatest) = (SECOND * 5, SECOND * 9);
        Drain {
            least,
            greatest,
            until,
            quiet: SECOND,
            unhealthy_threshold: 2,
            outlives: false,
            held: false,
            automatic: false,
        }
    }

    fn judged(until: DrainUntil, totals: Totals, after: u32) -> Lull {
        judge(&drain(until), &seen(Level::Diag, totals), BEGAN + SECOND * after, BEGAN, Release::NoneSeen)
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
        let blind = judge(&drain(DrainUntil::Quiet), &seen(Level::Blind, busy), BEGAN, BEGAN, Release::All);
        assert_eq!(blind, Lull::Over(DrainEnd::TimeUp));
    }

    #[test]
    fn balancers_that_have_let_go_end_it_when_the_traffic_is_quiet() {
        let idle = Totals { connections: 3, last_active: Some(BEGAN), ..Totals::default() };
        let judged = |totals, release| {
            judge(&drain(DrainUntil::Released), &seen(Level::Diag, totals), BEGAN + SECOND * 2, BEGAN, release)
        };
        assert_eq!(judged(idle, Release::All), Lull::Released);
        assert_eq!(judged(Totals::default(), Release::All), Lull::Released);
        assert_eq!(judged(Totals { in_flight: 1, ..idle }, Release::All), Lull::Busy);
        assert_eq!(judged(Totals { last_active: Some(BEGAN + SECOND * 2), ..idle }, Release::All), Lull::Busy);
        assert_eq!(judged(idle, Release::NotYet), Lull::Busy, "somebody may still send");
        for unknown in [Release::NoneSeen, Release::Silent, Release::TooMany] {
            assert_eq!(judged(idle, unknown), Lull::Over(DrainEnd::Quiet), "{unknown:?}");
            assert_eq!(judged(Totals { in_flight: 1, ..idle }, unknown), Lull::Busy);
        }
    }
}

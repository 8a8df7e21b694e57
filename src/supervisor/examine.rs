//! The mistakes of a set-up that show in the tree, at the stop and in what probers do. Looked for when we are awake anyway: when
//! somebody asks, and at the stop.

use super::Supervisor;
use crate::lifecycle::{DrainEnd, From, Hold, Moment, Outcome, Request};
use crate::plan::{Limit, Platform, human};
use crate::report::advice::{Advice, Id};
use crate::signals::Signal;
use crate::traffic::sampler::Level;
use crate::tree::process::Node;
use crate::tree::program::Kind;
use crate::tree::walk::{self, Target};

/// So many of one parent's children are dead and not reaped at once only where it never reaps them.
const MANY_ZOMBIES: usize = 5;
/// A stop that takes more than this share of its time is near to being killed, in percent.
const NEARLY_ALL: u32 = 80;

impl Supervisor {
    /// Examines the tree as the last close look has shown it, once, when its start is over.
    pub(super) fn examine(&mut self) {
        if self.examined || self.now() < walk::GROWN_UP {
            return;
        }
        self.examined = true;
        let nodes = self.teller.tree.nodes();
        let apps = walk::own_apps(nodes);
        let advice = [self.wrapper(&apps), self.nothing_catches(&apps), self.wrong_signal(&apps)];
        advice.iter().flatten().for_each(|advice| self.board.given.give(advice));
    }

    /// A chain of wrappers and shells in front of the first app that has one.
    fn wrapper(&self, apps: &[Target]) -> Option<Advice> {
        let nodes = self.teller.tree.nodes();
        let stands_between = |node: &Node| node.program.wrapper || node.program.kind == Kind::Shell;
        let (app, chain) = apps.iter().find_map(|app| {
            let chain = ancestors(nodes, app.at);
            chain.iter().any(|at| stands_between(&nodes[*at])).then_some((app.at, chain))
        })?;
        let name = |at: &usize| self.teller.tree.name(&nodes[*at]);
        let names: Vec<String> = chain.iter().rev().chain([&app]).map(name).collect();
        let exec_form = self.teller.tree.exec_form(&nodes[app]);
        Some(Advice::new(
            Id::Wrapper,
            format!("the app is started through others ({})", names.join(" > ")),
            "they cost memory and time at the start, and told TERM by another init they would end before it or never tell it",
            format!("sundown goes past them; to be rid of them start {exec_form}"),
        ))
    }

    /// It serves, and the signal will end it on the spot.
    fn nothing_catches(&self, apps: &[Target]) -> Option<Advice> {
        let nodes = self.teller.tree.nodes();
        let said = self.plan.ladder.as_ref().and_then(|ladder| ladder.steps().first()).map(|step| step.signal);
        let signal = |app: &Target| said.unwrap_or(app.signal);
        let uncaught = |app: &Target| !nodes[app.at].mask.catches(signal(app));
        let first = apps.first().filter(|_| apps.iter().all(uncaught) && self.listens())?;
        let signal = signal(first);
        Some(Advice::new(
            Id::NothingCatches,
            format!("nothing in the tree catches {signal} ({} does not)", self.teller.tree.name(&nodes[first.at])),
            "what is in flight when the drain is over is cut off",
            "handle it, or name the signal that the app stops on by --stop-signal",
        ))
    }

    /// What was set is not what the program stops on.
    fn wrong_signal(&self, apps: &[Target]) -> Option<Advice> {
        let said = self.plan.ladder.as_ref()?.steps().first()?.signal;
        let nodes = self.teller.tree.nodes();
        let (at, own) = apps.iter().find_map(|app| {
            let own = nodes[app.at].program.stop_signal.filter(|own| *own != said)?;
            Some((app.at, own))
        })?;
        let name = self.teller.tree.name(&nodes[at]);
        Some(Advice::new(
            Id::WrongSignal,
            format!("--stop-signal begins with {said}, and {name} finishes its requests on {own}"),
            "requests in flight may be cut off",
            "leave --stop-signal out: sundown knows that program",
        ))
    }

    /// What the stop request itself shows.
    pub(super) fn examine_request(&self, request: Request, hold: Hold) {
        if let Request::Signal(signal, From::Outside) = request
            && !matches!(signal, Signal::TERM | Signal::INT | Signal::HALT)
            && self.plan.stop_on.is_none()
            && self.plan.ladder.is_none()
        {
            let nodes = self.teller.tree.nodes();
            let apps = walk::own_apps(nodes);
            let stops_on = |app: &Target| nodes[app.at].program.stop_signal == Some(signal);
            if let Some(app) = apps.first().filter(|_| !apps.iter().any(stops_on)) {
                let name = self.teller.tree.name(&nodes[app.at]);
                self.board.given.give(&Advice::new(
                    Id::WrongSignal,
                    format!("the stop was asked for by {signal}, which {name} does not stop on"),
                    format!(
                        "without sundown it would be ignored or end it with a core dump; sundown sends {}",
                        app.signal
                    ),
                    "put STOPSIGNAL SIGTERM into the image: it has inherited another",
                ));
            }
        }
        if let Limit::Assumed(limit, platform) = self.plan.limit
            && !matches!(platform, Platform::Docker | Platform::CloudRun)
        {
            self.board.given.give(&Advice::new(
                Id::GraceNotStated,
                format!("the grace period is not stated, and {} is assumed", human(limit)),
                "an app that hangs is not killed by sundown but from outside, without a word",
                "set SUNDOWN_GRACE_PERIOD to the orchestrator's limit",
            ));
        }
        if let Hold::Drain { .. } = hold
            && let Some(address) = self.plan.http
            && self.board.is_unasked()
        {
            self.board.given.give(&Advice::new(
                Id::NeverAsked,
                format!("nobody has ever asked for /readyz or /servez at {address}"),
                "no balancer sees that readiness fails, and the drain helps only where it is told otherwise",
                "point its health check at /readyz there, and the kubelet's readinessProbe at /servez",
            ));
        }
    }

    /// Who asked before the stop request at `began`, and not since.
    pub(super) fn examine_probers(&self, began: Moment, why: DrainEnd) {
        const KNOWN: u64 = 3;
        let probers = self.board.probers.borrow();
        let known = || probers.iter().filter(|prober| prober.visits >= KNOWN);
        // Balancers that were seen to let go have stopped asking for that, and a drain that was cut short says nothing.
        let cut_short = matches!(why, DrainEnd::Hurry | DrainEnd::ChildEnded | DrainEnd::Released);
        if cut_short || known().any(|prober| prober.last >= began) {
            return;
        }
        let Some(prober) = known().max_by_key(|prober| prober.last) else { return };
        self.board.given.give(&Advice::new(
            Id::NotAskedSince,
            format!(
                "nobody has asked for /readyz since the stop request; {prober} asked {} times, the last {} before",
                prober.visits,
                human(began.saturating_sub(prober.last))
            ),
            "the balancer has not seen the 503, and sends on unless it is told otherwise",
            "let it ask more often than the drain is long",
        ));
    }

    /// What the end shows of the stop.
    pub(super) fn examine_end(&mut self, outcome: &Outcome) {
        let Some(told_at) = self.told_at else { return };
        let now = self.now();
        let had = self.lifecycle.clock().and_then(|clock| clock.deadline).map(|at| at.saturating_sub(told_at));
        let took = now.saturating_sub(told_at);
        if let Some(had) = had.filter(|had| outcome.asked && took * 100 > *had * NEARLY_ALL) {
            self.board.given.give(&Advice::new(
                Id::SlowStop,
                format!("the app's stop took {} of the {} that it had", human(took), human(had)),
                if outcome.killed.is_some() { "it was killed" } else { "a little slower, and it is killed" },
                "raise the grace period, shorten the drain, or find what holds the app",
            ));
        }
        let late = self.late_arrivals();
        if late > 0 {
            self.board.figures.late.set(late.into());
            self.board.given.give(&Advice::new(
                Id::LateArrivals,
                format!("{late} connection{} came after the app was told", if late == 1 { "" } else { "s" }),
                "whether they were served is luck: the app may close its listener at any moment",
                "raise --drain-delay until none comes any more",
            ));
        }
    }

    /// The app has used half of its time to stop, and nothing is in flight.
    pub(super) fn examine_idle_connections(&mut self) {
        let Some(seen) = self.connections_now() else { return };
        let totals = seen.totals;
        if seen.level == Level::Diag && totals.connections > 0 && totals.in_flight == 0 {
            self.board.given.give(&Advice::new(
                Id::IdleHoldStop,
                format!(
                    "{} idle connection{} the stop, for up to {}",
                    totals.connections,
                    if totals.connections == 1 { " holds" } else { "s hold" },
                    human(totals.longest_idle)
                ),
                "the app waits for clients that have nothing to ask, until it is killed",
                "let it close idle connections when it is told: closeIdleConnections() in node",
            ));
        }
    }

    /// The dead that their living parents do not reap.
    pub(super) fn examine_zombies(&self) {
        for (parent, count) in self.teller.tree.zombies().filter(|(_, count)| *count >= MANY_ZOMBIES) {
            let name = self.teller.tree.name(parent);
            self.board.given.give(&Advice::new(
                Id::Zombies,
                format!(
                    "{count} children of {name} (pid {}) have ended, and it does not reap them",
                    parent.stat.key.pid
                ),
                "each holds a pid, until nothing can be started any more",
                "let it wait for its children, or run them below a shell or a supervisor that does",
            ));
        }
    }
}

/// The places of all above this one, the nearest first.
pub(super) fn ancestors(nodes: &[Node], at: usize) -> Vec<usize> {
    std::iter::successors(nodes[at].parent, |above| nodes[*above].parent).collect()
}

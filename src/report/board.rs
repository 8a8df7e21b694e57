//! The board: what the endpoint and the control socket may tell, kept up by the supervisor. No process name, no argument
//! and no environment stands on the part that the endpoint shows.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::cgroup::Snapshot;
use crate::check::Check;
use crate::http::{Answers, Verdict, Visitor};
use crate::lifecycle::{Moment, PHASES};
use crate::plan::Plan;
use crate::report::advice::{Advice, Given, Id};
use crate::report::metrics::{Metrics, seconds};
use crate::supervisor::Order;
use crate::traffic::inflight::Totals;
use crate::traffic::probers::Probers;

/// A `listening` check is looked at again when somebody asks, but no more often than this.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A scrape does without what the supervisor cannot look up in this time.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is shown.
pub struct Board {
    phase: Cell<&'static str>,
    /// Since when, and how long we have been in each before.
    since: Cell<Instant>,
    spent: [Cell<Duration>; PHASES.len()],
    ready: Cell<bool>,
    serving: Cell<bool>,
    alive: Cell<Option<bool>>,
    why: RefCell<Cow<'static, str>>,
    /// The figures.
    pub figures: Figures,
    /// The advice that was given.
    pub given: Given,
    orders: UnboundedSender<Order>,
    looks_on_demand: bool,
    looked: Cell<Option<Instant>>,
    began: Instant,
    /// When the stop was asked for.
    pub stop_began: Cell<Option<Moment>>,
    /// Who has asked whether we are ready.
    pub probers: RefCell<Probers>,
    panics: bool,
    grace: Option<Duration>,
    /// Whether nobody has said which balancer there is, or how long it takes.
    is_unnamed: bool,
}

/// Counts since the start.
#[derive(Default)]
pub struct Figures {
    /// Stop requests by a signal.
    pub stops_by_signal: Cell<u64>,
    /// Stop requests by a preStop hook.
    pub stops_by_prestop: Cell<u64>,
    /// Stop requests by `sundown stop`.
    pub stops_by_command: Cell<u64>,
    /// Signals passed on.
    pub passed_on: Cell<u64>,
    /// Signals held back, since they would have killed or stopped who does not catch them.
    pub held_back: Cell<u64>,
    /// Processes reaped.
    pub reaped: Cell<u64>,
    /// Requests answered by the endpoint.
    pub requests: Cell<u64>,
    /// Those of them for /servez.
    pub servez: Cell<u64>,
    /// Connections that came after the app was told.
    pub late: Cell<u64>,
}

/// What only the supervisor can see, looked up for one scrape.
#[derive(Default)]
pub struct LookedUp {
    /// The app's connections, where they can be seen.
    pub traffic: Option<Totals>,
    /// Dead members of the tree that their parents have not reaped.
    pub zombies: usize,
    /// What the kernel tells of our control group.
    pub cgroup: Snapshot,
}

/// Counts one more.
pub fn count(figure: &Cell<u64>) {
    figure.set(figure.get() + 1);
}

impl Board {
    /// A board for an app that has not started yet.
    pub fn new(plan: &Plan, given: Given, orders: UnboundedSender<Order>, began: Instant) -> Self {
        let (ready_check, live_check) = (&plan.ready_check, plan.live_check.as_ref());
        Self {
            phase: Cell::new(PHASES[0]),
            since: Cell::new(began),
            spent: Default::default(),
            ready: Cell::new(false),
            serving: Cell::new(false),
            // Alive until the contrary is proven.
            alive: Cell::new(live_check.map(|_| true)),
            why: RefCell::new("the app has not been ready yet".into()),
            figures: Figures::default(),
            given,
            orders,
            looks_on_demand: *ready_check == Check::Listening || live_check == Some(&Check::Listening),
            looked: Cell::new(None),
            began,
            stop_began: Cell::new(None),
            probers: RefCell::new(Probers::new(plan.drain.unhealthy_threshold)),
            panics: plan.panic_on_request,
            is_unnamed: plan.balancer_is_unnamed,
            grace: plan.deadline().map(|limit| limit + plan.kill_margin),
        }
    }

    /// Sets what the lifecycle says.
    pub fn set_phase(&self, phase: &'static str, ready: bool, serving: bool) {
        let before = self.phase.replace(phase);
        if before != phase {
            let now = Instant::now();
            let spent = now.duration_since(self.since.replace(now));
            let place = PHASES.iter().position(|known| *known == before).and_then(|at| self.spent.get(at));
            place.inspect(|place| place.set(place.get() + spent));
        }
        self.ready.set(ready);
        self.serving.set(serving);
    }

    /// Sets the reason behind it.
    pub fn set_why(&self, why: impl Into<Cow<'static, str>>) {
        *self.why.borrow_mut() = why.into();
    }

    /// Sets the live check's verdict.
    pub fn set_alive(&self, alive: bool) {
        self.alive.set(Some(alive));
    }

    /// The phase's name.
    pub fn phase(&self) -> &'static str {
        self.phase.get()
    }

    /// The reason in one line.
    pub fn why(&self) -> String {
        self.why.borrow().clone().into_owned()
    }

    /// What a load balancer is to be told.
    pub fn ready(&self) -> Verdict {
        self.look_again();
        self.verdict(self.ready.get())
    }

    /// Whether nobody has ever asked for /readyz or /servez.
    pub fn is_unasked(&self) -> bool {
        self.figures.servez.get() == 0 && self.probers.borrow().iter().next().is_none()
    }

    fn verdict(&self, ok: bool) -> Verdict {
        Verdict { ok, text: format!("{}: {}", self.phase.get(), self.why.borrow()) }
    }

    /// Nothing looks at the listeners while nobody asks: an idle container stays asleep.
    fn look_again(&self) {
        let due = self.looked.get().is_none_or(|looked| looked.elapsed() >= LOOK_AGAIN);
        if self.looks_on_demand && due {
            self.looked.set(Some(Instant::now()));
            let _ = self.orders.send(Order::LookAtListeners);
        }
    }
}

impl Board {
    /// Asks the supervisor, who may have gone, or have its hands full with a stop.
    async fn look_up(&self) -> LookedUp {
        let (tell, told) = oneshot::channel();
        if self.orders.send(Order::LookUp(tell)).is_err() {
            return LookedUp::default();
        }
        tokio::time::timeout(PATIENCE, told).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    fn figures_with(&self, looked_up: &LookedUp) -> String {
        let figures = &self.figures;
        let mut metrics = Metrics::default();
        let version = [(env!("CARGO_PKG_VERSION"), 1)].into_iter();
        metrics.each(("build_info", "gauge"), "The version.", "version", version);
        let phases = PHASES.iter().map(|phase| (*phase, u8::from(*phase == self.phase.get())));
        metrics.each(("phase", "gauge"), "The phase the container is in.", "phase", phases);
        let spent = PHASES.iter().map(|phase| (*phase, seconds(self.spent_in(phase))));
        metrics.each(("phase_seconds_total", "counter"), "Time spent in each phase.", "phase", spent);
        metrics.gauge("ready", "Whether /readyz says 200.", u8::from(self.ready.get()));
        metrics.gauge("serving", "Whether /servez says 200.", u8::from(self.serving.get()));
        if let Some(grace) = self.grace {
            metrics.gauge("grace_period_seconds", "The stated limit.", seconds(grace));
            let help = "The share of the grace period that the stop has used.";
            metrics.gauge("grace_period_used_ratio", help, seconds(self.stopping_for()) / seconds(grace));
        }
        let stops = [
            ("signal", &figures.stops_by_signal),
            ("prestop", &figures.stops_by_prestop),
            ("command", &figures.stops_by_command),
        ];
        let stops = stops.into_iter().map(|(source, count)| (source, count.get()));
        metrics.each(("stop_requests_total", "counter"), "Stop requests, repeated ones included.", "source", stops);
        metrics.counter("signals_forwarded_total", "Signals passed on to the app.", figures.passed_on.get());
        let help = "Signals that nobody caught and that would have killed or stopped the app.";
        metrics.counter("signals_held_back_total", help, figures.held_back.get());
        metrics.counter("reaped_total", "Processes reaped.", figures.reaped.get());
        metrics.gauge("zombies", "Dead processes that their parent has not reaped.", looked_up.zombies);
        metrics.counter("http_requests_total", "Requests to this endpoint.", figures.requests.get());
        if let Some(traffic) = &looked_up.traffic {
            metrics.gauge("connections", "The app's connections.", traffic.connections);
            metrics.gauge("connections_in_flight", "Those with a request in flight.", traffic.in_flight);
            metrics.gauge("accept_queue", "Connections that the app has not accepted.", traffic.accept_queue);
        }
        metrics.cgroup(&looked_up.cgroup);
        let help = "Connections that came after the app was told to stop.";
        metrics.counter("late_connections_total", help, figures.late.get());
        let given = self.given.codes().map(|code| (code, 1));
        metrics.each(("advice", "gauge"), "Advice that was given, by its id.", "id", given);
        metrics.into_text()
    }

    fn stopping_for(&self) -> Duration {
        self.stop_began.get().map_or(Duration::ZERO, |at| self.began.elapsed().saturating_sub(at))
    }

    /// How long we have been in this phase.
    fn spent_in(&self, phase: &str) -> Duration {
        let before = PHASES.iter().position(|known| *known == phase).map_or(Duration::ZERO, |at| self.spent[at].get());
        before + if phase == self.phase.get() { self.since.get().elapsed() } else { Duration::ZERO }
    }
}

impl Answers for Board {
    fn readyz(&self, visitor: &Visitor) -> Verdict {
        let verdict = self.ready();
        self.probers.borrow_mut().asked(self.began.elapsed(), visitor, !verdict.ok);
        if self.is_unnamed && visitor.is_cloud_balancer() {
            self.given.give(&Advice::new(
                Id::UnnamedBalancer,
                format!("{visitor} asks for /readyz, and neither --lb nor --drain-delay is set"),
                "such a balancer sends on for 17 s to two minutes after a target has failed, longer than the drain",
                "set SUNDOWN_LB to alb, nlb or gclb",
            ));
        }
        verdict
    }

    fn servez(&self) -> Verdict {
        count(&self.figures.servez);
        self.look_again();
        self.verdict(self.serving.get())
    }

    fn livez(&self) -> Option<Verdict> {
        self.look_again();
        let ok = self.alive.get()?;
        let text = if ok { "the live check passes" } else { "the live check fails" };
        Some(Verdict { ok, text: text.into() })
    }

    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + '_>> {
        Box::pin(async { self.figures_with(&self.look_up().await) })
    }

    fn request(&self) {
        count(&self.figures.requests);
        assert!(!self.panics, "asked to panic by the hidden switch --x-panic-on-request");
    }
}

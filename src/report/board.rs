//! The board: what the endpoint and the control socket may tell, kept up by the supervisor. No process name, no argument
//! and no environment stands on the part that the endpoint shows.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use crate::check::Check;
use crate::http::{Answers, Verdict, Visitor};
use crate::lifecycle::PHASES;
use crate::plan::Plan;
use crate::supervisor::Order;
use crate::traffic::probers::Probers;

/// A `listening` check is looked at again when somebody asks, but no more often than this.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What is shown.
pub struct Board {
    phase: Cell<&'static str>,
    ready: Cell<bool>,
    serving: Cell<bool>,
    alive: Cell<Option<bool>>,
    why: RefCell<Cow<'static, str>>,
    /// The figures.
    pub figures: Figures,
    orders: UnboundedSender<Order>,
    looks_on_demand: bool,
    looked: Cell<Option<Instant>>,
    began: Instant,
    /// Who has asked whether we are ready.
    pub probers: RefCell<Probers>,
    panics: bool,
    grace: Option<Duration>,
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
}

/// Counts one more.
pub fn count(figure: &Cell<u64>) {
    figure.set(figure.get() + 1);
}

impl Board {
    /// A board for an app that has not started yet.
    pub fn new(plan: &Plan, orders: UnboundedSender<Order>, began: Instant) -> Self {
        let (ready_check, live_check) = (&plan.ready_check, plan.live_check.as_ref());
        Self {
            phase: Cell::new(PHASES[0]),
            ready: Cell::new(false),
            serving: Cell::new(false),
            // Alive until the contrary is proven.
            alive: Cell::new(live_check.map(|_| true)),
            why: RefCell::new("the app has not been ready yet".into()),
            figures: Figures::default(),
            orders,
            looks_on_demand: *ready_check == Check::Listening || live_check == Some(&Check::Listening),
            looked: Cell::new(None),
            began,
            probers: RefCell::new(Probers::new(plan.drain.unhealthy_threshold)),
            panics: plan.panic_on_request,
            grace: plan.deadline().map(|limit| limit + plan.kill_margin),
        }
    }

    /// Sets what the lifecycle says.
    pub fn set_phase(&self, phase: &'static str, ready: bool, serving: bool) {
        self.phase.set(phase);
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

impl Answers for Board {
    fn readyz(&self, visitor: &Visitor) -> Verdict {
        let verdict = self.ready();
        self.probers.borrow_mut().asked(self.began.elapsed(), visitor, !verdict.ok);
        verdict
    }

    fn servez(&self) -> Verdict {
        self.look_again();
        self.verdict(self.serving.get())
    }

    fn livez(&self) -> Option<Verdict> {
        self.look_again();
        let ok = self.alive.get()?;
        let text = if ok { "the live check passes" } else { "the live check fails" };
        Some(Verdict { ok, text: text.into() })
    }

    fn metrics(&self, out: &mut String) {
        let figures = &self.figures;
        let _ = write!(
            out,
            "# HELP sundown_build_info The version.\n# TYPE sundown_build_info gauge\nsundown_build_info{{version=\"{}\"}} 1\n",
            env!("CARGO_PKG_VERSION")
        );
        out.push_str("# HELP sundown_phase The phase the container is in.\n# TYPE sundown_phase gauge\n");
        for phase in PHASES {
            let _ = writeln!(out, "sundown_phase{{phase=\"{phase}\"}} {}", u8::from(phase == self.phase.get()));
        }
        gauge(out, "sundown_ready", "Whether /readyz says 200.", self.ready.get());
        gauge(out, "sundown_serving", "Whether /servez says 200.", self.serving.get());
        if let Some(grace) = self.grace {
            let _ = write!(
                out,
                "# HELP sundown_grace_period_seconds The stated limit.\n# TYPE sundown_grace_period_seconds gauge\nsundown_grace_period_seconds {}\n",
                grace.as_secs_f64()
            );
        }
        out.push_str("# HELP sundown_stop_requests_total Stop requests, repeated ones included.\n# TYPE sundown_stop_requests_total counter\n");
        for (source, count) in [
            ("signal", &figures.stops_by_signal),
            ("prestop", &figures.stops_by_prestop),
            ("command", &figures.stops_by_command),
        ] {
            let _ = writeln!(out, "sundown_stop_requests_total{{source=\"{source}\"}} {}", count.get());
        }
        counter(out, "sundown_signals_forwarded_total", "Signals passed on to the app.", &figures.passed_on);
        counter(
            out,
            "sundown_signals_held_back_total",
            "Signals that nobody caught and that would have killed or stopped the app.",
            &figures.held_back,
        );
        counter(out, "sundown_reaped_total", "Processes reaped.", &figures.reaped);
        counter(out, "sundown_http_requests_total", "Requests to this endpoint.", &figures.requests);
    }

    fn request(&self) {
        count(&self.figures.requests);
        assert!(!self.panics, "asked to panic by the hidden switch --x-panic-on-request");
    }
}

fn gauge(out: &mut String, name: &str, help: &str, value: bool) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {}\n", u8::from(value));
}

fn counter(out: &mut String, name: &str, help: &str, value: &Cell<u64>) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {}\n", value.get());
}

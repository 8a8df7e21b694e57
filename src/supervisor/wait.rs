//! Holding the program back until what it needs is there (`--wait-for`). The endpoint and the control socket answer meanwhile,
//! and a stop request ends it. All of it is over, and has left nothing behind, when the program is started.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::attend::{asks, attend, block_on, listen, stop_signals};
use super::checks::{self, Surroundings};
use super::{Ears, Order, sleep_until};
use crate::check::{Check, OwnConnections};
use crate::control::{self, Ask, Reply};
use crate::http::{self, Answers, Verdict};
use crate::notify::Notifier;
use crate::plan::{Plan, human};
use crate::report::advice::Given;
use crate::report::board::{Board, LookedUp};
use crate::report::json;
use crate::signals::{Arrival, Arrivals, Inherited, Signal};
use crate::tree::helpers::Helpers;

/// When what is missing is told first, and how often again.
const FIRST_WORD: Duration = Duration::from_secs(1);
const NEXT_WORD: Duration = Duration::from_secs(10);
/// From one asking to the next: quick at first.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// What the connection of whoever asked for the stop gets to close: our exit as PID 1 would kill a hook.
const CONNECTIONS: Duration = Duration::from_millis(300);

/// The exit code where not everything has come in time, as of timeout(1).
const TIMED_OUT: u8 = 124;

/// Why the program is not started.
pub struct Cut {
    /// The exit code.
    pub code: u8,
    /// What to say.
    pub text: String,
}

/// Waits until every check has passed once, in whatever order.
///
/// # Errors
/// It took too long, a stop was asked for, or signals cannot be received.
pub fn wait_for(plan: &Plan, inherited: Inherited, ears: &Ears, notifier: &mut Notifier) -> Result<(), Cut> {
    let arrivals = Arrivals::of(stop_signals(plan).with(Signal::CHLD))
        .map_err(|error| Cut { code: 1, text: format!("signals cannot be received: {error}") })?;
    block_on(async { Waiting::begin(plan, inherited, ears).run(listen(arrivals), notifier).await })
}

/// One that has not passed yet: what it is, and what came of asking last.
struct Missing {
    place: usize,
    check: String,
    reason: Option<String>,
}

struct Waiting<'a> {
    plan: &'a Plan,
    began: Instant,
    around: Surroundings,
    inbox: mpsc::UnboundedReceiver<Order>,
    missing: Rc<RefCell<Vec<Missing>>>,
    asking: JoinSet<()>,
    /// The control connections that are open.
    connections: Rc<Cell<usize>>,
}

impl<'a> Waiting<'a> {
    fn begin(plan: &'a Plan, inherited: Inherited, ears: &Ears) -> Self {
        let began = Instant::now();
        let (orders, inbox) = mpsc::unbounded_channel();
        let board = Rc::new(Board::new(plan, Given::default(), orders.clone(), began));
        let connections = Rc::default();
        // The sockets stay the supervisor's: who connects while one loop follows the other is served by the next.
        if let Some(listener) = ears.endpoint.as_ref().and_then(|listener| listener.try_clone().ok()) {
            tokio::task::spawn_local(http::serve(listener, board.clone()));
        }
        if let Some(listener) = ears.control.as_ref().and_then(|listener| listener.try_clone().ok()) {
            tokio::task::spawn_local(control::server::serve(listener, orders, Rc::clone(&connections)));
        }
        let around = Surroundings {
            helpers: Rc::new(Helpers::default()),
            board,
            inherited,
            own: Rc::<OwnConnections>::default(),
            is_patient: plan.throttle_patience,
        };
        let mut waiting =
            Self { plan, began, around, inbox, missing: Rc::default(), asking: JoinSet::new(), connections };
        for (place, check) in plan.neighbours.wait_for.iter().enumerate() {
            waiting.ask(place, check);
        }
        waiting
    }

    fn ask(&mut self, place: usize, check: &Check) {
        let (check, around, limit) = (check.clone(), self.around.clone(), self.plan.pace.timeout);
        let missing = self.missing.clone();
        missing.borrow_mut().push(Missing { place, check: check.to_string(), reason: None });
        self.asking.spawn_local(async move {
            let mut pause = FIRST_PAUSE;
            while let Err(reason) = checks::ask(&check, limit, &around).await {
                tracing::debug!("waiting for {check}: {reason}");
                if let Some(missing) = missing.borrow_mut().iter_mut().find(|missing| missing.place == place) {
                    missing.reason = Some(reason);
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 3 / 2).min(LAST_PAUSE);
            }
            missing.borrow_mut().retain(|missing| missing.place != place);
        });
    }

    async fn run(mut self, arrivals: AsyncFd<Arrivals>, notifier: &mut Notifier) -> Result<(), Cut> {
        let limit = self.plan.neighbours.wait_timeout.map(|limit| self.began + limit);
        let mut next_word = self.began + FIRST_WORD;
        let mut told = false;
        self.show(notifier);
        loop {
            let helpers = self.around.helpers.clone();
            tokio::select! {
                biased;
                arrival = attend(&arrivals, &helpers, |arrival| Some(arrival).filter(asks)) => {
                    return Err(self.stopped_by(arrival));
                }
                Some(order) = self.inbox.recv() => if let Some(asked) = self.obey(order) {
                    self.let_go().await;
                    return Err(self.stopped(128 + Signal::TERM.number() as u8, asked));
                },
                ended = self.asking.join_next() => match ended {
                    Some(_) => self.show(notifier),
                    None => break,
                },
                () = sleep_until(limit) => return Err(self.timed_out()),
                () = tokio::time::sleep_until(next_word.into()) => {
                    told = true;
                    next_word = Instant::now() + NEXT_WORD;
                    tracing::info!("waiting for {}, before the program is started", self.missing_and_why());
                }
            }
        }
        let took = human(self.began.elapsed());
        match told {
            true => tracing::info!("all that was waited for is there after {took}: the program is started"),
            false => tracing::debug!("all that was waited for is there after {took}"),
        }
        Ok(())
    }

    /// Shows what is missing where it can be asked for.
    fn show(&self, notifier: &mut Notifier) {
        if self.missing.borrow().is_empty() {
            return;
        }
        let why = format!("waiting for {}", self.missing());
        notifier.status(&format!("{}: {why}", self.around.board.phase()));
        notifier.flush();
        self.around.board.set_why(why);
    }

    fn missing(&self) -> String {
        let missing = self.missing.borrow();
        missing.iter().map(|missing| missing.check.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn missing_and_why(&self) -> String {
        let one = |missing: &Missing| match &missing.reason {
            Some(reason) => format!("{} ({reason})", missing.check),
            None => missing.check.clone(),
        };
        self.missing.borrow().iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Answers who asks; what asked for a stop, if that did.
    fn obey(&self, order: Order) -> Option<&'static str> {
        let (ask, reply) = match order {
            Order::Asked(ask, reply) => (ask, reply),
            Order::LookUp(tell) => {
                let _ = tell.send(LookedUp::default());
                return None;
            }
            _ => return None,
        };
        let board = &self.around.board;
        let verdict = |verdict: Verdict| Reply { code: u8::from(!verdict.ok), text: verdict.text };
        let (answer, asked) = match ask {
            Ask::Ready => (verdict(board.ready()), None),
            Ask::Serve => (verdict(board.servez()), None),
            Ask::Live => {
                let answer = board.livez().map(verdict);
                (answer.unwrap_or_else(|| Reply::no("there is no --live-check to answer by")), None)
            }
            Ask::Status => {
                (Reply::ok(format!("phase    {} ({})\nchild    not started\n", board.phase(), board.why())), None)
            }
            Ask::StatusJson => (Reply::ok(self.status_json()), None),
            Ask::PreStop => (not_started(), Some("the preStop hook")),
            Ask::Stop => (not_started(), Some("`sundown stop`")),
            Ask::StopNow => (not_started(), Some("`sundown stop --now`")),
        };
        let _ = reply.send(answer);
        asked
    }

    fn status_json(&self) -> String {
        let board = &self.around.board;
        format!(
            "{{\"version\":\"{}\",\"pid\":{},\"phase\":\"{}\",\"why\":{},\"ready\":false,\"serving\":false,\"child\":null}}",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            board.phase(),
            json::quote(&board.why()),
        )
    }

    async fn let_go(&self) {
        let patience = Instant::now() + CONNECTIONS;
        tokio::task::yield_now().await;
        while self.connections.get() > 0 && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn stopped_by(&self, arrival: Arrival) -> Cut {
        let Arrival { signal, sender } = arrival;
        self.stopped(128 + signal.number() as u8, &format!("{signal} from {sender}"))
    }

    fn stopped(&self, code: u8, by: &str) -> Cut {
        let (missing, took) = (self.missing(), human(self.began.elapsed()));
        let text = format!("stop asked for by {by} after {took} of waiting for {missing}: the program is not started");
        Cut { code, text }
    }

    fn timed_out(&self) -> Cut {
        let (missing, took) = (self.missing_and_why(), human(self.began.elapsed()));
        let text =
            format!("waited {took} for {missing}, which is all that --wait-timeout allows: the program is not started");
        Cut { code: TIMED_OUT, text }
    }
}

fn not_started() -> Reply {
    Reply::ok("the program was not started yet, and is not any more")
}

impl Drop for Waiting<'_> {
    /// What a check has started is not left to meet the program.
    fn drop(&mut self) {
        for helper in self.around.helpers.pids() {
            let _ = crate::signals::send(-helper, Signal::KILL);
        }
    }
}

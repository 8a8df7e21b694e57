//! `sundown sidecar`: a container beside an app whose image is left alone. It has no child: the app is what listens on
//! `--ports` of the network that both containers share.
//!
//! The phases are those of any instance ([`Lifecycle`]), read in this way: the app is told by whoever called /prestop, as
//! soon as that is answered; and it has ended when its ports are closed. Then the phases begin anew, as its container may be
//! started again, unless the sidecar was asked to end as well.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

mod act;
mod app;
mod status;

use crate::check::{Check, OwnConnections};
use crate::child::end::Ended;
use crate::control::{self, Ask, Reply};
use crate::http::{self, Guard};
use crate::lifecycle::{Event, Lifecycle, Moment, Phase, Request, Timing, Worth};
use crate::plan::Plan;
use crate::report::advice::Given;
use crate::report::board::{Board, count};
use crate::report::story::Asked;
use crate::report::termination::TerminationLog;
use crate::signals::{self, Arrivals, Inherited, Sender, Signal};
use crate::supervisor::checks::{self, Which};
use crate::supervisor::holders::Holders;
use crate::supervisor::traffic::Watch;
use crate::supervisor::{self, Ears, Order, sleep_until};
use crate::tree::helpers::Helpers;
use app::{App, Change};

/// From one look at the app to the next while it is to end: it is outlived by less than a second.
const LOOK: Duration = Duration::from_millis(100);
/// The same once the stop was asked for so long ago.
const LATE_LOOK: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_secs(60);
/// What a hook's connection gets to close: our exit would reset it.
const CONNECTIONS: Duration = Duration::from_millis(300);

/// All that was set up before the loop starts.
pub struct Setup {
    /// The settings.
    pub plan: Plan,
    /// Who may call /prestop; nobody without one.
    pub guard: Option<Guard>,
    /// The mask and dispositions for checks.
    pub inherited: Inherited,
    /// The termination message's file.
    pub termination: TerminationLog,
    /// The advice that was given at start.
    pub given: Given,
}

/// Serves until it is asked to end and the app has gone, and gives the exit code.
pub fn run(setup: Setup, ears: Ears) -> u8 {
    let Ears { endpoint, control, arrivals } = ears;
    supervisor::block_on(async move {
        let arrivals = supervisor::listen(arrivals);
        let (orders, inbox) = mpsc::unbounded_channel();
        let mut sidecar = Sidecar::new(setup, orders);
        sidecar.start_tasks(endpoint, control);
        sidecar.serve(arrivals, inbox).await
    })
}

struct Sidecar {
    plan: Plan,
    lifecycle: Lifecycle,
    began: Instant,
    app: App,
    /// When it is looked at next, if not only on demand.
    look_due: Option<Moment>,
    board: Rc<Board>,
    helpers: Rc<Helpers>,
    around: checks::Surroundings,
    ready_check: Option<AbortHandle>,
    holders: Holders,
    /// The look at the traffic, from the stop request on.
    traffic: Option<Watch>,
    orders: UnboundedSender<Order>,
    /// The control connections that are open.
    connections: Rc<Cell<usize>>,
    /// Those who wait for the drain's end.
    waiting: Vec<oneshot::Sender<Reply>>,
    termination: TerminationLog,
    /// Who sent the stop request that is being handled.
    sender: Option<Sender>,
    /// We were asked to end too, while the app was there.
    leaving: bool,
    /// The limit has passed and nobody has ended the app: when it was no pod's end after all.
    again_at: Option<Moment>,
    /// Why we go, once we do.
    over: Option<String>,
}

impl Sidecar {
    fn new(setup: Setup, orders: UnboundedSender<Order>) -> Self {
        let Setup { plan, guard, inherited, termination, given } = setup;
        let began = Instant::now();
        let board = Rc::new(Board::new(&plan, given, orders.clone(), began).with_prestop(guard));
        let helpers = Rc::new(Helpers::default());
        let own: Rc<OwnConnections> = Rc::default();
        Self {
            lifecycle: Lifecycle::new(timing(&plan)),
            began,
            app: App::new(plan.ports.clone()),
            look_due: None,
            around: checks::Surroundings {
                helpers: helpers.clone(),
                board: board.clone(),
                inherited,
                is_patient: plan.throttle_patience,
                own,
            },
            board,
            helpers,
            ready_check: None,
            holders: Holders::default(),
            traffic: None,
            orders,
            connections: Rc::default(),
            waiting: Vec::new(),
            termination,
            sender: None,
            leaving: false,
            again_at: None,
            over: None,
            plan,
        }
    }

    fn start_tasks(
        &mut self,
        endpoint: Option<std::net::TcpListener>,
        control: Option<std::os::unix::net::UnixListener>,
    ) {
        if let Some(listener) = endpoint {
            let board = self.board.clone();
            tokio::task::spawn_local(async move {
                let Err(error) = http::serve(listener, board).await;
                tracing::error!("the endpoint has failed: {error}; probes and hooks get no answer any more");
            });
        }
        if let Some(listener) = control {
            tokio::task::spawn_local(control::server::serve(listener, self.orders.clone(), self.connections.clone()));
        }
        self.start_ready_check();
        if let Some(check) = &self.plan.live_check {
            checks::start(Which::Live, check, self.plan.pace, &self.around, &self.orders);
        }
    }

    /// Anew for each app: what was found of the last one says nothing of the next.
    fn start_ready_check(&mut self) {
        if let Some(check) = self.ready_check.take() {
            check.abort();
        }
        self.ready_check =
            checks::start(Which::Ready, &self.plan.ready_check, self.plan.pace, &self.around, &self.orders);
    }

    async fn serve(mut self, arrivals: AsyncFd<Arrivals>, mut inbox: UnboundedReceiver<Order>) -> u8 {
        loop {
            if let Some(why) = self.over.take() {
                // Nobody reads the orders any more, so that a hook that comes now is told at once that we are going.
                drop(inbox);
                return self.finish(why).await;
            }
            let wake = self.wake();
            tokio::select! {
                biased;
                ready = arrivals.readable() => match ready {
                    Ok(mut ready) => {
                        ready.clear_ready();
                        self.take_arrivals(arrivals.get_ref()).await;
                    }
                    Err(error) => panic!("signals cannot be waited for: {error}"),
                },
                Some(order) = inbox.recv() => self.obey(order).await,
                () = sleep_until(wake) => self.on_time().await,
            }
        }
    }

    fn now(&self) -> Moment {
        self.began.elapsed()
    }

    fn wake(&self) -> Option<Instant> {
        let traffic = self.traffic.as_ref().and_then(Watch::due);
        [self.lifecycle.due(), traffic, self.look_due, self.again_at]
            .into_iter()
            .flatten()
            .min()
            .map(|due| self.began + due)
    }

    async fn on_time(&mut self) {
        let is_due = |due: Option<Moment>, now: Moment| due.is_some_and(|due| due <= now);
        if is_due(self.lifecycle.due(), self.now()) {
            self.handle(Event::Tick).await;
        }
        if is_due(self.traffic.as_ref().and_then(Watch::due), self.now()) {
            self.look_at_traffic().await;
        }
        if is_due(self.look_due, self.now()) {
            self.look().await;
        }
        if is_due(self.again_at, self.now()) {
            tracing::warn!("the grace period has passed and nobody has ended the app: it was no pod's end");
            self.start_over().await;
        }
    }

    async fn take_arrivals(&mut self, arrivals: &Arrivals) {
        let mut batch = Vec::new();
        if let Err(error) = arrivals.drain(|arrival| batch.push(arrival)) {
            panic!("signals cannot be read: {error}");
        }
        for arrival in batch {
            let (signal, sender) = (arrival.signal, arrival.sender);
            tracing::debug!("{signal} from {sender}");
            let usual = || matches!(signal, Signal::TERM | Signal::INT | Signal::HALT | Signal::QUIT);
            if signal == Signal::CHLD {
                self.reap();
            } else if self.plan.stop_on.map_or_else(usual, |set| set.contains(signal)) {
                count(&self.board.figures.stops_by_signal);
                self.told_to_go(Request::Signal(signal, sender.into()), Some(sender)).await;
            }
        }
    }

    /// Checks' commands, and as PID 1 what exec sessions have left.
    fn reap(&self) {
        loop {
            let mut status = 0;
            // SAFETY: the pointer is to a number of ours.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if pid <= 0 {
                return;
            }
            count(&self.board.figures.reaped);
            if let Some(ended) = Ended::from_status(status) {
                self.helpers.ended(pid, ended);
            }
        }
    }

    async fn obey(&mut self, order: Order) {
        match order {
            Order::Asked(ask, reply) => self.answer(ask, reply).await,
            Order::Checked(Which::Ready, passes) => self.handle(Event::Ready(passes)).await,
            Order::Checked(Which::Live, passes) => self.board.set_alive(passes),
            Order::Checked(which @ (Which::DrainWhile | Which::Outlive), passes) => {
                self.holders.check_says(which, passes);
                self.look_at_traffic().await;
            }
            Order::HookEnded => {
                self.holders.command_ended();
                self.look_at_traffic().await;
            }
            Order::LookUp(tell) => {
                let _ = tell.send(self.look_up());
            }
            Order::LookAtListeners => self.look().await,
            // The rest is about a tree.
            _ => {}
        }
    }

    async fn answer(&mut self, ask: Ask, reply: oneshot::Sender<Reply>) {
        let answer = match ask {
            Ask::Ready | Ask::Serve | Ask::Live => match self.board.probe(ask) {
                Some(verdict) => verdict,
                None => return,
            },
            Ask::Status => Reply::ok(self.status_text()),
            Ask::StatusJson => Reply::ok(self.status_json()),
            Ask::PreStop => return self.prestop(reply).await,
            Ask::Stop | Ask::StopNow => {
                count(&self.board.figures.stops_by_command);
                let request = if ask == Ask::Stop { Request::Command } else { Request::CommandNow };
                self.told_to_go(request, None).await;
                Reply::ok(format!("{}: {}", self.board.phase(), self.board.why()))
            }
        };
        let _ = reply.send(answer);
    }

    /// A hook, by HTTP or by the control socket: it waits for the drain, which goes on if it hangs up.
    async fn prestop(&mut self, reply: oneshot::Sender<Reply>) {
        count(&self.board.figures.stops_by_prestop);
        // Those who have hung up are forgotten as others come, so that what is remembered is no more than is connected.
        self.waiting.retain(|waiting| !waiting.is_closed());
        self.waiting.push(reply);
        if self.is_before_any_stop() {
            self.look().await;
        }
        let worth = if self.app.is_there() { Worth::Serves } else { Worth::ListensOnNothing };
        self.sender = None;
        self.handle(Event::Stop(Request::PreStop, worth)).await;
        if self.lifecycle.phase() == Phase::Exited {
            self.answer_waiting("the grace period has passed: there is nothing to wait for");
        }
    }

    /// We were asked to end. A native sidecar is asked when the app has ended, so that nothing is left to be done; an ordinary
    /// container together with the app's, which may drain yet.
    async fn told_to_go(&mut self, request: Request, sender: Option<Sender>) {
        self.look().await;
        let asked = Asked(request, sender);
        if request.is_interrupt() || request == Request::CommandNow {
            return self.leave(format!("asked by {asked}, in a hurry"));
        }
        if !self.app.is_there() {
            return self.leave(format!(
                "asked by {asked} when nothing listens on the app's {} any more: as a native sidecar, after the app",
                self.app
            ));
        }
        if matches!(self.lifecycle.phase(), Phase::Killing { .. } | Phase::Exited) {
            return self.leave(format!("asked by {asked} when the grace period was over"));
        }
        if !self.leaving {
            self.leaving = true;
            tracing::info!(
                "asked to end by {asked} while the app listens on {}: as an ordinary container, together with the app; exit when it has gone{}",
                self.app,
                self.limit(),
            );
        }
        self.sender = sender;
        self.handle(Event::Stop(request, Worth::Serves)).await;
    }

    fn is_before_any_stop(&self) -> bool {
        matches!(self.lifecycle.phase(), Phase::Starting | Phase::Running)
    }

    /// Looks whether the app is there.
    async fn look(&mut self) {
        let change = self.app.look();
        let is_there = self.app.is_there();
        if self.plan.live_check == Some(Check::Listening) && change != Change::None {
            self.board.set_alive(is_there);
        }
        match change {
            Change::None => {}
            Change::Gone | Change::Another if self.leaving => self.leave("the app has gone".into()),
            Change::Gone | Change::Another if !self.is_before_any_stop() => self.start_over().await,
            _ if self.plan.ready_check == Check::Listening => self.handle(Event::Ready(is_there)).await,
            _ => {}
        }
        let now = self.now();
        let since = self.lifecycle.clock().map(|clock| now.saturating_sub(clock.start));
        self.look_due = since.map(|since| now + if since < LATE { LOOK } else { LATE_LOOK });
    }

    /// The app has ended, and its container may be started again: a liveness probe has failed, and it was no pod's end. Should
    /// it be one, nothing comes any more but our own end.
    async fn start_over(&mut self) {
        tracing::info!("the app that was to end has gone: ready again if it comes back");
        self.answer_waiting("the app has gone");
        self.holders.end(false);
        (self.traffic, self.again_at, self.look_due) = (None, None, None);
        self.lifecycle = Lifecycle::new(timing(&self.plan));
        self.board.stop_began.set(None);
        self.board.set_why("the app has gone and is waited for");
        self.show();
        self.start_ready_check();
        if self.plan.ready_check == Check::Listening && self.app.is_there() {
            self.handle(Event::Ready(true)).await;
        }
    }

    fn leave(&mut self, why: String) {
        self.over.get_or_insert(why);
    }

    /// Says what happened and ends. The endpoint answers all the while.
    async fn finish(mut self, why: String) -> u8 {
        self.board.set_phase("exited", false, false);
        self.answer_waiting("the sidecar ends");
        let patience = Instant::now() + CONNECTIONS;
        while self.board.hooks() + self.connections.get() > 0 && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for helper in self.helpers.pids() {
            let _ = signals::send(-helper, Signal::KILL);
        }
        let line = format!("the sidecar ends: {why}; exit code 0");
        tracing::info!("{line}");
        if let Err(error) = self.termination.write(&line) {
            tracing::warn!("the termination message cannot be written: {error}");
        }
        0
    }
}

/// Nobody is signalled and nothing is killed: there is no mercy to have, no ladder and nothing to linger.
fn timing(plan: &Plan) -> Timing {
    Timing {
        drain: plan.drain,
        deadline: plan.deadline(),
        mercy: Duration::ZERO,
        linger: Duration::ZERO,
        prestop_elapsed: plan.prestop_elapsed,
        ladder: None,
    }
}

//! The supervisor: the loop that joins the kernel and the lifecycle. It turns what happens into events, and carries out the
//! actions that come back.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

mod act;
mod attend;
mod autopsy;
mod checks;
mod examine;
mod farewell;
mod finish;
mod holders;
mod jobs;
mod keepalive;
mod memory;
mod notify;
mod reap;
mod signal;
mod status;
mod traffic;
mod wait;

pub use farewell::say_goodbye;
pub use wait::{Cut, wait_for};

use crate::check::Check;
use crate::child::end::Ended;
use crate::child::terminal::Terminal;
use crate::control::{self, Ask, Reply};
use crate::http;
use crate::lifecycle::{Actions, Event, Lifecycle, Moment, Outcome, Phase, Request, Timing, Voice, Worth};
use crate::notify::Notifier;
use crate::plan::Plan;
use crate::report::advice::Given;
use crate::report::board::{Board, LookedUp, count};
use crate::report::story::Story;
use crate::report::termination::TerminationLog;
use crate::signals::{Arrival, Arrivals, Inherited, Sender};
use crate::traffic::diag::Connection;
use crate::traffic::listeners;
use crate::tree::Tree;
use crate::tree::helpers::Helpers;
use crate::tree::teller::Teller;

/// A look at those who are too young to hear.
const YOUNG_LOOK: Duration = Duration::from_millis(20);
/// A look at those who stop, and at those whom KILL does not end at once.
const STOPPING_LOOK: Duration = Duration::from_millis(100);
const KILLING_LOOK: Duration = Duration::from_millis(10);
/// How long all that is left must have been still before the next round hears.
const STILL: Duration = Duration::from_millis(300);

/// What the tasks beside the loop ask of it.
pub enum Order {
    /// A client of the control socket.
    Asked(Ask, oneshot::Sender<Reply>),
    /// A check's verdict has changed.
    Checked(checks::Which, bool),
    /// Somebody wants to know whether the app listens.
    LookAtListeners,
    /// A process that was told has ended.
    ToldEnded,
    /// The command of `--on-drain` has ended.
    HookEnded,
    /// A scrape wants to know what only we can see.
    LookUp(oneshot::Sender<LookedUp>),
    /// Connections have ended, of whomever, that were idle.
    IdleEnded(Vec<Connection>),
    /// The time to look at those is over.
    KeepAliveSeen,
    /// The group's memory events have changed.
    LookAtMemory,
}

/// All that was set up before the loop starts.
pub struct Setup {
    /// The settings.
    pub plan: Plan,
    /// The child's pid.
    pub child: i32,
    /// The mark that its tree carries.
    pub mark: String,
    /// The terminal that it was handed, or will be after `fg`.
    pub terminal: Option<Terminal>,
    /// The mask and dispositions for checks.
    pub inherited: Inherited,
    /// The termination message's file.
    pub termination: TerminationLog,
    /// The advice that was given at start.
    pub given: Given,
    /// Systemd's ear.
    pub notifier: Notifier,
}

/// Where we hear from the world.
pub struct Ears {
    /// The endpoint's socket.
    pub endpoint: Option<std::net::TcpListener>,
    /// The control socket.
    pub control: Option<std::os::unix::net::UnixListener>,
    /// The stream of signals.
    pub arrivals: Arrivals,
}

/// Supervises the child until everything is over, and gives the exit code.
pub fn run(setup: Setup, ears: Ears) -> u8 {
    attend::block_on(async move {
        let (orders, inbox) = mpsc::unbounded_channel();
        let arrivals = attend::listen(ears.arrivals);
        let mut supervisor = Supervisor::new(setup, orders);
        supervisor.own_endpoint = ears.endpoint.as_ref().and_then(inode);
        supervisor.start_tasks(ears.endpoint, ears.control);
        supervisor.supervise(arrivals, inbox).await
    })
}

struct Supervisor {
    plan: Plan,
    lifecycle: Lifecycle,
    began: Instant,
    teller: Teller,
    child: Child,
    board: Rc<Board>,
    helpers: Rc<Helpers>,
    /// What checks and hooks need of us.
    around: checks::Surroundings,
    holders: holders::Holders,
    orders: UnboundedSender<Order>,
    /// The control connections that are open.
    connections: Rc<Cell<usize>>,
    /// Those who wait for the drain's end.
    waiting: Vec<oneshot::Sender<Reply>>,
    story: Story,
    termination: TerminationLog,
    /// Who sent the stop request that is being handled.
    sender: Option<Sender>,
    own_endpoint: Option<u64>,
    /// Whether the app listened at the last look; none before it ever did.
    listening: Option<bool>,
    watch: Watch,
    /// The look at the traffic, from the stop request on.
    traffic: Option<traffic::Watch>,
    keepalive: keepalive::KeepAlive,
    told_at: Option<Moment>,
    cpu_before: autopsy::CpuBefore,
    memory: memory::Memory,
    /// The child has ended by itself, and until this moment what it has left behind may take; it has not been told yet.
    left: Option<Moment>,
    voice: Voice,
    /// Signals that were held back once and need not be told again.
    told_held: crate::signals::SigSet,
    foreseen: bool,
    examined: bool,
    outcome: Option<Outcome>,
    notifier: Notifier,
    /// Up to when systemd was asked to wait.
    granted: Moment,
    /// Kept, so that nothing is allocated for a signal.
    batch: Vec<Arrival>,
    actions: Actions,
}

struct Child {
    pid: i32,
    terminal: Option<Terminal>,
    ended: Option<Ended>,
}

/// When the tree is looked at next, and since when it has been still.
#[derive(Default)]
struct Watch {
    due: Option<Moment>,
    moved: Moment,
}

impl Supervisor {
    fn new(setup: Setup, orders: UnboundedSender<Order>) -> Self {
        let Setup { plan, child, mark, terminal, inherited, termination, given, notifier } = setup;
        let timing = Timing {
            drain: plan.drain,
            deadline: plan.deadline(),
            mercy: Duration::from_secs(1).min(plan.kill_margin / 2),
            linger: plan.linger,
            prestop_elapsed: plan.prestop_elapsed,
            ladder: plan.ladder.clone(),
        };
        let helpers = Rc::new(Helpers::default());
        let began = Instant::now();
        let names = std::env::vars_os().map(|(name, _)| name);
        let tree = Tree::new(child, mark, names, plan.wrappers.clone(), helpers.clone());
        let board = Rc::new(Board::new(&plan, given, orders.clone(), began));
        Self {
            lifecycle: Lifecycle::new(timing),
            began,
            teller: Teller::new(tree, plan.ladder.clone(), plan.signal_to),
            child: Child { pid: child, terminal, ended: None },
            around: checks::Surroundings {
                helpers: helpers.clone(),
                board: board.clone(),
                inherited,
                is_patient: plan.throttle_patience,
                own: Rc::default(),
            },
            holders: holders::Holders::default(),
            board,
            helpers,
            orders,
            connections: Rc::default(),
            waiting: Vec::new(),
            story: Story::default(),
            termination,
            sender: None,
            own_endpoint: None,
            listening: None,
            watch: Watch::default(),
            traffic: None,
            keepalive: keepalive::KeepAlive::default(),
            told_at: None,
            cpu_before: autopsy::CpuBefore::default(),
            memory: memory::Memory::default(),
            left: None,
            voice: Voice::Own,
            told_held: crate::signals::SigSet::EMPTY,
            foreseen: false,
            examined: false,
            outcome: None,
            notifier,
            granted: Moment::ZERO,
            batch: Vec::with_capacity(64),
            actions: Actions::with_capacity(8),
            plan,
        }
    }

    fn start_tasks(&self, endpoint: Option<std::net::TcpListener>, control: Option<std::os::unix::net::UnixListener>) {
        if let Some(listener) = endpoint {
            let board = self.board.clone();
            tokio::task::spawn_local(async move {
                let Err(error) = http::serve(listener, board).await;
                tracing::error!("the endpoint has failed: {error}; probes get no answer any more");
            });
        }
        if let Some(listener) = control {
            tokio::task::spawn_local(control::server::serve(listener, self.orders.clone(), self.connections.clone()));
        }
        checks::start(checks::Which::Ready, &self.plan.ready_check, self.plan.pace, &self.around, &self.orders);
        if let Some(check) = &self.plan.live_check {
            checks::start(checks::Which::Live, check, self.plan.pace, &self.around, &self.orders);
        }
    }

    async fn supervise(mut self, arrivals: AsyncFd<Arrivals>, mut inbox: UnboundedReceiver<Order>) -> u8 {
        self.watch_memory();
        // A child that ended before the stream was opened is not announced again.
        self.reap().await;
        self.notify();
        if self.plan.ready_check == Check::Running {
            self.handle(Event::Ready(true)).await;
        }
        loop {
            if let Some(outcome) = self.outcome.take() {
                // Nobody reads the orders any more, so that who asks from here on is told at once that we are going: a hook
                // that waited would be killed by our exit.
                drop(inbox);
                return self.finish(outcome, &arrivals).await;
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

    /// The time since we began, which the lifecycle counts in.
    fn now(&self) -> Moment {
        self.began.elapsed()
    }

    fn wake(&self) -> Option<Instant> {
        [self.lifecycle.due(), self.watch.due, self.traffic_due(), self.notify_due()]
            .into_iter()
            .flatten()
            .min()
            .map(|moment| self.began + moment)
    }

    async fn on_time(&mut self) {
        if self.lifecycle.due().is_some_and(|due| due <= self.now()) {
            self.handle(Event::Tick).await;
        }
        if self.watch.due.is_some_and(|due| due <= self.now()) {
            self.look().await;
        }
        if self.traffic_due().is_some_and(|due| due <= self.now()) {
            self.look_at_traffic().await;
        }
        self.notify();
    }

    /// Tells the lifecycle what has happened, carries out what it says, and shows where we are.
    async fn handle(&mut self, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        self.lifecycle.handle(self.now(), event, &mut actions);
        for action in actions.drain(..) {
            self.act(action).await;
        }
        self.actions = actions;
        let phase = self.lifecycle.phase();
        if phase == Phase::Running {
            self.board.set_why(if self.lifecycle.is_ready() { "ready" } else { "the ready check fails" });
        }
        self.board.set_phase(phase.name(), self.lifecycle.is_ready(), self.lifecycle.is_serving());
        self.mind_keepalive(phase);
        self.notify();
    }

    async fn obey(&mut self, order: Order) {
        self.look_for_oom_kills_again();
        match order {
            Order::Asked(ask, reply) => self.answer(ask, reply).await,
            Order::Checked(checks::Which::Ready, passes) => {
                self.handle(Event::Ready(passes)).await;
                if passes {
                    self.teller.look();
                    self.foresee();
                    self.examine();
                }
            }
            Order::Checked(checks::Which::Live, passes) => self.board.set_alive(passes),
            Order::Checked(which, passes) => self.hold_by_check(which, passes).await,
            Order::HookEnded => self.hook_ended().await,
            Order::LookUp(tell) => {
                let _ = tell.send(self.look_up());
            }
            Order::IdleEnded(connections) => self.note_closes(connections),
            Order::KeepAliveSeen => self.end_keepalive_watch(),
            Order::LookAtMemory => self.memory_has_changed(),
            Order::LookAtListeners => self.look_at_listeners().await,
            Order::ToldEnded => self.look().await,
        }
    }

    async fn answer(&mut self, ask: Ask, reply: oneshot::Sender<Reply>) {
        let verdict = |verdict: http::Verdict| Reply { code: u8::from(!verdict.ok), text: verdict.text };
        let answer = match ask {
            Ask::Ready => verdict(self.board.ready()),
            Ask::Serve => verdict(http::Answers::servez(&*self.board)),
            Ask::Live => http::Answers::livez(&*self.board)
                .map_or_else(|| Reply::no("there is no --live-check to answer by"), verdict),
            Ask::Status => Reply::ok(self.status_text()),
            Ask::StatusJson => Reply::ok(self.status_json()),
            Ask::PreStop => return self.prestop(reply).await,
            Ask::Stop | Ask::StopNow => {
                count(&self.board.figures.stops_by_command);
                let request = if ask == Ask::Stop { Request::Command } else { Request::CommandNow };
                let worth = self.worth().await;
                self.sender = None;
                self.handle(Event::Stop(request, worth)).await;
                Reply::ok(format!("{}: {}", self.board.phase(), self.board.why()))
            }
        };
        let _ = reply.send(answer);
    }

    async fn prestop(&mut self, reply: oneshot::Sender<Reply>) {
        count(&self.board.figures.stops_by_prestop);
        self.waiting.push(reply);
        let worth = self.worth().await;
        self.sender = None;
        self.handle(Event::Stop(Request::PreStop, worth)).await;
    }

    /// Whether the app has anything to drain. It is looked at once, when the first stop request comes, and only where a
    /// drain would depend on it.
    async fn worth(&mut self) -> Worth {
        if !matches!(self.lifecycle.phase(), Phase::Starting | Phase::Running) {
            return Worth::Serves;
        }
        self.teller.look();
        self.examine();
        self.examine_zombies();
        if self.plan.ready_check == Check::Listening {
            // Nobody may have asked since the app came up.
            self.note_listening(self.listens()).await;
        }
        if self.plan.neighbours.outlive.is_some() {
            Worth::Outlives
        } else if self.plan.drain.greatest.is_zero() || !self.plan.drain.automatic {
            Worth::Serves
        } else if self.teller.is_database() {
            Worth::Database
        } else if self.listens() {
            Worth::Serves
        } else {
            Worth::ListensOnNothing
        }
    }

    /// Whether the processes of the last look listen.
    fn listens(&self) -> bool {
        let pids = self.teller.tree.nodes().iter().map(|node| node.stat.key.pid);
        listeners::listens(pids, &self.plan.ports, self.own_endpoint)
    }

    async fn look_at_listeners(&mut self) {
        if self.examined {
            self.teller.tree.look();
        } else {
            self.teller.look();
        }
        self.note_listening(self.listens()).await;
        if self.lifecycle.was_ready() {
            self.examine();
            self.examine_zombies();
        }
    }

    async fn note_listening(&mut self, listens: bool) {
        let before = self.listening;
        if !listens && before.is_none() {
            // Not up yet: not ready, and no proof that it is dead.
            return;
        }
        self.listening = Some(listens);
        if self.plan.live_check == Some(Check::Listening) {
            self.board.set_alive(listens);
        }
        if self.plan.ready_check == Check::Listening && before != Some(listens) {
            self.handle(Event::Ready(listens)).await;
        }
    }
}

/// The inode by which a socket of ours is known in /proc/net.
fn inode(socket: &std::net::TcpListener) -> Option<u64> {
    nix::sys::stat::fstat(socket).ok().map(|stat| stat.st_ino)
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake.into()).await,
        None => std::future::pending().await,
    }
}

//! The phases of a container's life. Pure: no clock, no process, no socket.
//!
//! ```text
//! starting -> running -> draining -> stopping -> killing -> exited
//! ```
//!
//! The supervisor turns what the kernel and the clients say into [`Event`]s and carries out the [`Action`]s that come back.
//! A rule of the contract is one arm of one `match` here, so that the tests in `walk` can go through every order of events.

use std::time::Duration;

use crate::child::end::Ended;
use crate::plan::{Drain, DrainUntil, Ladder};
use crate::signals::Signal;

mod phase;
#[cfg(test)]
mod walk;
mod words;

pub use phase::{Clock, PHASES, Phase};
use phase::{Interrupts, Readiness, Stopping};
pub use words::{Action, DrainEnd, Event, From, Hold, KillReason, Lull, NoDrain, Outcome, Request, Voice, Worth};

/// A point in time: how long the supervisor has been running (CLOCK_MONOTONIC).
pub type Moment = Duration;

/// How long after SIGKILL we wait for what it cannot end.
const KILL_PATIENCE: Duration = Duration::from_secs(1);
/// Half of "what is left of the time", where no limit was stated.
const UNSTATED_PATIENCE: Duration = Duration::from_secs(10);

/// What the lifecycle needs of the plan.
#[derive(Clone, Debug)]
pub struct Timing {
    /// The drain.
    pub drain: Drain,
    /// From the stop request to KILL; only a stated limit gives one.
    pub deadline: Option<Duration>,
    /// The time a late app still gets between being told and KILL.
    pub mercy: Duration,
    /// How long leftovers may take once the child has ended by itself.
    pub linger: Duration,
    /// What a foreign preStop hook has used up when a signal comes.
    pub prestop_elapsed: Duration,
    /// The rungs of the ladder; none stands for one rung, each app's own stop signal.
    pub ladder: Option<Ladder>,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    timing: Timing,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct State {
    phase: Phase,
    readiness: Readiness,
    clock: Option<Clock>,
    voice: Voice,
    child: Option<(Ended, bool)>,
    app: Option<Ended>,
}

/// A few actions at the most come of one event.
pub type Actions = Vec<Action>;

impl Lifecycle {
    /// Starts in the starting phase.
    pub fn new(timing: Timing) -> Self {
        let state = State {
            phase: Phase::Starting,
            readiness: Readiness::Never,
            clock: None,
            voice: Voice::Own,
            child: None,
            app: None,
        };
        Self { timing, state }
    }

    /// The phase.
    pub fn phase(&self) -> Phase {
        self.state.phase
    }

    /// The clock, once a stop was asked for.
    pub fn clock(&self) -> Option<Clock> {
        self.state.clock
    }

    /// When KILL comes, if it is known.
    pub fn kill_at(&self) -> Option<Moment> {
        match self.state.phase {
            Phase::Stopping(Stopping { kill, .. }) => kill.map(|(at, _)| at),
            _ => self.state.clock.and_then(|clock| clock.deadline),
        }
    }

    /// What the balancer is to know: /readyz.
    pub fn is_ready(&self) -> bool {
        self.state.phase == Phase::Running && self.state.readiness == Readiness::Yes
    }

    /// Whether the app serves, through the drain too: /servez.
    pub fn is_serving(&self) -> bool {
        matches!(self.state.phase, Phase::Running | Phase::Draining { .. }) && self.state.readiness == Readiness::Yes
    }

    /// Whether the ready check has ever passed.
    pub fn was_ready(&self) -> bool {
        self.state.readiness != Readiness::Never
    }

    /// When the next [`Event::Tick`] is wanted.
    pub fn due(&self) -> Option<Moment> {
        match self.state.phase {
            Phase::Draining { least, greatest, lull } => Some(if lull == Lull::Busy { greatest } else { least }),
            Phase::Killing { until, .. } => Some(until),
            Phase::Stopping(Stopping { climb, patient, kill, .. }) => {
                [climb.map(|(_, at)| at), patient, kill.map(|(at, _)| at)].into_iter().flatten().min()
            }
            Phase::Starting | Phase::Running | Phase::Exited => None,
        }
    }

    /// Takes in what has happened and adds what is to be done, in this order, to a list that the caller keeps.
    pub fn handle(&mut self, now: Moment, event: Event, actions: &mut Actions) {
        if self.state.phase != Phase::Exited {
            self.step(now, event, actions);
        }
    }

    fn step(&mut self, now: Moment, event: Event, actions: &mut Actions) {
        match event {
            Event::Stop(request, worth) => self.stop(now, request, worth, actions),
            Event::Signal(signal) => actions.push(Action::PassOn(signal)),
            Event::Ready(ready) => self.ready(ready),
            Event::ChildEnded { ended, told, alone } => self.child_ended(now, ended, told, alone, actions),
            Event::AppEnded(ended) if self.state.child.is_some() => self.state.app = Some(ended),
            Event::ToldGone if matches!(self.state.phase, Phase::Stopping(_)) => actions.push(Action::TellRest),
            Event::AppEnded(_) | Event::ToldGone => {}
            Event::Traffic(lull) => self.traffic(now, lull, actions),
            Event::TreeEmpty => self.exit(false, actions),
            Event::Tick => self.tick(now, actions),
        }
    }

    fn ready(&mut self, ready: bool) {
        self.state.readiness = match (self.state.readiness, ready) {
            (_, true) => Readiness::Yes,
            (Readiness::Never, false) => Readiness::Never,
            (_, false) => Readiness::No,
        };
        if self.state.phase == Phase::Starting && ready {
            self.state.phase = Phase::Running;
        }
    }

    /// Quiet never undercuts the least time: at low traffic, silence means nothing. That all balancers have let go does.
    fn traffic(&mut self, now: Moment, lull: Lull, actions: &mut Actions) {
        if let Phase::Draining { least, greatest, .. } = self.state.phase {
            self.state.phase = Phase::Draining { least, greatest, lull };
            self.tick(now, actions);
        }
    }

    fn stop(&mut self, now: Moment, request: Request, worth: Worth, actions: &mut Actions) {
        match self.state.phase {
            Phase::Starting | Phase::Running => self.begin(now, request, worth, actions),
            Phase::Draining { .. } if request.is_interrupt() || request == Request::CommandNow => {
                if request.is_interrupt() {
                    self.state.voice = Voice::Interrupt;
                }
                self.end_drain(now, DrainEnd::Hurry, actions);
            }
            // A preStop call joins the drain and is answered at its end.
            Phase::Draining { .. } => actions.push(Action::SayAgain(request)),
            Phase::Stopping(stopping) => self.stop_again(now, request, stopping, actions),
            Phase::Killing { .. } if self.state.clock.is_none() => {
                self.start_clock(now, request);
                actions.push(Action::Begin(request, Hold::None(NoDrain::ChildEnded)));
                if request == Request::PreStop {
                    actions.push(Action::Answer);
                }
            }
            Phase::Killing { .. } | Phase::Exited => answer_or_say_again(request, actions),
        }
    }

    fn begin(&mut self, now: Moment, request: Request, worth: Worth, actions: &mut Actions) {
        let used = self.start_clock(now, request);
        self.state.voice = match request {
            request if request.is_interrupt() => Voice::Interrupt,
            Request::Signal(Signal::INT, _) => Voice::OwnElseInterrupt,
            _ => Voice::Own,
        };
        let hold = self.hold(request, worth, used);
        actions.push(Action::Begin(request, hold));
        match hold {
            Hold::Drain { least, greatest } => {
                let lull = self.first_lull(least, greatest);
                self.state.phase = Phase::Draining { least: now + least, greatest: now + greatest, lull };
            }
            Hold::None(_) => {
                if request == Request::PreStop {
                    actions.push(Action::Answer);
                }
                self.tell(now, actions);
            }
        }
    }

    /// A signal may come after a foreign hook has used up some of the time, which is given back; our own hook and command
    /// come first.
    fn start_clock(&mut self, now: Moment, request: Request) -> Duration {
        let used = match request {
            Request::Signal(..) => self.timing.prestop_elapsed,
            Request::PreStop | Request::Command | Request::CommandNow => Duration::ZERO,
        };
        let start = now.saturating_sub(used);
        // Time before our own first moment cannot be written down; the deadline is what has to be right.
        let deadline = self.timing.deadline.map(|limit| (now + limit).saturating_sub(used));
        self.state.clock = Some(Clock { start, deadline });
        used
    }

    fn hold(&self, request: Request, worth: Worth, used: Duration) -> Hold {
        let Drain { least, greatest, automatic, .. } = self.timing.drain;
        if request.is_interrupt() || request == Request::CommandNow {
            return Hold::None(NoDrain::Hurry);
        }
        match (self.state.phase, self.state.readiness) {
            _ if worth == Worth::Outlives => {}
            (Phase::Starting, _) => return Hold::None(NoDrain::NeverReady),
            (_, Readiness::No | Readiness::Never) if automatic => return Hold::None(NoDrain::NotReady),
            _ => {}
        }
        match worth {
            _ if greatest.is_zero() => Hold::None(NoDrain::Zero),
            Worth::ListensOnNothing if automatic => Hold::None(NoDrain::ListensOnNothing),
            Worth::Database if automatic => Hold::None(NoDrain::Database),
            _ => Hold::Drain { least: least.saturating_sub(used), greatest: greatest.saturating_sub(used) },
        }
    }

    /// How the traffic stands as the drain begins. Where nothing is to be looked at, its time is all it has.
    fn first_lull(&self, least: Duration, greatest: Duration) -> Lull {
        let Drain { until, held, .. } = self.timing.drain;
        let may_be_longer = greatest > least && (held || until != DrainUntil::Delay);
        if may_be_longer || until == DrainUntil::Released { Lull::Busy } else { Lull::Over(DrainEnd::TimeUp) }
    }

    fn end_drain(&mut self, now: Moment, why: DrainEnd, actions: &mut Actions) {
        // Whoever waits for the drain is answered before the app hears.
        actions.push(Action::Release(why));
        self.tell(now, actions);
    }

    fn tell(&mut self, now: Moment, actions: &mut Actions) {
        actions.push(Action::Tell(self.state.voice));
        let deadline = self.state.clock.and_then(|clock| clock.deadline);
        self.state.phase = Phase::Stopping(self.stopping(now, deadline.map(|at| (at, KillReason::Deadline))));
    }

    /// The stopping phase from now on: a limit that is already past still leaves a late app a moment.
    fn stopping(&self, now: Moment, limit: Option<(Moment, KillReason)>) -> Stopping {
        let mut kill = limit.map(|(at, why)| (at.max(now + self.timing.mercy), why));
        let climb = self.next_rung(now, 0, &mut kill);
        let patience = kill.map_or(UNSTATED_PATIENCE, |(at, _)| at.saturating_sub(now) / 2);
        Stopping { climb, patient: Some(now + patience), kill, interrupts: Interrupts::None }
    }

    /// What comes after the rung of this index: the next one, or KILL if that is sooner than it would come anyway.
    fn next_rung(&self, now: Moment, rung: usize, kill: &mut Option<(Moment, KillReason)>) -> Option<(usize, Moment)> {
        if self.state.voice == Voice::Interrupt {
            return None;
        }
        let steps = self.timing.ladder.as_ref()?.steps();
        let at = now + steps.get(rung)?.wait?;
        if rung + 1 < steps.len() {
            return Some((rung + 1, at));
        }
        if kill.is_none_or(|(sooner, _)| at < sooner) {
            *kill = Some((at, KillReason::LadderEnd));
        }
        None
    }

    fn stop_again(&mut self, now: Moment, request: Request, mut stopping: Stopping, actions: &mut Actions) {
        if self.state.clock.is_none() {
            // The child had ended by itself; now there is a limit as well.
            self.start_clock(now, request);
            let deadline = self.state.clock.and_then(|clock| clock.deadline);
            if let Some(at) = deadline.map(|at| at.max(now + self.timing.mercy))
                && stopping.kill.is_none_or(|(later, _)| at < later)
            {
                stopping.kill = Some((at, KillReason::Deadline));
            }
            self.state.phase = Phase::Stopping(stopping);
            actions.push(Action::Begin(request, Hold::None(NoDrain::ChildEnded)));
            if request == Request::PreStop {
                actions.push(Action::Answer);
            }
            return;
        }
        match (request.is_interrupt(), stopping.interrupts) {
            (false, _) => answer_or_say_again(request, actions),
            (true, Interrupts::None) => {
                stopping.interrupts = Interrupts::Warned;
                self.state.phase = Phase::Stopping(stopping);
                actions.push(Action::WarnOfKill);
            }
            (true, Interrupts::Warned) => self.kill(now, KillReason::Interrupt, actions),
        }
    }

    fn child_ended(&mut self, now: Moment, ended: Ended, told: bool, alone: bool, actions: &mut Actions) {
        self.state.child = Some((ended, told));
        if alone {
            if matches!(self.state.phase, Phase::Draining { .. }) {
                actions.push(Action::Release(DrainEnd::ChildEnded));
            }
            return self.exit(false, actions);
        }
        match self.state.phase {
            Phase::Starting | Phase::Running => self.linger(now, actions),
            Phase::Draining { .. } => {
                actions.push(Action::Release(DrainEnd::ChildEnded));
                self.linger(now, actions);
            }
            Phase::Stopping(_) | Phase::Killing { .. } | Phase::Exited => {}
        }
    }

    /// The child has ended by itself: what is left is told and gets a while, but never past the deadline.
    fn linger(&mut self, now: Moment, actions: &mut Actions) {
        let linger = (now + self.timing.linger, KillReason::Linger);
        let deadline = self.state.clock.and_then(|clock| clock.deadline).map(|at| (at, KillReason::Deadline));
        let limit = deadline.filter(|(at, _)| *at < linger.0).unwrap_or(linger);
        let stopping = self.stopping(now, Some(limit));
        actions.push(Action::SayLeft(stopping.kill.map_or(self.timing.linger, |(at, _)| at.saturating_sub(now))));
        actions.push(Action::Tell(self.state.voice));
        self.state.phase = Phase::Stopping(stopping);
    }

    /// One step at a time, so that after a long sleep of the machine the late timers still go in their order.
    fn tick(&mut self, now: Moment, actions: &mut Actions) {
        match self.state.phase {
            Phase::Draining { least, greatest, lull } => match lull {
                Lull::Over(why) if now >= least => self.end_drain(now, why, actions),
                Lull::Released => self.end_drain(now, DrainEnd::Released, actions),
                Lull::Busy if now >= greatest => self.end_drain(now, DrainEnd::Greatest, actions),
                _ => {}
            },
            Phase::Stopping(stopping) => self.tick_stopping(now, stopping, actions),
            Phase::Killing { until, .. } if now >= until => self.exit(true, actions),
            _ => {}
        }
    }

    fn tick_stopping(&mut self, now: Moment, mut stopping: Stopping, actions: &mut Actions) {
        if let Some((rung, at)) = stopping.climb
            && now >= at
        {
            actions.push(Action::Climb(rung));
            let late = |(at, why): (Moment, KillReason)| (if now >= at { now + self.timing.mercy } else { at }, why);
            stopping.kill = stopping.kill.map(late);
            stopping.climb = self.next_rung(now, rung, &mut stopping.kill);
        } else if let Some((at, why)) = stopping.kill
            && now >= at
        {
            return self.kill(now, why, actions);
        } else if stopping.patient.is_some_and(|at| now >= at) {
            stopping.patient = None;
            actions.push(Action::TellPatient);
        }
        self.state.phase = Phase::Stopping(stopping);
    }

    fn kill(&mut self, now: Moment, why: KillReason, actions: &mut Actions) {
        actions.push(Action::Kill(why));
        self.state.phase = Phase::Killing { why, until: now + KILL_PATIENCE };
    }

    fn exit(&mut self, survivors: bool, actions: &mut Actions) {
        let killed = match self.state.phase {
            Phase::Killing { why, .. } => Some(why),
            _ => None,
        };
        let ended = self.last_word();
        // A kill that a stop had to end in is never hidden behind a code that the child gave before.
        let enforced = killed.is_some_and(|why| why != KillReason::Linger);
        let code = match ended {
            Some(ended) if !enforced && !survivors => ended.code(),
            _ => 128 + Signal::KILL.number() as u8,
        };
        self.state.phase = Phase::Exited;
        actions.push(Action::Exit(Outcome { code, ended, asked: self.state.clock.is_some(), killed, survivors }));
    }

    /// Whose end counts: the child's, unless our own signal ended it and an app outlived it and came to us.
    fn last_word(&self) -> Option<Ended> {
        match (self.state.child, self.state.app) {
            (Some((Ended::Signalled { .. }, true)), Some(app)) => Some(app),
            (Some((child, _)), _) => Some(child),
            (None, _) => None,
        }
    }
}

fn answer_or_say_again(request: Request, actions: &mut Actions) {
    actions.push(match request {
        Request::PreStop => Action::Answer,
        _ => Action::SayAgain(request),
    });
}

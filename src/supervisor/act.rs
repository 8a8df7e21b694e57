//! Carrying out what the lifecycle says.

use std::io;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{KILLING_LOOK, Order, STILL, STOPPING_LOOK, Supervisor, YOUNG_LOOK};
use crate::check::Check;
use crate::control::Reply;
use crate::fallback;
use crate::lifecycle::{Action, DrainEnd, Event, Hold, KillReason, Phase, Request, Voice};
use crate::plan::human;
use crate::report::advice::{Advice, Id};
use crate::report::board::count;
use crate::report::drained::Lesson;
use crate::report::story::{self, Asked};
use crate::signals::{DefaultAction, Signal};
use crate::traffic::listeners;
use crate::tree::process::Node;
use crate::tree::teller::{Passed, Spoken, reason};

impl Supervisor {
    pub(super) async fn act(&mut self, action: Action) {
        match action {
            Action::Begin(request, hold) => self.begin(request, hold),
            Action::Release(why) => self.release(why).await,
            Action::Answer => self.answer_waiting("the app is being stopped: there is nothing to wait for"),
            Action::Tell(voice) => self.tell(voice),
            Action::Climb(rung) => {
                let spoken = self.teller.climb(rung);
                self.report(spoken, "it has not ended, so the ladder's next signal follows");
            }
            Action::TellRest => {
                let spoken = self.teller.tell_rest();
                self.report(spoken, "those who were told are gone, and it is left");
            }
            Action::TellPatient => {
                self.tell_left();
                self.say_what_holds_the_stop();
                self.examine_idle_connections();
                let spoken = self.teller.tell_patient();
                self.report(spoken, "half of the time is over");
            }
            Action::PassOn(signal) => self.pass_on(signal),
            Action::SayAgain(request) => self.say_again(request),
            Action::WarnOfKill => tracing::warn!("interrupted while stopping: once more kills what is left"),
            Action::SayLeft(time) => self.left = Some(self.now() + time),
            Action::Kill(why) => self.kill(why),
            Action::Exit(outcome) => self.outcome = Some(outcome),
        }
    }

    fn begin(&mut self, request: Request, hold: Hold) {
        self.look_at_cgroup();
        let now = self.now();
        self.board.stop_began.set(self.lifecycle.clock().map(|clock| clock.start));
        let left = self.lifecycle.kill_at().map(|at| at.saturating_sub(now));
        // Before anybody can read that the stop has begun: what comes from then on is new.
        self.watch_traffic(hold);
        if let Hold::None(why) = hold {
            self.story.no_drain(why);
        }
        let line = story::begin(request, self.sender, hold, left);
        tracing::info!("{line}");
        self.story.asked(request, self.sender);
        let why_none = if let Hold::None(why) = hold { format!("; no drain: {why}") } else { String::new() };
        self.story.note(now, format!("stop asked for by {}{why_none}", Asked(request, self.sender)));
        self.board.set_why(format!("stop asked for by {}", Asked(request, self.sender)));
        fallback::note_stop(left);
        let ahead = format!("{line}. If you read this, everything was killed at once before sundown could finish.");
        if let Err(error) = self.termination.write_ahead(&ahead) {
            tracing::warn!("the termination message cannot be written: {error}");
        }
        self.examine_request(request, hold);
        self.start_holders(hold);
        self.foresee();
        self.tell_left();
    }

    async fn release(&mut self, why: DrainEnd) {
        let start = self.lifecycle.clock().map_or(self.now(), |clock| clock.start);
        let time = self.now().saturating_sub(start);
        self.end_of_holding();
        let seen = self.end_of_traffic_watch(why);
        let text = seen.map_or_else(String::new, |drained| drained.to_string());
        tracing::info!("the drain is over after {} ({why}){text}", human(time));
        match seen.filter(|_| self.plan.neighbours.outlive.is_none()).and_then(|drained| drained.lesson()) {
            Some(Lesson::Advice(advice)) => self.board.given.give(&advice),
            Some(Lesson::Note(text)) => tracing::info!("{text}"),
            None => {}
        }
        self.story.note(self.now(), format!("the drain was over ({why}){text}"));
        self.story.drained(time, why, text);
        self.examine_probers(start, why);
        if !self.waiting.is_empty() {
            self.answer_waiting(&format!("drained for {}", human(time)));
            // Their answers are on the wire before the app hears.
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
        }
    }

    pub(super) fn answer_waiting(&mut self, text: &str) {
        for waiting in self.waiting.drain(..) {
            let _ = waiting.send(Reply::ok(text));
        }
    }

    fn tell(&mut self, voice: Voice) {
        fallback::note_told();
        self.told_at = Some(self.now());
        self.voice = voice;
        self.watch.moved = self.now();
        match self.left {
            Some(_) => self.watch.due = Some(self.now() + YOUNG_LOOK),
            None => self.tell_on(),
        }
    }

    /// Tells those whom the child has left behind, if that has not been done yet. Whoever reads what the child wrote ends by
    /// itself at the end of it: told at once, it would lose the child's last words.
    fn tell_left(&mut self) {
        let Some(until) = self.left.take() else { return };
        tracing::info!(
            "the child has ended and left processes behind: they are told, and killed in {}",
            human(until.saturating_sub(self.now()))
        );
        self.tell_on();
    }

    /// Tells those who can hear by now.
    pub(super) fn tell_on(&mut self) {
        // Its handlers may be taken to be set once it serves.
        let proven = self.plan.ready_check != Check::Running && self.lifecycle.was_ready();
        let (ports, own) = (&self.plan.ports, self.own_endpoint);
        let serves =
            |nodes: &[Node]| proven || listeners::listens(nodes.iter().map(|node| node.stat.key.pid), ports, own);
        let spoken = self.teller.tell(self.voice, &serves);
        self.report(spoken, "the app is told");
        let young = !self.teller.ledger.early().is_empty();
        self.watch.due = Some(self.now() + if young { YOUNG_LOOK } else { STOPPING_LOOK });
    }

    fn report(&mut self, spoken: Vec<Spoken>, why: &str) {
        for Spoken { comm, key, signal, sent } in spoken {
            let name = comm.as_str();
            match sent {
                Ok(end) => {
                    tracing::info!("{signal} sent to {name} (pid {}): {why}; {}", key.pid, self.outlook());
                    self.story.told(comm, key, signal);
                    self.story.note(self.now(), format!("{signal} to {name} (pid {})", key.pid));
                    if let Some(end) = end {
                        self.wait_for_end(end);
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => {
                    tracing::warn!(
                        "{signal} could not be sent to {name} (pid {}): {}; it is waited for",
                        key.pid,
                        reason(&error)
                    );
                    self.story.denied(comm, key);
                }
            }
        }
    }

    fn outlook(&self) -> String {
        match self.lifecycle.kill_at() {
            Some(at) => format!("killed in {} if it has not ended", human(at.saturating_sub(self.now()))),
            None => "it may take its time".into(),
        }
    }

    fn wait_for_end(&self, end: std::os::fd::OwnedFd) {
        let orders = self.orders.clone();
        // SAFETY: the descriptor is owned, and closed only after the reactor has let go of it.
        let Ok(end) = (unsafe { AsyncFd::register_with_interest(end, Interest::READABLE) }) else { return };
        tokio::task::spawn_local(async move {
            if end.readable().await.is_ok() {
                let _ = orders.send(Order::ToldEnded);
            }
        });
    }

    /// A look at the tree while it stops: are all gone, is it still, is it over.
    pub(super) async fn look(&mut self) {
        match self.lifecycle.phase() {
            Phase::Stopping(_) if self.left.is_some() => self.watch.due = Some(self.now() + STOPPING_LOOK),
            Phase::Stopping(_) if !self.teller.ledger.early().is_empty() || self.teller.ledger.told().is_empty() => {
                self.tell_on()
            }
            Phase::Stopping(_) => self.watch.due = Some(self.now() + STOPPING_LOOK),
            Phase::Killing { .. } => return self.kill_on().await,
            _ => {
                self.watch.due = None;
                return;
            }
        }
        let began = self.now();
        let seen = self.teller.watch();
        self.note_cpu();
        let now = self.now();
        // Looking at a large process table must not cost more than a little of a core.
        self.watch.due = self.watch.due.map(|due| due.max(now + (now - began) * 40));
        if seen.moved {
            self.watch.moved = now;
        }
        if seen.empty && self.child.ended.is_some() {
            self.handle(Event::TreeEmpty).await;
        } else if seen.all_gone && now - self.watch.moved >= STILL {
            self.watch.moved = now;
            if self.left.is_some() {
                return self.tell_left();
            }
            self.handle(Event::ToldGone).await;
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        match self.teller.pass_on(signal) {
            Passed::On => {
                count(&self.board.figures.passed_on);
                self.memory.passed_on = self.memory.passed_on.with(signal);
            }
            Passed::Idle => {}
            Passed::Held => {
                count(&self.board.figures.held_back);
                if !self.told_held.contains(signal) {
                    self.told_held = self.told_held.with(signal);
                    let would = if signal.default_action() == DefaultAction::Stop { "stop" } else { "kill" };
                    tracing::warn!("{signal} is not passed on: no process catches it, and it would {would} the app");
                }
            }
        }
    }

    fn say_again(&self, request: Request) {
        let next = match self.lifecycle.phase() {
            Phase::Draining { least, .. } if self.now() < least => {
                format!("the drain goes on for {}", human(least - self.now()))
            }
            Phase::Draining { greatest, .. } => {
                format!(
                    "the drain goes on while there is traffic, {} at most",
                    human(greatest.saturating_sub(self.now()))
                )
            }
            _ => "the app has been told already".into(),
        };
        tracing::info!("asked again, by {}, which changes nothing: {next}", Asked(request, self.sender));
    }

    fn kill(&mut self, why: KillReason) {
        tracing::warn!("killing what is left: {why}");
        self.story.note(self.now(), format!("what was left was killed: {why}"));
        self.autopsy();
        self.kill_all();
    }

    fn kill_all(&mut self) {
        for Spoken { comm, key, sent, .. } in self.teller.kill() {
            match sent {
                Ok(_) => self.story.killed(comm, key),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => self.cannot_kill(comm, key, &error),
            }
        }
        self.watch.due = Some(self.now() + KILLING_LOOK);
    }

    fn cannot_kill(&mut self, comm: crate::tree::process::Comm, key: crate::tree::process::Key, error: &io::Error) {
        self.story.denied(comm, key);
        tracing::debug!("{} (pid {}) could not be killed: {}", comm.as_str(), key.pid, reason(error));
    }

    async fn kill_on(&mut self) {
        self.kill_all();
        // Where /proc shows nothing, there is nothing more that could be done about what may be left.
        if self.child.ended.is_some() && self.teller.tree.nodes().is_empty() {
            self.handle(Event::TreeEmpty).await;
        }
    }

    /// Says once, before it matters, whom of those seen at the last look we have no right to signal.
    pub(super) fn foresee(&mut self) {
        if std::mem::replace(&mut self.foreseen, true) {
            return;
        }
        for (comm, pid, uid) in self.teller.out_of_reach() {
            let uid = uid.map_or("another user".into(), |uid| format!("uid {uid}"));
            self.board.given.give(&Advice::new(
                Id::OutOfReach,
                format!("{} (pid {pid}) runs as {uid} and sundown lacks CAP_KILL", comm.as_str()),
                "it cannot be told to stop",
                "run both as one user, or add the capability KILL",
            ));
        }
    }
}

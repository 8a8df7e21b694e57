//! Carrying out what the lifecycle says, as far as it concerns one who signals nobody.

use super::Sidecar;
use crate::control::Reply;
use crate::lifecycle::{Action, DrainEnd, Event, Hold, PHASES, Phase, Request};
use crate::plan::{DrainUntil, human};
use crate::report::drained::Lesson;
use crate::report::story::{self, Asked};
use crate::supervisor::traffic::Watch;
use crate::traffic::diag::Connection;
use crate::traffic::ours::Hints;
use crate::traffic::sampler::Sampler;

impl Sidecar {
    /// Tells the lifecycle what has happened, carries out what it says, and shows where we are.
    pub(super) async fn handle(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.lifecycle.handle(self.now(), event, &mut actions);
        for action in actions {
            self.act(action);
        }
        if self.lifecycle.phase() == Phase::Running {
            self.board.set_why(if self.lifecycle.is_ready() { "ready" } else { "the ready check fails" });
        }
        self.show();
    }

    pub(super) fn show(&self) {
        // Nothing is killed by us, and as long as we are here it is not over.
        let name = match self.lifecycle.phase() {
            Phase::Killing { .. } | Phase::Exited => PHASES[3],
            phase => phase.name(),
        };
        self.board.set_phase(name, self.lifecycle.is_ready(), self.lifecycle.is_serving());
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Begin(request, hold) => self.begin(request, hold),
            Action::Release(why) => self.release(why),
            Action::Answer => self.answer_waiting("there is nothing to wait for"),
            Action::SayAgain(Request::PreStop) => tracing::debug!("one more hook waits for the drain"),
            Action::SayAgain(request) => {
                tracing::info!("asked again, by {}, which changes nothing", Asked(request, self.sender));
            }
            Action::Kill(_) if self.leaving => self.leave("the app is still there, and the limit is near".into()),
            // The kubelet's own kill is due now. If the app outlives that too, it was not the kubelet who called.
            Action::Exit(_) => self.again_at = Some(self.now() + self.plan.kill_margin * 2),
            // The app is told by others, or it was killed by them.
            _ => {}
        }
    }

    fn begin(&mut self, request: Request, hold: Hold) {
        let now = self.now();
        self.look_due = Some(now + super::LOOK);
        self.traffic = Some(Watch::begin(self.sampler(), now, hold, self.lifecycle.phase(), &self.not_clients()));
        let asked = Asked(request, self.sender);
        let then = match request {
            Request::PreStop => "then it is answered, so that it has the app told",
            _ => "or until the app has gone",
        };
        match hold {
            Hold::Drain { least, greatest } => tracing::info!(
                "stop asked for by {asked}: readiness fails, draining for {}, {then}",
                story::length(least, greatest)
            ),
            Hold::None(why) => tracing::info!("stop asked for by {asked}: no drain ({why})"),
        }
        self.board.stop_began.set(self.lifecycle.clock().map(|clock| clock.start));
        self.board.set_why(format!("stop asked for by {asked}"));
        self.holders.start(&self.plan, hold, &self.around, &self.orders);
    }

    fn release(&mut self, why: DrainEnd) {
        let now = self.now();
        let time = self.lifecycle.clock().map_or(now, |clock| now.saturating_sub(clock.start));
        self.holders.end(true);
        let wants_release = self.plan.drain.until == DrainUntil::Released;
        let seen = self.traffic.as_mut().and_then(|watch| watch.end(why, wants_release));
        let text = seen.map_or_else(String::new, |drained| drained.to_string());
        let hooks = self.waiting.iter().filter(|waiting| !waiting.is_closed()).count();
        let answered = match hooks {
            0 => String::new(),
            1 => "; the hook is answered".into(),
            hooks => format!("; {hooks} hooks are answered"),
        };
        tracing::info!("the drain is over after {} ({why}){text}{answered}", human(time));
        match seen.and_then(|drained| drained.lesson()) {
            Some(Lesson::Advice(advice)) => self.board.given.give(&advice),
            Some(Lesson::Note(text)) => tracing::info!("{text}"),
            None => {}
        }
        self.answer_waiting(&format!("drained for {}", human(time)));
    }

    pub(super) fn answer_waiting(&mut self, text: &str) {
        for waiting in self.waiting.drain(..) {
            let _ = waiting.send(Reply::ok(text));
        }
    }

    /// When we go at the latest, for a person.
    pub(super) fn limit(&self) -> String {
        let left = match self.lifecycle.kill_at() {
            Some(at) => Some(at.saturating_sub(self.now())),
            None => self.plan.deadline(),
        };
        left.map_or_else(String::new, |left| format!(", or in {} at the latest", human(left)))
    }

    /// Takes a sample, and tells the lifecycle if that changes what it may do.
    pub(super) async fn look_at_traffic(&mut self) {
        let now = self.now();
        let Phase::Draining { .. } = self.lifecycle.phase() else { return };
        let Some(mut watch) = self.traffic.take() else { return };
        let (held, release) = (self.holders.hold(), self.board.probers.borrow().released(now));
        let skip = self.not_clients();
        let changed = watch.look(now, &self.plan.drain, held, release, &skip, find);
        self.traffic = Some(watch);
        if let Some(lull) = changed {
            self.handle(Event::Traffic(lull)).await;
        }
    }

    pub(super) fn sampler(&self) -> Sampler {
        let mut sampler = Sampler::new(Hints { ports: self.plan.ports.clone(), ..Hints::default() });
        find(&mut sampler);
        sampler
    }

    /// Which of the app's connections are our own checks'.
    pub(super) fn not_clients(&self) -> impl Fn(&Connection) -> bool + use<> {
        let own = self.around.own.clone();
        move |connection| own.has(connection.remote)
    }
}

/// Stated ports decide alone: no process need be looked into, and none could be.
fn find(sampler: &mut Sampler) {
    sampler.find(std::iter::empty());
}

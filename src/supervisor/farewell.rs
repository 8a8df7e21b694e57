//! What is done once everything has ended (`--on-exit`), so that whoever waits for us, or would run for ever without us, hears
//! of it.

use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;

use super::attend::{asks, attend, block_on, listen, stop_signals};
use super::{checks, sleep_until};
use crate::check::{self, Errand, OwnConnections};
use crate::child::start::Role;
use crate::plan::{Plan, human};
use crate::signals::{Arrivals, Inherited, Signal};
use crate::tree::helpers::Helpers;

/// What the errands need.
pub(super) struct Farewell<'a> {
    /// The settings.
    pub plan: &'a Plan,
    /// Where commands are taken down.
    pub helpers: &'a Helpers,
    /// The mask and dispositions for them.
    pub inherited: Inherited,
    /// Whether a stop was asked for: then whoever is to be told may have gone before us, and is not waited for.
    pub asked: bool,
    /// When all has to be over, if that was stated and a stop was asked for.
    pub deadline: Option<Instant>,
}

/// Does all of it where there is no supervisor, since the program was not started.
pub fn say_goodbye(plan: &Plan, inherited: Inherited, asked: bool) {
    let arrivals = match Arrivals::of(stop_signals(plan).with(Signal::CHLD)) {
        Ok(arrivals) => arrivals,
        Err(error) => return tracing::warn!("--on-exit: signals cannot be received: {error}"),
    };
    let helpers = Helpers::default();
    let deadline = plan.deadline().filter(|_| asked).map(|limit| Instant::now() + limit);
    let farewell = Farewell { plan, helpers: &helpers, inherited, asked, deadline };
    block_on(async { farewell.say(&listen(arrivals), |_| {}).await });
    for helper in helpers.pids() {
        let _ = crate::signals::send(-helper, Signal::KILL);
    }
}

impl Farewell<'_> {
    /// One after the other. Each has its time, and none goes past the deadline; a failure is told and stops nothing. `note` is
    /// given what became of each.
    pub(super) async fn say(mut self, arrivals: &AsyncFd<Arrivals>, mut note: impl FnMut(String)) {
        for errand in &self.plan.neighbours.on_exit {
            let began = Instant::now();
            let done = self.run(errand, arrivals).await;
            let took = human(began.elapsed());
            match done {
                Ok(()) => {
                    tracing::info!("--on-exit: {errand} took {took}");
                    note(format!("--on-exit: {errand} was done"));
                }
                Err(reason) => {
                    tracing::warn!("--on-exit: {errand}: {reason}, after {took}; the exit goes on without it");
                    note(format!("--on-exit: {errand} failed: {reason}"));
                }
            }
        }
    }

    async fn run(&mut self, errand: &Errand, arrivals: &AsyncFd<Arrivals>) -> Result<(), String> {
        if self.deadline.is_some_and(|at| at <= Instant::now()) {
            return Err("no time is left for it".into());
        }
        let mut work =
            pin!(perform(errand, !self.asked, self.plan.neighbours.on_exit_timeout, self.helpers, self.inherited));
        loop {
            tokio::select! {
                biased;
                arrival = attend(arrivals, self.helpers, |arrival| Some(arrival).filter(asks)) => {
                    tracing::info!("{} from {} while --on-exit is under way: it is finished first", arrival.signal, arrival.sender);
                    self.stop();
                }
                done = &mut work => return done,
                () = sleep_until(self.deadline) => return Err("the grace period is over but for the margin".into()),
            }
        }
    }

    /// A stop was asked for. From the first time on the stated limit counts.
    fn stop(&mut self) {
        if !std::mem::replace(&mut self.asked, true) && self.deadline.is_none() {
            self.deadline = self.plan.deadline().map(|limit| Instant::now() + limit);
        }
    }
}

async fn perform(
    errand: &Errand,
    patient: bool,
    limit: Duration,
    helpers: &Helpers,
    inherited: Inherited,
) -> Result<(), String> {
    match errand {
        Errand::Ask(method, check) => check::send(*method, check, patient, limit, &OwnConnections::default()).await,
        Errand::Run(command) => checks::run(command, Role::Hook, Some(limit), helpers, inherited).await,
    }
}

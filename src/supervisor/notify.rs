//! What systemd is told of the phases, and how it is kept from cutting off a stop whose length is known.

use std::time::Duration;

use super::Supervisor;
use crate::lifecycle::{Moment, Phase};

/// So much is asked for at a time, and half of it is over when more is: who hangs is not waited for much longer.
const STEP: Duration = Duration::from_secs(10);
/// What the app has after a drain where no limit is stated, and nobody knows what it needs.
const AFTER_DRAIN: Duration = Duration::from_secs(10);
/// When a message that the socket could not take is sent again.
const AGAIN: Duration = Duration::from_millis(100);

impl Supervisor {
    /// Tells what has changed. Costs nothing where nobody is to be told.
    pub(super) fn notify(&mut self) {
        if !self.notifier.is_on() {
            return;
        }
        if self.lifecycle.phase() == Phase::Running {
            self.notifier.ready();
        }
        if self.lifecycle.clock().is_some() {
            self.notifier.stopping();
        }
        self.notifier.status(&format!("{}: {}", self.board.phase(), self.board.why()));
        let now = self.now();
        if let Some(until) = step(now, self.needed_until(), self.granted) {
            self.notifier.extend(until - now);
            self.granted = until;
        }
        self.notifier.flush();
    }

    pub(super) fn notify_due(&self) -> Option<Moment> {
        if !self.notifier.is_on() {
            return None;
        }
        let renewal = self.needed_until().filter(|until| *until > self.granted).map(|_| renewal(self.granted));
        // Late in what it could not take: again in a while.
        let again = self.notifier.is_behind().then(|| self.now() + AGAIN);
        [renewal, again].into_iter().flatten().min()
    }

    /// Until when the stop is known to take: the stated limit, or the drain and a little for the app.
    fn needed_until(&self) -> Option<Moment> {
        let clock = self.lifecycle.clock()?;
        match (clock.deadline, self.lifecycle.phase()) {
            (_, Phase::Exited) => None,
            (Some(deadline), _) => Some(deadline + self.plan.kill_margin),
            (None, Phase::Draining { greatest, .. }) => Some(greatest + AFTER_DRAIN),
            (None, _) => {
                let killed = self.lifecycle.kill_at().map(|at| at + self.plan.kill_margin);
                killed.or(self.told_at.map(|at| at + AFTER_DRAIN))
            }
        }
    }
}

/// Up to when more time is to be asked for now, if it is: up to `granted` it has been.
fn step(now: Moment, needed: Option<Moment>, granted: Moment) -> Option<Moment> {
    let needed = needed.filter(|needed| *needed > granted && *needed > now)?;
    (renewal(granted) <= now).then(|| needed.min(now + STEP))
}

fn renewal(granted: Moment) -> Moment {
    granted.saturating_sub(STEP / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What is asked for from second 100 on, second by second, for a stop that takes until `needed`.
    fn asked(needed: Moment) -> Vec<(u64, u64)> {
        let mut granted = Moment::ZERO;
        let mut asked = Vec::new();
        for now in (100..200).map(Duration::from_secs) {
            if let Some(until) = step(now, Some(needed), granted) {
                assert!(asked.is_empty() || now < granted, "the time was over before more was asked for");
                asked.push((now.as_secs(), until.as_secs()));
                granted = until;
            }
        }
        asked
    }

    #[test]
    fn time_is_asked_for_step_by_step_and_never_beyond_the_need() {
        assert_eq!(asked(SECOND * 104), [(100, 104)]);
        assert_eq!(asked(SECOND * 118), [(100, 110), (105, 115), (110, 118)]);
        assert_eq!(asked(SECOND * 90), []);
        assert_eq!(step(SECOND * 100, None, Moment::ZERO), None);
    }
}

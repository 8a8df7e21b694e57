//! The end: strays, open connections, the last words, the exit code.

use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;

use super::Supervisor;
use super::farewell::Farewell;
use crate::lifecycle::Outcome;
use crate::plan::ExitPolicy;
use crate::report::ending::Ending;
use crate::signals::{self, Arrivals, SigSet, Signal};

/// What strays get between TERM and KILL.
const STRAYS: Duration = Duration::from_secs(1);
/// What a hook's connection gets to close: our exit as PID 1 would kill the hook.
const CONNECTIONS: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(5);

impl Supervisor {
    /// Ends everything that is ours, says what happened, and gives the exit code. The endpoint answers all the while.
    pub(super) async fn finish(mut self, outcome: Outcome, arrivals: &AsyncFd<Arrivals>) -> u8 {
        self.board.set_phase("exited", false, false);
        self.answer_waiting("the app has ended");
        if let Some(told_at) = self.told_at {
            self.story.stopped(self.now().saturating_sub(told_at));
        }
        self.say_goodbye(arrivals).await;
        self.end_strays().await;
        let patience = Instant::now() + CONNECTIONS;
        while self.connections.get() > 0 && Instant::now() < patience {
            tokio::time::sleep(LOOK).await;
        }
        let code = apply(&self.plan.exit, &outcome, self.teller.ledger.sent());
        self.examine_end(&outcome);
        self.look_for_oom_kills();
        self.last_words(&outcome, code);
        code
    }

    /// The tree is empty: whoever is to hear of it does.
    async fn say_goodbye(&mut self, arrivals: &AsyncFd<Arrivals>) {
        if self.plan.neighbours.on_exit.is_empty() {
            return;
        }
        let clock = self.lifecycle.clock();
        let farewell = Farewell {
            plan: &self.plan,
            helpers: &self.helpers,
            inherited: self.around.inherited,
            asked: clock.is_some(),
            deadline: clock.and_then(|clock| clock.deadline).map(|at| self.began + at),
        };
        if farewell.asked && farewell.deadline.is_none() {
            // Systemd's time-out counts, and how long this may take is known.
            self.notifier.extend(self.plan.neighbours.on_exit_timeout * self.plan.neighbours.on_exit.len() as u32);
            self.notifier.flush();
        }
        let (story, began) = (&mut self.story, self.began);
        farewell.say(arrivals, |what| story.note(began.elapsed(), what)).await;
    }

    fn last_words(&mut self, outcome: &Outcome, code: u8) {
        let sent = self.teller.ledger.sent().union(self.memory.passed_on);
        let ending = Ending::of(outcome, sent, self.memory.ended_the_app);
        let has_story = self.story.is_worth_telling();
        let line = (has_story || ending.is_a_mishap()).then(|| self.tell_end(outcome, ending, code));
        let written = match line.filter(|_| has_story || !ending.speaks_for_itself()) {
            Some(line) => self.termination.write(&line),
            None => self.termination.take_back(),
        };
        if let Err(error) = written {
            tracing::warn!("the termination message cannot be written: {error}");
        }
    }

    fn tell_end(&mut self, outcome: &Outcome, ending: Ending, code: u8) -> String {
        self.tell_timeline(code);
        let used = self.lifecycle.clock().map(|clock| self.now().saturating_sub(clock.start));
        let line = self.story.end(outcome, ending, code, used, self.plan.limit);
        let signal = ending.signal().map(|signal| signal.to_string());
        let (ending, is_bad) = (ending.name(), outcome.killed.is_some() || ending.is_a_mishap());
        let (signal, oom_kills) = (signal.as_deref(), self.oom_kills());
        if is_bad {
            tracing::warn!(code, ending, signal, oom_kills, "{line}");
        } else {
            tracing::info!(code, ending, signal, oom_kills, "{line}");
        }
        line
    }

    /// A few lines that can be pasted into a report.
    fn tell_timeline(&mut self, code: u8) {
        let Some(clock) = self.lifecycle.clock() else { return };
        for prober in self.board.probers.borrow().iter() {
            if let Some(at) = prober.refused.filter(|at| *at >= clock.start) {
                self.story.note(at, format!("{} was told for the first time that we are not ready", prober.visitor));
            }
        }
        self.story.note(self.now(), format!("exit with code {code}"));
        for line in self.story.timeline(clock.start) {
            tracing::info!("timeline: {line}");
        }
    }

    /// What `docker exec` and probes left behind with us: TERM, a second, KILL. Nobody waited for them before.
    async fn end_strays(&mut self) {
        for helper in self.helpers.pids() {
            let _ = signals::send(-helper, Signal::KILL);
        }
        let limit = Instant::now() + STRAYS;
        let mut told = Vec::new();
        while self.are_strays_left() {
            let is_over = Instant::now() >= limit;
            for key in self.teller.tree.strays() {
                if is_over || !told.contains(key) {
                    let _ = signals::send(key.pid, if is_over { Signal::KILL } else { Signal::TERM });
                    told.push(*key);
                }
            }
            if is_over {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn are_strays_left(&mut self) -> bool {
        loop {
            // SAFETY: null asks for no status.
            match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
                1.. => {}
                0 => break,
                // No child of any kind: nothing to look for.
                _ => return false,
            }
        }
        self.teller.tree.look();
        !self.teller.tree.strays().is_empty()
    }
}

/// The user's policy on exit codes. A kill of ours, an abort and a segmentation fault are never hidden by
/// `--exit-zero-on-stop`; `--remap-exit` comes last and may do anything.
fn apply(policy: &ExitPolicy, outcome: &Outcome, sent: SigSet) -> u8 {
    let hidden = outcome.code.checked_sub(128).and_then(|number| Signal::new(i32::from(number)));
    let by_us = hidden
        .is_some_and(|signal| sent.contains(signal) && !matches!(signal, Signal::KILL | Signal::ABRT | Signal::SEGV));
    let code = if policy.zero_on_stop && outcome.asked && outcome.killed.is_none() && by_us { 0 } else { outcome.code };
    policy.remap.iter().find(|(from, _)| *from == code).map_or(code, |(_, to)| *to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::end::Ended;
    use crate::lifecycle::KillReason;

    fn exit(code: u8, asked: bool, killed: Option<KillReason>, policy: &ExitPolicy) -> u8 {
        let outcome = Outcome { code, ended: Some(Ended::Exited(code)), asked, killed, survivors: false };
        apply(policy, &outcome, SigSet::EMPTY.with(Signal::TERM).with(Signal::ABRT).with(Signal::KILL))
    }

    #[test]
    fn a_stop_that_was_asked_for_can_be_a_success() {
        let policy = ExitPolicy { zero_on_stop: true, remap: vec![] };
        assert_eq!(exit(143, true, None, &policy), 0);
        assert_eq!(exit(143, false, None, &policy), 143, "nobody asked");
        assert_eq!(exit(130, true, None, &policy), 130, "not our signal");
        assert_eq!(exit(1, true, None, &policy), 1);
        for never in [134, 137, 139] {
            assert_eq!(exit(never, true, None, &policy), never);
        }
        assert_eq!(exit(143, true, Some(KillReason::Deadline), &policy), 143, "it had to be enforced");
    }

    #[test]
    fn remapping_comes_last() {
        let policy = ExitPolicy { zero_on_stop: true, remap: vec![(0, 5), (143, 6)] };
        assert_eq!(exit(143, true, None, &policy), 5);
        assert_eq!(exit(143, false, None, &policy), 6);
        assert_eq!(exit(7, false, None, &policy), 7);
    }
}

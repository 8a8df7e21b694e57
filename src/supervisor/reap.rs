//! Reaping: until nothing is left to reap, since SIGCHLD is announced once however many children have ended (signal(7)).

use super::Supervisor;
use crate::child::end::Ended;
use crate::fallback;
use crate::lifecycle::Event;
use crate::report::board::count;
use crate::signals::Signal;

/// What one round of reaping has found.
#[derive(Default)]
struct Reaped {
    child: Option<Ended>,
    /// The last app that came to us.
    app: Option<Ended>,
    /// No child of any kind is left.
    none_left: bool,
    /// The child has stopped.
    stopped: Option<Signal>,
}

impl Supervisor {
    pub(super) async fn reap(&mut self) {
        let reaped = self.reap_all();
        for ended in [reaped.child, reaped.app].into_iter().flatten() {
            self.note_end(ended);
        }
        self.look_for_oom_kills_again();
        if let Some(signal) = reaped.stopped {
            self.child_stopped(signal);
        }
        if let Some(ended) = reaped.child {
            self.child_ended(ended, reaped.none_left).await;
        }
        if let Some(ended) = reaped.app {
            self.handle(Event::AppEnded(ended)).await;
        }
        if reaped.child.is_none() && self.child.ended.is_some() && self.is_empty(reaped.none_left) {
            self.handle(Event::TreeEmpty).await;
        }
    }

    fn reap_all(&mut self) -> Reaped {
        let mut reaped = Reaped::default();
        loop {
            let mut status = 0;
            // SAFETY: the pointer is to a number of ours.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
            match pid {
                0 => return reaped,
                1.. => self.reaped(pid, status, &mut reaped),
                _ if nix::errno::Errno::last() == nix::errno::Errno::EINTR => {}
                _ => {
                    reaped.none_left = true;
                    return reaped;
                }
            }
        }
    }

    fn reaped(&self, pid: i32, status: i32, reaped: &mut Reaped) {
        let Some(ended) = Ended::from_status(status) else {
            if pid == self.child.pid && libc::WIFSTOPPED(status) {
                reaped.stopped = Signal::new(libc::WSTOPSIG(status));
            }
            return;
        };
        count(&self.board.figures.reaped);
        if pid == self.child.pid && self.child.ended.is_none() {
            fallback::note_status(status);
            reaped.child = Some(ended);
        } else if !self.helpers.ended(pid, ended) && self.teller.ledger.was_app(pid) {
            reaped.app = Some(ended);
        }
    }

    async fn child_ended(&mut self, ended: Ended, none_left: bool) {
        self.child.ended = Some(ended);
        if self.lifecycle.clock().is_some() {
            self.story.note(self.now(), format!("the child (pid {}) {ended}", self.child.pid));
        }
        self.teller.tree.child_is_reaped();
        if let Some(terminal) = self.child.terminal {
            terminal.take_back(self.child.pid);
        }
        let ledger = &self.teller.ledger;
        let was_told = ledger.told().iter().any(|told| told.key.pid == self.child.pid);
        let told = was_told && matches!(ended, Ended::Signalled { signal, .. } if ledger.sent().contains(signal));
        let alone = self.is_empty(none_left);
        self.handle(Event::ChildEnded { ended, told, alone }).await;
    }

    fn is_empty(&mut self, none_left: bool) -> bool {
        none_left || self.teller.tree.look().is_empty() && !self.teller.tree.is_blind()
    }
}

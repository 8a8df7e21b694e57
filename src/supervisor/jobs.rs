//! Job control, where the child has a terminal.

use super::Supervisor;
use crate::child::job::Job;
use crate::signals::Signal;

impl Supervisor {
    /// The child has stopped.
    pub(super) fn child_stopped(&self, signal: Signal) {
        if let Some(job) = self.job() {
            job.stopped(signal);
        }
    }

    /// Whether this signal of the terminal's was meant for the child, and has gone there.
    pub(super) fn is_childs_stop(&self, signal: Signal) -> bool {
        self.child.ended.is_none() && self.job().is_some_and(|job| job.takes_stop(signal))
    }

    fn job(&self) -> Option<Job> {
        self.child.terminal.map(|terminal| Job { child: self.child.pid, terminal })
    }
}

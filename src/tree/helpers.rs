//! Processes that we started for ourselves, such as exec checks: no part of the tree.

use std::cell::RefCell;

use tokio::sync::oneshot;

use crate::child::end::Ended;

/// Those that run.
#[derive(Default)]
pub struct Helpers {
    running: RefCell<Vec<(i32, oneshot::Sender<Ended>)>>,
}

impl Helpers {
    /// Takes down one that has just been started, and gives where its end will be told.
    pub fn add(&self, pid: i32) -> oneshot::Receiver<Ended> {
        let (tell, end) = oneshot::channel();
        self.running.borrow_mut().push((pid, tell));
        end
    }

    /// Whether this is one of them.
    pub fn has(&self, pid: i32) -> bool {
        self.running.borrow().iter().any(|(helper, _)| *helper == pid)
    }

    /// One of them has ended, if it is one.
    pub fn ended(&self, pid: i32, ended: Ended) -> bool {
        let mut running = self.running.borrow_mut();
        let Some(at) = running.iter().position(|(helper, _)| *helper == pid) else { return false };
        let (_, tell) = running.swap_remove(at);
        // A check that has timed out does not listen any more.
        let _ = tell.send(ended);
        true
    }

    /// Those that run still.
    pub fn pids(&self) -> Vec<i32> {
        self.running.borrow().iter().map(|(pid, _)| *pid).collect()
    }
}

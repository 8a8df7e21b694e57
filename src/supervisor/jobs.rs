//! Job control: Ctrl-Z, `fg` and `bg` of the shell that we were started from, if there is one.

use super::Supervisor;
use crate::signals::{self, SigSet, Signal};

impl Supervisor {
    /// The child has stopped. As PID 1 there is no shell to come back to, so Ctrl-Z means nothing. Under one, we stop as
    /// the child did, with our whole group (a script around us is part of the same job), and when the shell wants us on we
    /// go on together.
    pub(super) fn child_stopped(&mut self, signal: Signal) {
        let Some(terminal) = self.child.terminal else { return };
        let is_pid_1 = std::process::id() == 1;
        match signal {
            Signal::TSTP if is_pid_1 => self.go_on(),
            // It wants the terminal, and the shell has given it to our group: `fg` of a job that ran in the background.
            Signal::TTIN | Signal::TTOU if terminal.is_foreground() => self.go_on(),
            Signal::TSTP | Signal::TTIN | Signal::TTOU if !is_pid_1 => {
                terminal.take_back(self.child.pid);
                // Where nobody could make us go on, the kernel does not stop us, and a child that waits for the terminal
                // would only ask again.
                if stop_with_group(signal) || signal == Signal::TSTP {
                    self.go_on();
                }
            }
            _ => {}
        }
    }

    /// Ctrl-Z that came to us from the terminal: the shell's `fg` had put our group in front, and not the child's. It is
    /// meant for the child. (Who is in front by now does not matter: the key was pressed before.)
    pub(super) fn is_childs_stop(&self, signal: Signal) -> bool {
        let has_terminal = self.child.terminal.is_some() && self.child.ended.is_none();
        let is_it = signal == Signal::TSTP && has_terminal && std::process::id() != 1;
        is_it && signals::send(-self.child.pid, signal).is_ok()
    }

    fn go_on(&self) {
        if let Some(terminal) = self.child.terminal.filter(|terminal| terminal.is_foreground()) {
            let _ = terminal.hand_to(self.child.pid);
        }
        let _ = signals::send(-self.child.pid, Signal::CONT);
    }
}

/// Stops our group as the kernel would have, had it been in front: not at all if it is orphaned, since nobody would make it
/// go on (setpgid(2)). Returns when we go on; false if we never stopped.
fn stop_with_group(signal: Signal) -> bool {
    let _ = signals::send(0, signal);
    // For a moment its default action is let happen to us too.
    let bit = SigSet::EMPTY.with(signal).bits();
    let _ = signals::set_mask(SigSet::from_bits(!bit));
    let _ = signals::set_mask(SigSet::ALL);
    signals::pending().contains(Signal::CONT)
}

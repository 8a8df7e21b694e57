//! Job control: Ctrl-Z, `fg` and `bg` of the shell that we were started from, if there is one.

use std::time::Duration;

use super::terminal::Terminal;
use crate::signals::{self, SigSet, Signal};

/// The child's group, to which the terminal was handed or will be after `fg`.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The child, which leads its group.
    pub child: i32,
    /// The terminal.
    pub terminal: Terminal,
}

impl Job {
    /// The child has stopped. As PID 1 there is no shell to come back to, so Ctrl-Z means nothing. Under one, we stop as
    /// the child did, with our whole group (a script around us is part of the same job), and when the shell wants us on we
    /// go on together.
    pub fn stopped(self, signal: Signal) {
        let is_pid_1 = std::process::id() == 1;
        match signal {
            Signal::TSTP if is_pid_1 => self.go_on(),
            // It wants the terminal, and the shell has given it to our group: `fg` of a job that ran in the background.
            Signal::TTIN | Signal::TTOU if self.terminal.is_foreground() => self.go_on(),
            Signal::TSTP | Signal::TTIN | Signal::TTOU if !is_pid_1 => {
                self.terminal.take_back(self.child);
                // Where nobody could make us go on, the kernel does not stop us, and a child that waits for the terminal
                // would only ask again.
                let stopped = stop(OUR_GROUP, signal);
                if stopped || signal == Signal::TSTP {
                    // The shell's CONT is passed on here and now: later, it might undo the next Ctrl-Z.
                    signals::wait(SigSet::EMPTY.with(Signal::CONT), Some(Duration::ZERO));
                    self.go_on();
                }
            }
            _ => {}
        }
    }

    /// Ctrl-Z that came to us from the terminal: the shell's `fg` had put our group in front, and not the child's. It is
    /// meant for the child. (Who is in front by now does not matter: the key was pressed before.)
    pub fn takes_stop(self, signal: Signal) -> bool {
        signal == Signal::TSTP && std::process::id() != 1 && signals::send(-self.child, signal).is_ok()
    }

    fn go_on(self) {
        if self.terminal.is_foreground() {
            let _ = self.terminal.hand_to(self.child);
        }
        let _ = signals::send(-self.child, Signal::CONT);
    }
}

/// As kill(2) counts.
const OUR_GROUP: i32 = 0;

/// Stops us, or our group with us, as the kernel would have, had we been in front: not at all if the group is orphaned, since
/// nobody would make it go on (setpgid(2)). Returns when we go on; false if we never stopped.
pub fn stop(whom: i32, signal: Signal) -> bool {
    let _ = signals::send(whom, signal);
    // For a moment its default action is let happen to us too.
    let bit = SigSet::EMPTY.with(signal).bits();
    let _ = signals::set_mask(SigSet::from_bits(!bit));
    let _ = signals::set_mask(SigSet::ALL);
    signals::pending().contains(Signal::CONT)
}

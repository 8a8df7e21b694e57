//! The terminal's foreground group: who is read from and who gets Ctrl-C (tcsetpgrp(3), credentials(7)).
//!
//! SIGTTOU is blocked in us and, until its exec, in the child: otherwise tcsetpgrp from a background group would stop
//! its caller.

use std::io;

use nix::errno::Errno;

const STDIN: i32 = 0;

/// The terminal on stdin. Dropping it changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// Our own group; 0 if it lies outside our PID namespace and has no number here.
    own: i32,
}

impl Terminal {
    /// The terminal on stdin that controls our session: none for a pipe or another session's terminal. For
    /// `sundown cmd &` it is there, but not ours to hand over before the shell's `fg`.
    pub fn of_stdin() -> Option<Self> {
        // SAFETY: takes nothing and cannot fail.
        let own = unsafe { libc::getpgrp() };
        foreground().map(|_| Self { own })
    }

    /// Makes a group of our session the one in the foreground. Async-signal-safe.
    ///
    /// # Errors
    /// EPERM: no such group in our session. ENOTTY: the terminal is gone or no longer controls us.
    pub fn hand_to(self, group: i32) -> io::Result<()> {
        // SAFETY: takes two numbers.
        match unsafe { libc::tcsetpgrp(STDIN, group) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Takes the terminal back once the child's group has ended or stopped; true if it is ours now. Nothing happens if
    /// someone else has it by now, or if our group has no number to give: it is never stolen.
    pub fn take_back(self, child_group: i32) -> bool {
        let free = |group| group == child_group || is_gone(group);
        match foreground() {
            Some(group) if self.own != 0 && group == self.own => true,
            Some(group) if self.own != 0 && group != 0 && free(group) => self.hand_to(self.own).is_ok(),
            _ => false,
        }
    }

    /// Whether our own group is in the foreground, as at a start without `&` and after a shell's `fg`.
    pub fn is_foreground(self) -> bool {
        // Two groups outside our PID namespace have the same number here, which is 0.
        foreground() == Some(self.own) && (self.own != 0 || may_read())
    }
}

/// Whether a read would be let through: one from the background fails with EIO where SIGTTIN is blocked (setpgid(2)). It
/// asks for no bytes, and so takes none.
fn may_read() -> bool {
    let mut none = [0u8; 0];
    // SAFETY: the kernel writes nothing.
    let read = unsafe { libc::read(STDIN, none.as_mut_ptr().cast(), 0) };
    read != -1 || Errno::last() != Errno::EIO
}

/// The foreground group of the terminal on stdin: 0 if it is outside our PID namespace.
fn foreground() -> Option<i32> {
    // SAFETY: takes a number.
    let group = unsafe { libc::tcgetpgrp(STDIN) };
    (group >= 0).then_some(group)
}

fn is_gone(group: i32) -> bool {
    // Group 1 cannot be asked for: kill takes -1 for everyone.
    if group <= 1 {
        return false;
    }
    // SAFETY: takes two numbers; signal 0 only asks.
    let asked = unsafe { libc::kill(-group, 0) };
    // EPERM would mean that somebody is there.
    asked == -1 && Errno::last() == Errno::ESRCH
}

//! The child's side: what happens between fork(2) and execve(2).
//!
//! Everything here is async-signal-safe (signal-safety(7)): no allocation, no lock, nothing that can panic. The memory
//! was prepared by the parent.

use std::ffi::{CStr, CString, c_char};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, getpid, read, setpgid, setsid, write};

use super::head;
use super::program::{LISTEN_PID, Program};
use super::start::{How, Place, Role};
use crate::signals::{Signal, replace_disposition, set_mask};

const SHELL: &CStr = c"/bin/sh";

/// At which step the child failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// stdin, stdout and stderr to /dev/null.
    Redirect,
    /// The file itself.
    Exec,
    /// /bin/sh, for a text file without `#!`.
    Shell,
}

/// What the child tells its parent when it could not become its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    pub(super) stage: Stage,
    /// What the last call said.
    pub errno: Errno,
    /// Which of the program's files it was.
    pub(super) file: usize,
}

/// How long a failure is on its way through the pipe.
pub(super) const FAILURE_LEN: usize = 6;

impl Failure {
    fn new(stage: Stage, errno: Errno, file: usize) -> Self {
        Self { stage, errno, file }
    }

    /// Its bytes. No PATH has more than 255 directories that matter: the index only picks the file for the text.
    fn to_bytes(self) -> [u8; FAILURE_LEN] {
        let [a, b, c, d] = (self.errno as i32).to_ne_bytes();
        [self.stage as u8, self.file.min(255) as u8, a, b, c, d]
    }

    /// Reads them back.
    pub(super) fn from_bytes([stage, file, a, b, c, d]: [u8; FAILURE_LEN]) -> Self {
        let stage = match stage {
            0 => Stage::Redirect,
            1 => Stage::Exec,
            _ => Stage::Shell,
        };
        Self::new(stage, Errno::from_raw(i32::from_ne_bytes([a, b, c, d])), usize::from(file))
    }
}

/// A program in the form that execve takes: arrays of pointers that end with a null pointer.
pub(super) struct Image<'a> {
    files: &'a [CString],
    argv: Vec<*const c_char>,
    /// The same for /bin/sh; its second word is filled in with the file that turns out to be a script.
    shell_argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    /// Where in `env` the child's own pid is to be put.
    listen_pid: Option<usize>,
    assignment: Assignment,
}

/// Room for `LISTEN_PID=` and the longest pid there is.
type Assignment = [u8; LISTEN_PID.len() + 12];

impl<'a> Image<'a> {
    /// Prepares it; allocates, so it belongs before the fork.
    pub(super) fn of(program: &'a Program) -> Self {
        let argv = pointers(&program.argv);
        let shell_argv = [SHELL.as_ptr(), ptr::null()].into_iter().chain(argv.iter().skip(1).copied()).collect();
        let env = pointers(&program.env);
        Self { files: &program.files, argv, shell_argv, env, listen_pid: program.listen_pid, assignment: [0; _] }
    }

    /// Puts this process's pid in place of the one that LISTEN_PID names.
    fn claim_listeners(&mut self) {
        let Some(place) = self.listen_pid.and_then(|index| self.env.get_mut(index)) else { return };
        write_assignment(&mut self.assignment, getpid().as_raw().unsigned_abs());
        *place = self.assignment.as_ptr().cast();
    }

    /// Tries the files in turn, as execvp(3) does; comes back only if none can be run.
    fn exec(&mut self) -> Failure {
        let mut last = Failure::new(Stage::Exec, Errno::ENOENT, 0);
        let mut denied = None;
        for (index, file) in self.files.iter().enumerate() {
            last = self.exec_file(index, file);
            match (last.stage, last.errno) {
                (Stage::Exec, Errno::EACCES) => denied = denied.or(Some(last)),
                (Stage::Exec, errno) if means_look_further(errno) => {}
                _ => return last,
            }
        }
        denied.unwrap_or(last)
    }

    fn exec_file(&mut self, index: usize, file: &CStr) -> Failure {
        let errno = execve(file, &self.argv, &self.env);
        if errno != Errno::ENOEXEC || !is_shell_script(file) {
            return Failure::new(Stage::Exec, errno, index);
        }
        if let Some(script) = self.shell_argv.get_mut(1) {
            *script = file.as_ptr();
        }
        Failure::new(Stage::Shell, execve(SHELL, &self.shell_argv, &self.env), index)
    }
}

fn write_assignment(text: &mut Assignment, mut number: u32) {
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    text[..LISTEN_PID.len()].copy_from_slice(LISTEN_PID);
    for place in text[LISTEN_PID.len()..][..digits].iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// The errors of a directory in PATH, rather than of the program, on which execvp(3) of glibc goes on.
fn means_look_further(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE | Errno::ENODEV | Errno::ETIMEDOUT)
}

fn execve(file: &CStr, argv: &[*const c_char], env: &[*const c_char]) -> Errno {
    // SAFETY: both arrays end with a null pointer and point to C strings that the caller's `Program` owns.
    unsafe { libc::execve(file.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    Errno::last()
}

/// Whether the kernel refused the file only because its first line names no interpreter.
fn is_shell_script(file: &CStr) -> bool {
    let mut start = [0; head::LEN];
    let Ok(fd) = open(file, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()) else {
        return false;
    };
    let len = read(&fd, &mut start).unwrap_or(0);
    start.get(..len).is_some_and(head::is_shell_script)
}

/// Turns this process, which fork(2) has just made, into the program. If that fails, tells `report` and ends with 127.
pub(super) fn become_program(image: &mut Image, how: How, null: Option<BorrowedFd>, report: BorrowedFd) -> ! {
    let failure = match null.map_or(Ok(()), |null| redirect(null, how.role)) {
        Ok(()) => {
            prepare(how);
            image.claim_listeners();
            image.exec()
        }
        Err(errno) => Failure::new(Stage::Redirect, errno, 0),
    };
    // The parent may have stopped listening; the code is to be 127 then too.
    replace_disposition(Signal::PIPE, libc::SIG_IGN);
    let _ = write(report, &failure.to_bytes());
    // SAFETY: ends the process at once, without the parent's exit handlers and buffers.
    unsafe { libc::_exit(127) }
}

fn redirect(null: BorrowedFd, role: Role) -> nix::Result<()> {
    dup2_stdin(null.as_fd())?;
    if role == Role::Hook {
        return Ok(());
    }
    dup2_stdout(null.as_fd())?;
    dup2_stderr(null.as_fd())
}

/// Sets what execve keeps. A group or a terminal that cannot be had is no reason not to run the program.
///
/// The mask comes last: until then SIGTTOU is blocked, and a signal for the child waits for its program.
fn prepare(how: How) {
    match how.place {
        Place::Ours => {}
        Place::OwnGroup => {
            let me = getpid();
            let _ = setpgid(me, me);
            if let Some(terminal) = how.terminal {
                let _ = terminal.hand_to(me.as_raw());
            }
        }
        Place::OwnSession(told) => {
            let _ = setsid();
            told(take_terminal());
        }
    }
    restore(Signal::PIPE, how.inherited.sigpipe_ignored);
    restore(Signal::CHLD, how.inherited.sigchld_ignored);
    let _ = set_mask(how.inherited.mask);
}

/// Makes the terminal on stdin the one that controls our session (TIOCSCTTY(2const)).
fn take_terminal() -> nix::Result<()> {
    // SAFETY: takes numbers.
    Errno::result(unsafe { libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) }).map(drop)
}

fn restore(signal: Signal, ignored: bool) {
    replace_disposition(signal, if ignored { libc::SIG_IGN } else { libc::SIG_DFL });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_is_written_in_full() {
        for number in [1, 9, 10, 4_194_304, u32::MAX] {
            let mut text = [0; _];
            write_assignment(&mut text, number);
            let text = CStr::from_bytes_until_nul(&text).expect("it ends");
            assert_eq!(text.to_str(), Ok(format!("LISTEN_PID={number}").as_str()));
        }
    }
}

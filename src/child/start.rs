//! The parent's side of a start: fork(2), then wait until the child is its program or says why not.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, pipe2, setpgid};

use super::diagnose::diagnose;
pub use super::exec::Failure;
use super::exec::{FAILURE_LEN, Image, become_program};
use super::program::Program;
use super::terminal::Terminal;
use super::why::{Reason, StartError};
use crate::signals::Inherited;

/// The circumstances of a start.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// The mask and the dispositions that the program gets.
    pub inherited: Inherited,
    /// The terminal to hand to the program's group; needs [`Place::OwnGroup`].
    pub terminal: Option<Terminal>,
    /// Where the program is put.
    pub place: Place,
    /// What it is started for.
    pub role: Role,
}

/// Where a program is put among sessions and groups (credentials(7)).
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Into our own group.
    Ours,
    /// At the head of a group of its own, numbered as its pid.
    OwnGroup,
    /// At the head of a session of its own, which takes the terminal on stdin if nobody has it. How that went is told to
    /// the function, in the child and before its exec: it has to be async-signal-safe.
    OwnSession(fn(nix::Result<()>)),
}

/// What a program is started for. Only the start of the one that it is all about is waited for, however long it takes: the
/// others' file may lie on a disk that hangs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The program that sundown was asked to run.
    Program,
    /// A check: it reads nothing, and nobody reads what it writes.
    Check,
    /// A command of the user's: it reads nothing, and what it writes goes where ours goes.
    Hook,
}

/// How long the start of a check or a hook may hold us up, in milliseconds.
const PATIENCE: u16 = 250;

/// Starts the program and gives its pid. To be called with every signal blocked and from the only thread.
///
/// By the time it returns the program runs (or a check or a hook that takes its time has not failed yet, and ends with 127 if
/// it does), it leads its group, and it has the terminal. A child that failed has been reaped and the terminal is back.
///
/// # Errors
/// The program cannot be found (127) or executed (126), or there is no room for another process, descriptor or
/// /dev/null (1). The text says which file, why, and what to do.
pub fn start(program: &Program, how: How) -> Result<i32, StartError> {
    spawn(program, how).map_err(|stillborn| match stillborn {
        Stillborn::Unforked(reason) => reason.into(),
        Stillborn::Unexecuted { failure, .. } => diagnose(program, failure).into(),
    })
}

/// Why there is no program.
#[derive(Debug)]
pub enum Stillborn {
    /// There was no child.
    Unforked(Reason),
    /// There was one, of this pid, but it could not become the program.
    Unexecuted {
        /// The child's pid. It has been reaped.
        pid: i32,
        /// What it said.
        failure: Failure,
    },
}

impl From<Reason> for Stillborn {
    fn from(reason: Reason) -> Self {
        Self::Unforked(reason)
    }
}

/// As [`start`], for who tells a failure in other words.
///
/// # Errors
/// As there.
pub fn spawn(program: &Program, how: How) -> Result<i32, Stillborn> {
    let null = if how.role == Role::Program { None } else { Some(open_null()?) };
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(Reason::Pipe)?;
    let mut image = Image::of(program);
    // SAFETY: we are the only thread, and the child calls nothing that is not async-signal-safe.
    let forked = unsafe { fork() };
    match forked.map_err(Reason::Fork)? {
        ForkResult::Child => become_program(&mut image, how, null.as_ref().map(AsFd::as_fd), writer.as_fd()),
        ForkResult::Parent { child } => {
            drop(writer);
            lead_group(child, how);
            match failure(reader, how) {
                None => Ok(child.as_raw()),
                Some(failure) => {
                    bury(child, how);
                    Err(Stillborn::Unexecuted { pid: child.as_raw(), failure })
                }
            }
        }
    }
}

fn open_null() -> Result<File, Reason> {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/null");
    opened.map_err(|error| Reason::Null(Errno::from_raw(error.raw_os_error().unwrap_or(0))))
}

/// Sets the group from our side too, so that it is there whichever of us runs first. EACCES means that the child has
/// done it and is its program by now.
fn lead_group(child: Pid, how: How) {
    if let Place::OwnGroup = how.place {
        let _ = setpgid(child, child);
    }
}

/// Waits for the pipe's end, which comes with the exec, or for what the child says before.
fn failure(reader: OwnedFd, how: How) -> Option<Failure> {
    if how.role != Role::Program && !is_readable_soon(&reader) {
        return None;
    }
    let mut bytes = [0; FAILURE_LEN];
    File::from(reader).read_exact(&mut bytes).ok()?;
    Some(Failure::from_bytes(bytes))
}

fn is_readable_soon(reader: &OwnedFd) -> bool {
    let mut waited = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
    poll(&mut waited, PollTimeout::from(PATIENCE)) != Ok(0)
}

/// Reaps a child that could not be started, and takes back what it was given.
fn bury(child: Pid, how: How) {
    while waitpid(child, None) == Err(Errno::EINTR) {}
    if let Some(terminal) = how.terminal {
        terminal.take_back(child.as_raw());
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use nix::sys::wait::WaitStatus;

    use super::*;
    use crate::signals::SigSet;

    fn how(role: Role) -> How {
        let inherited = Inherited { mask: SigSet::EMPTY, sigpipe_ignored: false, sigchld_ignored: false };
        How { inherited, terminal: None, place: Place::OwnGroup, role }
    }

    fn program(argv: &[&str]) -> Program {
        let env = vec![("PATH".into(), "/no/such:/usr/bin:/bin".into())];
        Program::new(argv.iter().map(OsString::from).collect(), env).expect("no NUL byte")
    }

    fn code_of(argv: &[&str], role: Role) -> i32 {
        let pid = start(&program(argv), how(role)).expect("it starts");
        match waitpid(Pid::from_raw(pid), None) {
            Ok(WaitStatus::Exited(_, code)) => code,
            other => panic!("{argv:?}: {other:?}"),
        }
    }

    #[test]
    fn a_program_can_be_started_any_number_of_times() {
        let seven = program(&["sh", "-c", "exit 7"]);
        for _ in 0..3 {
            let pid = Pid::from_raw(start(&seven, how(Role::Program)).expect("it starts"));
            assert_eq!(waitpid(pid, None), Ok(WaitStatus::Exited(pid, 7)));
        }
    }

    #[test]
    fn a_check_reads_and_writes_dev_null_and_a_hook_only_reads_it() {
        let test = "for fd in 0 1 2; do [ /proc/$$/fd/$fd -ef /dev/null ] || exit 1$fd; done";
        assert_eq!(code_of(&["sh", "-c", test], Role::Check), 0);
        let test = "[ /proc/$$/fd/0 -ef /dev/null ] && for fd in 1 2; do [ /proc/$$/fd/$fd -ef /proc/$PPID/fd/$fd ] || exit 1; done";
        assert_eq!(code_of(&["sh", "-c", test], Role::Hook), 0);
    }

    #[test]
    fn a_failure_is_told() {
        for role in [Role::Program, Role::Check] {
            let error = start(&program(&["no-such-program"]), how(role)).expect_err("it is not there");
            assert_eq!(error.code, 127);
            let path = "no such file in PATH (/no/such:/usr/bin:/bin)";
            assert!(error.text.starts_with("no-such-program: ") && error.text.contains(path), "{error}");
        }
    }

    #[test]
    fn an_argument_that_the_kernel_refuses_is_explained() {
        let long = "x".repeat(200_000);
        let error = start(&program(&["true", &long]), how(Role::Program)).expect_err("over 128 KiB");
        assert_eq!(error.code, 126);
        assert!(error.text.starts_with("/usr/bin/true: arguments and environment are too long"), "{error}");
    }
}

//! A process by the raw calls, with nothing between us and its exec: no unshare(1), no shell.
#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::{CStr, CString, c_char};
use std::os::fd::RawFd;
use std::ptr;

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// What is to be started and how.
pub struct Bare {
    argv: Vec<CString>,
    pid1: bool,
    traced: bool,
    output: Option<RawFd>,
}

impl Bare {
    /// This program, by its path, with /dev/null on 0, 1 and 2.
    pub fn new(argv: &[&str]) -> Self {
        let argv = argv.iter().map(|&word| CString::new(word).expect("no NUL byte")).collect();
        Self { argv, pid1: false, traced: false, output: None }
    }

    /// As PID 1 of a PID namespace with a /proc of its own. Needs root.
    pub fn pid1(mut self, yes: bool) -> Self {
        self.pid1 = yes;
        self
    }

    /// Traced by the calling thread: it stops at its exec (PTRACE_TRACEME).
    pub fn traced(mut self) -> Self {
        self.traced = true;
        self
    }

    /// With this file on 1, into which goes first of all the time of the exec: nanoseconds of CLOCK_MONOTONIC, 8 bytes.
    pub fn telling(mut self, output: RawFd) -> Self {
        self.output = Some(output);
        self
    }

    /// Starts it. Dropping the result kills it.
    pub fn start(&self) -> Process {
        let argv: Vec<*const c_char> = self.argv.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect();
        let environment = [c"PATH=/usr/bin:/bin".as_ptr(), ptr::null()];
        let spaces = if self.pid1 { libc::CLONE_NEWPID | libc::CLONE_NEWNS } else { 0 };
        // SAFETY: without CLONE_VM this is fork(2); the child calls only what is async-signal-safe.
        let pid = unsafe { libc::syscall(libc::SYS_clone, spaces | libc::SIGCHLD, 0, 0, 0, 0) } as i32;
        if pid == 0 {
            self.become_it(&argv, &environment);
        }
        Process(Errno::result(pid).map(Pid::from_raw).expect("a process"))
    }

    fn become_it(&self, argv: &[*const c_char], environment: &[*const c_char]) -> ! {
        let done = self.pid1.then(mount_proc).unwrap_or(Ok(())).and_then(|()| to_null());
        let done = done.and_then(|()| self.output.map_or(Ok(()), tell_time));
        if done.is_ok() {
            if self.traced {
                // SAFETY: takes nothing more.
                unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            }
            // SAFETY: both arrays end with a null pointer and outlive the call.
            unsafe { libc::execve(argv[0], argv.as_ptr(), environment.as_ptr()) };
        }
        // SAFETY: ends the process without the parent's exit handlers.
        unsafe { libc::_exit(99) }
    }
}

fn mount_proc() -> nix::Result<()> {
    mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(c"proc", c"/proc", c"proc", 0)
}

fn mount(what: &CStr, place: &CStr, kind: &CStr, flags: libc::c_ulong) -> nix::Result<()> {
    // SAFETY: C strings, and no data.
    let done = unsafe { libc::mount(what.as_ptr(), place.as_ptr(), kind.as_ptr(), flags, ptr::null()) };
    Errno::result(done).map(drop)
}

fn to_null() -> nix::Result<()> {
    // SAFETY: a C string.
    let null = Errno::result(unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) })?;
    for fd in 0..=2 {
        // SAFETY: takes numbers.
        Errno::result(unsafe { libc::dup2(null, fd) })?;
    }
    Ok(())
}

fn tell_time(output: RawFd) -> nix::Result<()> {
    // SAFETY: takes numbers.
    Errno::result(unsafe { libc::dup2(output, 1) })?;
    let time = now().to_ne_bytes();
    // SAFETY: the bytes are ours, and so many.
    Errno::result(unsafe { libc::write(1, time.as_ptr().cast(), time.len()) }).map(drop)
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a time of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// It runs, or has ended.
pub struct Process(pub Pid);

impl Process {
    /// Its command line, joined by NUL bytes.
    pub fn command_line(&self) -> Vec<u8> {
        std::fs::read(format!("/proc/{}/cmdline", self.0)).unwrap_or_default()
    }

    /// Sends it a signal.
    pub fn signal(&self, number: i32) {
        // SAFETY: takes two numbers; the process is ours and not reaped yet.
        assert_eq!(unsafe { libc::kill(self.0.as_raw(), number) }, 0, "kill -{number} {}", self.0);
    }

    /// Its end, if it has come. To be asked no more after that.
    pub fn ended(&self) -> Option<WaitStatus> {
        match waitpid(self.0, Some(WaitPidFlag::WNOHANG)).expect("it is our child") {
            WaitStatus::StillAlive => None,
            status => Some(status),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that was reaped already is no child of ours any more, whoever has its pid now.
        if let Ok(WaitStatus::StillAlive) = waitpid(self.0, Some(WaitPidFlag::WNOHANG)) {
            // SAFETY: takes two numbers.
            unsafe { libc::kill(self.0.as_raw(), libc::SIGKILL) };
            let _ = waitpid(self.0, None);
        }
    }
}

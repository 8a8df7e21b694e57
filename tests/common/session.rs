//! A session on a pseudo-terminal of its own.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};

use super::SUNDOWN;

/// How long a line may take to appear.
pub const BOUND: Duration = Duration::from_secs(20);

/// Prints the shell's group, the terminal's foreground group, and its own pid.
pub const TELL: &str = "read -r pid a b c group d e front rest < /proc/$$/stat; echo told:$group:$front:$$.";

/// A session on a terminal of its own. Dropping it kills its leader, and the kernel hangs up on the rest.
pub struct Session {
    /// Our end of the terminal.
    pub master: File,
    /// The session's leader.
    pub leader: Child,
    /// What was shown and not forgotten.
    pub seen: String,
}

impl Session {
    /// Starts a program as leader of a new session with that terminal on 0, 1 and 2.
    pub fn start(command: &mut Command) -> Self {
        let (master, slave) = open_pty();
        // What is typed is not shown: only what the programs say is to be seen.
        let mut settings = tcgetattr(&slave).expect("a terminal");
        settings.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(&slave, SetArg::TCSANOW, &settings).expect("a terminal");
        let copy = || slave.try_clone().expect("a descriptor");
        command.stdin(copy()).stdout(copy()).stderr(copy());
        let lead = || {
            nix::unistd::setsid()?;
            // SAFETY: takes numbers; 0 is the terminal.
            Ok(Errno::result(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }).map(drop)?)
        };
        // SAFETY: a few system calls, async-signal-safe.
        unsafe { command.pre_exec(lead) };
        super::heed_interrupts(command);
        let leader = command.spawn().expect("the leader starts");
        Self { master: File::from(master), leader, seen: String::new() }
    }

    /// Starts /bin/sh with that script; `$0` is our binary.
    pub fn shell(script: &str) -> Self {
        Self::start(Command::new("/bin/sh").args(["-c", script, SUNDOWN, TELL]))
    }

    pub fn type_line(&mut self, line: &str) {
        writeln!(self.master, "{line}").expect("the terminal takes it");
    }

    /// Waits for the text and gives what came before the end of its line, or its `.`.
    #[track_caller]
    pub fn expect(&mut self, text: &str) -> String {
        let until = Instant::now() + BOUND;
        loop {
            if let Some((_, after)) = self.seen.split_once(text)
                && let Some(end) = after.find(['.', '\r', '\n'])
            {
                return after[..end].to_owned();
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(self.read_more(left), "{text:?} does not come; so far: {:?}", self.seen);
        }
    }

    /// Reads what the terminal shows next; false at its end and when the time is over.
    pub fn read_more(&mut self, left: Duration) -> bool {
        let timeout = PollTimeout::try_from(left).expect("a short time");
        let mut waited = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
        if poll(&mut waited, timeout) != Ok(1) {
            return false;
        }
        let mut bytes = [0; 1024];
        // EIO is the end of a terminal that nobody has open any more.
        let read = self.master.read(&mut bytes).unwrap_or(0);
        self.seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        read > 0
    }

    /// What [`TELL`] printed: group, foreground group, pid.
    #[track_caller]
    pub fn told(&mut self) -> [String; 3] {
        let told = self.expect("told:");
        let parts: Vec<String> = told.split(':').map(str::to_owned).collect();
        parts.try_into().unwrap_or_else(|parts| panic!("three numbers, not {parts:?}"))
    }
}

impl Session {
    /// Types a key, as Ctrl-Z.
    pub fn press(&mut self, key: u8) {
        self.master.write_all(&[key]).expect("the terminal takes it");
    }

    /// Forgets what was shown, so that the next [`Self::expect`] is of what comes.
    pub fn forget(&mut self) {
        self.seen.clear();
    }

    #[track_caller]
    pub fn wait_for_prompt(&mut self) {
        self.expect_prompt("prompt$ ");
    }

    /// Waits for a text that no end of a line follows.
    #[track_caller]
    pub fn expect_prompt(&mut self, prompt: &str) {
        let until = Instant::now() + BOUND;
        while !self.seen.contains(prompt) {
            let left = until.saturating_duration_since(Instant::now());
            assert!(self.read_more(left), "no prompt comes; so far: {:?}", self.seen);
        }
    }

    /// Types a line at the prompt and forgets what came before it. Before the prompt bash throws typed letters away.
    #[track_caller]
    pub fn enter(&mut self, line: &str) {
        self.wait_for_prompt();
        self.forget();
        self.type_line(line);
    }
}

impl Session {
    /// Waits until bash has given the terminal away.
    #[track_caller]
    pub fn wait_for_front(&self) {
        let front = || {
            // SAFETY: takes a number; a master answers for its other side.
            unsafe { libc::tcgetpgrp(std::os::fd::AsRawFd::as_raw_fd(&self.master)) }
        };
        super::instance::until("a job in front", || front() != self.leader.id() as i32);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for pid in super::instance::descendants(self.leader.id() as i32) {
            // SAFETY: takes two numbers.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let _ = self.leader.kill();
        let _ = self.leader.wait();
    }
}

/// A new pseudo-terminal: our end and the other.
pub fn open_pty() -> (OwnedFd, OwnedFd) {
    // SAFETY: takes flags.
    let master = unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) };
    let master = Errno::result(master).expect("a pseudo-terminal");
    // SAFETY: takes a number.
    Errno::result(unsafe { libc::unlockpt(master) }).expect("it is ours");
    // SAFETY: takes numbers; TIOCGPTPEER opens the other side.
    let slave = unsafe { libc::ioctl(master, libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) };
    let slave = Errno::result(slave).expect("its other side");
    // SAFETY: the descriptor is new and nobody else's.
    let master = unsafe { OwnedFd::from_raw_fd(master) };
    // SAFETY: as above.
    (master, unsafe { OwnedFd::from_raw_fd(slave) })
}

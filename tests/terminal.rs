//! Who has the terminal, on a real pseudo-terminal with a shell that leads the session.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};

const SUNDOWN: &str = env!("CARGO_BIN_EXE_sundown");
/// How long a line may take to appear.
const BOUND: Duration = Duration::from_secs(20);

/// Prints the shell's group, the terminal's foreground group, and its own pid.
const TELL: &str = "read -r pid a b c group d e front rest < /proc/$$/stat; echo told:$group:$front:$$.";

/// A session on a terminal of its own. Dropping it kills its leader, and the kernel hangs up on the rest.
struct Session {
    master: File,
    leader: Child,
    seen: String,
}

impl Session {
    /// Starts a program as leader of a new session with that terminal on 0, 1 and 2.
    fn start(command: &mut Command) -> Self {
        let (master, slave) = open_pty();
        let copy = || slave.try_clone().expect("a descriptor");
        command.stdin(copy()).stdout(copy()).stderr(copy());
        let lead = || {
            nix::unistd::setsid()?;
            // SAFETY: takes numbers; 0 is the terminal.
            Ok(Errno::result(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }).map(drop)?)
        };
        // SAFETY: two system calls, async-signal-safe.
        unsafe { command.pre_exec(lead) };
        let leader = command.spawn().expect("the leader starts");
        Self { master: File::from(master), leader, seen: String::new() }
    }

    /// Starts /bin/sh with that script; `$0` is our binary.
    fn shell(script: &str) -> Self {
        Self::start(Command::new("/bin/sh").args(["-c", script, SUNDOWN, TELL]))
    }

    fn type_line(&mut self, line: &str) {
        writeln!(self.master, "{line}").expect("the terminal takes it");
    }

    /// Waits for the text and gives what came before the end of its line, or its `.`.
    #[track_caller]
    fn expect(&mut self, text: &str) -> String {
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
    fn read_more(&mut self, left: Duration) -> bool {
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
    fn told(&mut self) -> [String; 3] {
        let told = self.expect("told:");
        let parts: Vec<String> = told.split(':').map(str::to_owned).collect();
        parts.try_into().unwrap_or_else(|parts| panic!("three numbers, not {parts:?}"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for pid in common::instance::descendants(self.leader.id() as i32) {
            // SAFETY: takes two numbers.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let _ = self.leader.kill();
        let _ = self.leader.wait();
    }
}

fn open_pty() -> (OwnedFd, OwnedFd) {
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
    let slave = unsafe { OwnedFd::from_raw_fd(slave) };
    // What is typed is not shown: only what the programs say is to be seen.
    let mut settings = tcgetattr(&slave).expect("a terminal");
    settings.local_flags.remove(LocalFlags::ECHO);
    tcsetattr(&slave, SetArg::TCSANOW, &settings).expect("a terminal");
    (master, slave)
}

#[test]
fn the_child_has_the_terminal_and_we_take_it_back() {
    // Without `set -m` the shell and sundown are one group: `read` fails with EIO if the terminal is not theirs again.
    let mut session = Session::shell("\"$0\" -- sh -c \"$1; read x; echo child:\\$x\"; read y; echo shell:$y");
    let [group, front, pid] = session.told();
    assert_eq!((&group, &front), (&pid, &pid));
    session.type_line("one");
    assert_eq!(session.expect("child:"), "one");
    session.type_line("two");
    assert_eq!(session.expect("shell:"), "two");
}

#[test]
fn the_leader_of_a_session_hands_its_terminal_over() {
    // As a container's PID 1 is started with `docker run -t`.
    let mut session =
        Session::start(Command::new(SUNDOWN).args(["--", "sh", "-c", &format!("{TELL}; read x; echo child:$x")]));
    let [group, front, pid] = session.told();
    assert_eq!((&group, &front), (&pid, &pid));
    session.type_line("one");
    assert_eq!(session.expect("child:"), "one");
}

#[test]
fn a_start_that_fails_gives_the_terminal_back() {
    let mut session = Session::shell("\"$0\" -- /no/such/file; echo code:$?; read y; echo shell:$y");
    assert_eq!(session.expect("code:"), "127");
    session.type_line("two");
    assert_eq!(session.expect("shell:"), "two");
}

#[test]
fn in_the_background_the_terminal_is_never_taken() {
    let mut session = Session::shell("set -m; \"$0\" -- sh -c \"$1\" <&0 & read y; echo shell:$y; wait; echo over:$?");
    let [group, front, pid] = session.told();
    assert_eq!(group, pid);
    assert_ne!(front, group);
    session.type_line("two");
    assert_eq!(session.expect("shell:"), "two");
    assert_eq!(session.expect("over:"), "0");
}

#[test]
fn ctrl_c_goes_to_the_child_alone() {
    let mut session = Session::shell(
        "\"$0\" -- sh -c \"trap 'echo child:int; exit 5' INT; $1; while :; do read x; done\"; echo code:$?",
    );
    session.told();
    session.master.write_all(b"\x03").expect("the terminal takes it");
    assert_eq!(session.expect("child:"), "int");
    assert_eq!(session.expect("code:"), "5");
}

// ---- Job control: a real bash at the other end of the terminal ----

/// An interactive bash that shows `$ ` and no more.
fn bash() -> Session {
    let mut command = Command::new("bash");
    command.args(["--norc", "--noprofile", "--noediting", "-i"]).env("PS1", "prompt$ ").env("TERM", "dumb");
    Session::start(&mut command)
}

impl Session {
    /// Types a key, as Ctrl-Z.
    fn press(&mut self, key: u8) {
        self.master.write_all(&[key]).expect("the terminal takes it");
    }

    /// Forgets what was shown, so that the next [`Self::expect`] is of what comes.
    fn forget(&mut self) {
        self.seen.clear();
    }

    #[track_caller]
    fn wait_for_prompt(&mut self) {
        let until = Instant::now() + BOUND;
        while !self.seen.contains("prompt$ ") {
            let left = until.saturating_duration_since(Instant::now());
            assert!(self.read_more(left), "no prompt comes; so far: {:?}", self.seen);
        }
    }

    /// Types a line at the prompt and forgets what came before it. Before the prompt bash throws typed letters away.
    #[track_caller]
    fn enter(&mut self, line: &str) {
        self.wait_for_prompt();
        self.forget();
        self.type_line(line);
    }
}

impl Session {
    /// Waits until bash has given the terminal away.
    #[track_caller]
    fn wait_for_front(&self) {
        let front = || {
            // SAFETY: takes a number; a master answers for its other side.
            unsafe { libc::tcgetpgrp(std::os::fd::AsRawFd::as_raw_fd(&self.master)) }
        };
        common::instance::until("a job in front", || front() != self.leader.id() as i32);
    }
}

const CTRL_C: u8 = 3;
const CTRL_Z: u8 = 26;

/// A program that reads lines and says them again.
fn echo() -> String {
    format!("{SUNDOWN} -- sh -c '{TELL}; while read x; do echo said:$x.; done; echo end'")
}

#[test]
fn ctrl_z_stops_the_job_and_fg_takes_it_on() {
    let mut session = bash();
    session.enter(&echo());
    session.told();
    session.press(CTRL_Z);
    session.expect("Stopped");
    session.enter("jobs -s | sed 's/^/jobs:/'; echo shell:$((1+1))");
    session.expect("jobs:[1]");
    assert_eq!(session.expect("shell:"), "2");
    session.enter("fg");
    session.type_line("one");
    session.expect("said:one");
    session.forget();
    session.press(CTRL_C);
    session.enter("echo code:$?");
    assert_eq!(session.expect("code:"), "130");
}

#[test]
fn a_job_that_went_to_the_background_comes_back() {
    let mut session = bash();
    session.enter(&format!("{SUNDOWN} -- sh -c '{TELL}; for i in $(seq 3000); do sleep 0.1; done'"));
    session.told();
    for _ in 0..2 {
        session.press(CTRL_Z);
        session.expect("Stopped");
        session.enter("bg; echo shell:$((1+1))");
        assert_eq!(session.expect("shell:"), "2");
        // It runs by now, so that `fg` sends it no signal: our group has the terminal, and not the child's.
        session.enter("fg");
        session.wait_for_front();
        session.forget();
    }
    session.forget();
    session.press(CTRL_C);
    session.enter("echo code:$?");
    assert_eq!(session.expect("code:"), "130");
}

#[test]
fn a_job_from_the_background_gets_the_terminal_when_it_is_brought_to_the_front() {
    let mut session = bash();
    let folder = common::directory();
    let gate = folder.path().join("gate");
    // It reads only once it is in front: before that, reading stops a job.
    let wait = format!("until [ -e {} ]; do sleep 0.02; done", gate.display());
    session.enter(&format!("{SUNDOWN} -- sh -c '{TELL}; {wait}; while read x; do echo said:$x.; done' &"));
    session.told();
    session.enter("fg");
    session.wait_for_front();
    std::fs::write(&gate, "").expect("room for it");
    session.type_line("one");
    session.expect("said:one");
}

#[test]
fn a_job_that_reads_in_the_background_stops_until_it_is_brought_to_the_front() {
    let mut session = bash();
    session.enter(&format!("{} &", echo()));
    session.told();
    // bash tells of it at a prompt.
    while !session.seen.contains("Stopped") {
        session.enter("true");
        session.wait_for_prompt();
    }
    session.enter("fg");
    session.wait_for_front();
    session.type_line("one");
    session.expect("said:one");
}

#[test]
fn ctrl_z_stops_the_script_around_us_too() {
    let mut session = bash();
    session
        .enter(&format!("sh -c '\"$0\" -- sh -c \"$1; read x; echo said:\\$x.\"; echo over:done' {SUNDOWN} '{TELL}'"));
    session.told();
    session.press(CTRL_Z);
    session.expect("Stopped");
    session.enter("fg");
    session.type_line("one");
    session.expect("said:one");
    session.expect("over:done");
}

#[test]
fn ctrl_z_does_not_freeze_where_no_shell_could_take_it_on() {
    // The session's leader has no job control: the group is orphaned.
    let mut session = Session::start(Command::new(SUNDOWN).args([
        "--",
        "sh",
        "-c",
        &format!("{TELL}; while read x; do echo said:$x.; done"),
    ]));
    session.told();
    session.press(CTRL_Z);
    session.type_line("one");
    session.expect("said:one");
}

/// The start of a command line that runs us as PID 1 on the terminal.
const PID_1: &str = "unshare --fork --pid --mount-proc --kill-child --";

#[test]
fn ctrl_z_does_not_freeze_pid_1() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: a PID namespace needs root");
        return;
    }
    let mut session = bash();
    session.enter(&format!("{PID_1} {SUNDOWN} -- sh -c 'read x; echo said:$x.; read x; echo said:$x.; exit 5'"));
    session.type_line("one");
    session.expect("said:one");
    session.forget();
    session.press(CTRL_Z);
    session.type_line("two");
    session.expect("said:two");
    session.enter("echo code:$?");
    assert_eq!(session.expect("code:"), "5");
}

#[test]
fn as_pid_1_in_the_background_the_terminal_is_not_taken_either() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: a PID namespace needs root");
        return;
    }
    let mut session = bash();
    session.enter(&format!("{PID_1} {SUNDOWN} -- sh -c 'echo up:.; sleep 60' <&0 &"));
    session.expect("up:");
    session.enter("echo shell:$((1+1))");
    assert_eq!(session.expect("shell:"), "2");
}

#[test]
fn a_resize_reaches_the_child() {
    let mut session = bash();
    session.enter(&format!("{SUNDOWN} -- sh -c 'trap \"echo resized:.\" WINCH; {TELL}; while :; do sleep 0.05; done'"));
    session.told();
    let size = libc::winsize { ws_row: 40, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel reads one winsize.
    let done =
        unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&session.master), libc::TIOCSWINSZ, &raw const size) };
    Errno::result(done).expect("a terminal");
    session.expect("resized:");
}

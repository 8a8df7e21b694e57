//! Who has the terminal, on a real pseudo-terminal with a shell that leads the session.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

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
    (master, unsafe { OwnedFd::from_raw_fd(slave) })
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

/// Calls itself apache2, which stops on WINCH.
const APACHE: &str = r#"#!/bin/bash
exec -a apache2 bash -c 'trap "echo told:.; exit 3" WINCH; trap "echo alive:\$((++n))." USR1; echo up:.; while :; do sleep 0.02; done'
"#;

#[test]
fn a_resize_does_not_stop_an_app_whose_stop_signal_is_winch() {
    let folder = tempfile::tempdir().expect("a folder");
    // As the official images start it: by its name, by a script, and by a script behind another.
    for command in ["apache2", "apache2-foreground", "bash httpd-foreground"] {
        let file = folder.path().join(command.trim_start_matches("bash "));
        std::fs::write(&file, APACHE).expect("room for it");
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
        let script = format!("cd {}; PATH=.:$PATH; \"$0\" -- {command}; echo over:$?", folder.path().display());
        let mut session = Session::shell(&script);
        session.expect("up:");
        resize(&session);
        let sundown = children(session.leader.id() as i32)[0];
        // A shell takes its traps by number: the second round shows that no resize waits behind the first.
        for round in ["1", "2"] {
            send(sundown, libc::SIGUSR1);
            session.expect(&format!("alive:{round}"));
        }
        send(sundown, libc::SIGTERM);
        session.expect("told:");
        assert_eq!(session.expect("over:"), "3", "{command}");
    }
}

fn resize(session: &Session) {
    let size = libc::winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open, and the pointer is to a size of ours.
    let done = unsafe { libc::ioctl(session.master.as_raw_fd(), libc::TIOCSWINSZ, &size) };
    Errno::result(done).expect("the size is set");
}

fn send(pid: i32, number: i32) {
    // SAFETY: kill takes two numbers; the process is of our session.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0, "kill -{number} {pid}");
}

#[test]
fn a_resize_reaches_an_app_that_wants_it() {
    let mut session = Session::shell(
        "\"$0\" -- bash -c 'trap \"echo resized:.; exit 3\" WINCH; echo up:.; while :; do sleep 0.02; done'; echo over:$?",
    );
    session.expect("up:");
    resize(&session);
    session.expect("resized:");
    assert_eq!(session.expect("over:"), "3");
}

fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

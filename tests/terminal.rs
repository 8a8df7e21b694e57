//! Who has the terminal, on a real pseudo-terminal with a shell that leads the session.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
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

//! Job control under the names of tini, dumb-init and catatonit: a real bash at the other end of a pseudo-terminal.

mod common;

use std::os::fd::AsRawFd;
use std::process::Command;

use common::inits::{ALL, CATATONIT, DUMB_INIT, Init, TINI};
use common::session::{Session, TELL};
use nix::errno::Errno;

/// An interactive bash that shows `$ ` and no more.
fn bash() -> Session {
    let mut command = Command::new("bash");
    command.args(["--norc", "--noprofile", "--noediting", "-i"]).env("PS1", "prompt$ ").env("TERM", "dumb");
    Session::start(&mut command)
}

const CTRL_C: u8 = 3;
const CTRL_Z: u8 = 26;

/// The init and its options, as they are typed.
fn typed(init: &Init, options: &[&str]) -> String {
    let words: Vec<&str> = init.reaps.iter().chain(options).copied().collect();
    format!("{} {} --", init.ours(), words.join(" "))
}

/// Every init, and dumb-init without its session too.
fn each() -> impl Iterator<Item = String> {
    ALL.iter().map(|init| typed(init, &[])).chain([typed(&DUMB_INIT, &["-c"])])
}

/// A program that reads lines and says them again.
fn echo(init: &str) -> String {
    format!("{init} sh -c '{TELL}; while read x; do echo said:$x.; done; echo end'")
}

#[test]
fn ctrl_z_stops_the_job_and_fg_takes_it_on() {
    for init in each() {
        let mut session = bash();
        session.enter(&echo(&init));
        session.told();
        session.press(CTRL_Z);
        session.expect("Stopped");
        session.enter("echo shell:$((1+1))");
        assert_eq!(session.expect("shell:"), "2", "{init}");
        session.enter("fg");
        session.type_line("one");
        session.expect("said:one");
        session.forget();
        session.press(CTRL_Z);
        session.expect("Stopped");
        session.enter("fg");
        session.type_line("two");
        session.expect("said:two");
        session.forget();
        session.press(CTRL_C);
        session.enter("echo code:$?");
        assert_eq!(session.expect("code:"), "130", "{init}");
    }
}

#[test]
fn a_job_that_went_to_the_background_comes_back() {
    for init in each() {
        let mut session = bash();
        // It forks nothing: dash does so by vfork(2), and is held fast by what is stopped before its exec.
        session.enter(&format!("{init} sh -c '{TELL}; exec sleep 600'"));
        session.told();
        for _ in 0..2 {
            session.press(CTRL_Z);
            session.expect("Stopped");
            session.enter("bg; echo shell:$((1+1))");
            assert_eq!(session.expect("shell:"), "2", "{init}");
            session.enter("fg");
            session.wait_for_front();
            session.forget();
        }
        session.press(CTRL_C);
        session.enter("echo code:$?");
        assert_eq!(session.expect("code:"), "130", "{init}");
    }
}

#[test]
fn in_the_background_the_terminal_is_not_taken() {
    for init in [TINI, CATATONIT].map(|init| typed(&init, &[])) {
        let mut session = bash();
        session.enter(&format!("{init} sh -c '{TELL}; exec sleep 600' <&0 &"));
        let [group, front, pid] = session.told();
        assert_eq!(group, pid);
        assert_ne!(front, group, "{init}");
        session.enter("echo shell:$((1+1))");
        assert_eq!(session.expect("shell:"), "2");
    }
}

fn resize(session: &Session) {
    let size = libc::winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open, and the pointer is to a size of ours.
    let done = unsafe { libc::ioctl(session.master.as_raw_fd(), libc::TIOCSWINSZ, &size) };
    Errno::result(done).expect("the size is set");
}

const RESIZED: &str = "trap \"echo resized:.; exit 3\" WINCH; echo up:.; while :; do sleep 0.02; done";

#[test]
fn a_resize_reaches_the_program() {
    for init in each() {
        let mut session = bash();
        session.enter(&format!("{init} bash -c '{RESIZED}'; echo over:$?"));
        session.expect("up:");
        resize(&session);
        session.expect("resized:");
        assert_eq!(session.expect("over:"), "3", "{init}");
    }
}

#[test]
fn as_leader_of_a_session_it_hands_the_terminal_over() {
    // As PID 1 of a container with a terminal is started.
    for init in ALL {
        let script = format!("{TELL}; read x; echo said:$x.; exec sleep 600");
        let mut session = Session::start(Command::new(init.ours()).args(init.reaps).args(["--", "sh", "-c", &script]));
        let [group, front, pid] = session.told();
        assert_eq!((&group, &front), (&pid, &pid), "{}", init.name);
        session.type_line("one");
        session.expect("said:one");
        // Nobody could make it go on: the key means nothing.
        session.press(CTRL_Z);
        session.press(CTRL_C);
        assert_eq!(common::wait(&mut session.leader), Some(130), "{}", init.name);
    }
}

#[test]
fn a_shell_in_it_has_job_control_of_its_own() {
    // As a container's PID 1 with a terminal, it leads the terminal's session.
    for init in ALL {
        let mut command = Command::new(init.ours());
        command.args(init.reaps).args(["--", "bash", "--norc", "--noprofile", "--noediting", "-i"]);
        let mut session = Session::start(command.env("PS1", "prompt$ ").env("TERM", "dumb"));
        session.enter("sh -c 'echo up:.; exec cat'");
        session.expect("up:");
        session.press(CTRL_Z);
        session.expect("Stopped");
        session.enter("fg");
        session.type_line("said:one.");
        session.expect("said:");
        session.forget();
        session.press(CTRL_C);
        session.enter("exit 5");
        assert_eq!(common::wait(&mut session.leader), Some(5), "{}", init.name);
    }
}

#[test]
fn ctrl_z_does_not_freeze_where_no_shell_could_take_it_on() {
    // The session's leader has no job control, so its group is orphaned: nobody would make a stopped job go on.
    for init in each() {
        let script = format!("{}; echo over:$?", echo(&init));
        let mut session = Session::start(Command::new("/bin/sh").args(["-c", &script]));
        session.told();
        session.press(CTRL_Z);
        session.type_line("one");
        session.expect("said:one");
    }
}

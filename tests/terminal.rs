//! Who has the terminal, on a real pseudo-terminal with a shell that leads the session.

mod common;

use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;

use common::SUNDOWN;
use common::instance::children;
use common::session::{Session, TELL};
use nix::errno::Errno;

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
        "\"$0\" -- sh -c \"trap 'echo child:int; exit 5' INT; $1; while :; do sleep 0.02; done\"; echo code:$?",
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

#[test]
fn a_terminal_that_is_gone_stops_what_nobody_could_reach_any_more() {
    let script = format!("trap '' HUP; {TELL}; sleep 600; :");
    let mut session = Session::start(Command::new(SUNDOWN).args(["--", "sh", "-c", &script]));
    session.told();
    session.master = std::fs::File::open("/dev/null").expect("it is there");
    common::instance::until("the end", || session.leader.try_wait().expect("it is our child").is_some());
}

//! Job control: Ctrl-Z, `fg` and `bg`, with a real bash at the other end of the terminal.

mod common;

use std::process::Command;

use common::SUNDOWN;
use common::session::{Session, TELL};

/// An interactive bash that shows `$ ` and no more.
fn bash() -> Session {
    let mut command = Command::new("bash");
    command.args(["--norc", "--noprofile", "--noediting", "-i"]).env("PS1", "prompt$ ").env("TERM", "dumb");
    Session::start(&mut command)
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
    // It forks nothing: dash does so by vfork(2), and is held fast by what is stopped before its exec.
    session.enter(&format!("{SUNDOWN} -- sh -c '{TELL}; exec sleep 600'"));
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

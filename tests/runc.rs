//! Real containers by runc: as root and as nobody without any right, on a read-only root, with a shell and without.

mod common;
#[path = "common/oci.rs"]
mod oci;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::instance::{between, secs, until};
use oci::Container;

/// Catches TERM, takes its time to clean up, and ends with 5.
const APP: &str = "trap 'echo heard; sleep 0.3; echo clean; exit 5' TERM; echo up; while :; do sleep 0.05; done";
/// All that it writes.
const ALL: &str = "up\nheard\nclean\n";

/// Fails unless the log says that a stop was asked for, who was told and how it ended, and no more.
#[track_caller]
fn is_log_of_a_plain_stop(log: &str) {
    let expected = ["sundown: stop asked for by SIGTERM", "sundown: SIGTERM sent to sh (pid ", "sundown: stopped: "];
    let lines = || log.lines().filter(|line| !line.starts_with("sundown: timeline: "));
    let is_so = lines().count() == expected.len()
        && lines().zip(expected).all(|(line, start)| line.starts_with(start))
        && log.contains("exit code 5");
    assert!(is_so, "{log}");
}

#[test]
fn the_app_of_root_hears_once_and_cleans_up() {
    let words = ["/sundown", "--log-format", "text", "--", "sh", "-c", APP];
    let Some(mut container) = Container::of_root().run(&words) else { return };
    container.wait_stdout("up");
    container.stop();
    assert_eq!(container.code(), Some(5), "{}", container.stderr());
    assert_eq!(container.stdout(), ALL);
    is_log_of_a_plain_stop(&container.stderr());
}

#[test]
fn the_app_of_nobody_without_any_right_hears_once_and_cleans_up() {
    let words = ["/sundown", "--log-format", "text", "--", "sh", "-c", APP];
    let Some(mut container) = Container::of_nobody().run(&words) else { return };
    container.wait_stdout("up");
    assert_eq!((&*container.status("CapBnd"), &*container.status("NoNewPrivs")), ("0000000000000000", "1"));
    container.stop();
    assert_eq!(container.code(), Some(5), "{}", container.stderr());
    assert_eq!(container.stdout(), ALL);
    is_log_of_a_plain_stop(&container.stderr());
}

#[test]
fn the_app_hears_once_and_cleans_up_without_proc() {
    // runc itself starts nothing where /proc is missing.
    let script = format!("umount /proc && exec /sundown --log-format text -- sh -c \"{APP}\"");
    let container = Container::of_root().capabilities(&["CAP_SYS_ADMIN", "CAP_KILL"]);
    let Some(mut container) = container.run(&["/bin/sh", "-c", &script]) else { return };
    container.wait_stdout("up");
    container.stop();
    assert_eq!(container.code(), Some(5), "{}", container.stderr());
    assert_eq!(container.stdout(), ALL);
}

#[test]
fn a_stop_right_after_the_start_is_a_stop() {
    for delay in (0..30).step_by(3).map(Duration::from_millis) {
        let Some(mut container) = Container::of_root().run(&["/sundown", "--", "sh", "-c", APP]) else { return };
        std::thread::sleep(delay);
        let asked = Instant::now();
        container.stop();
        // 143 where it came before the program was started, 5 where the script had set its trap.
        let code = container.code();
        assert!(matches!(code, Some(143 | 5)), "{code:?} after {delay:?}: {}", container.stderr());
        between(asked.elapsed(), secs(0.0), secs(5.0));
    }
}

const BARE: [&str; 4] = ["--", "/sundown", "sleep", "100"];

#[test]
fn a_program_without_a_handler_stops_in_an_image_that_has_nothing_else() {
    let words = [&["/sundown"][..], &BARE].concat();
    let Some(mut container) = Container::of_nobody().without_shell().run(&words) else { return };
    let asked = Instant::now();
    container.stop();
    assert_eq!(container.code(), Some(143), "{}", container.stderr());
    between(asked.elapsed(), secs(0.0), secs(5.0));
}

#[test]
fn a_hook_drains_in_an_image_that_has_nothing_else() {
    let words = [&["/sundown", "--drain-delay", "1s", "--ready-check", "running"][..], &BARE].concat();
    let Some(mut container) = Container::of_nobody().without_shell().run(&words) else { return };
    until("it is ready", || container.exec(&["/sundown", "ready"]).code == Some(0));
    let status = container.exec(&["/sundown", "status"]);
    assert_eq!((status.code, &*status.stderr), (Some(0), ""), "{}", status.stdout);
    assert!(status.stdout.contains("running"), "{}", status.stdout);
    let asked = Instant::now();
    let hook = container.exec(&["/sundown", "prestop"]);
    assert_eq!((hook.code, &*hook.stderr), (Some(0), ""), "{}", container.stderr());
    assert!(hook.stdout.contains("drained for 1"), "{}", hook.stdout);
    between(asked.elapsed(), secs(1.0), secs(6.0));
    assert_eq!(container.code(), Some(143), "{}", container.stderr());
}

#[test]
fn who_came_by_exec_is_neither_told_nor_waited_for() {
    let Some(mut container) = Container::of_nobody().run(&["/sundown", "--", "sh", "-c", APP]) else { return };
    container.wait_stdout("up");
    leave_behind(&container, "trap '' TERM;");
    let session = common::directory();
    let said = common::write(&session, "stdout", "", 0o600);
    let script = "trap 'echo told' TERM; echo here; while :; do sleep 0.05; done";
    let mut command = container.exec_command(&["sh", "-c", script]);
    command.stdin(Stdio::null()).stdout(std::fs::File::create(&said).expect("a file")).stderr(Stdio::null());
    let mut shell = common::spawn(&mut command);
    until("the session is there", || common::read(&said).contains("here"));
    container.stop();
    container.wait_stdout("clean");
    let clean = Instant::now();
    assert_eq!(container.code(), Some(5), "{}", container.stderr());
    // Who is left behind gets a second between TERM and KILL; what is more is the test's own.
    between(clean.elapsed(), secs(0.8), secs(1.5));
    assert_eq!(container.stdout(), ALL);
    common::wait(&mut shell);
    assert_eq!(common::read(&said), "here\n");
}

#[test]
fn an_orphan_of_an_exec_that_ends_on_term_delays_nothing() {
    let Some(mut container) = Container::of_nobody().run(&["/sundown", "--", "sh", "-c", APP]) else { return };
    container.wait_stdout("up");
    leave_behind(&container, "");
    container.stop();
    container.wait_stdout("clean");
    let clean = Instant::now();
    assert_eq!(container.code(), Some(5), "{}", container.stderr());
    between(clean.elapsed(), secs(0.0), secs(0.8));
    assert_eq!(container.stdout(), ALL);
}

/// Leaves a process behind by an exec that has ended. What the script makes the shell ignore, the process ignores too.
#[track_caller]
fn leave_behind(container: &oci::Running, script: &str) {
    let script = format!("{script} setsid sleep 100 </dev/null >/dev/null 2>&1 &");
    let output = container.exec(&["sh", "-c", &script]);
    assert_eq!((output.code, &*output.stderr), (Some(0), ""));
}

#[test]
fn where_no_further_process_may_be_started_it_says_so() {
    let Some(container) = Container::of_nobody().create(&["/sundown", "--", "sh", "-c", APP]) else { return };
    // Not earlier, or runc's own threads would have no room.
    container.limit_pids(1);
    container.start();
    until("it has given up", || container.is_stopped());
    assert_eq!((container.stdout().as_str(), container.stderr().lines().count()), ("", 1), "{}", container.stderr());
    assert!(container.stderr().contains("raise the container's pids limit"), "{}", container.stderr());
}

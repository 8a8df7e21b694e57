//! The termination message: what Kubernetes shows of a container that has ended.

mod common;

use std::fs;
use std::time::Duration;

use common::instance::{Instance, Launch};

/// An instance whose message has a file, as the kubelet mounts one.
fn with_message(options: &[&str]) -> Launch {
    Launch::sundown(&[&["--termination-log", "{dir}/message"], options].concat()).file("message", "")
}

fn message(instance: &Instance) -> String {
    fs::read_to_string(instance.file("message")).expect("it is there")
}

const AHEAD: &str = "If you read this, everything was killed at once before sundown could finish";

#[test]
fn the_message_is_written_ahead_and_replaced_at_the_end_behind_the_apps_words() {
    let program = ["sh", "-c", "printf 'words of the app' >> {dir}/message; {app} catch=TERM cleanup=0.5; exit $?"];
    let mut instance = with_message(&["--drain-delay", "400ms"]).start(&program);
    instance.wait_record("app up");
    assert_eq!(message(&instance), "words of the app", "nothing of ours before a stop is asked for");
    instance.signal(libc::SIGTERM);
    instance.wait_record("app heard SIGTERM");
    let ahead = message(&instance);
    assert!(ahead.starts_with("words of the app\nstop asked for by SIGTERM") && ahead.contains(AHEAD), "{ahead}");
    assert_eq!(instance.wait().0, 0);
    let end = message(&instance);
    assert!(end.starts_with("words of the app\nstopped: asked by SIGTERM from pid "), "{end}");
    assert!(!end.contains(AHEAD), "{end}");
    for part in
        ["drained 4", "its time was up", "sent SIGTERM to python3 (pid ", "the app exited with 0", "exit code 0"]
    {
        assert!(end.contains(part), "{part:?} is not in {end}");
    }
    assert_eq!(end.lines().count(), 2, "{end}");
}

#[test]
fn what_the_app_writes_while_it_stops_is_kept() {
    let program = [
        "bash",
        "-c",
        "trap 'echo last words >> {dir}/message; exit 3' TERM; touch {dir}/up; while :; do sleep 0.02; done",
    ];
    let mut instance = with_message(&[]).start(&program);
    common::instance::until("its trap is set", || instance.file("up").exists());
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 3, "{}", instance.log());
    let end = message(&instance);
    let lines: Vec<_> = end.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "last words"), "{end}");
    assert!(lines[1].starts_with("stopped: asked by"), "{end}");
}

#[test]
fn a_kill_from_outside_leaves_the_words_written_ahead() {
    let mut instance = with_message(&["--grace-period", "30s"]).start(&["{app}", "catch=TERM", "cleanup=60"]);
    let app: i32 = instance.wait_record("app up").parse().expect("a pid");
    instance.signal(libc::SIGTERM);
    instance.wait_record("app heard SIGTERM");
    instance.signal(libc::SIGKILL);
    assert_eq!(instance.wait().0, 137);
    // SAFETY: kill takes two numbers; it is the app that our own instance has left behind.
    unsafe { libc::kill(app, libc::SIGKILL) };
    let text = message(&instance);
    assert!(text.contains(AHEAD) && text.contains("SIGTERM from pid"), "{text}");
}

#[test]
fn an_enforced_end_says_what_was_killed() {
    let options = ["--grace-period", "1s", "--kill-margin", "500ms"];
    let mut instance = with_message(&options).start(&["{app}", "ignore=TERM"]);
    let app = instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 137);
    let text = message(&instance);
    let killed = format!("killed by sundown (the grace period was over but for the margin): python3 (pid {app})");
    assert!(text.contains(&killed) && text.contains("of the grace period of 1s used"), "{text}");
}

#[test]
fn leftovers_that_were_killed_are_told_though_nobody_asked_for_a_stop() {
    let line = "{app} ignore=TERM & until grep -q 'app up' {dir}/record; do sleep 0.02; done; exit 7";
    let mut instance = with_message(&["--linger", "200ms"]).start(&["sh", "-c", line]);
    let app = instance.wait_record("app up");
    assert_eq!(instance.wait().0, 7, "{}", instance.log());
    let text = message(&instance);
    assert!(text.contains(&format!("python3 (pid {app})")) && text.contains("exit code 7"), "{text}");
}

#[test]
fn a_crash_keeps_its_own_words() {
    for program in ["exit 0", "exit 1", "kill -SEGV $$"] {
        let mut instance = with_message(&[]).start(&["sh", "-c", program]);
        instance.wait();
        assert_eq!(message(&instance), "", "{program}: {}", instance.log());
    }
}

#[test]
fn a_missing_file_is_not_created() {
    let mut instance = Launch::sundown(&["--termination-log", "{dir}/none"]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    assert!(instance.log().contains("no termination message is written"), "{}", instance.log());
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!(code, 0);
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(!instance.file("none").exists());
}

#[test]
fn a_message_that_the_app_has_filled_stays_the_tail_that_is_shown() {
    let mut instance = Launch::sundown(&["--termination-log", "{dir}/message"])
        .file("message", &"x".repeat(200_000))
        .start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 0);
    let text = message(&instance);
    let ours = text.rsplit_once("x\n").map(|(_, ours)| ours).expect("the app's words are kept");
    assert!(ours.starts_with("stopped: ") && ours.len() < 4096, "{ours}");
}

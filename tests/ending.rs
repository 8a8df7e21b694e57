//! The end: the deadline, what is left behind, the exit codes; and what ends before anything has begun.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::SUNDOWN;
use common::instance::{Instance, Launch, between, children, secs, until};

/// What a busy machine may take beyond what was asked of it.
const LATE: Duration = Duration::from_secs(1);
/// What a kill at the deadline may be late.
const LATE_KILL: Duration = Duration::from_millis(500);

fn no_root() -> bool {
    !common::is_root("a PID namespace")
}

fn as_pid_1(options: &[&str]) -> Launch {
    Launch::sundown(options).pid1()
}

/// Sends a signal to a process of ours, whose pid is one here.
fn send(pid: i32, number: i32) {
    // SAFETY: kill takes two numbers.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0, "kill -{number} {pid}");
}

/// The state of a process, as /proc/PID/stat has it; none once it is gone.
fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

// The deadline.

/// An app that ignores TERM, a grandchild in a session of its own, and a daemon.
const STUBBORN: [&str; 3] = [
    "sh",
    "-c",
    "{app} name=a ignore=TERM fork=setsid & {app} name=b ignore=TERM fork=daemon & {app} name=c ignore=TERM; true",
];

fn all_is_killed_at_the_deadline(launch: fn(&[&str]) -> Launch, is_pid_1: bool) {
    let mut instance = launch(&["--grace-period", "4s", "--kill-margin", "1s"]).start(&STUBBORN);
    let pids = ["a", "a2", "b", "b2", "c"].map(|name| instance.wait_record(&format!("{name} up")));
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    between(took, secs(2.95), secs(3.0) + LATE_KILL);
    assert_eq!(code, 137, "{}", instance.log());
    let log = instance.log();
    let last = log.lines().last().expect("a last line");
    assert!(last.contains("killed by sundown (the grace period was over but for the margin)"), "{last}");
    for pid in pids {
        assert!(last.contains(&format!("python3 (pid {pid})")), "{pid} is not in {last}");
        let pid: i32 = pid.parse().expect("a pid");
        assert!(is_pid_1 || state(pid).is_none(), "{pid} is still there");
    }
}

#[test]
fn at_the_deadline_the_whole_tree_is_killed_by_pid_1() {
    if !no_root() {
        all_is_killed_at_the_deadline(as_pid_1, true);
    }
}

#[test]
fn at_the_deadline_the_whole_tree_is_killed_by_another_pid() {
    all_is_killed_at_the_deadline(Launch::sundown, false);
}

#[test]
fn without_a_stated_limit_nothing_is_killed() {
    let mut instance = Launch::sundown(&[]).start(&["{app}", "ignore=TERM"]);
    let pid: i32 = instance.wait_record("app up").parse().expect("a pid");
    instance.signal(libc::SIGTERM);
    instance.wait_log("nothing is killed by sundown");
    let until = Instant::now() + secs(3.0);
    while Instant::now() < until {
        assert!(instance.is_running() && matches!(state(pid), Some('S' | 'R')), "{}", instance.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    send(pid, libc::SIGKILL);
    assert_eq!(instance.wait().0, 137);
    assert!(!instance.log().contains("killed by sundown ("), "{}", instance.log());
}

// What is left.

#[test]
fn a_background_child_finishes_its_clean_up_when_the_main_child_has_ended() {
    if no_root() {
        return;
    }
    let mut instance = as_pid_1(&[]).start(&[
        "sh",
        "-c",
        "{app} name=behind catch=TERM cleanup=1 & until grep -q 'behind up' {dir}/record; do sleep 0.02; done; exit 7",
    ]);
    instance.wait_record("behind up");
    let (code, took) = instance.wait();
    assert_eq!((code, instance.count("behind clean")), (7, 1), "{}", instance.log());
    assert!(took < secs(1.0) + LATE, "{took:?}");
}

#[test]
fn who_reads_the_childs_last_words_gets_to_the_end_of_them() {
    let reader = "import sys, time; line = sys.stdin.readline(); time.sleep(0.1); print(line + sys.stdin.read())";
    let python = common::instance::python();
    let line = format!("exec > >({python} -c \"{reader}\"); sleep 3.2; seq 300; echo the end");
    let mut instance = Launch::sundown(&[]).start(&["bash", "-c", &line]);
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    // It is older than the 3 s for which an interpreter is spared anyway, and has no handler.
    assert!(instance.out().trim_end().ends_with("300\nthe end"), "{}", instance.log());
    assert_eq!(instance.log(), "");
}

#[test]
fn leftovers_are_killed_after_the_linger_and_the_code_stays_the_childs() {
    let mut instance = Launch::sundown(&["--linger", "500ms"]).start(&[
        "sh",
        "-c",
        "{app} name=behind ignore=TERM & until grep -q 'behind up' {dir}/record; do sleep 0.02; done; exit 7",
    ]);
    let pid = instance.wait_record("behind up");
    let (code, took) = instance.wait();
    assert_eq!(code, 7, "{}", instance.log());
    assert!(took < secs(0.5) + LATE, "{took:?}");
    assert_eq!(state(pid.parse().expect("a pid")), None);
    let last = instance.log().lines().last().map(str::to_owned).unwrap_or_default();
    assert!(last.contains(&format!("python3 (pid {pid})")), "who was killed is named: {last}");
}

/// The fixture's command line, for what is no child of an instance.
fn app(instance: &Instance, rest: &str) -> String {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/app.py");
    format!("{} {fixture} {} {rest}", common::instance::python(), instance.file("record").display())
}

#[test]
fn a_docker_exec_session_is_neither_told_nor_waited_for() {
    if no_root() {
        return;
    }
    let mut instance = as_pid_1(&[]).env("APP", "1").start(&["{app}", "catch=TERM", "cleanup=0.3"]);
    instance.wait_record("app up");
    let session = app(&instance, "name=session catch=TERM");
    let stray = app(&instance, "name=stray catch=TERM cleanup=0.2");
    // The session's shell leaves one process behind with PID 1 and stays with another.
    let mut shell = instance.exec(&["sh", "-c", &format!("({stray} &) ; {session}; true")]);
    let mut shell = common::spawn(shell.env("APP", "1"));
    instance.wait_record("session up");
    instance.wait_record("stray up");
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    let _ = shell.wait();
    assert_eq!(code, 0, "{}", instance.log());
    assert!(took < secs(0.5) + LATE, "{took:?}");
    assert_eq!(instance.count("session heard SIGTERM"), 0, "{:?}", instance.record());
    let record = instance.record();
    let at = |line: &str| record.iter().position(|known| known == line).unwrap_or_else(|| panic!("{line}: {record:?}"));
    assert!(at("app clean") < at("stray heard SIGTERM"), "strays hear at the end: {record:?}");
    at("stray clean");
    assert!(!instance.log().contains("told now; session"), "{}", instance.log());
}

#[test]
fn what_a_killed_probes_shell_left_behind_does_not_delay_the_stop() {
    if no_root() {
        return;
    }
    let mut instance = as_pid_1(&[]).env("APP", "1").start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    let mut probe = instance.exec(&["sh", "-c", "sleep 1000 & kill -9 $$"]);
    common::run(probe.env("APP", "1"));
    until("PID 1 has adopted the probe's child", || children(instance.pid).len() == 2);
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!((code, instance.count("app clean")), (0, 1), "{}", instance.log());
    assert!(took < LATE, "{took:?}: {}", instance.log());
    assert!(!instance.log().contains("sleep"), "{}", instance.log());
}

// Exit codes.

/// The code after a TERM to this program with these options.
fn code_after_term(options: &[&str], program: &[&str], up: Option<&str>) -> i32 {
    let mut instance = Launch::sundown(options).start(program);
    match up {
        Some(start) => drop(instance.wait_record(start)),
        None => until("the program runs", || children(instance.pid).iter().any(|child| runs(*child, program[0]))),
    }
    instance.signal(libc::SIGTERM);
    instance.wait().0
}

fn runs(pid: i32, name: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
}

#[test]
fn the_exit_code_is_the_childs() {
    assert_eq!(code_after_term(&[], &["{app}", "catch=TERM", "exit=42"], Some("app up")), 42);
    assert_eq!(code_after_term(&[], &["sleep", "1000"], None), 143);
    assert_eq!(code_after_term(&["--stop-signal", "USR1"], &["sleep", "1000"], None), 138);
}

#[test]
fn a_stop_that_was_asked_for_can_be_a_success_by_signal_and_by_code() {
    let zero = ["--exit-zero-on-stop"];
    assert_eq!(code_after_term(&zero, &["sleep", "1000"], None), 0);
    assert_eq!(code_after_term(&zero, &["{app}", "catch=TERM", "exit=143"], Some("app up")), 0);
    assert_eq!(code_after_term(&zero, &["{app}", "catch=TERM", "exit=1"], Some("app up")), 1);
}

#[test]
fn a_kill_an_abort_and_a_segmentation_fault_are_never_hidden() {
    let zero = ["--exit-zero-on-stop"];
    for code in [134, 137, 139] {
        let exit = format!("exit={code}");
        assert_eq!(code_after_term(&zero, &["{app}", "catch=TERM", &exit], Some("app up")), code);
    }
    let enforced = ["--exit-zero-on-stop", "--grace-period", "1s", "--kill-margin", "500ms"];
    assert_eq!(code_after_term(&enforced, &["{app}", "ignore=TERM"], Some("app up")), 137);
}

#[test]
fn exit_codes_are_remapped_last() {
    let options = ["--remap-exit", "143=9", "--remap-exit", "3=0"];
    assert_eq!(code_after_term(&options, &["sleep", "1000"], None), 9);
    assert_eq!(code_after_term(&options, &["{app}", "catch=TERM", "exit=3"], Some("app up")), 0);
}

// Before anything has begun.

#[test]
fn a_budget_that_does_not_fit_is_told_at_start_with_its_numbers() {
    let options = ["--grace-period", "20s", "--lb", "alb", "--log-format", "text"];
    let output = common::run(std::process::Command::new(SUNDOWN).args(options).args(["--", "true"]));
    assert_eq!(output.code, Some(0));
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    // 30 s for the balancer, and 40 % of what the margin of 2 s leaves for the app.
    for part in [
        "warning: SD201: drain 30s",
        "stop 7.2s",
        "margin 2s",
        "= 39.2s",
        "--grace-period 20s",
        "cut to 10.8s",
        "GRACE_PERIOD=52s",
    ] {
        assert!(output.stderr.contains(part), "{part:?} is not in {}", output.stderr);
    }
    let fits = ["--grace-period", "60s", "--lb", "alb"];
    let output = common::run(std::process::Command::new(SUNDOWN).args(fits).args(["--", "true"]));
    assert_eq!(output.stderr, "");
}

#[test]
fn a_stop_request_that_is_pending_before_the_start_starts_nothing() {
    let parent = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); os.kill(os.getpid(), 15); os.execv(sys.argv[1], sys.argv[1:])";
    let mut instance =
        Launch::sundown(&[]).through(&[common::instance::python(), "-c", parent]).start(&["touch", "{dir}/started"]);
    assert_eq!(instance.wait().0, 143);
    assert!(!Path::exists(&instance.file("started")));
    assert!(instance.log().contains("before the program was started"), "{}", instance.log());
}

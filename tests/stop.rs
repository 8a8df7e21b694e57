//! The stop: who hears, when, and what is left at the end.

mod common;
#[path = "common/http.rs"]
mod http;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use common::SUNDOWN;
use common::instance::{Instance, Launch, children, until};

/// What a busy machine may take beyond what was asked of it.
const LATE: Duration = Duration::from_secs(1);
/// What a kill at the deadline may be late.
const LATE_KILL: Duration = Duration::from_millis(500);

fn no_root() -> bool {
    !common::is_root("a PID namespace")
}

/// A serving app behind the endpoint, with these options of ours and of the app.
fn serving(launch: impl FnOnce(&[&str]) -> Launch, options: &[&str], app: &[&str]) -> (Instance, SocketAddr) {
    let address = http::free_address();
    let text = address.to_string();
    let instance = launch(&[&["--http", &text], options].concat()).start(&[&["{app}", "port=0"], app].concat());
    instance.wait_record("app up");
    http::wait_for_status(address, "/readyz", 200);
    (instance, address)
}

fn as_pid_1(options: &[&str]) -> Launch {
    Launch::sundown(options).pid1()
}

/// Fails unless `took` lies between the two.
#[track_caller]
fn between(took: Duration, least: Duration, most: Duration) {
    assert!((least..=most).contains(&took), "{took:?} is not between {least:?} and {most:?}");
}

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

// The drain.

#[test]
fn an_app_behind_a_shell_hears_once_and_finishes_its_clean_up() {
    if no_root() {
        return;
    }
    let mut instance = as_pid_1(&[]).start(&["sh", "-c", "{app} catch=TERM cleanup=1; true"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!((instance.count("app heard SIGTERM"), instance.count("app clean")), (1, 1), "{}", instance.log());
    assert_eq!(code, 0, "{}", instance.log());
    assert!(took < Duration::from_secs(2), "{took:?}");
}

fn the_drain_is_honoured(launch: fn(&[&str]) -> Launch) {
    let (mut instance, address) =
        serving(launch, &["--drain-delay", "1200ms"], &["catch=TERM", "cleanup=0.5", "exit=3"]);
    assert_eq!(http::get(address, "/servez").0, 200);
    let asked = Instant::now();
    instance.signal(libc::SIGTERM);
    http::wait_for_status(address, "/readyz", 503);
    assert_eq!(http::get(address, "/servez").0, 200);
    assert_eq!(instance.count("app heard SIGTERM"), 0, "it is served until the drain is over");
    assert!(asked.elapsed() < secs(1.2), "the endpoint took its time: {:?}", asked.elapsed());
    instance.wait_record("app heard SIGTERM");
    between(asked.elapsed(), secs(1.2), secs(1.2) + LATE);
    assert_eq!(http::wait_for_status(address, "/servez", 503).lines().count(), 1);
    assert_eq!(instance.wait().0, 3, "{}", instance.log());
    assert_eq!((instance.count("app heard SIGTERM"), instance.count("app clean")), (1, 1));
}

#[test]
fn the_app_hears_at_the_drains_end_and_is_served_until_then_behind_pid_1() {
    if !no_root() {
        the_drain_is_honoured(as_pid_1);
    }
}

#[test]
fn the_app_hears_at_the_drains_end_and_is_served_until_then_behind_another_pid() {
    the_drain_is_honoured(Launch::sundown);
}

#[test]
fn a_child_that_ends_in_the_drain_ends_it() {
    let mut instance = Launch::sundown(&["--drain-delay", "15s"]).start(&["{app}", "catch=TERM,USR1", "exit=5"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    instance.wait_log("draining");
    instance.signal(libc::SIGUSR1);
    let (code, took) = instance.wait();
    assert_eq!(code, 5, "{}", instance.log());
    assert!(took < LATE, "{took:?}");
    assert_eq!(instance.record().last().map(String::as_str), Some("app clean"));
    assert!(instance.log().contains("the child ended"), "{}", instance.log());
}

#[test]
fn a_foreign_hooks_time_counts_for_the_drain() {
    let mut instance =
        Launch::sundown(&["--drain-delay", "4s", "--prestop-elapsed", "3500ms"]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    let (_, took) = instance.wait();
    between(took, secs(0.45), secs(3.0));
}

#[test]
fn a_foreign_hooks_time_counts_for_the_deadline() {
    let options = ["--grace-period", "6s", "--kill-margin", "1s", "--prestop-elapsed", "4s"];
    let mut instance = Launch::sundown(&options).start(&["{app}", "ignore=TERM"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    between(took, secs(0.95), secs(1.0) + LATE_KILL);
    assert_eq!(code, 137);
}

/// Asks for a stop and fails unless the log says this of the drain and the app hears at once.
#[track_caller]
fn hears_at_once(mut instance: Instance, why: &str) {
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert!(took < secs(1.0) + LATE, "{took:?}: {}", instance.log());
    assert_eq!((code, instance.count("app heard SIGTERM")), (0, 1), "{}", instance.log());
    assert!(instance.log().contains(&format!("no drain ({why})")), "{}", instance.log());
}

#[test]
fn an_app_that_was_never_ready_has_no_drain() {
    let closed = format!("tcp://{}", http::free_address());
    let instance = Launch::sundown(&["--drain-delay", "15s", "--ready-check", &closed]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    hears_at_once(instance, "the app was never ready");
}

#[test]
fn an_app_whose_ready_check_fails_has_no_drain() {
    let address = http::free_address();
    let text = address.to_string();
    let options = ["--http", &text, "--lb", "service", "--ready-check", "exec:test -e {dir}/ok"];
    let pace = ["--check-period", "50ms", "--check-failures", "1"];
    let instance = Launch::sundown(&[&options[..], &pace].concat()).start(&[
        "sh",
        "-c",
        "touch {dir}/ok; {app} port=0 catch=TERM",
    ]);
    instance.wait_record("app up");
    http::wait_for_status(address, "/readyz", 200);
    std::fs::remove_file(instance.file("ok")).expect("it was there");
    http::wait_for_status(address, "/readyz", 503);
    hears_at_once(instance, "its ready check fails");
}

#[test]
fn an_app_that_listens_on_nothing_has_no_drain() {
    let instance = Launch::sundown(&["--lb", "service"]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    hears_at_once(instance, "it listens on nothing");
}

#[test]
fn a_database_has_no_drain() {
    let program = ["bash", "-c", "exec -a redis-server {app} port=0 catch=TERM"];
    let instance = Launch::sundown(&[]).env("KUBERNETES_SERVICE_HOST", "10.0.0.1").start(&program);
    instance.wait_record("app up");
    hears_at_once(instance, "it is a database");
}

#[test]
fn on_kubernetes_a_serving_app_has_a_drain_without_being_asked_for() {
    let mut instance =
        Launch::sundown(&[]).env("KUBERNETES_SERVICE_HOST", "10.0.0.1").start(&["{app}", "port=0", "catch=TERM"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    between(took, secs(5.0), secs(5.0) + LATE);
    assert_eq!(code, 0, "{}", instance.log());
}

// INT, and asking again.

/// An app behind PID 1 whose 15 s of drain have begun.
fn draining(app: &[&str]) -> Instance {
    let instance = as_pid_1(&["--drain-delay", "15s"]).start(&[&["{app}"], app].concat());
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    instance.wait_log("draining");
    instance
}

#[test]
fn int_from_inside_ends_the_drain_and_is_heard_as_int() {
    if no_root() {
        return;
    }
    let mut instance = draining(&["catch=TERM,INT"]);
    instance.signal_from_inside("INT");
    let (code, took) = instance.wait();
    assert!(took < LATE, "{took:?}");
    assert_eq!((instance.count("app heard SIGINT"), instance.count("app heard SIGTERM")), (1, 0), "{}", instance.log());
    assert_eq!(code, 0);
}

#[test]
fn int_from_inside_that_comes_first_has_no_drain() {
    if no_root() {
        return;
    }
    let mut instance = as_pid_1(&["--drain-delay", "15s"]).start(&["{app}", "catch=TERM,INT"]);
    instance.wait_record("app up");
    instance.signal_from_inside("INT");
    let (code, took) = instance.wait();
    assert!(took < LATE, "{took:?}");
    assert_eq!((code, instance.count("app heard SIGINT"), instance.count("app heard SIGTERM")), (0, 1, 0));
    assert!(instance.log().contains("no drain (asked to be quick)"), "{}", instance.log());
}

#[test]
fn int_from_inside_is_heard_as_term_by_an_app_that_catches_only_that() {
    if no_root() {
        return;
    }
    let mut instance = draining(&["catch=TERM", "ignore=INT"]);
    instance.signal_from_inside("INT");
    let (code, took) = instance.wait();
    assert!(took < LATE, "{took:?}");
    assert_eq!((code, instance.count("app heard SIGTERM")), (0, 1), "{}", instance.log());
}

#[test]
fn once_the_app_is_told_an_interrupt_warns_and_the_next_kills() {
    if no_root() {
        return;
    }
    let mut instance = as_pid_1(&[]).start(&["{app}", "catch=TERM", "cleanup=60"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    instance.wait_record("app heard SIGTERM");
    instance.signal_from_inside("INT");
    instance.wait_log("once more kills");
    assert!(instance.is_running());
    instance.signal_from_inside("INT");
    let (code, took) = instance.wait();
    assert!(took < LATE, "{took:?}");
    assert_eq!(code, 137, "{}", instance.log());
    assert_eq!(instance.count("app heard SIGINT"), 0);
}

#[test]
fn int_from_outside_is_an_ordinary_stop_and_the_app_hears_int() {
    if no_root() {
        return;
    }
    let mut instance = as_pid_1(&["--drain-delay", "700ms"]).start(&["{app}", "catch=TERM,INT"]);
    instance.wait_record("app up");
    let asked = Instant::now();
    instance.signal(libc::SIGINT);
    instance.wait_record("app heard SIGINT");
    between(asked.elapsed(), secs(0.7), secs(0.7) + LATE);
    assert_eq!(instance.wait().0, 0);
    assert_eq!(instance.count("app heard SIGTERM"), 0);
}

#[test]
fn int_from_outside_does_not_replace_a_stop_signal_that_was_set() {
    if no_root() {
        return;
    }
    let mut instance = as_pid_1(&["--stop-signal", "TERM"]).start(&["{app}", "catch=TERM,INT"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGINT);
    assert_eq!(instance.wait().0, 0);
    assert_eq!((instance.count("app heard SIGINT"), instance.count("app heard SIGTERM")), (0, 1));
}

#[test]
fn a_program_whose_second_signal_aborts_hears_one_though_docker_stop_is_called_three_times() {
    if no_root() {
        return;
    }
    for (number, name) in [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT")] {
        let mut instance = as_pid_1(&["--drain-delay", "300ms"]).start(&["{app}", "catch=TERM,INT", "cleanup=0.6"]);
        instance.wait_record("app up");
        instance.signal(number);
        instance.wait_log("draining");
        instance.signal(number);
        instance.wait_log("asked again");
        instance.wait_record("app heard");
        instance.signal(number);
        instance.wait_log("told already");
        assert_eq!(instance.wait().0, 0, "{}", instance.log());
        let heard: Vec<_> = instance.record().into_iter().filter(|line| line.contains("heard")).collect();
        assert_eq!(heard, [format!("app heard {name}")]);
        assert_eq!(instance.count("app clean"), 1);
    }
}

// Which signal.

#[test]
fn a_ladder_climbs_in_its_times() {
    let mut instance =
        Launch::sundown(&["--stop-signal", "TSTP 1s TERM 5s"]).start(&["{app}", "every=TSTP", "catch=TERM"]);
    instance.wait_record("app up");
    let asked = Instant::now();
    instance.signal(libc::SIGTERM);
    instance.wait_record("app heard SIGTSTP");
    assert_eq!(instance.count("app heard SIGTERM"), 0);
    instance.wait_record("app heard SIGTERM");
    between(asked.elapsed(), secs(1.0), secs(1.0) + LATE);
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
}

#[test]
fn an_app_that_can_hear_only_later_hears_where_the_ladder_stands() {
    let mut instance = Launch::sundown(&["--stop-signal", "TSTP 200ms TERM 10s"]).start(&[
        "sh",
        "-c",
        "touch {dir}/started; {app} pause=0.7 every=TSTP catch=TERM; exit $?",
    ]);
    until("it starts", || instance.file("started").exists());
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!((code, instance.count("app clean")), (0, 1), "{}", instance.log());
    assert!(took < secs(0.7) + LATE * 2, "{took:?}");
}

#[test]
fn a_ladder_ends_in_a_kill() {
    let mut instance =
        Launch::sundown(&["--stop-signal", "TSTP 300ms TERM 700ms"]).start(&["{app}", "every=TSTP,TERM"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    between(took, secs(0.95), secs(1.0) + LATE);
    assert_eq!(code, 137, "{}", instance.log());
    assert_eq!((instance.count("app heard SIGTSTP"), instance.count("app heard SIGTERM")), (1, 1));
}

#[test]
fn stop_on_names_the_signals_that_ask() {
    let mut instance =
        Launch::sundown(&["--stop-on", "USR1,RTMIN+5"]).start(&["{app}", "catch=TERM", "every=USR1,HUP"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGHUP);
    instance.wait_record("app heard SIGHUP");
    instance.signal(libc::SIGUSR1);
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    assert_eq!((instance.count("app heard SIGTERM"), instance.count("app heard SIGUSR1")), (1, 0));
}

#[test]
fn the_signal_that_systemd_images_stop_on_is_a_stop_request() {
    let mut instance = Launch::sundown(&[]).start(&["{app}", "catch=TERM,37"]);
    instance.wait_record("app up");
    instance.signal(37);
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    assert_eq!((instance.count("app heard SIGTERM"), instance.count("app heard SIG37")), (1, 0));
}

#[test]
fn a_stopped_app_is_continued_so_that_it_hears() {
    let mut instance = Launch::sundown(&[]).start(&["{app}", "catch=TERM"]);
    let pid: i32 = instance.wait_record("app up").parse().expect("a pid");
    send(pid, libc::SIGSTOP);
    until("it is stopped", || state(pid) == Some('T'));
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert!(took < LATE, "{took:?}");
    assert_eq!((code, instance.count("app clean")), (0, 1), "{}", instance.log());
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
        "warning: drain 30s",
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

//! The stop: the drain, who hears when, and by which signal.

mod common;
#[path = "common/http.rs"]
mod http;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::instance::{Instance, Launch, between, secs, until};

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

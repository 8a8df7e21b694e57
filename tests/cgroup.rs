//! Limits of memory and CPU time, in real containers by runc on cgroup v1: what the kernel does is told and counted.

mod common;
#[path = "common/oci.rs"]
mod oci;

use common::instance::until;
use oci::{Container, Limits, Running};

const LITTLE_MEMORY: &str = r#"{"memory":{"limit":67108864}}"#;
/// Needs 200 MiB at once.
const HOG: &str = "dd if=/dev/zero of=/dev/null bs=200M count=1";

fn limited(resources: &'static str, namespace: bool) -> Container {
    Container::of_nobody().limits(Limits { resources, namespace })
}

/// Numbers in the JSON of `sundown status`, all of one moment.
#[track_caller]
fn figures<const N: usize>(container: &Running, names: [&str; N]) -> [f64; N] {
    let status = container.exec(&["/sundown", "status", "--json"]);
    assert_eq!((status.code, &*status.stderr), (Some(0), ""), "{}", status.stdout);
    names.map(|name| {
        let number = status.stdout.split(&format!("\"{name}\":")).nth(1).and_then(|rest| rest.split([',', '}']).next());
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number {name} in {}", status.stdout))
    })
}

/// A container whose master lives on when its worker has outgrown the limit.
#[track_caller]
fn with_a_killed_worker(namespace: bool) -> Option<Running> {
    let master = format!("trap 'exit 5' TERM; {HOG}; echo worker $?; while :; do sleep 0.05; done");
    let container = limited(LITTLE_MEMORY, namespace).run(&["/sundown", "--", "sh", "-c", &master])?;
    container.wait_stdout("worker 137");
    Some(container)
}

const TOLD: &str = "1 process in this container was killed for want of memory";

#[test]
fn a_worker_that_is_killed_for_memory_is_told_to_whoever_asks_and_changes_no_code() {
    for namespace in [false, true] {
        let Some(mut container) = with_a_killed_worker(namespace) else { return };
        let [kills, limit, used] = figures(&container, ["oom_kills", "memory_limit_bytes", "memory_used_bytes"]);
        assert_eq!((kills, limit), (1.0, 67_108_864.0), "{}", container.stderr());
        assert!(used > 0.0 && used < 67_108_864.0, "{used}");
        let text = container.exec(&["/sundown", "status"]).stdout;
        assert!(text.contains(" of 64 MiB of memory in use; 1 killed for want of memory"), "{text}");
        let log = container.stderr();
        assert!(log.contains(TOLD) && log.contains("raise the limit of 64 MiB"), "{log}");
        container.stop();
        assert_eq!(container.code(), Some(5), "{}", container.stderr());
        assert_eq!(container.stderr().matches(TOLD).count(), 1, "{}", container.stderr());
    }
}

#[test]
fn a_worker_that_is_killed_for_memory_is_told_at_the_stop_at_the_latest() {
    let Some(mut container) = with_a_killed_worker(false) else { return };
    container.stop();
    assert_eq!(container.code(), Some(5), "{}", container.stderr());
    let log = container.stderr();
    let told = log.find(TOLD).unwrap_or_else(|| panic!("{log}"));
    assert!(told < log.find("stop asked for").expect("the stop is told"), "it came before the stop: {log}");
    for part in [r#""code":5"#, r#""ending":"exited""#, r#""oom_kills":1"#] {
        assert!(log.contains(part), "{part} is not in {log}");
    }
}

#[test]
fn a_worker_that_is_killed_for_memory_is_told_when_anything_is_reaped() {
    // The shell in between leaves the second sleep behind, which comes to us and ends.
    let master = format!("(sleep 2 &); {HOG}; echo worker $?; while :; do sleep 0.05; done");
    let Some(container) = limited(LITTLE_MEMORY, true).run(&["/sundown", "--", "sh", "-c", &master]) else { return };
    container.wait_stdout("worker 137");
    until("it is told", || container.stderr().contains(TOLD));
}

#[test]
fn a_child_that_is_killed_for_memory_is_told_from_one_that_is_killed_from_outside() {
    let hog: Vec<&str> = HOG.split(' ').collect();
    let shell = format!("{HOG}; exit $?");
    for (program, words, signal) in [
        (
            hog,
            "the app was killed for want of memory (OOM: SIGKILL from the kernel; the limit is 64 MiB); exit code 137",
            true,
        ),
        (vec!["sh", "-c", &shell], "the app exited with 137 since what it ran was killed for want of memory", false),
    ] {
        let Some(mut container) = limited(LITTLE_MEMORY, false).run(&[&["/sundown", "--"], &program[..]].concat())
        else {
            return;
        };
        assert_eq!(container.code(), Some(137), "{}", container.stderr());
        let log = container.stderr();
        // The shell has its word on it too.
        assert_eq!(log.lines().filter(|line| line.starts_with('{')).count(), 1, "{log}");
        for part in [words, r#""level":"WARN""#, r#""ending":"oom_killed""#, r#""oom_kills":1"#] {
            assert!(log.contains(part), "{part} is not in {log}");
        }
        assert_eq!(log.contains(r#""signal":"SIGKILL""#), signal, "{log}");
    }
    let killer = ["/sundown", "--", "sh", "-c", "kill -9 $$"];
    let Some(mut container) = limited(LITTLE_MEMORY, false).run(&killer) else { return };
    assert_eq!(container.code(), Some(137), "{}", container.stderr());
    for part in ["killed from outside", r#""ending":"killed_from_outside""#, r#""oom_kills":0"#] {
        assert!(container.stderr().contains(part), "{part} is not in {}", container.stderr());
    }
}

#[test]
fn a_quota_of_cpu_time_shows_in_the_status() {
    for namespace in [false, true] {
        let container = limited(r#"{"cpu":{"quota":20000,"period":100000}}"#, namespace);
        let Some(container) = container.run(&["/sundown", "--", "sh", "-c", "while :; do :; done"]) else { return };
        let names = ["cpu_throttled_periods", "cpu_periods", "cpu_throttled_seconds"];
        until("it is throttled", || {
            let [throttled, periods, seconds] = figures(&container, names);
            assert!(throttled <= periods, "{throttled} of {periods}");
            // The time is added up as it ends.
            throttled >= 3.0 && seconds > 0.0
        });
        let text = container.exec(&["/sundown", "status"]).stdout;
        assert!(text.contains("held to 20 % of a CPU in "), "{text}");
    }
}

#[test]
fn without_a_mount_nothing_is_known_and_nothing_said() {
    let Some(mut container) = Container::of_nobody().run(&[
        "/sundown",
        "--",
        "sh",
        "-c",
        "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done",
    ]) else {
        return;
    };
    container.wait_stdout("up");
    let status = container.exec(&["/sundown", "status", "--json"]).stdout;
    assert!(
        status.contains(r#""cgroup":{"memory_used_bytes":null,"memory_limit_bytes":null,"oom_kills":null"#),
        "{status}"
    );
    assert!(!container.exec(&["/sundown", "status"]).stdout.contains("cgroup"));
    container.stop();
    assert_eq!(container.code(), Some(5), "{}", container.stderr());
    assert!(!container.stderr().contains("oom"), "{}", container.stderr());
}

#[test]
fn a_kill_a_full_memory_and_a_cpu_limit_that_holds_back_are_advised_on() {
    let Some(container) = with_a_killed_worker(false) else { return };
    figures(&container, ["oom_kills"]);
    assert!(container.stderr().contains("SD501: 1 process in this container"), "{}", container.stderr());
    drop(container);
    // tail(1) keeps what may be the end, some 58 of 64 MiB, and waits for more.
    let full = "exec 3>&1; (head -c 61000000 /dev/zero; echo full >&3; sleep 600) | tail -c 61000000";
    let container = limited(LITTLE_MEMORY, false).run(&["/sundown", "--", "sh", "-c", full]);
    let Some(container) = container else { return };
    container.wait_stdout("full");
    figures(&container, ["memory_used_bytes"]);
    until("it is told", || container.stderr().contains("SD502: "));
    drop(container);
    let burns = limited(r#"{"cpu":{"quota":20000,"period":100000}}"#, false);
    let Some(container) = burns.run(&["/sundown", "--", "sh", "-c", "while :; do :; done"]) else { return };
    figures(&container, ["cpu_periods"]);
    std::thread::sleep(std::time::Duration::from_secs(11));
    figures(&container, ["cpu_periods"]);
    until("it is told", || {
        container.stderr().contains("SD504: the CPU limit held the container back to 20 % of a CPU in ")
    });
}

#[test]
fn a_live_check_that_fails_for_want_of_cpu_time_can_be_forgiven() {
    let options = ["--live-check", "exec:false", "--check-period", "100ms", "--check-failures", "2"];
    let lives = |patience: &[&str]| {
        let burns = limited(r#"{"cpu":{"quota":10000,"period":50000}}"#, false);
        let burn = ["--", "sh", "-c", "while :; do :; done"];
        let container = burns.run(&[&["/sundown"], &options[..], patience, &burn].concat())?;
        std::thread::sleep(std::time::Duration::from_secs(3));
        let code = container.exec(&["/sundown", "live"]).code;
        Some((code, container.stderr().contains("holds the container back: that is not counted")))
    };
    let Some(counted) = lives(&[]) else { return };
    assert_eq!(counted, (Some(1), false));
    assert_eq!(lives(&["--throttle-patience"]), Some((Some(0), true)));
}

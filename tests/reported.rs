//! What people have reported of other inits: each a promise. Those that have a test elsewhere:
//!
//! - no right to signal a child of another uid, HUP and USR2 for who never handled them, TSTP for a worker: `signals.rs`
//! - a resize and Apache: `terminal.rs`
//! - exactly one INT or TERM: `stop.rs`; what a killed probe left behind: `ending.rs`
//! - a hook that is called when the container is going down: `control.rs`

mod common;

use std::time::Duration;

use common::instance::{Launch, children, until};

fn no_root() -> bool {
    !common::is_root("a PID namespace")
}

fn command_line(pid: i32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).replace('\0', " ")
}

#[test]
fn term_while_the_interpreter_is_still_starting_is_kept_until_it_has_a_handler() {
    if no_root() {
        return;
    }
    for launch in [Launch::sundown(&[]).pid1(), Launch::sundown(&[])] {
        let mut instance = launch.start(&["{app}", "catch=TERM", "pause=1", "cleanup=0.2"]);
        until("the interpreter runs", || {
            children(instance.pid).iter().any(|pid| command_line(*pid).contains("app.py"))
        });
        instance.signal(libc::SIGTERM);
        assert_eq!(instance.wait().0, 0, "{}", instance.log());
        assert_eq!((instance.count("app heard SIGTERM"), instance.count("app clean")), (1, 1), "{}", instance.log());
    }
}

#[test]
fn docker_stop_right_after_docker_run_still_ends_in_order() {
    if no_root() {
        return;
    }
    // Whether the program had been started or not: it hears, or it is never started; nothing hangs and nothing is killed.
    for _ in 0..5 {
        let mut instance = Launch::sundown(&[]).pid1().start(&["sh", "-c", "{app} catch=TERM; exit $?"]);
        until("sundown runs", || command_line(instance.pid).starts_with(common::SUNDOWN));
        instance.signal(libc::SIGTERM);
        let (code, took) = instance.wait();
        assert!(took < Duration::from_secs(5), "{took:?}: {}", instance.log());
        let heard = (instance.count("app heard SIGTERM"), instance.count("app clean"));
        match code {
            0 => assert_eq!(heard, (1, 1), "{}", instance.log()),
            143 => assert!(heard == (0, 0) && instance.log().contains("before the program"), "{}", instance.log()),
            _ => panic!("exit {code}: {}", instance.log()),
        }
    }
}

#[test]
fn a_port_from_the_environment_needs_no_shell() {
    let mut instance = Launch::sundown(&["--expand-env"]).env("PORT", "8123").start(&[
        "echo",
        "--port=${PORT}",
        "$PORT",
        "${NONE:-x}",
        "$$",
    ]);
    let (code, _) = instance.wait();
    assert_eq!((code, instance.out().trim_end()), (0, "--port=8123 $PORT x $$"), "{}", instance.log());
    let mut instance = Launch::sundown(&[]).env("PORT", "8123").start(&["echo", "--port=${PORT}"]);
    assert_eq!((instance.wait().0, instance.out().trim_end()), (0, "--port=${PORT}"));
}

#[test]
fn a_jvms_143_after_a_requested_stop_may_count_as_a_success_and_only_then() {
    let jvm = ["{app}", "catch=TERM,USR1", "exit=143"];
    let code = |options: &[&str], signal| {
        let mut instance = Launch::sundown(options).start(&jvm);
        instance.wait_record("app up");
        instance.signal(signal);
        instance.wait().0
    };
    assert_eq!(code(&[], libc::SIGTERM), 143);
    assert_eq!(code(&["--exit-zero-on-stop"], libc::SIGTERM), 0);
    assert_eq!(code(&["--exit-zero-on-stop"], libc::SIGUSR1), 143, "nobody asked for a stop");
}

#[test]
fn our_own_kill_is_never_hidden() {
    if no_root() {
        return;
    }
    let options = ["--exit-zero-on-stop", "--grace-period", "1s", "--kill-margin", "500ms"];
    let mut instance = Launch::sundown(&options).pid1().start(&["{app}", "ignore=TERM", "exit=0"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 137);
    let last = instance.log().lines().last().map(str::to_owned).unwrap_or_default();
    assert!(last.contains("killed by sundown") && last.contains("exit code 137"), "{last}");
}

#[test]
fn a_filter_in_a_pipeline_has_not_a_byte_of_ours_in_its_output() {
    if no_root() {
        return;
    }
    for launch in [Launch::sundown(&[]).pid1(), Launch::sundown(&["--log-format", "text"])] {
        let mut instance = launch.start(&["sh", "-c", "printf 'a\\0b'; printf 'own' >&2; (true &); exit 4"]);
        assert_eq!(instance.wait().0, 4);
        assert_eq!((instance.out().as_str(), instance.log().as_str()), ("a\0b", "own"));
    }
}

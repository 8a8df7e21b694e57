//! What may hold a drain besides the traffic: a check (`--drain-while`), and a command (`--on-drain`).

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::instance::{Instance, Launch, between, secs, until};

const SLACK: Duration = Duration::from_secs(4);

/// An app that listens, in a folder of its own with the file `busy`.
fn app(options: &[&str]) -> Instance {
    let launch = Launch::sundown(&[&["--log-format", "text"], options].concat()).file("busy", "");
    let instance = launch.start(&["{app}", "catch=TERM", "port=0"]);
    instance.wait_record("app up");
    instance
}

#[track_caller]
fn says(instance: &Instance, text: &str) {
    assert!(instance.log().contains(text), "{text:?} is not in {}", instance.log());
}

fn stop(instance: &mut Instance) -> Duration {
    let began = Instant::now();
    instance.signal(libc::SIGTERM);
    instance.wait();
    began.elapsed()
}

const BUSY: [&str; 4] = ["--drain-while", "exec:test -e {dir}/busy", "--check-failures", "2"];

#[test]
fn a_drain_goes_on_while_its_check_passes() {
    let mut instance = app(&[&BUSY[..], &["--drain-delay", "200ms", "--drain-timeout", "9s"]].concat());
    let began = Instant::now();
    instance.signal(libc::SIGTERM);
    instance.wait_log("draining for at least 200ms");
    std::thread::sleep(secs(1.2));
    assert_eq!(instance.count("app heard SIGTERM"), 0, "{}", instance.log());
    fs::remove_file(instance.file("busy")).expect("it was there");
    instance.wait();
    between(began.elapsed(), secs(1.2), secs(1.6) + SLACK);
    says(&instance, "the --drain-while check fails: it holds no more");
}

#[test]
fn its_greatest_length_ends_it_all_the_same() {
    let mut instance = app(&[&BUSY[..], &["--drain-delay", "100ms", "--drain-timeout", "900ms"]].concat());
    between(stop(&mut instance), secs(0.9), secs(0.9) + SLACK);
    says(&instance, "its greatest length was over");
}

#[test]
fn a_check_holds_a_drain_of_fixed_length_and_one_that_nobody_stated() {
    for options in [&["--drain-delay", "100ms", "--drain-until", "delay"][..], &[]] {
        let mut instance = app(&[&BUSY[..], options].concat());
        instance.signal(libc::SIGTERM);
        instance.wait_log("while there is traffic");
        std::thread::sleep(secs(0.6));
        assert_eq!(instance.count("app heard SIGTERM"), 0, "{options:?}: {}", instance.log());
        fs::remove_file(instance.file("busy")).expect("it was there");
        instance.wait();
        assert_eq!(instance.count("app heard SIGTERM"), 1, "{options:?}: {}", instance.log());
    }
}

#[test]
fn a_worker_without_ports_is_held_too() {
    let launch = Launch::sundown(&[&["--log-format", "text"], &BUSY[..]].concat()).file("busy", "");
    let mut instance = launch.start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    std::thread::sleep(secs(0.5));
    assert_eq!(instance.count("app heard SIGTERM"), 0, "{}", instance.log());
    fs::remove_file(instance.file("busy")).expect("it was there");
    instance.wait();
    assert_eq!(instance.count("app heard SIGTERM"), 1, "{}", instance.log());
}

#[test]
fn the_command_runs_once_and_the_drain_waits_for_it() {
    let command = "sh -c 'echo begun >>{dir}/hook; sleep 1; echo ended >>{dir}/hook'";
    let mut instance = app(&["--on-drain", command, "--drain-delay", "100ms", "--drain-timeout", "9s"]);
    let began = Instant::now();
    instance.signal(libc::SIGTERM);
    instance.wait_log("draining");
    instance.signal(libc::SIGTERM);
    instance.wait();
    between(began.elapsed(), secs(1.0), secs(1.0) + SLACK);
    assert_eq!(fs::read_to_string(instance.file("hook")).expect("it ran"), "begun\nended\n");
    says(&instance, "--on-drain: sh took 1");
}

#[test]
fn a_command_that_fails_is_told_and_stops_nothing() {
    for (command, told) in [
        ("sh -c 'echo why not >&2; exit 3'", "--on-drain: sh exited with 3; the stop goes on without it"),
        ("/no/such/command", "--on-drain: /no/such/command"),
    ] {
        let mut instance = app(&["--on-drain", command, "--drain-delay", "100ms"]);
        instance.signal(libc::SIGTERM);
        assert_eq!(instance.wait().0, 0, "{}", instance.log());
        says(&instance, told);
        assert_eq!(instance.log().contains("why not"), command.contains("why not"), "{}", instance.log());
    }
}

#[test]
fn a_command_that_hangs_holds_the_drain_no_longer_than_it_may_be() {
    let command = "sh -c 'echo $$ >{dir}/hook; exec sleep 1000'";
    let mut instance = app(&["--on-drain", command, "--drain-delay", "100ms", "--drain-timeout", "800ms"]);
    between(stop(&mut instance), secs(0.8), secs(0.8) + SLACK);
    says(&instance, "--on-drain still runs as the app is told");
    let pid = fs::read_to_string(instance.file("hook")).expect("it ran");
    let process = format!("/proc/{}", pid.trim());
    until("it is gone", || !Path::new(&process).exists());
}

#[test]
fn without_a_drain_it_runs_all_the_same() {
    let mut instance = app(&["--on-drain", "sh -c 'echo begun >{dir}/hook'", "--drain-delay", "2s"]);
    instance.signal(libc::SIGINT);
    instance.wait();
    assert_eq!(fs::read_to_string(instance.file("hook")).expect("it ran"), "begun\n", "{}", instance.log());
}

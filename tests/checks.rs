//! The checks: what turns /readyz and /livez, and what a hung app does not turn.

mod common;
#[path = "common/http.rs"]
mod http;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use common::instance::{Instance, Launch};

const PACE: [&str; 4] = ["--check-period", "50ms", "--check-timeout", "500ms"];

/// An app that listens nowhere, behind the endpoint with this check.
fn checked(options: &[&str], file: Option<&'static str>) -> (Instance, SocketAddr) {
    let address = http::free_address();
    let launch = Launch::sundown(&[&["--http", &address.to_string()], &PACE[..], options].concat());
    let launch = if let Some(name) = file { launch.file(name, "") } else { launch };
    let instance = launch.start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    (instance, address)
}

#[test]
fn an_exec_check_turns_readiness_after_its_thresholds() {
    // It says what it found, and not that it was asked: a file may come and go in between.
    let check = "exec:sh -c 'if test -e {dir}/ok; then echo >> {dir}/passed; else echo >> {dir}/failed; false; fi'";
    let options = ["--ready-check", check, "--check-failures", "3", "--check-successes", "2"];
    let (instance, address) = checked(&options, None);
    let count = |name: &str| fs::read_to_string(instance.file(name)).unwrap_or_default().len();
    common::instance::until("it was asked", || count("failed") > 2);
    assert_eq!(http::get(address, "/readyz").0, 503);
    fs::write(instance.file("ok"), "").expect("room for it");
    http::wait_for_status(address, "/readyz", 200);
    assert!(count("passed") >= 2, "one pass is not two");
    let before = count("failed");
    fs::remove_file(instance.file("ok")).expect("it was there");
    assert!(http::wait_for_status(address, "/readyz", 503).contains("the ready check fails"));
    assert!(count("failed") >= before + 3, "two failures are not three");
    assert_eq!(http::get(address, "/servez").0, 503);
}

#[test]
fn a_check_that_hangs_fails_and_leaves_nothing_behind() {
    let options = ["--check-timeout", "200ms", "--ready-check", "exec:sh -c 'test -e {dir}/ok || sleep 1000'"];
    let (mut instance, address) = checked(&[&options[..], &["--check-failures", "1"]].concat(), Some("ok"));
    http::wait_for_status(address, "/readyz", 200);
    fs::remove_file(instance.file("ok")).expect("it was there");
    http::wait_for_status(address, "/readyz", 503);
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!(code, 0, "{}", instance.log());
    assert!(took < Duration::from_secs(1), "{took:?}: {}", instance.log());
}

#[test]
fn a_tcp_check_turns_with_the_port() {
    let port = http::free_address();
    let (_instance, address) = checked(&["--ready-check", &format!("tcp://{port}"), "--check-failures", "2"], None);
    assert_eq!(http::get(address, "/readyz").0, 503);
    let listener = TcpListener::bind(port).expect("it is free");
    http::wait_for_status(address, "/readyz", 200);
    drop(listener);
    http::wait_for_status(address, "/readyz", 503);
}

#[test]
fn an_http_check_turns_with_the_status() {
    // An instance of our own is the app that is asked: it is ready when its own file is there.
    let inner = ["--ready-check", "exec:test -e {dir}/ok", "--check-failures", "1"];
    let (app, app_address) = checked(&inner, Some("ok"));
    let check = format!("http://{app_address}/readyz");
    let (_instance, address) = checked(&["--ready-check", &check, "--check-failures", "1"], None);
    http::wait_for_status(address, "/readyz", 200);
    fs::remove_file(app.file("ok")).expect("it was there");
    http::wait_for_status(address, "/readyz", 503);
    fs::write(app.file("ok"), "").expect("room for it");
    http::wait_for_status(address, "/readyz", 200);
}

#[test]
fn a_live_check_turns_livez_and_nothing_else() {
    let options = ["--ready-check", "running", "--live-check", "exec:test -e {dir}/ok", "--check-failures", "2"];
    let (_instance, address) = checked(&options, Some("ok"));
    assert_eq!(http::get(address, "/livez").0, 200);
    fs::remove_file(_instance.file("ok")).expect("it was there");
    assert!(http::wait_for_status(address, "/livez", 503).contains("the live check fails"));
    assert_eq!((http::get(address, "/readyz").0, http::get(address, "/servez").0), (200, 200));
}

#[test]
fn an_app_is_ready_when_it_listens() {
    let address = http::free_address();
    let program = ["{app}", "catch=TERM", "port=0", "pause=0.5"];
    let instance = Launch::sundown(&["--http", &address.to_string()]).start(&program);
    let text = http::wait_for_status(address, "/readyz", 503);
    assert!(text.contains("has not been ready yet"), "{text}");
    instance.wait_record("app port");
    let began = Instant::now();
    http::wait_for_status(address, "/readyz", 200);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn an_app_that_stops_listening_is_neither_ready_nor_alive_any_more() {
    let address = http::free_address();
    let front = "(sleep 0.7; exec {app} name=front port=0 catch=USR1) &";
    let program = ["sh", "-c", &format!("{front} {{app}} name=back catch=TERM; wait")];
    let options = ["--http", &address.to_string(), "--live-check", "listening"];
    let instance = Launch::sundown(&options).start(&program);
    instance.wait_record("back up");
    let alive = || http::get(address, "/livez").0;
    assert_eq!((http::get(address, "/readyz").0, alive()), (503, 200), "not up yet is not dead");
    instance.wait_record("front up");
    http::wait_for_status(address, "/readyz", 200);
    assert_eq!(alive(), 200);
    instance.signal(libc::SIGUSR1);
    instance.wait_record("front clean");
    http::wait_for_status(address, "/readyz", 503);
    assert_eq!(alive(), 503);
}

#[test]
fn a_hung_app_does_not_slow_the_answers() {
    let address = http::free_address();
    let options = ["--http", &address.to_string()];
    let instance = Launch::sundown(&options).start(&["{app}", "catch=TERM", "port=0"]);
    let app: i32 = instance.wait_record("app up").parse().expect("a pid");
    http::wait_for_status(address, "/readyz", 200);
    // SAFETY: kill takes two numbers; the app is our own.
    assert_eq!(unsafe { libc::kill(app, libc::SIGSTOP) }, 0);
    // A busy machine may take the processor away from us for longer than that, but not each time.
    let quick = |latency: http::Latency| {
        assert!(latency.median < Duration::from_millis(10), "{latency:?}");
        latency.worst < Duration::from_millis(250)
    };
    assert!((0..3).any(|_| quick(http::probe_latency(address, "/readyz", 200, 200))), "200 probes are never quick");
}

//! What the log says of a stop: who is left before the kill and what it does, and when what happened.

mod common;
#[path = "common/http.rs"]
mod http;

use std::io::Write;

use common::instance::{Instance, Launch};

#[track_caller]
fn says(instance: &Instance, text: &str) {
    assert!(instance.log().contains(text), "{text:?} is not in {}", instance.log());
}

#[test]
fn what_is_left_at_the_deadline_is_examined_before_it_is_killed() {
    if !common::has_tools(&["node"]) {
        return;
    }
    let address = http::free_address();
    let app =
        "process.on('SIGTERM', () => {}); require('http').createServer(() => {}).listen(process.env.PORT, '127.0.0.1')";
    let options = ["--log-format", "text", "--grace-period", "3s", "--kill-margin", "500ms"];
    let launch = Launch::sundown(&options).env("PATH", common::path()).env("PORT", address.port().to_string());
    let mut instance = launch.start(&["node", "-e", app]);
    common::instance::until("it listens", || http::connect(address).is_ok());
    let mut client = http::connect(address).expect("a connection");
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 137);
    says(&instance, "left: node (pid ");
    says(&instance, "asleep in ");
    says(&instance, " of CPU in the last ");
    says(&instance, "SIGTERM caught; 1 connection: 127.0.0.1:");
    says(&instance, " with a request for 2");
}

#[test]
fn what_ignores_and_what_burns_is_told_apart() {
    let options = ["--log-format", "text", "--grace-period", "3s", "--kill-margin", "500ms"];
    let script = "trap '' TERM; while :; do :; done";
    let mut instance = Launch::sundown(&options).start(&["sh", "-c", script]);
    std::thread::sleep(std::time::Duration::from_millis(200));
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 137);
    says(&instance, "left: sh (pid ");
    says(&instance, "): running");
    says(&instance, "SIGTERM ignored");
}

#[test]
fn the_timeline_has_each_step_in_its_order() {
    let endpoint = http::free_address();
    let options = ["--log-format", "text", "--http", &endpoint.to_string(), "--drain-delay", "500ms"];
    let mut instance = Launch::sundown(&options).start(&["{app}", "catch=TERM", "port=0", "cleanup=0.2", "exit=3"]);
    http::wait_for_status(endpoint, "/readyz", 200);
    instance.signal(libc::SIGTERM);
    http::wait_for_status(endpoint, "/readyz", 503);
    assert_eq!(instance.wait().0, 3);
    let log = instance.log();
    let lines: Vec<&str> = log.lines().filter_map(|line| line.strip_prefix("sundown: timeline: +")).collect();
    let steps = [
        "stop asked for by SIGTERM",
        "127.0.0.1 was told for the first time that we are not ready",
        "the drain was over (",
        "SIGTERM to python3 (pid ",
        "the child (pid ",
        "exit with code 3",
    ];
    assert_eq!(lines.len(), steps.len(), "{log}");
    let mut last = 0.0;
    for (line, step) in lines.iter().zip(steps) {
        let (time, what) = line.split_once("s ").expect("a time");
        let time: f64 = time.parse().expect("seconds");
        assert!(what.starts_with(step) && time >= last, "{line:?} is not {step:?}: {log}");
        last = time;
    }
    assert!(log.trim_end().lines().last().is_some_and(|line| line.contains("stopped: asked by")), "{log}");
}

#[test]
fn an_end_that_nobody_asked_for_has_no_timeline() {
    let mut instance = Launch::sundown(&["--log-format", "text"]).start(&["true"]);
    instance.wait();
    assert_eq!(instance.log(), "");
}

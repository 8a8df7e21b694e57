//! /metrics: what Prometheus' own tool says of it, what it costs, and until when it answers.

mod common;
#[path = "common/http.rs"]
mod http;

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::instance::{Instance, Launch};

fn app(options: &[&str]) -> (Instance, SocketAddr) {
    let address = http::free_address();
    let own = ["--http", &address.to_string(), "--log-format", "text"];
    let instance =
        Launch::sundown(&[&own[..], options].concat()).start(&["{app}", "catch=TERM", "port=0", "cleanup=0.5"]);
    http::wait_for_status(address, "/readyz", 200);
    (instance, address)
}

fn scrape(address: SocketAddr) -> String {
    let (status, text) = http::get(address, "/metrics");
    assert_eq!(status, 200);
    text
}

/// The value behind this name and its labels.
#[track_caller]
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[test]
fn prometheus_own_tool_finds_no_fault() {
    if !common::has_tools(&["promtool"]) {
        return;
    }
    let (mut instance, address) = app(&["--grace-period", "20s", "--drain-delay", "300ms"]);
    let running = scrape(address);
    instance.signal(libc::SIGTERM);
    http::wait_for_status(address, "/readyz", 503);
    for text in [running, scrape(address)] {
        let mut check = Command::new("promtool");
        check.args(["check", "metrics"]).env("PATH", common::path()).stdin(Stdio::piped());
        let mut check = check.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("promtool starts");
        check.stdin.take().expect("its end").write_all(text.as_bytes()).expect("it reads");
        let said = check.wait_with_output().expect("it ends");
        let words = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
        assert!(said.status.success() && words.trim().is_empty(), "{words}\n{text}");
    }
    instance.wait();
}

#[test]
fn the_figures_follow_the_stop_and_stay_to_the_end() {
    let (mut instance, address) = app(&["--grace-period", "10s", "--drain-delay", "400ms"]);
    let before = scrape(address);
    assert_eq!(value(&before, "sundown_phase{phase=\"running\"}"), 1.0);
    assert_eq!((value(&before, "sundown_ready"), value(&before, "sundown_grace_period_used_ratio")), (1.0, 0.0));
    assert_eq!((value(&before, "sundown_connections"), value(&before, "sundown_zombies")), (0.0, 0.0));
    instance.signal(libc::SIGTERM);
    let (mut last, mut told) = (before, false);
    while let Ok((200, text)) = http::try_get(address, "/metrics") {
        told |= value(&text, "sundown_phase{phase=\"stopping\"}") == 1.0;
        last = text;
        std::thread::sleep(Duration::from_millis(5));
    }
    instance.wait();
    assert!(told, "it answers while the app stops");
    assert_eq!(value(&last, "sundown_stop_requests_total{source=\"signal\"}"), 1.0);
    // It is counted from when the phase is shown, some milliseconds after the stop request that the drain counts from.
    assert!(value(&last, "sundown_phase_seconds_total{phase=\"draining\"}") >= 0.3, "{last}");
    assert!(value(&last, "sundown_phase_seconds_total{phase=\"stopping\"}") > 0.0, "{last}");
    let used = value(&last, "sundown_grace_period_used_ratio");
    assert!(used > 0.04 && used < 0.5, "{last}");
}

#[test]
fn advice_is_counted_by_its_id() {
    let (instance, address) = app(&["--lb", "alb", "--grace-period", "20s"]);
    assert_eq!(value(&scrape(address), "sundown_advice{id=\"SD201\"}"), 1.0);
    drop(instance);
}

#[test]
fn a_scrape_costs_little() {
    const SCRAPES: u32 = 200;
    if !common::is_root("a PID namespace") {
        return;
    }
    // As in a container, with few processes: all that /proc shows are looked at.
    let address = http::free_address();
    let launch = Launch::sundown(&["--http", &address.to_string()]).pid1();
    let instance = launch.start(&["{app}", "catch=TERM", "port=0"]);
    http::wait_for_status(address, "/readyz", 200);
    let used = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", instance.pid)).expect("it runs");
        let rest = stat.rsplit_once(") ").expect("a name").1;
        let ticks = |at: usize| rest.split(' ').nth(at).and_then(|ticks| ticks.parse::<u32>().ok()).expect("ticks");
        Duration::from_millis(u64::from(ticks(11) + ticks(12)) * 10)
    };
    scrape(address);
    let before = used();
    (0..SCRAPES).for_each(|_| drop(scrape(address)));
    let each = (used() - before) / SCRAPES;
    println!("{each:?} of CPU for a scrape");
    assert!(each < Duration::from_millis(5), "{each:?} for a scrape");
}

#[test]
fn the_examples_ask_for_figures_that_there_are() {
    let (_instance, address) = app(&["--grace-period", "20s"]);
    let text = scrape(address);
    let root = env!("CARGO_MANIFEST_DIR");
    for example in ["examples/prometheus/alerts.yaml", "examples/grafana/sundown.json"] {
        let example = fs::read_to_string(format!("{root}/{example}")).expect("it is there");
        let names = example.match_indices("sundown_").map(|(at, _)| {
            let rest = &example[at..];
            &rest[..rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap_or(rest.len())]
        });
        for name in names {
            // Where no cgroup shows them there are none.
            let depends =
                ["sundown_oom_", "sundown_memory_", "sundown_cpu_"].iter().any(|start| name.starts_with(start));
            assert!(depends || text.contains(&format!("# HELP {name} ")), "there is no {name}");
        }
    }
}

#[test]
fn the_example_alerts_and_the_dashboard_load() {
    if !common::has_tools(&["promtool"]) {
        return;
    }
    let root = env!("CARGO_MANIFEST_DIR");
    let mut rules = Command::new("promtool");
    rules.args(["check", "rules", &format!("{root}/examples/prometheus/alerts.yaml")]).env("PATH", common::path());
    let checked = common::run(&mut rules);
    assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);
    let load = "import json, sys; d = json.load(open(sys.argv[1])); assert len({p['id'] for p in d['panels']}) == len(d['panels']) > 5";
    let dashboard = format!("{root}/examples/grafana/sundown.json");
    let loaded = common::run(Command::new(common::instance::python()).args(["-c", load, &dashboard]));
    assert_eq!(loaded.code, Some(0), "{}", loaded.stderr);
}

//! `sundown test`: what a team's pipeline is told of an image's command.

mod common;
#[path = "common/http.rs"]
mod http;

use std::process::Command;

use common::Output;

const SERVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/node-service");

/// Tries a command in that folder, on a free port.
fn test(options: &[&str], command: &[&str]) -> Output {
    let address = http::free_address();
    let mut test = Command::new(common::SUNDOWN);
    test.arg("test").args(options).arg("--").args(command).current_dir(SERVICE);
    test.env("PATH", common::path()).env("PORT", address.port().to_string()).env("HOST", address.ip().to_string());
    for platform in ["KUBERNETES_SERVICE_HOST", "ECS_CONTAINER_METADATA_URI_V4", "K_SERVICE", "NOMAD_ALLOC_ID"] {
        test.env_remove(platform);
    }
    common::run(&mut test)
}

#[track_caller]
fn has(output: &Output, code: i32, parts: &[&str]) {
    assert_eq!((output.code, output.stderr.as_str()), (Some(code), ""), "{}", output.stdout);
    for part in parts {
        assert!(output.stdout.contains(part), "{part:?} is not in {}", output.stdout);
    }
}

#[test]
fn the_yarn_service_is_well_and_advised() {
    if !common::has_tools(&["node", "yarn"]) {
        return;
    }
    let output = test(&["--keepalive-timeout", "8s"], &["yarn", "start"]);
    let parts = [
        "command    yarn start\n",
        "ready      after ",
        "app        yarn > sh > node (pid ",
        "is told SIGTERM",
        "closed an idle connection after 6",
        "exit code 143",
        "advice     SD101: ",
        "result     ok: it stopped by itself within its time",
    ];
    has(&output, 0, &parts);
}

#[test]
fn an_app_that_ignores_the_signal_is_a_failure_with_its_autopsy() {
    let options = ["--grace-period", "2s", "--kill-margin", "500ms", "--ready-timeout", "1s"];
    let output = test(&options, &["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]);
    let parts = [
        "ready      never listened in 1s: tried as a worker",
        "exit code 137",
        "left       sh (pid ",
        "SIGTERM ignored",
        "result     FAILED: it had to be killed",
        "the whole log:\n",
    ];
    has(&output, 1, &parts);
}

#[test]
fn the_report_for_machines_is_json() {
    if !common::has_tools(&["node"]) {
        return;
    }
    let output = test(&["--json", "--keepalive-timeout", "0"], &["node", "server.js"]);
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{}", output.stdout);
    let file = common::directory();
    let report = common::write(&file, "report", &output.stdout, 0o644);
    let check = "import json, sys; r = json.load(open(sys.argv[1])); print(r['ok'], r['stop']['exit_code'], r['status']['apps'][0]['chain'], len(r['status']['ports']), r['keepalive'], r['advice'], r['ready_after_seconds'] > 0)";
    let read = common::run(Command::new(common::instance::python()).args(["-c", check, common::text(&report)]));
    assert_eq!(read.stdout.trim_end(), "True 143 ['node'] 1 [] [] True", "{}{}", read.stderr, output.stdout);
}

#[test]
fn a_command_that_cannot_be_started_and_one_that_ends_too_soon_are_told() {
    let output = test(&[], &["no-such-program"]);
    assert_eq!(output.code, Some(1));
    assert!(output.stderr.contains("it ended before it was stopped"), "{}", output.stderr);
    assert!(output.stderr.contains("no such file in PATH"), "{}", output.stderr);
    let output = test(&[], &["sh", "-c", "echo why >&2; exit 3"]);
    assert!(output.stderr.contains("exit status: 3") && output.stderr.contains("why"), "{}", output.stderr);
    let output = test(&["--ready-check", "tcp://127.0.0.1:9", "--ready-timeout", "500ms"], &["sleep", "60"]);
    assert!(output.stderr.contains("it was not ready within 500ms (--ready-timeout)"), "{}", output.stderr);
}

#[test]
fn bad_usage_is_told_before_anything_is_started() {
    for (words, part) in [
        (&["test", "yarn", "start"][..], "stands behind `--`"),
        (&["test", "--lb", "elb", "--", "true"], "not one of service, alb"),
        (&["test", "--ready-timeout", "soon", "--", "true"], "--ready-timeout soon"),
        (&["test", "--"], "no program to start"),
    ] {
        let output = common::run(Command::new(common::SUNDOWN).args(words));
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{words:?}");
        assert!(output.stderr.contains(part), "{words:?}: {}", output.stderr);
    }
}

//! `sundown plan` as people call it: what it prints can be put where it says, and nothing is started.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Output, SUNDOWN, has_tools, read, run, skip, text, write};

/// With this environment and no other.
fn plan(words: &[&str], environment: &[(&str, &str)]) -> Output {
    run(Command::new(SUNDOWN).arg("plan").args(words).env_clear().envs(environment.iter().copied()))
}

/// The manifest in a plan's text, and what stands behind it.
fn manifest(output: &Output) -> &str {
    let (_, text) = output.stdout.split_once("\nmanifest: ").unwrap_or_else(|| panic!("{}", output.stdout));
    text.split_once("\n\n").expect("a blank line").1
}

/// Lets Python read `text` into `it`, and gives what `expression` is then.
fn python(reads: &str, text_to_read: &str, expression: &str) -> String {
    let directory = common::directory();
    let file = write(&directory, "it", text_to_read, 0o644);
    let script = format!("import sys\n{reads}\nprint({expression})");
    let output = run(Command::new("python3").args(["-c", &script, text(&file)]));
    assert_eq!(output.code, Some(0), "{}\nof:\n{text_to_read}", output.stderr);
    output.stdout.trim_end().to_owned()
}

fn json(text: &str, expression: &str) -> String {
    python("import json; it = json.load(open(sys.argv[1]))", text, expression)
}

const ALB: &[(&str, &str)] = &[
    ("SUNDOWN_LB", "alb"),
    ("SUNDOWN_GRACE_PERIOD", "60s"),
    ("SUNDOWN_HTTP", ":9180"),
    ("SUNDOWN_ON_DRAIN", "'a: \"b\"' #c"),
];

#[test]
fn the_environment_is_read_and_the_command_line_wins() {
    let output = plan(&["--for", "kubernetes", "--grace-period", "50s"], ALB);
    assert_eq!(output.code, Some(1), "{}", output.stdout);
    for line in [
        "lb                      alb                          environment",
        "grace-period            50s                          flag",
    ] {
        assert!(output.stdout.contains(line), "{line:?} is not in {}", output.stdout);
    }
    assert_eq!(output.stderr, "");
}

#[test]
fn the_exit_code_tells_whether_it_fits() {
    assert_eq!(plan(&["--for", "kubernetes"], ALB).code, Some(0));
    let short = plan(&["--for", "kubernetes", "--grace-period", "30s"], ALB);
    assert_eq!(short.code, Some(1));
    assert!(short.stdout.contains("warning: SD201: "), "{}", short.stdout);
    let wrong = plan(&["--grace-period", "soon"], ALB);
    assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(2), ""));
    assert!(wrong.stderr.contains("no duration"), "{}", wrong.stderr);
    assert_eq!(plan(&["--for", "kubernetes"], &[("SUNDOWN_DRIAN_DELAY", "6s")]).code, Some(0));
}

#[test]
fn what_a_start_would_warn_of_is_told() {
    let output = plan(&["--for", "compose"], &[("SUNDOWN_DRIAN_DELAY", "6s")]);
    assert!(output.stdout.contains("warning: SUNDOWN_DRIAN_DELAY is no option"), "{}", output.stdout);
}

#[test]
fn nothing_is_started() {
    let directory = common::directory();
    let file = directory.path().join("started");
    let touch = format!("exec:touch {}", text(&file));
    let output = plan(
        &["--ready-check", &touch, "--on-drain", &touch[5..], "--", "touch", text(&file)],
        &[("PATH", "/usr/bin:/bin")],
    );
    assert_eq!((output.code, file.exists()), (Some(0), false), "{}", output.stderr);
}

#[test]
fn the_platform_is_the_one_that_it_runs_on() {
    for (variable, told) in [
        ("KUBERNETES_SERVICE_HOST", "plan for Kubernetes (where this runs)"),
        ("ECS_CONTAINER_METADATA_URI_V4", "plan for ECS (where this runs)"),
        ("NOMAD_ALLOC_ID", "plan for Nomad (where this runs)"),
    ] {
        assert!(plan(&[], &[(variable, "x")]).stdout.starts_with(told), "{variable}");
        let named = plan(&["--for", "compose"], &[(variable, "x")]);
        assert!(named.stdout.starts_with("plan for Docker Compose (by --for)"), "{variable}");
    }
}

#[test]
fn the_plan_for_machines_is_json() {
    if !has_tools(&["python3"]) {
        return;
    }
    for platform in ["kubernetes", "ecs", "fargate", "cloudrun", "nomad", "compose"] {
        let machines = plan(&["--json", "--for", platform], ALB);
        let people = plan(&["--for", platform], ALB);
        assert_eq!(machines.code, people.code);
        let expression = "it['platform'], it['fits'], [s['origin'] for s in it['settings'] if s['name'] == 'lb'], it['sums']['grace_period_seconds']";
        let fits = if people.code == Some(0) { "True" } else { "False" };
        assert_eq!(json(&machines.stdout, expression), format!("{platform} {fits} ['environment'] 60.0"));
        let fragment = json(&machines.stdout, "it['manifest']");
        assert!(manifest(&people).starts_with(&fragment), "{fragment}");
    }
}

#[test]
fn the_task_definition_is_json() {
    if !has_tools(&["python3"]) {
        return;
    }
    let output = plan(&["--for", "ecs"], ALB);
    let (definition, note) = manifest(&output).split_once("\n}\n").expect("its end");
    assert_eq!(note.trim(), "The load balancer's own health check: port 9180, path /readyz.");
    let container = "it['containerDefinitions'][0]";
    let expression =
        format!("{container}['stopTimeout'], {container}['healthCheck']['command'], {container}['environment'][2]");
    assert_eq!(
        json(&format!("{definition}\n}}\n"), &expression),
        r#"60 ['CMD', '/sundown', 'ready'] {'name': 'SUNDOWN_ON_DRAIN', 'value': '\'a: "b"\' #c'}"#
    );
}

#[test]
fn the_manifests_of_kubernetes_compose_and_cloud_run_are_yaml() {
    if !has_tools(&["python3"]) {
        return;
    }
    if run(Command::new("python3").args(["-c", "import yaml"])).code != Some(0) {
        skip("that the manifests are YAML needs PyYAML");
        return;
    }
    let container = "it['spec']['containers'][0]";
    let pod = format!(
        "it['spec']['terminationGracePeriodSeconds'], {container}['env'][2]['value'], {container}['ports'][0]['containerPort'], {container}['readinessProbe']['httpGet']"
    );
    let service = "it['services']['app']";
    let service = format!(
        "{service}['stop_grace_period'], {service}['environment']['SUNDOWN_ON_DRAIN'], {service}['healthcheck']['test']"
    );
    for (platform, expression, told) in [
        ("kubernetes", pod.as_str(), r#"60 'a: "b"' #c 9180 {'path': '/servez', 'port': 'sundown'}"#),
        ("compose", &service, r#"60s 'a: "b"' #c ['CMD', '/sundown', 'ready']"#),
        (
            "cloudrun",
            "it['spec']['template']['spec']['containers'][0]['env'][2]",
            "{'name': 'SUNDOWN_ON_DRAIN', 'value': '\\'a: \"b\"\\' #c'}",
        ),
    ] {
        let output = plan(&["--for", platform], ALB);
        let (fragment, _) = manifest(&output).split_once("\n\n").unwrap_or((manifest(&output), ""));
        assert_eq!(python("import yaml; it = yaml.safe_load(open(sys.argv[1]))", fragment, expression), told);
    }
}

#[test]
fn the_readme_shows_what_is_printed() {
    let readme = read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")));
    let (_, shown) = readme.split_once("sundown plan --for kubernetes\n").expect("the command");
    let (shown, _) = shown.split_once("```").expect("the end of what it prints");
    let variables = [("SUNDOWN_LB", "alb"), ("SUNDOWN_GRACE_PERIOD", "60s"), ("SUNDOWN_HTTP", ":9180")];
    let output = plan(&["--for", "kubernetes"], &variables);
    let printed: Vec<&str> = output.stdout.lines().filter(|line| !line.ends_with(" default")).collect();
    let shown: Vec<&str> = shown.lines().filter(|line| *line != "  ...").collect();
    assert_eq!(shown, printed);
}

#[test]
fn the_job_of_nomad_closes_what_it_opens() {
    let output = plan(&["--for", "nomad"], ALB);
    let job = manifest(&output);
    let mut depth = 0;
    for line in job.lines() {
        if line.ends_with('}') {
            depth -= 1;
        }
        assert_eq!(
            line.len() - line.trim_start().len(),
            if line.is_empty() { 0 } else { 2 * depth },
            "{line:?} in {job}"
        );
        if line.ends_with('{') {
            depth += 1;
        }
    }
    assert_eq!(depth, 0, "{job}");
    for line in ["kill_timeout = \"60s\"", "SUNDOWN_ON_DRAIN = \"'a: \\\"b\\\"' #c\"", "path     = \"/readyz\""] {
        assert!(job.contains(line), "{line:?} is not in {job}");
    }
}

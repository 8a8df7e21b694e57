//! The examples are what they say: files that parse, with settings that sundown takes and sums that fit.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{SUNDOWN, run, skip};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Every file below this folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn with_ending(ending: &str) -> Vec<PathBuf> {
    let all = files(&Path::new(ROOT).join("examples"));
    all.into_iter().filter(|path| path.extension().is_some_and(|end| end == ending)).collect()
}

/// The settings of each container in a text, in order: a name that stands there already begins the next one.
fn settings(text: &str) -> Vec<Vec<(String, String)>> {
    let mut all: Vec<Vec<(String, String)>> = vec![Vec::new()];
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    for line in lines {
        let Some(at) = line.find("SUNDOWN_") else { continue };
        let name: String = line[at..].chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
        let rest = line[at + name.len()..].split(" #").next().unwrap_or_default();
        let rest =
            rest.trim_start_matches(|c| "\", =:".contains(c)).trim_start_matches("value").trim_start_matches("\"");
        // YAML's port numbers begin with the colon that was taken for a separator.
        let value =
            rest.trim_start_matches(|c: char| "= ".contains(c)).trim_start_matches(": ").trim_start_matches('"');
        let value = value.trim_end_matches(|c| "\"}, ".contains(c));
        let value =
            if name == "SUNDOWN_HTTP" { format!(":{}", value.trim_start_matches(':')) } else { value.to_owned() };
        if all.last().expect("one").iter().any(|(known, _)| *known == name) {
            all.push(Vec::new());
        }
        all.last_mut().expect("one").push((name, value));
    }
    all.retain(|settings| !settings.is_empty());
    all
}

#[test]
fn the_settings_of_every_example_are_taken_and_fit() {
    let mut seen = 0;
    for path in files(&Path::new(ROOT).join("examples")) {
        let platform = match path.parent().and_then(Path::file_name).and_then(|name| name.to_str()) {
            Some(platform @ ("kubernetes" | "compose" | "nomad")) => platform,
            Some("ecs") => "fargate",
            Some("cloud-run") => "cloudrun",
            Some("podman") => "compose",
            _ => continue,
        };
        let text = fs::read_to_string(&path).expect("text");
        // A sidecar has settings of its own, which a plan is not about; tests/sidecar.rs holds them.
        if text.contains("sidecar\"") {
            continue;
        }
        for settings in settings(&text) {
            let mut plan = Command::new(SUNDOWN);
            plan.args(["plan", "--for", platform]).env_clear().envs(settings.iter().cloned());
            let output = run(&mut plan);
            assert_eq!(
                (output.code, &*output.stderr),
                (Some(0), ""),
                "{}: {settings:?}\n{}",
                path.display(),
                output.stdout
            );
            assert!(!output.stdout.contains("is no option"), "{}: {settings:?}\n{}", path.display(), output.stdout);
            // The number that the orchestrator has is the number that sundown counts on.
            let grace = settings
                .iter()
                .find(|(name, _)| name == "SUNDOWN_GRACE_PERIOD")
                .map(|(_, value)| value.trim_end_matches('s'));
            let grace = grace.unwrap_or_else(|| panic!("{}: no grace period in {settings:?}", path.display()));
            let limits = [
                "terminationGracePeriodSeconds: ",
                "stop_grace_period: ",
                "\"stopTimeout\": ",
                "kill_timeout = \"",
                "--stop-timeout=",
            ];
            let is_stated = limits.iter().any(|limit| text.contains(&format!("{limit}{grace}")));
            assert!(is_stated || platform == "cloudrun", "{}: no limit of {grace}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen} containers in all");
}

#[test]
fn the_examples_parse() {
    let python = |script: &str, path: &Path| run(Command::new("python3").args(["-c", script]).arg(path));
    for path in with_ending("json") {
        let read = python("import json, sys; json.load(open(sys.argv[1]))", &path);
        assert_eq!(read.code, Some(0), "{}: {}", path.display(), read.stderr);
    }
    if run(Command::new("python3").args(["-c", "import yaml"])).code != Some(0) {
        return skip("python3-yaml is not installed: the YAML of the examples is not parsed");
    }
    for path in with_ending("yaml") {
        let read = python("import sys, yaml; assert all(yaml.safe_load_all(open(sys.argv[1])))", &path);
        assert_eq!(read.code, Some(0), "{}: {}", path.display(), read.stderr);
    }
}

//! What `sundown plan` shows, as people have it set up.

use std::ffi::OsString;

use super::*;
use crate::cli::{Call, Planned, parse};

fn try_outline(words: &[&str], environment: &[(String, String)]) -> Result<Outline, String> {
    let args: Vec<OsString> = [&["sundown", "plan"], words].concat().iter().map(OsString::from).collect();
    let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
    match parse(&args, environment, false)? {
        Call::Plan(Planned { settings, target, .. }) => {
            Outline::new(settings, target.as_deref(), None).map_err(|error| error.to_string())
        }
        _ => panic!("no plan"),
    }
}

fn outline(words: &[&str]) -> Outline {
    try_outline(words, &[]).unwrap_or_else(|text| panic!("{text}"))
}

/// An option's value and where it came from.
fn shown(words: &[&str], name: &str) -> String {
    let row = outline(words).rows().find(|row| row.option.name == name).expect("an option");
    format!("{}, {}", row.value, row.origin)
}

#[test]
fn the_text_behind_the_settings_is_what_people_expect() {
    for (words, fits, golden) in [
        (&[][..], true, include_str!("golden/nothing.txt")),
        (&["--lb", "alb", "--grace-period", "60s", "--http", ":9180"], true, include_str!("golden/alb.txt")),
        (&["--lb", "alb", "--grace-period", "30s", "--http", ":9180"], false, include_str!("golden/too-short.txt")),
        (
            &["--for", "ecs", "--lb", "alb", "--grace-period", "60s", "--http", ":9180"],
            true,
            include_str!("golden/ecs.txt"),
        ),
        (&["--for", "fargate", "--lb", "nlb"], false, include_str!("golden/fargate.txt")),
        (
            &["--for", "nomad", "--drain-delay", "20s", "--stop-signal", "TERM 20s", "--http", ":9180"],
            false,
            include_str!("golden/nomad.txt"),
        ),
        (
            &["--for", "compose", "--drain-timeout", "9s", "--grace-period", "10s"],
            false,
            include_str!("golden/compose.txt"),
        ),
        (&["--drain-timeout", "60s"], true, include_str!("golden/assumed.txt")),
        (&["--for", "cloudrun", "--grace-period", "30s"], false, include_str!("golden/cloudrun.txt")),
    ] {
        let outline = outline(words);
        let text = outline.text();
        let (_, text) = text.split_once("\nsums\n").expect("the sums");
        assert_eq!(text, golden, "{words:?} gives:\n{text}");
        assert_eq!(outline.fits(), fits, "{words:?}");
    }
}

#[test]
fn each_option_has_a_value_to_show() {
    for words in [&[][..], &["--http", ":9180", "--lb", "nlb", "--for", "ecs", "--", "nginx"]] {
        let outline = outline(words);
        for option in OPTIONS.iter().filter(|option| !option.is_hidden()) {
            let value = outline.value(option.name);
            assert!(value.is_some_and(|value| !value.is_empty()), "`sundown plan` has no value for --{}", option.name);
        }
    }
}

#[test]
fn each_value_tells_where_it_came_from() {
    let alb = ["--lb", "alb", "--grace-period", "60s"];
    for (words, name, told) in [
        (&alb[..], "drain-delay", "30s, by --lb"),
        (&alb, "drain-timeout", "34.8s, what the grace period can spare"),
        (&alb, "grace-period", "1m, flag"),
        (&alb, "lb-idle-timeout", "1m, by --lb"),
        (&["--lb", "alb", "--lb-idle-timeout", "0"], "lb-idle-timeout", "none, flag"),
        (&alb, "kill-margin", "2s, default"),
        (&["--lb", "alb", "--grace-period", "30s"], "drain-delay", "16.8s, by --lb, cut to fit the grace period"),
        (&["--lb", "alb", "--drain-delay", "auto"], "lb", "alb, flag"),
        (&["--lb", "alb", "--drain-delay", "auto", "--grace-period", "60"], "drain-delay", "30s, by --lb"),
        (&["--drain-delay", "28s", "--grace-period", "30s"], "drain-delay", "27s, flag, cut to fit the grace period"),
        (&["--drain-delay", "28s", "--grace-period", "30s"], "drain-timeout", "27s, no less than --drain-delay"),
        (
            &["--drain-timeout", "40s", "--grace-period", "30s"],
            "drain-timeout",
            "27s, flag, cut to fit the grace period",
        ),
        (&["--grace-period", "2s"], "kill-margin", "500ms, default, cut to fit the grace period"),
        (&[], "drain-delay", "5s, platform"),
        (&[], "drain-timeout", "10s, default"),
        (&[], "grace-period", "30s assumed, platform"),
        (&["--for", "nomad"], "drain-delay", "0s, platform"),
        (&["--http", ":1"], "ready-check", "listening, default"),
        (&["--ready-check", "tcp://:3000"], "ready-check", "tcp://:3000, flag"),
        (&["--lb", "nlb", "--drain-until", "released"], "drain-until", "quiet, by --lb"),
        (&["--", "nginx", "-g", "daemon off;"], "stop-signal", "SIGQUIT, by the program's name"),
        (&["--stop-signal", "TERM 5s", "--", "nginx"], "stop-signal", "TERM 5s, flag"),
        (&["--wrapper", "a", "--wrapper", "b"], "wrapper", "a b, flag"),
        (&["--remap-exit", "143=0"], "remap-exit", "143=0, flag"),
        (&["--expand-env"], "expand-env", "on, flag"),
    ] {
        assert_eq!(shown(words, name), told, "{name} of {words:?}");
    }
    let environment = [("SUNDOWN_LINGER".to_owned(), "7".to_owned())];
    let outline = try_outline(&[], &environment).expect("a plan");
    let linger = outline.rows().find(|row| row.option.name == "linger").expect("an option");
    assert_eq!((linger.value.as_str(), linger.origin.by), ("7s", By::Environment));
}

/// Whoever takes the manifest over is not sent to another number by the next plan.
#[test]
fn what_the_manifest_states_fits() {
    let platforms = ["kubernetes", "ecs", "fargate", "cloudrun", "nomad", "compose"];
    let set_ups = [
        &[][..],
        &["--grace-period", "1h"],
        &["--grace-period", "1500ms", "--drain-delay", "2s"],
        &["--lb", "service", "--grace-period", "10s"],
        &["--lb", "alb"],
        &["--lb", "gclb", "--drain-timeout", "70s"],
        &["--lb", "nlb", "--kill-margin", "20s"],
        &["--lb", "nlb", "--grace-period", "1h"],
        &["--drain-timeout", "60s"],
        &["--drain-delay", "28s", "--grace-period", "30s"],
        &["--drain-timeout", "500ms", "--grace-period", "1s", "--kill-margin", "0"],
        &["--drain-delay", "10s", "--stop-signal", "TSTP 10s TERM 15s", "--grace-period", "20s"],
        &["--drain-timeout", "25s", "--stop-signal", "TERM 100ms", "--grace-period", "20s"],
    ];
    for platform in platforms {
        for set_up in set_ups {
            let first = outline(&[&["--for", platform], set_up].concat()).manifest();
            let again = try_outline(&["--for", platform], &first.environment).expect("a plan");
            let fits = first.notes().iter().all(|note| !note.starts_with("This does not fit yet"));
            assert_eq!(
                again.fits(),
                fits,
                "{set_up:?} on {platform}: {:?} leads to {:?}",
                first.environment,
                again.plan.advice
            );
            assert_eq!(again.manifest().environment, first.environment, "{set_up:?} on {platform}");
        }
    }
}

#[test]
fn without_an_endpoint_that_others_reach_the_probes_are_commands() {
    for http in ["off", "127.0.0.1:9180"] {
        let manifest = outline(&["--http", http]).manifest().to_string();
        assert!(manifest.contains("exec: {command: [\"/sundown\", \"serve\"]}"), "{manifest}");
        assert!(!manifest.contains("containerPort"), "{manifest}");
    }
    for platform in ["kubernetes", "ecs", "nomad", "compose"] {
        let manifest = outline(&["--for", platform, "--control", "off"]).manifest().to_string();
        assert!(!manifest.contains("/sundown"), "the socket that they talk to is off: {manifest}");
    }
}

#[test]
fn what_a_manifest_would_replace_in_a_value_is_kept_from_it() {
    let command = r#"say "$(A) ${B} $C %{D}""#;
    for (platform, told) in [
        ("kubernetes", r#""say \"$$(A) ${B} $C %{D}\"""#),
        ("ecs", r#""say \"$(A) ${B} $C %{D}\"""#),
        ("nomad", r#""say \"$(A) $${B} $C %%{D}\"""#),
        ("compose", r#""say \"$$(A) $${B} $$C %{D}\"""#),
    ] {
        let manifest = outline(&["--for", platform, "--on-drain", command]).manifest().to_string();
        assert!(manifest.contains(told), "{platform}: {manifest}");
    }
}

#[test]
fn bad_values_are_refused() {
    for (words, told) in [
        (&["--for", "swarm"][..], "--for swarm: not one of kubernetes, ecs"),
        (&["--lb", "elb"], "--lb elb: not one of"),
    ] {
        let text = try_outline(words, &[]).err().expect("refused");
        assert!(text.starts_with(told), "{text}");
    }
    assert!(try_outline(&["--no-such"], &[]).err().expect("refused").contains("Usage: sundown plan "));
}

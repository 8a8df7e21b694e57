//! The settings and the sums, as a user meets them: options in, plan and warnings out.

use std::time::Duration;

use super::*;
use crate::cli::{Call, parse};
use crate::signals::Signal;

fn plan_on(platform: Option<Platform>, options: &[&str]) -> Result<Plan, String> {
    let words = [&["sundown"], options, &["--", "app"]].concat();
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    match parse(&args, std::iter::empty(), false) {
        Ok(Call::Run(settings)) => Plan::new(settings, &Surroundings { platform, stderr_is_terminal: false })
            .map_err(|error| error.to_string()),
        Ok(_) => panic!("not a run"),
        Err(text) => Err(text),
    }
}

fn plan(options: &[&str]) -> Plan {
    plan_on(None, options).unwrap_or_else(|text| panic!("{text}"))
}

/// The advice at start, as it is told.
fn advice(plan: &Plan) -> Vec<String> {
    plan.advice.iter().map(ToString::to_string).collect()
}

fn refused(options: &[&str]) -> String {
    plan_on(None, options).err().unwrap_or_else(|| panic!("{options:?} is taken"))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn durations_are_read_as_people_write_them() {
    for (text, millis) in
        [("15s", 15_000), ("500ms", 500), ("1m30s", 90_000), ("2h", 7_200_000), ("7", 7_000), ("1.5s", 1_500), ("0", 0)]
    {
        assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
    }
    for wrong in ["", "s", "5x", "-1s", "1s5", "5 s", "1..2s", "99999999999999h", "nan", "1e9"] {
        assert!(duration(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn durations_are_written_as_people_read_them() {
    for (millis, text) in [
        (0, "0s"),
        (40, "40ms"),
        (1000, "1s"),
        (2500, "2.5s"),
        (60_000, "1m"),
        (90_000, "1m30s"),
        (61_500, "1m1.5s"),
        (7_980, "8s"),
        (59_960, "1m"),
    ] {
        assert_eq!(human(Duration::from_millis(millis)), text);
    }
}

#[test]
fn a_ladder_is_signals_with_time_between_them() {
    let steps = |text: &str| plan(&["--stop-signal", text]).ladder.expect("said").steps().to_vec();
    let step = |signal, wait: Option<u64>| Step { signal, wait: wait.map(seconds) };
    assert_eq!(steps("QUIT"), [step(Signal::QUIT, None)]);
    assert_eq!(steps("TSTP 10s TERM 15s"), [step(Signal::TSTP, Some(10)), step(Signal::TERM, Some(15))]);
    assert_eq!(steps("SIGINT 5 TERM"), [step(Signal::INT, Some(5)), step(Signal::TERM, None)]);
    for (wrong, part) in [
        ("TERM 50ms KILL", "under 100ms"),
        ("TERM KILL", "need a time between"),
        ("10s", "no signal"),
        ("TERM 10x", "no duration"),
    ] {
        let text = refused(&["--stop-signal", wrong]);
        assert!(text.contains(part), "{wrong}: {text}");
    }
}

#[test]
fn the_drain_follows_the_balancer_and_the_platform() {
    let drain = |platform, options: &[&str]| {
        let drain = plan_on(platform, options).expect("a plan").drain;
        (drain.least, drain.automatic)
    };
    assert_eq!(drain(None, &[]), (seconds(0), true));
    assert_eq!(drain(Some(Platform::Kubernetes), &[]), (seconds(5), true));
    assert_eq!(drain(Some(Platform::Docker), &[]), (seconds(0), true));
    assert_eq!(drain(None, &["--lb", "alb"]), (seconds(30), true));
    assert_eq!(drain(None, &["--lb", "alb", "--drain-delay", "6s"]), (seconds(6), false));
    assert_eq!(drain(None, &["--drain-delay", "auto", "--lb", "nlb"]), (seconds(130), true));
}

#[test]
fn the_balancers_idle_timeout_is_known_or_stated() {
    let idle = |options: &[&str]| plan(options).lb_idle_timeout;
    assert_eq!(idle(&[]), None);
    for (lb, known) in [("alb", Some(60)), ("gclb", Some(600)), ("service", None), ("nlb", None), ("none", None)] {
        assert_eq!(idle(&["--lb", lb]), known.map(seconds), "{lb}");
    }
    assert_eq!(idle(&["--lb", "alb", "--lb-idle-timeout", "4m"]), Some(seconds(240)));
    assert_eq!(idle(&["--lb-idle-timeout", "90s"]), Some(seconds(90)));
    assert_eq!(idle(&["--lb", "alb", "--lb-idle-timeout", "0"]), None);
}

#[test]
fn traffic_may_stretch_a_drain_as_far_as_the_budget_can_spare() {
    let greatest = |platform, options: &[&str]| plan_on(platform, options).expect("a plan").drain.greatest;
    // 58 s less 40 %.
    let stated = ["--drain-delay", "6s", "--grace-period", "60s"];
    assert_eq!(greatest(None, &stated), Duration::from_millis(34_800));
    assert_eq!(
        greatest(None, &["--drain-delay", "6s", "--grace-period", "60s", "--stop-signal", "TERM 8s"]),
        seconds(50)
    );
    assert_eq!(greatest(None, &["--drain-delay", "6s", "--drain-timeout", "9s"]), seconds(9));
    assert_eq!(greatest(None, &["--drain-delay", "6s"]), seconds(10), "nothing is stated");
    assert_eq!(greatest(None, &["--drain-delay", "25s"]), seconds(25));
    assert_eq!(greatest(Some(Platform::Kubernetes), &[]), seconds(10));
    assert_eq!(greatest(Some(Platform::Kubernetes), &["--lb", "service"]), Duration::from_millis(16_800));
    assert_eq!(greatest(None, &["--drain-delay", "0"]), seconds(0), "none was wanted");
    assert_eq!(greatest(None, &["--drain-delay", "0", "--drain-timeout", "9s"]), seconds(9));
    assert_eq!(greatest(None, &["--drain-timeout", "9s"]), seconds(9));
}

#[test]
fn what_is_to_hold_a_drain_makes_one() {
    for options in [&["--drain-while", "tcp://:3000"][..], &["--on-drain", "leave"], &["--drain-until", "released"]] {
        let drain = plan(options).drain;
        assert_eq!((drain.least, drain.greatest), (seconds(0), seconds(10)), "{options:?}");
    }
    assert!(!plan(&["--on-drain", "leave"]).drain.automatic, "an app without ports is held too");
    let drain = plan(&["--lb", "alb", "--drain-until", "released", "--http", ":1", "--grace-period", "60s"]).drain;
    assert_eq!((drain.least, drain.greatest, drain.automatic), (seconds(30), Duration::from_millis(34_800), true));
}

#[test]
fn a_release_that_nobody_can_show_is_told() {
    let told = |options: &[&str]| plan(options).warnings.iter().any(|text| text.contains("--drain-until released"));
    assert!(told(&["--drain-until", "released", "--drain-delay", "6s"]));
    assert!(!told(&["--drain-until", "released", "--drain-delay", "6s", "--http", ":9180"]));
    let nlb = ["--drain-until", "released", "--lb", "nlb", "--http", ":9180"];
    assert!(told(&nlb) && plan(&nlb).drain.until == DrainUntil::Quiet);
}

#[test]
fn a_drain_timeout_leaves_the_app_something() {
    let plan = plan(&["--drain-delay", "6s", "--drain-timeout", "40s", "--grace-period", "30s"]);
    assert_eq!(plan.drain.greatest, seconds(27));
    assert!(advice(&plan)[0].contains("--drain-timeout 40s"), "{:?}", plan.advice);
}

#[test]
fn a_budget_that_does_not_fit_is_told_with_its_numbers_and_the_fix() {
    // 58 s less 40 % is 34.8 s: the balancer's 30 s fit.
    let fits = plan(&["--lb", "alb", "--grace-period", "60s"]);
    assert_eq!((fits.drain.least, fits.advice.len()), (seconds(30), 0), "{:?}", fits.advice);
    let cut = plan(&["--lb", "alb", "--grace-period", "30s"]);
    assert_eq!(cut.drain.least, Duration::from_millis(16_800));
    for part in [
        "drain 30s",
        "the app's stop 11.2s",
        "margin 2s",
        "= 43.2s",
        "--grace-period 30s",
        "cut to 16.8s",
        "SUNDOWN_GRACE_PERIOD=52s",
    ] {
        assert!(advice(&cut)[0].contains(part), "{part:?} is not in {:?}", cut.advice);
    }
}

#[test]
fn the_limit_that_is_named_holds_the_whole_margin() {
    // The margin is 500ms within a limit of 2 s; within the one that is named it is 2 s again.
    let short = plan(&["--drain-delay", "3s", "--grace-period", "2s"]);
    assert!(advice(&short)[0].contains("SUNDOWN_GRACE_PERIOD=7s"), "{:?}", short.advice);
    assert!(plan(&["--drain-delay", "3s", "--grace-period", "7s"]).advice.is_empty());
}

#[test]
fn a_drain_that_was_asked_for_is_only_cut_where_nothing_would_be_left() {
    let kept = plan(&["--drain-delay", "25s", "--grace-period", "30s"]);
    assert_eq!(kept.drain.least, seconds(25));
    assert!(advice(&kept)[0].contains("the app keeps 3s"), "{:?}", kept.advice);
    let cut = plan(&["--drain-delay", "28s", "--grace-period", "30s"]);
    assert_eq!(cut.drain.least, seconds(27));
    let assumed = plan_on(Some(Platform::Kubernetes), &["--drain-delay", "40s"]).expect("a plan");
    assert_eq!(assumed.drain.least, seconds(40), "the user may have set 300 s where we cannot see it");
    assert!(advice(&assumed)[0].contains("terminationGracePeriodSeconds"), "{:?}", assumed.advice);
}

#[test]
fn a_limit_that_the_platform_cannot_keep_is_told() {
    let told = |platform, grace| {
        let plan = plan_on(Some(platform), &["--grace-period", grace]).expect("a plan");
        advice(&plan).iter().any(|advice| advice.starts_with("SD204: "))
    };
    assert!(told(Platform::Fargate, "121s") && !told(Platform::Fargate, "120s"));
    assert!(told(Platform::CloudRun, "30s") && !told(Platform::CloudRun, "10s"));
    assert!(!told(Platform::Kubernetes, "300s"));
}

#[test]
fn a_platform_is_known_by_what_its_runtime_sets() {
    let on = |variables: &[(&str, &str)], file: &str| {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Platform::detect(value, |path| path == file)
    };
    let ecs = ("ECS_CONTAINER_METADATA_URI_V4", "http://169.254.170.2/v4/x");
    assert_eq!(on(&[ecs], ""), Some(Platform::Ecs));
    assert_eq!(on(&[ecs, ("AWS_EXECUTION_ENV", "AWS_ECS_FARGATE")], ""), Some(Platform::Fargate));
    assert_eq!(on(&[ecs, ("AWS_EXECUTION_ENV", "AWS_ECS_EC2")], ""), Some(Platform::Ecs));
    assert_eq!(on(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1")], "/.dockerenv"), Some(Platform::Kubernetes));
    assert_eq!(on(&[], "/.dockerenv"), Some(Platform::Docker));
    assert_eq!(on(&[], ""), None);
}

#[test]
fn the_ladder_is_the_reserve_where_it_has_times() {
    let plan = plan(&["--lb", "alb", "--grace-period", "40s", "--stop-signal", "TERM 5s"]);
    assert_eq!((plan.drain.least, plan.advice.len()), (seconds(30), 0));
}

#[test]
fn only_a_stated_limit_gives_a_deadline() {
    assert_eq!(plan(&["--grace-period", "30s"]).deadline(), Some(seconds(28)));
    assert_eq!(plan_on(Some(Platform::Kubernetes), &[]).expect("a plan").deadline(), None);
    assert_eq!(
        plan(&["--grace-period", "2s"]).deadline(),
        Some(Duration::from_millis(1500)),
        "the margin is a quarter"
    );
    assert!(advice(&plan(&["--lb", "gclb"]))[0].contains("needs a grace period of 1m42s"));
}

#[test]
fn bad_values_are_refused_with_the_way_out() {
    for (options, part) in [
        (&["--grace-period", "soon"][..], "no duration"),
        (&["--lb", "elb"], "not one of service, alb"),
        (&["--drain-delay", "10s", "--drain-timeout", "5s"], "below --drain-delay 10s"),
        (&["--drain-until", "idle"], "delay, quiet, no-new, released"),
        (&["--lb-unhealthy-threshold", "0"], "from 1"),
        (&["--drain-while", "listening"], "holds all through the drain"),
        (&["--drain-while", "busy"], "not a check"),
        (&["--on-drain", "sh -c 'x"], "has no end"),
        (&["--stop-on", "TERM,KILL"], "cannot be caught"),
        (&["--stop-on", "FOO"], "no signal"),
        (&["--remap-exit", "143"], "143=0"),
        (&["--remap-exit", "300=0"], "0 to 255"),
        (&["--ports", "3000,x"], "`x` is no port"),
        (&["--signal-to", "all"], "app, child, group, tree"),
        (&["--control", "maybe"], "not on or off"),
        (&["--log-level", "loud"], "error, warn"),
        (&["--check-period", "0"], "longer than 0"),
        (&["--check-failures", "0"], "from 1"),
        (&["--ready-check", "https://x"], "TLS"),
        (&["--http", "nonsense:x"], "--http"),
    ] {
        let text = refused(options);
        assert!(text.contains(part) && text.contains(options[options.len() - 2]), "{options:?}: {text}");
    }
}

#[test]
fn what_is_to_be_outlived_decides_alone_and_has_what_the_grace_period_can_spare() {
    let outlive = |platform, options: &[&str]| {
        let options = [&["--outlive", "tcp://:8080"], options].concat();
        plan_on(platform, &options).unwrap_or_else(|text| panic!("{text}")).drain
    };
    let kubernetes = Some(Platform::Kubernetes);
    for (platform, options, greatest) in [
        (None, &["--grace-period", "30s"][..], Duration::from_millis(16_800)),
        (None, &["--grace-period", "30s", "--stop-signal", "TERM 8s"], seconds(20)),
        (kubernetes, &[], Duration::from_millis(16_800)),
        (kubernetes, &["--drain-timeout", "3s"], seconds(3)),
        (None, &[], seconds(10)),
    ] {
        let drain = outlive(platform, options);
        assert_eq!((drain.least, drain.greatest), (Duration::ZERO, greatest), "{options:?}");
        assert!(!drain.automatic && drain.held && drain.until == DrainUntil::Delay, "{drain:?}");
    }
    let asked = outlive(kubernetes, &["--drain-delay", "4s", "--drain-until", "quiet"]);
    assert_eq!((asked.least, asked.until), (seconds(4), DrainUntil::Quiet));
}

#[test]
fn what_the_pages_say_of_neighbours_is_taken() {
    let page = include_str!("../../docs/jobs-and-order.md");
    let said = page.split("{name: SUNDOWN_").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once(", value: \"")?;
        Some((format!("--{}", name.replace('_', "-").to_lowercase()), rest.split('"').next()?))
    });
    let said: Vec<_> = said.collect();
    assert!(said.len() > 7, "{said:?}");
    for (option, value) in &said {
        plan(&[option, value]);
    }
    let errands: Vec<_> = page.split('`').filter(|text| text.starts_with("POST ")).collect();
    assert!(errands.len() > 2, "{errands:?}");
    for errand in errands {
        assert_eq!(plan(&["--on-exit", errand]).neighbours.on_exit.len(), 1);
    }
}

#[test]
fn the_wait_is_bounded_unless_it_is_said_to_be_for_ever() {
    let limit = |options: &[&str]| plan(options).neighbours.wait_timeout;
    assert_eq!(limit(&[]), Some(seconds(60)));
    assert_eq!(limit(&["--wait-timeout", "2m"]), Some(seconds(120)));
    assert_eq!(limit(&["--wait-timeout", "0"]), None);
    assert!(refused(&["--on-exit-timeout", "0"]).contains("longer than 0"));
    assert!(refused(&["--on-exit", "http://127.0.0.1/quit"]).contains("not one of"));
    assert!(refused(&["--notify", "both"]).contains("child, self, off"));
}

//! Under the names of tini, dumb-init and catatonit with variables of ours: what asks for the drain, and what changes nothing.

mod common;

use std::time::{Duration, Instant};

use common::inits::{ALL, CATATONIT, DUMB_INIT, Init, TINI};
use common::instance::{Instance, Launch, until};

fn launch(file: &str, options: &[&str]) -> Launch {
    let words: Vec<&str> = std::iter::once(file).chain(options.iter().copied()).collect();
    Launch::other(&words)
}

fn ours(init: &Init, options: &[&str]) -> Launch {
    let options: Vec<&str> = init.reaps.iter().chain(options).copied().collect();
    launch(&init.ours(), &options)
}

fn heard(instance: &Instance) -> Vec<String> {
    let heard = |line: &String| line.split_once(" heard ").map(|(_, signal)| signal.to_owned());
    instance.record().iter().filter_map(heard).collect()
}

/// Ends what is left of a test.
fn kill(pid: String) {
    // SAFETY: takes two numbers.
    unsafe { libc::kill(pid.parse().expect("a pid"), libc::SIGKILL) };
}

#[test]
fn a_variable_of_ours_brings_the_drain() {
    for init in ALL {
        let mut instance = ours(&init, &[])
            .env("SUNDOWN_DRAIN_DELAY", "600ms")
            .env("SUNDOWN_LOG_FORMAT", "text")
            .start(&["sh", "-c", "{app} catch=TERM exit=5 cleanup=0.2; exit $?"]);
        instance.wait_record("app up");
        let began = Instant::now();
        instance.signal(libc::SIGTERM);
        instance.wait_record("app heard SIGTERM");
        assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
        assert_eq!(instance.wait().0, 5, "{}", instance.log());
        assert_eq!(instance.count("app clean"), 1);
        assert!(instance.log().contains("the drain is over after 6"), "{}", instance.log());
    }
}

#[test]
fn the_other_inits_options_hold_with_variables_of_ours() {
    let with = |init: &Init, options: &[&str]| ours(init, options).env("SUNDOWN_GRACE_PERIOD", "20s");
    let mut instance = with(&TINI, &["-e", "5"]).start(&["sh", "-c", "exit 5"]);
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    let mut instance = with(&TINI, &["-e", "5"]).env("SUNDOWN_REMAP_EXIT", "6=7").start(&["sh", "-c", "exit 6"]);
    assert_eq!(instance.wait().0, 7, "{}", instance.log());

    let two = "trap 'echo heard > {dir}/shell' TERM; {app} name=two catch=TERM & wait; wait";
    for (init, options, group) in [(TINI, &["-g"][..], true), (CATATONIT, &["-g"], true), (DUMB_INIT, &["-c"], false)] {
        let mut instance = with(&init, options).start(&["sh", "-c", two]);
        instance.wait_record("two up");
        instance.signal(libc::SIGTERM);
        until("the shell hears", || instance.file("shell").exists());
        if group {
            instance.wait_record("two heard SIGTERM");
        } else {
            assert!(instance.is_running(), "the leftover is waited for");
        }
    }

    let mut instance = with(&DUMB_INIT, &["-r", "15:3", "-r", "1:10", "-r", "12:0"]).start(&[
        "{app}",
        "every=HUP,USR1,USR2,TERM,WINCH",
        "catch=QUIT",
    ]);
    instance.wait_record("app up");
    for number in [libc::SIGUSR2, libc::SIGHUP] {
        instance.signal(number);
    }
    instance.wait_record("app heard SIGUSR1");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    assert_eq!(heard(&instance), ["SIGUSR1", "SIGQUIT"]);
}

#[test]
fn a_variable_that_asks_for_nothing_of_ours_changes_nothing() {
    for (name, value, said) in [
        ("SUNDOWN_LOG_LEVEL", "trace", ""),
        ("SUNDOWN_LOG_FORMAT", "text", ""),
        ("SUNDOWN_TREE", "1-2", ""),
        ("SUNDOWN_PORT", "tcp://10.0.0.1:80", ""),
        ("SUNDOWN_GRACE_PERIOD", "", ""),
        ("SUNDOWN_DRAIN_DELY", "5s", "sundown: warning: SUNDOWN_DRAIN_DELY is no option of this version"),
    ] {
        let mut instance = ours(&TINI, &[]).env(name, value).start(&["sh", "-c", "{app} catch=TERM & wait"]);
        let app = instance.wait_record("app up");
        instance.signal(libc::SIGTERM);
        let (code, took) = instance.wait();
        kill(app);
        assert_eq!(code, 143, "the shell's, and at once");
        assert!(took < Duration::from_secs(3), "{took:?}");
        match said {
            "" => assert_eq!(instance.log(), "", "{name}"),
            said => assert!(instance.log().starts_with(said), "{}", instance.log()),
        }
    }
}

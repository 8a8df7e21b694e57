//! Signals that are the app's own, and the reaping of everybody's children.

mod common;

use std::time::Duration;

use common::instance::{Instance, Launch, children, until};

fn no_root() -> bool {
    !common::is_root("a PID namespace")
}

/// An app that fetches every signal there is, and stops on TERM.
fn raw(launch: Launch) -> Instance {
    let every: Vec<String> =
        (1..=64).filter(|number| *number != libc::SIGTERM).map(|number| number.to_string()).collect();
    let instance = launch.start(&["{app}", "catch=TERM", &format!("every={}", every.join(","))]);
    instance.wait_record("app up");
    instance
}

/// How the app writes a signal's name down.
fn name(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    NAMES.get(number as usize - 1).map_or_else(|| format!("SIG{number}"), |name| format!("SIG{name}"))
}

/// What the app has heard, in order.
fn heard(instance: &Instance) -> Vec<String> {
    let heard = |line: &String| line.split_once(" heard ").map(|(_, signal)| signal.to_owned());
    instance.record().iter().filter_map(heard).collect()
}

/// Queues a signal (sigqueue(3)), so that none is merged with another.
fn queue(pid: i32, number: i32) {
    // SAFETY: takes numbers; the value is not looked at.
    let done = unsafe { libc::sigqueue(pid, number, libc::sigval { sival_ptr: std::ptr::null_mut() }) };
    assert_eq!(done, 0, "signal {number}: {}", std::io::Error::last_os_error());
}

#[test]
fn every_signal_reaches_an_app_that_fetches_it() {
    if no_root() {
        return;
    }
    let instance = raw(Launch::sundown(&[]).pid1());
    // KILL and STOP are nobody's to fetch, CHLD is ours, and three are stop requests.
    let ours = [libc::SIGKILL, libc::SIGSTOP, libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, 37];
    let all: Vec<i32> = (1..=64).filter(|number| !ours.contains(number)).collect();
    for number in &all {
        instance.signal(*number);
        until(&format!("signal {number} is heard"), || heard(&instance).last() == Some(&name(*number)));
    }
    assert_eq!(heard(&instance), all.iter().map(|number| name(*number)).collect::<Vec<_>>());
}

#[test]
fn real_time_signals_keep_their_order_and_number() {
    if no_root() {
        return;
    }
    let mut instance = raw(Launch::sundown(&[]).pid1());
    let mut sent = Vec::new();
    for number in [34, 35, 36, 40, 50, 64] {
        for _ in 0..20 {
            queue(instance.pid, number);
            sent.push(name(number));
        }
    }
    until("all are heard", || heard(&instance).len() >= sent.len());
    assert_eq!(instance.log(), "");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 0);
    sent.push(name(libc::SIGTERM));
    assert_eq!(heard(&instance), sent);
}

#[test]
fn a_program_survives_what_it_never_handled_as_it_would_as_pid_1() {
    if no_root() {
        return;
    }
    for launch in [Launch::sundown(&[]).pid1(), Launch::sundown(&[])] {
        let mut instance = launch.start(&["sh", "-c", "{app} catch=TERM; exit $?"]);
        instance.wait_record("app up");
        for number in [libc::SIGHUP, libc::SIGUSR2, libc::SIGUSR1, libc::SIGALRM, libc::SIGTSTP, 40] {
            instance.signal(number);
        }
        // Real-time signals come after all others.
        instance.wait_log("SIGRTMIN+6 is not passed on");
        instance.signal(libc::SIGHUP);
        instance.signal(libc::SIGTERM);
        let (code, _) = instance.wait();
        assert_eq!(code, 0, "{}", instance.log());
        assert_eq!(heard(&instance), ["SIGTERM"], "{}", instance.log());
        for name in ["SIGHUP", "SIGUSR2", "SIGUSR1", "SIGALRM"] {
            let said = instance.log().matches(&format!("{name} is not passed on")).count();
            assert_eq!(said, 1, "{name}: {}", instance.log());
        }
        assert!(instance.log().contains("SIGTSTP is not passed on: no process catches it, and it would stop"));
    }
}

#[test]
fn a_resize_reaches_an_app_that_catches_it() {
    let mut instance = Launch::sundown(&[]).start(&["{app}", "catch=TERM", "every=WINCH"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGWINCH);
    instance.wait_record("app heard SIGWINCH");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 0);
}

#[test]
fn quit_that_is_caught_passes_and_quit_that_nobody_catches_asks_for_a_stop() {
    let mut instance = Launch::sundown(&[]).start(&["{app}", "catch=TERM", "every=QUIT"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGQUIT);
    instance.wait_record("app heard SIGQUIT");
    assert!(instance.is_running());
    let mut other = Launch::sundown(&[]).start(&["{app}", "catch=TERM"]);
    other.wait_record("app up");
    other.signal(libc::SIGQUIT);
    assert_eq!(other.wait().0, 0, "{}", other.log());
    assert_eq!(heard(&other), ["SIGTERM"]);
}

#[test]
fn a_worker_is_told_to_be_quiet_by_tstp_and_stops_on_term_later() {
    if no_root() {
        return;
    }
    for options in [&[][..], &["--stop-signal", "TSTP 300ms TERM 5s"]] {
        let mut instance = Launch::sundown(options).pid1().start(&["{app}", "catch=TERM", "every=TSTP", "cleanup=0.2"]);
        instance.wait_record("app up");
        instance.signal(libc::SIGTSTP);
        instance.wait_record("app heard SIGTSTP");
        assert!(instance.is_running());
        assert!(!instance.log().contains("stop asked for"), "{}", instance.log());
        instance.signal(libc::SIGTERM);
        assert_eq!(instance.wait().0, 0, "{}", instance.log());
        assert_eq!(heard(&instance).iter().filter(|signal| *signal == "SIGTERM").count(), 1);
        assert_eq!(instance.count("app clean"), 1);
    }
}

#[test]
fn a_signal_goes_to_the_app_behind_its_wrapper_and_not_to_its_workers() {
    let mut instance =
        Launch::sundown(&[]).start(&["sh", "-c", "{app} name=master catch=TERM every=HUP fork=setsid; exit $?"]);
    instance.wait_record("master up");
    instance.wait_record("master2 up");
    instance.signal(libc::SIGHUP);
    instance.wait_record("master heard SIGHUP");
    instance.signal(libc::SIGTERM);
    instance.wait_record("master clean");
    assert_eq!(instance.count("master2 heard SIGHUP"), 0);
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    // What outlives its master is told in the next round.
    assert_eq!(instance.count("master2 heard SIGTERM"), 1, "{}", instance.log());
}

// Reaping.

/// The children of the init that have ended and were not reaped.
fn zombies(instance: &Instance) -> usize {
    let is_zombie = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
    };
    children(instance.pid).iter().filter(|pid| is_zombie(pid)).count()
}

/// Leaves so many orphans that end when one file does, says `ready`, and lets them all go at once when told.
const ORPHANS: &str = r#"
import os, signal, sys
count, record = int(sys.argv[1]), sys.argv[2]
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    for _ in range(count):
        if os.fork() == 0:
            os.read(read, 1)
            os._exit(0)
    os._exit(0)
os.wait()
os.close(read)
signals = [signal.SIGTERM, signal.SIGUSR1]
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
for number in signals:
    signal.signal(number, lambda *_: None)
open(record, "a").write("ready\n")
signal.sigwait([signal.SIGUSR1])
os.close(write)
open(record, "a").write("gone\n")
signal.sigwait([signal.SIGTERM])
"#;

fn thousands_are_reaped(launch: Launch, count: usize) {
    let text = count.to_string();
    let mut instance = launch.start(&[common::instance::python(), "-I", "-S", "-c", ORPHANS, &text, "{dir}/record"]);
    instance.wait_record("ready");
    assert_eq!(children(instance.pid).len(), count + 1, "all have come to us");
    instance.signal(libc::SIGUSR1);
    instance.wait_record("gone");
    until("only the app is left", || children(instance.pid).len() == 1);
    assert_eq!(zombies(&instance), 0);
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!(code, 0, "{}", instance.log());
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn five_thousand_orphans_that_end_at_once_are_reaped() {
    if !no_root() {
        thousands_are_reaped(Launch::sundown(&[]).pid1(), 5000);
    }
}

#[test]
fn children_whose_ends_are_announced_together_are_reaped_behind_another_pid() {
    thousands_are_reaped(Launch::sundown(&[]), 300);
}

#[test]
fn an_init_that_was_stopped_while_its_children_ended_reaps_them_all() {
    let orphans =
        "for i in 1 2 3 4 5 6 7 8; do (until test -e {dir}/go; do sleep 0.05; done &); done; exec {app} catch=TERM";
    let mut instance = Launch::sundown(&[]).start(&["sh", "-c", orphans]);
    instance.wait_record("app up");
    until("all have come to us", || children(instance.pid).len() == 9);
    instance.signal(libc::SIGSTOP);
    std::fs::write(instance.file("go"), "").expect("room for it");
    until("all have ended unseen", || zombies(&instance) == 8);
    instance.signal(libc::SIGCONT);
    until("they are reaped", || children(instance.pid).len() == 1);
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
}

#[test]
fn an_inherited_deafness_for_children_does_not_hang_us() {
    let deaf =
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
    let through = [common::instance::python(), "-c", deaf];
    let mut instance = Launch::sundown(&[]).through(&through).start(&["sh", "-c", "(sleep 0.1 &) ; exit 6"]);
    assert_eq!(instance.wait().0, 6, "{}", instance.log());
    let mut instance = Launch::sundown(&[]).through(&through).start(&["{app}", "catch=TERM", "exit=4"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 4, "{}", instance.log());
}

#[test]
fn a_child_of_another_uid_that_cannot_be_signalled_is_warned_of_and_the_stop_goes_on() {
    if no_root() {
        return;
    }
    let no_kill = ["setpriv", "--bounding-set", "-kill", "--inh-caps", "-kill"];
    let options = ["--grace-period", "3s", "--kill-margin", "1s", "--drain-delay", "300ms"];
    let mut instance = Launch::sundown(&options).through(&no_kill).start(&[
        "sh",
        "-c",
        "setpriv --reuid 65534 --clear-groups {app} name=other catch=TERM & {app} name=mine catch=TERM cleanup=0.3; exit $?",
    ]);
    let other = instance.wait_record("other up");
    instance.wait_record("mine up");
    instance.signal(libc::SIGTERM);
    instance.wait_record("mine clean");
    assert!(instance.is_running(), "we stay: {}", instance.log());
    let (code, took) = instance.wait();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let log = instance.log();
    // SAFETY: kill takes two numbers; nobody else has the pid while it lives.
    unsafe { libc::kill(other.parse().expect("a pid"), libc::SIGKILL) };
    assert_eq!(code, 137, "{log}");
    assert!(log.contains(&format!("(pid {other}) runs as uid 65534 and sundown lacks CAP_KILL")), "foreseen: {log}");
    assert!(log.contains(&format!("SIGTERM could not be sent to python3 (pid {other}): not permitted")), "{log}");
    let last = log.lines().last().unwrap_or_default();
    assert!(last.contains(&format!("not permitted to signal: python3 (pid {other})")), "{last}");
    assert_eq!((instance.count("mine heard SIGTERM"), instance.count("other heard SIGTERM")), (1, 0));
}

#[test]
fn a_log_that_has_lost_its_reader_is_no_signal_to_the_app() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let launch = Launch::sundown(&["--log-format", "text"]).prepared(move |command| {
        command.stderr(writer);
    });
    let instance = raw(launch);
    // The stop request writes the line that nobody reads; a signal behind it shows that all before it have been dealt with.
    instance.signal(libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(300));
    instance.signal(libc::SIGUSR2);
    instance.wait_record("app heard SIGUSR2");
    let heard = heard(&instance);
    assert!(heard.contains(&"SIGUSR2".to_owned()) && !heard.contains(&"SIGPIPE".to_owned()), "{heard:?}");
}

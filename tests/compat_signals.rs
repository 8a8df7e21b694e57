//! Signals, reaping and the end under the names of tini, dumb-init and catatonit, beside the programs themselves.

mod common;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::inits::{ALL, CATATONIT, DUMB_INIT, Init, KINDS, TINI};
use common::instance::{Instance, Launch, children, comes_true, python, until};
use common::{is_root, spawn};

/// Those that end a job's run are another test's.
const STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
/// The C inits leave these to the kernel.
const BUGS: [i32; 7] =
    [libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS];

/// All that can be sent and passed on.
fn forwardable() -> Vec<i32> {
    let not = |number: &i32| ![libc::SIGKILL, libc::SIGSTOP, libc::SIGCHLD].contains(number) && !STOPS.contains(number);
    (1..=31).chain([34, 40, 64]).filter(not).collect()
}

fn launch(file: &str, options: &[&str]) -> Launch {
    let words: Vec<&str> = std::iter::once(file).chain(options.iter().copied()).collect();
    Launch::other(&words)
}

fn ours(init: &Init, options: &[&str]) -> Launch {
    let options: Vec<&str> = init.reaps.iter().chain(options).copied().collect();
    launch(&init.ours(), &options)
}

fn list(numbers: &[i32]) -> String {
    numbers.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
}

fn heard(instance: &Instance) -> Vec<String> {
    let heard = |line: &String| line.split_once(" heard ").map(|(_, signal)| signal.to_owned());
    instance.record().iter().filter_map(heard).collect()
}

#[test]
fn what_the_child_catches_reaches_it_and_no_word_is_said() {
    for init in ALL {
        let passed: Vec<i32> =
            forwardable().into_iter().filter(|number| init.name == "dumb-init" || !BUGS.contains(number)).collect();
        let mut instance = ours(&init, &[]).start(&["{app}", &format!("every={}", list(&forwardable())), "catch=KILL"]);
        instance.wait_record("app up");
        for (nth, number) in passed.iter().enumerate() {
            instance.signal(*number);
            until(&format!("{} passes {number} on", init.name), || heard(&instance).len() == nth + 1);
        }
        assert_eq!(instance.log(), "", "{}", init.name);
        assert!(instance.is_running());
    }
}

/// How an init ends whose child has set nothing for a signal: its code, or the signal that ended it.
fn end_by(file: &str, options: &[&str], number: i32) -> (Option<i32>, Option<i32>) {
    let mut command = Command::new(file);
    // It tells when it is up: from then on the signal means what it means to any program.
    command.args(options).args(["--", "sh", "-c", "echo up; exec sleep 3"]).stdout(Stdio::piped());
    let no_core = || {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is to a limit of ours.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
        Ok(())
    };
    // SAFETY: one system call, async-signal-safe.
    unsafe { command.pre_exec(no_core) };
    let mut process = spawn(&mut command);
    let mut line = [0; 3];
    let mut out = process.stdout.take().expect("a pipe");
    std::io::Read::read_exact(&mut out, &mut line).expect("it comes up");
    until("it is a sleep", || {
        let child = children(process.id() as i32);
        child
            .first()
            .is_some_and(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sleep\n"))
    });
    // SAFETY: takes two numbers; the process is ours and not reaped yet.
    unsafe { libc::kill(process.id() as i32, number) };
    let began = Instant::now();
    let mut end = None;
    // What does not end soon is not ended by it.
    while end.is_none() && began.elapsed() < Duration::from_millis(700) {
        end = process.try_wait().expect("it is our child");
        std::thread::sleep(Duration::from_millis(2));
    }
    let child = children(process.id() as i32);
    let _ = process.kill();
    let _ = process.wait();
    for pid in child {
        // SAFETY: takes two numbers; a moment ago it was the init's child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    (end.and_then(|end| end.code()), end.and_then(|end| end.signal()))
}

#[test]
fn what_the_child_does_not_catch_is_passed_on_all_the_same() {
    for init in KINDS.iter().filter(|init| init.is_installed()) {
        for number in forwardable() {
            let (ours, theirs) = (end_by(&init.ours(), init.reaps, number), end_by(init.original, init.reaps, number));
            assert_eq!(ours, theirs, "signal {number} under {}", init.name);
        }
        assert_eq!(end_by(&init.ours(), init.reaps, libc::SIGTERM), (Some(143), None));
    }
}

#[test]
fn what_the_child_ignores_changes_nothing() {
    for init in KINDS {
        let most: Vec<i32> = forwardable().into_iter().filter(|number| !BUGS.contains(number)).collect();
        let mut instance = ours(&init, &[]).start(&["{app}", &format!("ignore={}", list(&most)), "catch=SYS"]);
        instance.wait_record("app up");
        for number in most {
            instance.signal(number);
        }
        // Passed on after all the others.
        let child = children(instance.pid)[0];
        until("all have arrived", || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", instance.pid)).unwrap_or_default();
            status.lines().any(|line| line == "ShdPnd:\t0000000000000000")
        });
        // SAFETY: takes two numbers; the child lives.
        unsafe { libc::kill(child, libc::SIGSYS) };
        assert_eq!(instance.wait().0, 0, "{}: {}", init.name, instance.log());
        assert_eq!(instance.log(), "");
    }
}

#[test]
fn signals_go_to_the_child_or_to_its_group() {
    for (init, options, group) in [
        (TINI, &[][..], false),
        (TINI, &["-g"], true),
        (DUMB_INIT, &[], true),
        (DUMB_INIT, &["-c"], false),
        (CATATONIT, &[], false),
        (CATATONIT, &["-g"], true),
    ] {
        let mut instance = ours(&init, options).start(&[
            "sh",
            "-c",
            "{app} name=two every=USR1 catch=TERM & trap 'echo heard >> {dir}/shell' USR1; while :; do wait; done",
        ]);
        instance.wait_record("two up");
        instance.signal(libc::SIGUSR1);
        until("the shell hears", || instance.file("shell").exists());
        let reached = if group { comes_true(|| instance.has_record("two heard SIGUSR1")) } else { false };
        assert_eq!(instance.has_record("two heard SIGUSR1"), reached, "{} {options:?}", init.name);
        instance.signal(libc::SIGTERM);
        let (code, _) = instance.wait();
        kill(instance.wait_record("two up"));
        assert_eq!(code, 143, "{} {options:?}", init.name);
    }
}

/// Ends what is left of a test.
fn kill(pid: String) {
    // SAFETY: takes two numbers.
    unsafe { libc::kill(pid.parse().expect("a pid"), libc::SIGKILL) };
}

#[test]
fn variables_send_signals_to_the_group_or_not() {
    for (init, variable, group) in
        [(TINI, ("TINI_KILL_PROCESS_GROUP", ""), true), (DUMB_INIT, ("DUMB_INIT_SETSID", "0"), false)]
    {
        let mut instance = ours(&init, &[]).env(variable.0, variable.1).start(&[
            "sh",
            "-c",
            "{app} name=two every=USR1 catch=TERM & trap 'echo heard >> {dir}/shell' USR1; while :; do wait; done",
        ]);
        instance.wait_record("two up");
        instance.signal(libc::SIGUSR1);
        until("the shell hears", || instance.file("shell").exists());
        if group {
            instance.wait_record("two heard SIGUSR1");
        }
        assert_eq!(instance.has_record("two heard SIGUSR1"), group);
        instance.signal(libc::SIGTERM);
        assert_eq!(instance.wait().0, 143);
        kill(instance.wait_record("two up"));
    }
}

#[test]
fn dumb_init_rewrites_and_drops_signals() {
    let options = ["-r", "15:3", "-r", "10:0", "--rewrite=1:12"];
    let mut instance = ours(&DUMB_INIT, &options).start(&["{app}", "every=USR1,HUP,USR2,TERM", "catch=QUIT"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGUSR1);
    instance.signal(libc::SIGHUP);
    instance.wait_record("app heard SIGUSR2");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 0);
    assert_eq!(heard(&instance), ["SIGUSR2", "SIGQUIT"]);
}

/// The state that /proc shows of a process.
fn state(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
}

#[test]
fn dumb_init_stops_with_its_child_and_goes_on_with_it() {
    for (options, child_stops) in [(&[][..], true), (&["-c"], false)] {
        let mut instance = ours(&DUMB_INIT, options).start(&["{app}", "every=TSTP,TTIN,TTOU,CONT", "catch=TERM"]);
        instance.wait_record("app up");
        let child = children(instance.pid)[0];
        for (number, name) in [(libc::SIGTSTP, "SIGTSTP"), (libc::SIGTTIN, "SIGTTIN"), (libc::SIGTTOU, "SIGTTOU")] {
            instance.signal(number);
            until("it stops", || state(instance.pid) == 'T');
            if child_stops {
                until("the child stops", || state(child) == 'T');
            } else {
                // CONT would take away one that has not been fetched.
                instance.wait_record(&format!("app heard {name}"));
            }
            instance.signal(libc::SIGCONT);
            until("both go on", || state(instance.pid) == 'S' && state(child) == 'S');
        }
        until("the child hears it", || instance.count("app heard SIGCONT") == 3);
        assert_eq!(instance.has_record("app heard SIGT"), !child_stops);
        instance.signal(libc::SIGTERM);
        assert_eq!(instance.wait().0, 0);
    }
}

#[test]
fn dumb_init_can_stop_with_another_signal_for_its_child() {
    let options = ["-r", "21:15", "-r", "22:2", "-r", "20:1"];
    let mut instance = ours(&DUMB_INIT, &options).start(&["{app}", "every=TERM,INT,HUP,CONT", "catch=QUIT"]);
    instance.wait_record("app up");
    for (number, name) in [(libc::SIGTTIN, "SIGTERM"), (libc::SIGTTOU, "SIGINT"), (libc::SIGTSTP, "SIGHUP")] {
        instance.signal(number);
        instance.wait_record(&format!("app heard {name}"));
        until("it stops", || state(instance.pid) == 'T');
        instance.signal(libc::SIGCONT);
        until("it goes on", || state(instance.pid) == 'S');
    }
    instance.signal(libc::SIGQUIT);
    assert_eq!(instance.wait().0, 0);
}

#[test]
fn dumb_init_tells_the_group_when_its_child_has_ended() {
    for (options, told) in [(&[][..], true), (&["-c"], false)] {
        let instance = &mut ours(&DUMB_INIT, options).start(&[
            "sh",
            "-c",
            "{app} name=left catch=TERM & until grep -q up {dir}/record; do sleep 0.05; done; exit 9",
        ]);
        assert_eq!(instance.wait().0, 9);
        if told {
            instance.wait_record("left heard SIGTERM");
        }
        assert_eq!(instance.has_record("left heard SIGTERM"), told);
        kill(instance.wait_record("left up"));
    }
}

#[test]
fn as_pid_1_orphans_are_reaped_and_the_end_is_the_childs() {
    if !is_root("a PID namespace") {
        return;
    }
    for init in ALL {
        let orphans = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.2 &); done; (sleep 60 &); exec {app} catch=TERM exit=7";
        let mut instance = launch(&init.ours(), &[]).pid1().start(&["sh", "-c", orphans]);
        instance.wait_record("app up");
        until("the orphans are reaped", || children(instance.pid).len() == 2);
        instance.signal(libc::SIGTERM);
        let (code, took) = instance.wait();
        assert_eq!(code, 7, "{}: {}", init.name, instance.log());
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(instance.log(), "");
    }
}

#[test]
fn as_pid_1_the_marks_of_a_bug_do_not_end_it() {
    if !is_root("a PID namespace") {
        return;
    }
    for init in [TINI, CATATONIT] {
        let mut instance = launch(&init.ours(), &[]).pid1().start(&["{app}", "catch=TERM,ABRT,SEGV"]);
        instance.wait_record("app up");
        for number in [libc::SIGABRT, libc::SIGFPE, libc::SIGBUS, libc::SIGTTIN] {
            instance.signal(number);
        }
        instance.signal(libc::SIGTERM);
        assert_eq!(instance.wait().0, 0, "{}: {}", init.name, instance.log());
        assert_eq!(heard(&instance), ["SIGTERM"]);
    }
}

#[test]
fn orphans_come_to_any_pid_where_they_are_asked_for() {
    for (init, options, variable) in [(TINI, &["-s"][..], "X"), (TINI, &[], "TINI_SUBREAPER"), (CATATONIT, &[], "X")] {
        let script = "(sleep 0.3 &); exec {app} catch=TERM";
        let mut instance = launch(&init.ours(), options).env(variable, "").start(&["sh", "-c", script]);
        instance.wait_record("app up");
        until("the orphan has come and gone", || children(instance.pid).len() == 1);
        instance.signal(libc::SIGTERM);
        assert_eq!(instance.wait().0, 0);
        assert_eq!(instance.log(), "");
    }
}

#[test]
fn an_inherited_deafness_for_children_does_not_hang_it() {
    let deaf =
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
    for init in ALL {
        let through = [python(), "-c", deaf];
        let mut instance = ours(&init, &[]).through(&through).start(&["sh", "-c", "(sleep 0.1 &) ; exit 6"]);
        assert_eq!(instance.wait().0, 6, "{}: {}", init.name, instance.log());
    }
}

/// Waits until it has blocked TERM, which it does first of all: before that a signal is the end of any program. While it waits
/// for signals, they are not shown as blocked.
fn until_it_can_hear(pid: u32) {
    until("it can hear", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap_or_default();
        let is_blocked = u64::from_str_radix(blocked, 16).is_ok_and(|mask| mask >> (libc::SIGTERM - 1) & 1 == 1);
        is_blocked || state(pid as i32) == 'S'
    });
}

#[test]
fn a_storm_of_signals_at_the_start_is_not_lost() {
    for init in ALL {
        for _ in 0..20 {
            let mut command = Command::new(init.ours());
            command.args(init.reaps).args(["--", "sleep", "20"]).stderr(Stdio::null());
            let mut process = spawn(&mut command);
            until_it_can_hear(process.id());
            until("its end", || {
                // SAFETY: takes two numbers; the process is ours and not reaped yet.
                unsafe { libc::kill(process.id() as i32, libc::SIGTERM) };
                process.try_wait().expect("it is our child").is_some()
            });
            // Its own code: the signal found it prepared.
            let code = process.wait().expect("it is our child").code();
            assert_eq!(code, Some(143), "{}", init.name);
        }
    }
}

#[test]
fn one_signal_at_the_start_is_kept_for_the_child() {
    let block = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); \
                 os.kill(os.getpid(), signal.SIGTERM); os.execv(sys.argv[1], sys.argv[1:])";
    for init in KINDS {
        let mut instance = ours(&init, &[]).through(&[python(), "-c", block]).start(&["{app}", "catch=TERM"]);
        // tini's child has it blocked as it was, and fetches it; the others' may end by it before it can.
        let (code, _) = instance.wait();
        assert!([0, 143].contains(&code), "{}: {code}", init.name);
    }
}

#[test]
fn the_parents_death_is_heard() {
    let folder = common::directory();
    let record = folder.path().join("record");
    // The shell in between goes when its input ends.
    let script = format!(
        "{} -s -p SIGUSR1 -- sh -c 'trap \"echo heard > {}; exit\" USR1; echo up; while :; do sleep 0.02; done' & read x",
        TINI.ours(),
        record.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut parent = spawn(&mut command);
    let mut line = [0; 3];
    std::io::Read::read_exact(&mut parent.stdout.take().expect("a pipe"), &mut line).expect("it is up");
    drop(parent.stdin.take());
    common::wait(&mut parent);
    until("the child hears", || record.exists());
}

#[test]
fn catatonit_pauses_until_it_is_told() {
    for number in [libc::SIGTERM, libc::SIGINT] {
        let mut command = Command::new(CATATONIT.ours());
        command.arg("-P").stdin(Stdio::null());
        let mut process = spawn(&mut command);
        until_it_can_hear(process.id());
        for number in [libc::SIGHUP, libc::SIGUSR1, libc::SIGCHLD, number] {
            assert!(process.try_wait().expect("it is our child").is_none());
            // SAFETY: takes two numbers; the process is ours and not reaped yet.
            unsafe { libc::kill(process.id() as i32, number) };
        }
        assert_eq!(common::wait(&mut process), Some(0));
    }
}

#[test]
fn catatonit_as_pid_1_reaps_while_it_pauses() {
    if !is_root("a PID namespace") {
        return;
    }
    let mut instance = launch(&CATATONIT.ours(), &["-P"]).pid1().start(&["/no/such/file"]);
    until("it pauses", || state(instance.pid) == 'S');
    // What is entered into its namespace leaves its orphan there.
    instance.run(&["sh", "-c", "(sleep 0.1 &)"]);
    until("the orphan is reaped", || children(instance.pid).is_empty());
    assert!(instance.is_running());
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 0);
}

#[test]
fn catatonit_hands_its_listeners_on_and_closes_them() {
    let script = "export LISTEN_PID=$$; exec 7</dev/null; exec {init} -- \
        sh -c 'echo $((LISTEN_PID == $$)); readlink /proc/$$/fd/7; sleep 0.2; ls /proc/$PPID/fd | tr \"\\n\" \" \"'"
        .replace("{init}", &CATATONIT.ours());
    let output = common::run(Command::new("sh").args(["-c", &script]));
    assert_eq!(output.stdout, "1\n/dev/null\n0 1 2 ", "{}", output.stderr);
}

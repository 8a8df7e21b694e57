//! The kinds of end, one a row.

use super::*;

const SENT: &[Signal] = &[Signal::TERM];
const NONE: &[Signal] = &[];
const LIMITED: Oom = Oom::Yes { limit: Some(64 << 20) };
const UNLIMITED: Oom = Oom::Yes { limit: None };

fn signalled(number: i32, core: bool) -> Option<Ended> {
    Some(Ended::Signalled { signal: Signal::new(number).expect("a signal"), core })
}

fn by(number: i32) -> Option<Ended> {
    signalled(number, false)
}

fn dumped(number: i32) -> Option<Ended> {
    signalled(number, true)
}

fn exited(code: u8) -> Option<Ended> {
    Some(Ended::Exited(code))
}

#[test]
fn each_kind_of_end_has_its_name_and_its_words() {
    use KillReason::{Deadline, Interrupt, LadderEnd, Linger};
    type Row = (Option<Ended>, Option<KillReason>, &'static [Signal], Oom, &'static str, &'static str);
    let kill = libc::SIGKILL;
    let table: &[Row] = &[
        // By itself, told or not.
        (exited(0), None, NONE, Oom::No, "exited", "exited with 0"),
        (exited(0), None, SENT, Oom::No, "exited", "exited with 0"),
        (exited(1), None, NONE, Oom::No, "exited", "exited with 1"),
        (exited(3), None, SENT, Oom::No, "exited", "exited with 3"),
        (exited(126), None, NONE, Oom::No, "exited", "exited with 126"),
        (exited(127), None, NONE, Oom::No, "exited", "exited with 127"),
        (exited(137), None, NONE, Oom::No, "exited", "exited with 137"),
        (exited(139), None, NONE, Oom::No, "exited", "exited with 139"),
        (exited(143), None, SENT, Oom::No, "exited", "exited with 143"),
        (exited(255), None, NONE, Oom::No, "exited", "exited with 255"),
        // Another process was killed, and not this one.
        (exited(0), None, NONE, LIMITED, "exited", "exited with 0"),
        (exited(1), None, SENT, LIMITED, "exited", "exited with 1"),
        // The leftovers' kill is not its own end.
        (exited(0), Some(Linger), NONE, Oom::No, "exited", "exited with 0"),
        (exited(7), Some(Linger), NONE, Oom::No, "exited", "exited with 7"),
        (by(libc::SIGTERM), Some(Linger), SENT, Oom::No, "stopped", "was ended by SIGTERM"),
        // By a signal of ours.
        (by(libc::SIGTERM), None, SENT, Oom::No, "stopped", "was ended by SIGTERM"),
        (by(libc::SIGINT), None, &[Signal::INT], Oom::No, "stopped", "was ended by SIGINT"),
        (by(libc::SIGQUIT), None, &[Signal::TERM, Signal::QUIT], Oom::No, "stopped", "was ended by SIGQUIT"),
        (dumped(libc::SIGQUIT), None, &[Signal::QUIT], Oom::No, "stopped", "was ended by SIGQUIT and dumped core"),
        (dumped(libc::SIGABRT), None, &[Signal::ABRT], Oom::No, "stopped", "was ended by SIGABRT and dumped core"),
        (by(libc::SIGUSR1), None, &[Signal::USR1], Oom::No, "stopped", "was ended by SIGUSR1"),
        (by(libc::SIGHUP), None, &[Signal::HUP], Oom::No, "stopped", "was ended by SIGHUP"),
        (by(37), None, &[Signal::HALT], Oom::No, "stopped", "was ended by SIGRTMIN+3"),
        // By a kill of ours, whatever it did meanwhile.
        (by(kill), Some(Deadline), SENT, Oom::No, "killed_by_sundown", "was killed by sundown"),
        (by(kill), Some(LadderEnd), SENT, Oom::No, "killed_by_sundown", "was killed by sundown"),
        (by(kill), Some(Interrupt), &[Signal::INT], Oom::No, "killed_by_sundown", "was killed by sundown"),
        (by(kill), Some(Deadline), SENT, LIMITED, "killed_by_sundown", "was killed by sundown"),
        (exited(0), Some(Deadline), SENT, Oom::No, "killed_by_sundown", "was killed by sundown"),
        (by(libc::SIGTERM), Some(Deadline), SENT, Oom::No, "killed_by_sundown", "was killed by sundown"),
        (None, Some(Deadline), SENT, Oom::No, "killed_by_sundown", "was killed by sundown"),
        (by(kill), None, &[Signal::TERM, Signal::KILL], Oom::No, "killed_by_sundown", "was killed by sundown"),
        // For want of memory.
        (
            by(kill),
            None,
            NONE,
            LIMITED,
            "oom_killed",
            "was killed for want of memory (OOM: SIGKILL from the kernel; the limit is 64 MiB)",
        ),
        (
            by(kill),
            None,
            SENT,
            LIMITED,
            "oom_killed",
            "was killed for want of memory (OOM: SIGKILL from the kernel; the limit is 64 MiB)",
        ),
        (by(kill), None, NONE, UNLIMITED, "oom_killed", "was killed for want of memory (OOM: SIGKILL from the kernel)"),
        (
            by(kill),
            Some(Linger),
            NONE,
            LIMITED,
            "oom_killed",
            "was killed for want of memory (OOM: SIGKILL from the kernel; the limit is 64 MiB)",
        ),
        (
            exited(137),
            None,
            NONE,
            LIMITED,
            "oom_killed",
            "exited with 137 since what it ran was killed for want of memory (OOM: SIGKILL from the kernel; the limit is 64 MiB)",
        ),
        // From outside.
        (by(kill), None, NONE, Oom::No, "killed_from_outside", "was killed from outside (SIGKILL, not by sundown)"),
        (by(kill), None, SENT, Oom::No, "killed_from_outside", "was killed from outside (SIGKILL, not by sundown)"),
        (
            by(kill),
            Some(Linger),
            NONE,
            Oom::No,
            "killed_from_outside",
            "was killed from outside (SIGKILL, not by sundown)",
        ),
        (by(libc::SIGTERM), None, NONE, Oom::No, "killed_from_outside", "was ended by SIGTERM, not by sundown"),
        (by(libc::SIGINT), None, SENT, Oom::No, "killed_from_outside", "was ended by SIGINT, not by sundown"),
        (by(libc::SIGHUP), None, NONE, Oom::No, "killed_from_outside", "was ended by SIGHUP, not by sundown"),
        (by(libc::SIGUSR2), None, NONE, LIMITED, "killed_from_outside", "was ended by SIGUSR2, not by sundown"),
        (by(40), None, NONE, Oom::No, "killed_from_outside", "was ended by SIGRTMIN+6, not by sundown"),
        (
            by(kill),
            None,
            NONE,
            Oom::Untold,
            "killed_from_outside",
            "was killed from outside (SIGKILL, not by sundown; whether for want of memory cannot be seen here)",
        ),
        // By its own fault.
        (by(libc::SIGSEGV), None, NONE, Oom::No, "crashed", "crashed by SIGSEGV"),
        (dumped(libc::SIGSEGV), None, NONE, Oom::No, "crashed", "crashed by SIGSEGV and dumped core"),
        (dumped(libc::SIGSEGV), None, SENT, Oom::No, "crashed", "crashed by SIGSEGV and dumped core"),
        (dumped(libc::SIGSEGV), None, NONE, LIMITED, "crashed", "crashed by SIGSEGV and dumped core"),
        (dumped(libc::SIGABRT), None, NONE, Oom::No, "crashed", "crashed by SIGABRT and dumped core"),
        (by(libc::SIGBUS), None, NONE, Oom::No, "crashed", "crashed by SIGBUS"),
        (by(libc::SIGILL), None, NONE, Oom::No, "crashed", "crashed by SIGILL"),
        (by(libc::SIGFPE), None, NONE, Oom::No, "crashed", "crashed by SIGFPE"),
        (by(libc::SIGSYS), None, NONE, Oom::No, "crashed", "crashed by SIGSYS"),
        (by(libc::SIGTRAP), None, NONE, Oom::No, "crashed", "crashed by SIGTRAP"),
        (by(libc::SIGXCPU), None, NONE, Oom::No, "crashed", "crashed by SIGXCPU"),
        (dumped(libc::SIGQUIT), None, NONE, Oom::No, "crashed", "crashed by SIGQUIT and dumped core"),
        (by(libc::SIGPIPE), None, NONE, Oom::No, "crashed", "crashed by SIGPIPE"),
        (by(libc::SIGALRM), None, NONE, Oom::No, "crashed", "crashed by SIGALRM"),
    ];
    for (ended, killed, sent, oom, name, words) in table {
        let outcome = Outcome { code: 0, ended: *ended, asked: false, killed: *killed, survivors: false };
        let ending = Ending::of(&outcome, sent.iter().copied().collect(), *oom);
        let row = format!("{ended:?} {killed:?} {sent:?} {oom:?}");
        assert_eq!((ending.name(), ending.to_string().as_str()), (*name, *words), "{row}");
    }
}

#[test]
fn what_outlived_even_the_kill_is_a_kill_of_ours() {
    for killed in [KillReason::Linger, KillReason::Deadline] {
        for ended in [None, exited(0)] {
            let outcome = Outcome { code: 137, ended, asked: false, killed: Some(killed), survivors: true };
            assert_eq!(Ending::of(&outcome, SigSet::EMPTY, Oom::Untold), Ending::KilledBySundown { why: Some(killed) });
        }
    }
}

#[test]
fn only_a_mishap_is_told_without_a_stop_request() {
    let ending = |ended, oom| {
        let outcome = Outcome { code: 0, ended, asked: false, killed: None, survivors: false };
        Ending::of(&outcome, SigSet::EMPTY, oom)
    };
    for mishap in [by(libc::SIGKILL), by(libc::SIGSEGV), dumped(libc::SIGQUIT)] {
        assert!(ending(mishap, Oom::No).is_a_mishap(), "{mishap:?}");
    }
    for ended in [exited(137), by(libc::SIGKILL)] {
        assert!(ending(ended, LIMITED).is_a_mishap(), "{ended:?}");
    }
    for usual in [0, 1, 137, 143].map(exited) {
        assert!(!ending(usual, Oom::No).is_a_mishap(), "{usual:?}");
    }
    for usual in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE].map(by) {
        assert!(!ending(usual, Oom::No).is_a_mishap(), "{usual:?}");
    }
}

#[test]
fn the_signal_is_that_of_the_end() {
    let signal = |ended| {
        let outcome = Outcome { code: 0, ended, asked: false, killed: None, survivors: false };
        Ending::of(&outcome, SigSet::EMPTY, LIMITED).signal()
    };
    assert_eq!(signal(by(libc::SIGKILL)), Some(Signal::KILL));
    assert_eq!(signal(by(libc::SIGSEGV)), Some(Signal::SEGV));
    assert_eq!((signal(exited(137)), signal(exited(0))), (None, None));
    assert_eq!((Ending::NotStarted.name(), Ending::NotStarted.signal()), ("not_started", None));
}

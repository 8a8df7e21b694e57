//! The command lines of tini, dumb-init and catatonit, by their names: each line is given to the program itself and to
//! sundown under its name, and both have to say and do the same.

mod common;

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::inits::{ALL, CATATONIT, DOCKER_INIT, DUMB_INIT, Init, TINI, TINI_STATIC};
use common::{Output, directory, run, text, write};

/// What is compared of two runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compare {
    /// Every byte but pids.
    Text,
    /// Every line but pids, in any order: parent and child race for theirs.
    Lines,
}

struct Line {
    inits: &'static [Init],
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
}

const fn line(inits: &'static [Init], args: &'static [&'static str]) -> Line {
    Line { inits, args, env: &[] }
}

const fn with(
    inits: &'static [Init],
    env: &'static [(&'static str, &'static str)],
    args: &'static [&'static str],
) -> Line {
    Line { inits, args, env }
}

const TINIS: &[Init] = &[TINI, TINI_STATIC, DOCKER_INIT];
const T: &[Init] = &[TINI];
const D: &[Init] = &[DUMB_INIT];
const C: &[Init] = &[CATATONIT];
const EACH: &[Init] = &[TINI, DUMB_INIT, CATATONIT];

/// What ends before a program is started.
const TEXTS: &[Line] = &[
    // tini.
    line(TINIS, &[]),
    line(TINIS, &["--version"]),
    line(TINIS, &["-h"]),
    line(TINIS, &["-x"]),
    line(T, &["--version", "true"]),
    line(T, &["true", "--version"]),
    line(T, &["--foo"]),
    line(T, &["--help"]),
    line(T, &["-s"]),
    line(T, &["--"]),
    line(T, &["-hx"]),
    line(T, &["-xh"]),
    line(T, &["-vsgwh"]),
    line(T, &["true", "-h"]),
    line(T, &["sh", "-c", "exit 3"]),
    line(T, &["-p"]),
    line(T, &["true", "-p"]),
    line(T, &["-p", "FOO", "true"]),
    line(T, &["-p", "TERM", "true"]),
    line(T, &["-p", "15", "true"]),
    line(T, &["-pSIGRTMIN", "true"]),
    line(T, &["-pSIGPWR", "true"]),
    line(T, &["-psigterm", "true"]),
    line(T, &["-e"]),
    line(T, &["-e", "256", "true"]),
    line(T, &["-e", "-1", "true"]),
    line(T, &["-e", "abc", "true"]),
    line(T, &["-e1x", "true"]),
    line(T, &["-e", " ", "true"]),
    line(T, &["-e", "99999999999999999999", "true"]),
    line(T, &["-:"]),
    with(T, &[("TINI_VERBOSITY", "0")], &["-e", "256", "true"]),
    with(T, &[("TINI_VERBOSITY", "0")], &[]),
    with(T, &[("POSIXLY_CORRECT", "")], &["-x", "true", "-h"]),
    // dumb-init.
    line(D, &[]),
    line(D, &["-h"]),
    line(D, &["--help"]),
    line(D, &["--he"]),
    line(D, &["-V"]),
    line(D, &["--version"]),
    line(D, &["-vV", "true"]),
    line(D, &["-x"]),
    line(D, &["--yolo", "/bin/true"]),
    line(D, &["--yolo=3"]),
    line(D, &["--ver", "true"]),
    line(D, &["--ver=3", "true"]),
    line(D, &["--help=3"]),
    line(D, &["--verb=", "true"]),
    line(D, &["--rewrite"]),
    line(D, &["--rew"]),
    line(D, &["-r"]),
    line(D, &["-r", "", "true"]),
    line(D, &["-r", "herp", "true"]),
    line(D, &["-r", "herp:derp", "true"]),
    line(D, &["-r", "15", "true"]),
    line(D, &["-r", "15::12", "true"]),
    line(D, &["-r", "15:derp", "true"]),
    line(D, &["-r", "15:12", "-r"]),
    line(D, &["-r", "15:12", "-r", "0"]),
    line(D, &["-r", "15:12", "-r", "1:32", "true"]),
    line(D, &["-r0:1", "true"]),
    line(D, &["-r-1:1", "true"]),
    line(D, &["--rewrite=32:1", "true"]),
    line(D, &["-c", "--"]),
    with(D, &[("DUMB_INIT_DEBUG", "1")], &[]),
    with(D, &[("DUMB_INIT_DEBUG", "1"), ("DUMB_INIT_SETSID", "0")], &["--help"]),
    // catatonit.
    line(C, &[]),
    line(C, &["-V"]),
    line(C, &["--version"]),
    line(C, &["--ver"]),
    line(C, &["--version=1"]),
    line(C, &["--foo"]),
    line(C, &["-z"]),
    line(C, &["-g"]),
    line(C, &["true", "-V"]),
    line(C, &["sh", "-c", "exit 3"]),
    with(C, &[("CATATONIT_LOG", "")], &["-h"]),
    with(C, &[("CATATONIT_LOG", "debug")], &["true"]),
];

/// What starts a program.
const RUNS: &[Line] = &[
    // Each of them.
    line(EACH, &["--", "sh", "-c", "exit 3"]),
    line(EACH, &["--", "sh", "-c", "kill -9 $$"]),
    line(EACH, &["--", "sh", "-c", "kill $$"]),
    line(EACH, &["--", "sh", "-c", "kill -HUP $PPID; sleep 20"]),
    line(EACH, &["--", "sh", "-c", "(exit 4) & exit 255"]),
    line(EACH, &["--", "/no/such/file"]),
    line(EACH, &["--", "no-such-program"]),
    line(EACH, &["--", ""]),
    line(EACH, &["--", "/etc/passwd"]),
    line(EACH, &["--", "/etc"]),
    line(EACH, &["--", "/etc/passwd/x"]),
    line(EACH, &["--", "--", "echo"]),
    line(EACH, &["echo", "--", "hi"]),
    line(EACH, &["--", "echo", "--", "-v"]),
    line(EACH, &["{folder}/script", "a b", "c"]),
    line(EACH, &["cat", "/proc/self/cmdline"]),
    line(EACH, &["env", "--", "printenv", "MARK"]),
    // tini.
    line(T, &["true"]),
    line(T, &["-s", "true"]),
    line(T, &["-sv", "true"]),
    line(T, &["-svv", "true"]),
    line(T, &["-svvv", "true"]),
    line(T, &["-svvvv", "--", "sh", "-c", "kill -9 $$"]),
    line(T, &["-v", "/no/such/file"]),
    line(T, &["-s", "echo", "-v", "hi", "-g"]),
    line(T, &["-s", "-e", "3", "--", "sh", "-c", "exit 3"]),
    line(T, &["-s", "-e4", "-e3", "--", "sh", "-c", "exit 3"]),
    line(T, &["-s", "-e4", "--", "sh", "-c", "exit 3"]),
    line(T, &["-s", "-e", "143", "--", "sh", "-c", "kill $$"]),
    line(T, &["-s", "-e", "127", "/no/such/file"]),
    line(T, &["-s", "-e", "126", "/etc/passwd"]),
    line(T, &["-se", "", "false"]),
    line(T, &["-se", "+1", "false"]),
    line(T, &["-s", "-p", "SIGKILL", "true"]),
    line(T, &["-w", "-s", "--", "sh", "-c", "(exec sleep 0.05) & (sleep 0.1 &) ; sleep 0.4"]),
    line(T, &["-s", "--", "sh", "-c", "(sleep 0.1 &) ; sleep 0.4"]),
    line(T, &["-svv", "--", "sh", "-c", "trap '' USR1; kill -USR1 $PPID; exec sleep 0.2"]),
    line(T, &["-svv", "--", "sh", "-c", "trap '' USR1 RTMIN; kill -40 $PPID; exec sleep 20"]),
    with(T, &[("TINI_SUBREAPER", "")], &["true"]),
    with(T, &[("TINI_SUBREAPER", "0")], &["true"]),
    with(T, &[("TINI_VERBOSITY", "0")], &["true"]),
    with(T, &[("TINI_VERBOSITY", "0")], &["-vvv", "/no/such/file"]),
    with(T, &[("TINI_VERBOSITY", "2")], &["-s", "true"]),
    with(T, &[("TINI_VERBOSITY", "3x")], &["-s", "true"]),
    with(T, &[("TINI_VERBOSITY", "-1")], &["-s", "true"]),
    with(T, &[("TINI_VERBOSITY", "")], &["true"]),
    with(T, &[("POSIXLY_CORRECT", "1")], &["-s", "sh", "-c", "exit 3"]),
    with(T, &[("TINI_SUBREAPER", "1"), ("SUNDOWN_LOG_LEVEL", "trace")], &["true"]),
    // dumb-init.
    line(D, &["sh", "-c", "exit 3"]),
    line(D, &["-c", "sh", "-c", "exit 3"]),
    line(D, &["echo", "-v"]),
    line(D, &["-v", "echo", "oh,", "hi"]),
    line(D, &["--verb", "--sing", "echo", "oh,", "hi"]),
    line(D, &["-vc", "--", "sh", "-c", "kill -9 $$"]),
    line(D, &["-v", "/no/such/file"]),
    line(D, &["-cv", "/no/such/file"]),
    line(D, &["-v", "-r", "15:2", "true"]),
    line(D, &["-v", "-r", "15:0", "true"]),
    line(D, &["-v", "-r", "15:15", "true"]),
    line(D, &["-v", "-r15:2", "--rewrite=15:3x", "true"]),
    line(D, &["-vr", "10:12", "sh", "-c", "kill -10 $PPID; sleep 20"]),
    line(D, &["-vr", "10:0", "sh", "-c", "kill -10 $PPID; exec sleep 0.2"]),
    line(D, &["-v", "sh", "-c", "kill -40 $PPID; sleep 20"]),
    with(D, &[("DUMB_INIT_DEBUG", "1")], &["true"]),
    with(D, &[("DUMB_INIT_DEBUG", "")], &["true"]),
    with(D, &[("DUMB_INIT_DEBUG", "2")], &["true"]),
    with(D, &[("DUMB_INIT_DEBUG", "1"), ("DUMB_INIT_SETSID", "0")], &["true"]),
    with(D, &[("DUMB_INIT_DEBUG", "1"), ("DUMB_INIT_SETSID", "")], &["true"]),
    with(D, &[("POSIXLY_CORRECT", "1")], &["-c", "true"]),
    // catatonit.
    line(C, &["true"]),
    line(C, &["-g", "--", "sh", "-c", "exit 3"]),
    line(C, &["--", "sh", "-c", "(sleep 0.1 &) ; sleep 0.4; exit 4"]),
    with(C, &[("POSIXLY_CORRECT", "1")], &["sh", "-c", "exit 3"]),
    with(C, &[("LISTEN_PID", "1")], &["printenv", "LISTEN_PID"]),
    with(C, &[("LISTEN_PID", "x")], &["printenv", "LISTEN_PID"]),
];

/// Runs it, called by that name.
fn output(file: &str, init: Init, line: &Line, folder: &str) -> Output {
    let mut command = Command::new(file);
    command.arg0(init.name).args(line.args.iter().map(|arg| arg.replace("{folder}", folder)));
    command.env("MARK", "kept").env_remove("POSIXLY_CORRECT").envs(line.env.iter().copied());
    run(&mut command)
}

/// Puts N in place of the numbers behind these.
fn without_pids(text: &str) -> String {
    const BEFORE: &[&str] = &["tini (", "pid '", "pid: '", "pid=", "PID ", "(catatonit:", "pid1 ("];
    let mut text = text.to_owned();
    for before in BEFORE {
        let mut parts = text.split(before);
        let first = parts.next().unwrap_or_default().to_owned();
        text = parts.fold(first, |all, part| {
            let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
            let number = if rest.len() < part.len() { "N" } else { "" };
            format!("{all}{before}{number}{rest}")
        });
    }
    text
}

fn seen(output: &Output, compare: Compare) -> (Option<i32>, String, String) {
    let shown = |text: &str| match compare {
        Compare::Text => without_pids(text),
        Compare::Lines => {
            let text = without_pids(text);
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            lines.join("\n")
        }
    };
    (output.code, shown(&output.stdout), shown(&output.stderr))
}

fn compare(lines: &[Line], compare: Compare) {
    let folder = directory();
    write(&folder, "script", "echo \"$1 $#\"\nexit 3\n", 0o755);
    let mut different = Vec::new();
    for line in lines {
        for init in line.inits.iter().filter(|init| init.is_installed()) {
            let ours = seen(&output(&init.ours(), *init, line, text(folder.path())), compare);
            let theirs = seen(&output(init.original, *init, line, text(folder.path())), compare);
            if ours != theirs {
                different.push(format!(
                    "{:?} {} {:?}\n  ours   {ours:?}\n  theirs {theirs:?}",
                    line.env, init.name, line.args
                ));
            }
        }
    }
    assert!(different.is_empty(), "{} lines differ:\n{}", different.len(), different.join("\n"));
}

#[test]
fn every_option_and_error_is_told_in_the_same_words() {
    compare(TEXTS, Compare::Text);
}

#[test]
fn every_run_ends_and_speaks_the_same() {
    compare(RUNS, Compare::Lines);
}

#[test]
fn errors_name_the_program_as_it_was_called() {
    for init in ALL.into_iter().filter(Init::is_installed) {
        let line = |file: &str| {
            let output = run(Command::new(file).arg("-x"));
            (output.code, without_pids(&output.stderr).replace(file, "/init"))
        };
        let theirs = line(init.original);
        if init.original.ends_with(init.name) {
            assert_eq!(line(&init.ours()), theirs, "{}", init.name);
        }
    }
}

#[test]
fn the_licence_is_our_own() {
    for (init, option) in [(TINI, "-l"), (DOCKER_INIT, "-l"), (CATATONIT, "-L")] {
        let output = run(Command::new(init.ours()).arg(option));
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""));
        assert!(
            output.stdout.contains("This is sundown") && output.stdout.contains("MIT License"),
            "{}",
            output.stdout
        );
    }
}

#[test]
fn catatonits_help_is_on_the_same_stream() {
    let output = run(Command::new(CATATONIT.ours()).arg("-h"));
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), ""));
    assert!(output.stderr.starts_with("usage: catatonit [-ghLPV] [--] <progname> [<arguments>...]\n\noptions:\n"));
}

#[test]
fn dockerd_can_read_the_version() {
    let output = run(Command::new(DOCKER_INIT.ours()).arg("--version"));
    // As its parseInitVersion does.
    assert_eq!(output.stdout.trim().strip_prefix("tini version "), Some("0.19.0"));
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""));
}

/// The signals that are given to an init blocked (USR1, ILL, TTIN, RTMIN+6) and ignored.
const BLOCKED: u64 = 1 << (libc::SIGUSR1 - 1) | 1 << (libc::SIGILL - 1) | 1 << (libc::SIGTTIN - 1) | 1 << 39;
const IGNORED: &[i32] = &[libc::SIGALRM, libc::SIGTTOU, libc::SIGVTALRM, libc::SIGPIPE, libc::SIGUSR2];

fn with_signals(command: &mut Command) {
    let set = || {
        for ignored in IGNORED {
            // SAFETY: sets no handler.
            unsafe { libc::signal(*ignored, libc::SIG_IGN) };
        }
        let (mask, none) = (BLOCKED, std::ptr::null_mut::<u64>());
        // SAFETY: the mask is eight bytes, the size that is named.
        let done = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, none, 8usize) };
        nix::errno::Errno::result(done).map(drop).map_err(io::Error::from)
    };
    // SAFETY: system calls only, async-signal-safe.
    unsafe { command.pre_exec(set) };
}

/// What a program says under an init that was itself started with those signals.
fn said(file: &str, options: &[&str], program: &[&str]) -> String {
    let mut command = Command::new(file);
    command.args(options).arg("--").args(program).current_dir("/tmp");
    with_signals(&mut command);
    let output = run(&mut command);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    output.stdout
}

const SIGNALS: &[&str] = &["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"];

#[test]
fn the_child_has_the_signals_that_the_original_would_give_it() {
    for (init, options) in [(TINI, &["-s"][..]), (DUMB_INIT, &[]), (DUMB_INIT, &["-c"])] {
        if init.is_installed() {
            let (ours, theirs) = (said(&init.ours(), options, SIGNALS), said(init.original, options, SIGNALS));
            assert_eq!(ours, theirs, "{} {options:?}", init.name);
        }
    }
    // The original blocks the stop signals for its child, so that nobody can stop it by Ctrl-Z.
    assert_eq!(said(&CATATONIT.ours(), &[], SIGNALS), said(&TINI.ours(), &["-s"], SIGNALS));
}

#[test]
fn the_child_is_put_where_the_original_would_put_it() {
    const TELL: &str = "read -r pid name state parent group session rest < /proc/$$/stat; \
        echo leads group:$((pid == group)) session:$((pid == session)); \
        sleep 0.1; readlink /proc/$PPID/cwd /proc/$$/cwd";
    for (init, options) in [(TINI, &["-s"][..]), (DUMB_INIT, &[]), (DUMB_INIT, &["-c"])] {
        if init.is_installed() {
            let tell = |file| said(file, options, &["/bin/sh", "-c", TELL]);
            assert_eq!(tell(&init.ours()), tell(init.original), "{} {options:?}", init.name);
        }
    }
    // Later versions of the original leave the directory too.
    let told = said(&CATATONIT.ours(), &[], &["/bin/sh", "-c", TELL]);
    assert_eq!(told, "leads group:1 session:0\n/\n/tmp\n");
}

//! How it ended, told apart by the last line, its fields and the termination message. What needs a memory limit is in
//! `cgroup.rs`.

mod common;

use common::instance::{Instance, Launch};
use std::os::unix::process::ExitStatusExt;

/// A program that ends at once: its exit code, the log, and the termination message behind what the app has written there.
#[track_caller]
fn end_of(options: &[&str], program: &[&str]) -> (i32, Instance, String) {
    let options = [&["--termination-log", "{dir}/message"], options].concat();
    let mut instance = Launch::sundown(&options).file("message", "").start(program);
    let (code, _) = instance.wait();
    let message = common::read(&instance.file("message"));
    (code, instance, message)
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn a_kill_from_outside_is_told_although_nobody_asked() {
    let (code, instance, message) = end_of(&[], &["sh", "-c", "kill -9 $$"]);
    assert_eq!(code, 137);
    let words = "the app was killed from outside (SIGKILL, not by sundown";
    has(&instance.log(), &[words, r#""code":137"#, r#""ending":"killed_from_outside""#, r#""signal":"SIGKILL""#]);
    assert!(message.starts_with(words) && message.trim_end().ends_with("exit code 137"), "{message}");
}

#[test]
fn a_crash_is_told_and_leaves_the_message_to_the_app() {
    let (code, instance, message) =
        end_of(&[], &["sh", "-c", "printf 'the reason' > {dir}/message; ulimit -c 0; kill -SEGV $$"]);
    assert_eq!((code, message.as_str()), (139, "the reason"));
    has(&instance.log(), &["the app crashed by SIGSEGV", r#""ending":"crashed""#, r#""signal":"SIGSEGV""#]);
}

#[test]
fn what_a_program_and_its_user_do_among_themselves_is_not_told() {
    for (program, code) in
        [("exit 0", 0), ("exit 3", 3), ("exit 137", 137), ("kill -TERM $$", 143), ("kill -PIPE $$", 141)]
    {
        let (ended, instance, message) = end_of(&[], &["sh", "-c", program]);
        assert_eq!((ended, instance.log().as_str(), message.as_str()), (code, "", ""), "{program}");
    }
}

#[test]
fn the_last_line_of_a_stop_has_its_ending_in_fields() {
    let stop = |options: &[&str], program: &[&str]| {
        let options = [&["--log-format", "json"], options].concat();
        let mut instance = Launch::sundown(&options).start(program);
        instance.wait_record("app up");
        instance.signal(libc::SIGTERM);
        instance.wait();
        let log = instance.log();
        log.lines().last().expect("a last line").to_owned()
    };
    let told = stop(&[], &["{app}", "catch=TERM", "exit=3"]);
    has(&told, &[r#""ending":"exited""#, r#""code":3"#, "the app exited with 3"]);
    let spared = stop(&["--stop-signal", "USR1"], &["{app}", "port=0"]);
    has(&spared, &[r#""ending":"stopped""#, r#""signal":"SIGUSR1""#, r#""code":138"#, "the app was ended by SIGUSR1"]);
    let killed = stop(&["--grace-period", "1s", "--kill-margin", "500ms"], &["{app}", "ignore=TERM"]);
    has(&killed, &[r#""ending":"killed_by_sundown""#, r#""signal":"SIGKILL""#, r#""code":137"#, r#""level":"WARN""#]);
}

#[test]
fn what_cannot_be_executed_says_so_in_fields_and_in_the_message() {
    let options = ["--log-format", "json"];
    for (program, code, words) in
        [("/no/such/file", 127, "/no/such/file: no such file"), ("{dir}/message", 126, "message")]
    {
        let (ended, instance, message) = end_of(&options, &[program]);
        assert_eq!(ended, code, "{}", instance.log());
        assert_eq!(instance.log().lines().count(), 1, "{}", instance.log());
        let field = format!(r#""code":{code}"#);
        has(&instance.log(), &[words, &field, r#""ending":"not_started""#, r#""level":"ERROR""#]);
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_core_dump_is_named() {
    // Where the kernel pipes cores to a program, there is none to be had.
    let shell = "ulimit -c unlimited; cd {dir}; kill -QUIT $$";
    let folder = common::directory();
    let script = shell.replace("{dir}", common::text(folder.path()));
    let mut probe = std::process::Command::new("sh");
    common::heed_interrupts(&mut probe);
    let status = probe.args(["-c", &script]).status().expect("a shell");
    if !status.core_dumped() {
        return common::skip("no core can be dumped");
    }
    let (code, instance, _) = end_of(&[], &["sh", "-c", shell]);
    assert_eq!(code, 131);
    has(&instance.log(), &["the app crashed by SIGQUIT and dumped core", r#""ending":"crashed""#]);
}

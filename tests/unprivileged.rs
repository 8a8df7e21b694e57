//! Without rights, and without what a container may lack: it starts, hears, tells the app once and gives its code.

mod common;

use std::os::unix::process::CommandExt;

use common::instance::Launch;
use common::is_root;

/// As nobody, with no capability and no way to one.
const NOBODY: [&str; 7] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "--no-new-privs",
];

/// Prepares the mount namespace with that script, as root, and goes on with the rest of the words.
fn after(script: &str) -> [String; 4] {
    ["sh".into(), "-c".into(), format!("set -e; {script}; exec \"$@\""), "sh".into()]
}

/// Starts the app as PID 1's child, behind that script and these words, and stops it.
#[track_caller]
fn works(script: &str, user: &[&str]) {
    if !is_root("a PID namespace") {
        return;
    }
    let script = after(script);
    let through: Vec<&str> = script.iter().map(String::as_str).chain(user.iter().copied()).collect();
    let mut instance =
        Launch::sundown(&[]).pid1().through(&through).start(&["{app}", "catch=TERM", "cleanup=0.2", "exit=4"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 4, "{}", instance.log());
    assert_eq!((instance.count("app heard SIGTERM"), instance.count("app clean")), (1, 1), "{}", instance.log());
    assert!(!instance.log().contains("error"), "{}", instance.log());
}

/// The record lies in /tmp, which stays writable.
const READ_ONLY: &str = "mount --make-rprivate /; mount --bind / /; mount -o remount,bind,ro /; mount --bind /tmp /tmp; mount -o remount,bind,rw /tmp";

#[test]
fn as_nobody() {
    works(":", &NOBODY);
}

#[test]
fn as_nobody_on_a_read_only_root() {
    works(READ_ONLY, &NOBODY);
}

#[test]
fn without_proc() {
    works("mount -t tmpfs none /proc", &[]);
    works("mount -t tmpfs none /proc", &NOBODY);
}

#[test]
fn where_proc_is_of_another_pid_namespace() {
    // Below the one that unshare(1) has mounted lies the host's.
    works("umount -l /proc", &[]);
    works("umount -l /proc", &NOBODY);
}

#[test]
fn as_nobody_where_proc_hides_others() {
    works("mount -o remount,hidepid=2 /proc", &NOBODY);
}

#[test]
fn without_any_device() {
    works("mount -t tmpfs none /dev", &NOBODY);
}

#[test]
fn with_standard_descriptors_closed() {
    let close = || {
        for fd in 0..=2 {
            // SAFETY: takes a number; nothing of ours uses these descriptors any more.
            unsafe { libc::close(fd) };
        }
        Ok(())
    };
    let mut instance = Launch::sundown(&[])
        .prepared(move |command| {
            // SAFETY: one system call, async-signal-safe.
            unsafe { command.pre_exec(close) };
        })
        .start(&["{app}", "catch=TERM", "cleanup=0.2", "exit=4"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 4);
    assert_eq!((instance.count("app heard SIGTERM"), instance.count("app clean")), (1, 1));
}

//! What the program is given at its start, seen from outside.

mod common;

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::*;
use nix::errno::Errno;

#[test]
fn text_without_an_interpreter_runs_through_sh() {
    let directory = directory();
    write(&directory, "script", "echo \"$0 $1 $#\"\nexit 3\n", 0o755);
    let path = format!("/no/such:{}:/usr/bin:/bin", text(directory.path()));
    let output = run(sundown(["script", "a b", "c"]).env("PATH", path));
    assert_eq!((output.code, output.stderr.as_str()), (Some(3), ""));
    assert_eq!(output.stdout, format!("{}/script a b 2\n", text(directory.path())));
}

#[test]
fn path_is_searched_past_what_cannot_be_executed() {
    let (first, second) = (directory(), directory());
    write(&first, "tool", "not executable", 0o644);
    write(&second, "tool", "#!/bin/sh\necho second\n", 0o755);
    let path = format!("{}:{}", text(first.path()), text(second.path()));
    let output = run(sundown(["tool"]).env("PATH", &path));
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), "second\n"), "{}", output.stderr);
    fs::remove_file(second.path().join("tool")).expect("it is ours");
    fails(sundown(["tool"]).env("PATH", &path), 126, &[text(first.path()), "tool: no exec permission"]);
}

#[test]
fn arguments_arrive_as_they_were_given() {
    let output = run(&mut sundown(["cat", "/proc/self/cmdline"]));
    assert_eq!((output.code, output.stdout.as_str()), (Some(0), "cat\0/proc/self/cmdline\0"));
}

#[test]
fn the_child_leads_a_group_of_its_own() {
    let output = run(&mut sundown(["cat", "/proc/self/stat"]));
    let fields: Vec<&str> = output.stdout.split(' ').collect();
    assert_eq!(fields[0], fields[4], "pid and group of {}", output.stdout);
    let own = run(Command::new("cat").arg("/proc/self/stat"));
    let own: Vec<&str> = own.stdout.split(' ').collect();
    assert_eq!(fields[5], own[5], "the session stays");
}

/// The signals that a process is started with: its mask, and whether it ignores SIGPIPE and SIGCHLD.
#[derive(Clone, Copy, Debug)]
struct Signals {
    mask: u64,
    pipe: libc::sighandler_t,
    chld: libc::sighandler_t,
}

fn with_signals(command: &mut Command, signals: Signals) -> &mut Command {
    let set = move || {
        // SAFETY: sets a disposition, and no handler.
        unsafe { libc::signal(libc::SIGPIPE, signals.pipe) };
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGCHLD, signals.chld) };
        let (mask, none) = (&raw const signals.mask, std::ptr::null_mut::<u64>());
        // SAFETY: the mask is eight bytes, the size that is named.
        let done = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, mask, none, 8usize) };
        Errno::result(done).map(drop).map_err(io::Error::from)
    };
    // SAFETY: system calls only, async-signal-safe.
    unsafe { command.pre_exec(set) };
    command
}

#[test]
fn the_child_has_the_mask_and_the_dispositions_that_we_were_given() {
    // USR1, the two that libc hides, RTMIN and RTMAX.
    let some = 1 << 9 | 0b111 << 31 | 1 << 63;
    for mask in [0, some] {
        for (pipe, chld) in [
            (libc::SIG_DFL, libc::SIG_DFL),
            (libc::SIG_IGN, libc::SIG_DFL),
            (libc::SIG_DFL, libc::SIG_IGN),
            (libc::SIG_IGN, libc::SIG_IGN),
        ] {
            let signals = Signals { mask, pipe, chld };
            let argv = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"];
            let mut plain = Command::new(argv[0]);
            let plain = run(with_signals(plain.args(&argv[1..]), signals));
            let ours = run(with_signals(&mut sundown(argv), signals));
            assert_eq!((ours.code, &ours.stdout), (Some(0), &plain.stdout), "{signals:?}");
            assert!(ours.stdout.contains(&format!("SigBlk:\t{mask:016x}")), "{}", ours.stdout);
        }
    }
}

/// Closes some of 0 to 2 before the exec.
fn with_closed(command: &mut Command, closed: &'static [i32]) {
    let close = move || {
        for fd in closed {
            // SAFETY: takes a number; nothing of ours uses these descriptors any more.
            unsafe { libc::close(*fd) };
        }
        Ok(())
    };
    // SAFETY: one system call, async-signal-safe.
    unsafe { command.pre_exec(close) };
}

#[test]
fn the_child_has_the_descriptors_that_we_were_given_and_no_other() {
    let directory = directory();
    let list = "open=; for fd in /proc/$$/fd/?; do open=\"$open ${fd##*/}\"; done; echo \"$open\" > \"$0\"";
    let sets: [&[i32]; 6] = [&[], &[0], &[1], &[2], &[0, 2], &[0, 1, 2]];
    for closed in sets {
        let open_in = |name: &str, mut command: Command| {
            let file = directory.path().join(name);
            with_closed(command.args(["-c", list]).arg(&file), closed);
            assert_eq!(run(&mut command).code, Some(0), "{name} without {closed:?}");
            read(&file)
        };
        let plain = open_in("plain", Command::new("/bin/sh"));
        assert_eq!(open_in("ours", sundown(["/bin/sh"])), plain, "without {closed:?}");
    }
}

#[test]
fn no_descriptor_of_ours_takes_the_place_of_a_closed_one() {
    let directory = directory();
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let mut command = sundown(["/bin/sh", "-c", "read x < \"$0\"", text(&fifo)]);
    with_closed(&mut command, &[0, 1, 2]);
    let mut child = spawn(&mut command);
    // The child waits here for us, so by now it has been started.
    let end = File::options().write(true).open(&fifo).expect("the child reads it");
    for fd in 0..=2 {
        let is = fs::read_link(format!("/proc/{}/fd/{fd}", child.id()));
        assert_eq!(is.ok().as_deref(), Some(Path::new("anon_inode:[eventpoll]")), "descriptor {fd}");
    }
    drop(end);
    // The shell's `read` ends with 1 at the end of its file.
    assert_eq!(wait(&mut child), Some(1));
}

#[test]
fn a_failure_without_stderr_still_has_its_code() {
    let mut command = sundown(["/no/such/file"]);
    with_closed(&mut command, &[0, 1, 2]);
    assert_eq!(run(&mut command).code, Some(127));
}

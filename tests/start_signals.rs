//! A signal that comes while we are being started.

mod common;

use std::process::Command;

use common::bare::{Bare, Process};
use common::{SUNDOWN, is_root};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};

/// What PTRACE_GET_SYSCALL_INFO tells (ptrace(2)), as far as it matters here.
#[repr(C)]
#[derive(Default)]
struct SyscallInfo {
    op: u8,
    padding: [u8; 3],
    arch: u32,
    instruction_pointer: u64,
    stack_pointer: u64,
    number: u64,
    rest: [u64; 8],
}

const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
const AT_ENTRY: u8 = 1;

/// Starts sundown and holds it at the exit of its first rt_sigprocmask, which must be its first system call at all.
fn held(pid1: bool) -> Process {
    let process = Bare::new(&[SUNDOWN, "--", "/bin/sleep", "30"]).pid1(pid1).traced().start();
    let pid = process.0;
    assert_eq!(waitpid(pid, None), Ok(WaitStatus::Stopped(pid, Signal::SIGTRAP)), "it stops at its exec");
    ptrace::setoptions(pid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL).expect("it is traced");
    // The exec's own exit comes first.
    let mut calls = Vec::new();
    while calls.last().is_none_or(|number| *number == libc::SYS_execve as u64) {
        ptrace::syscall(pid, None).expect("it is stopped");
        assert_eq!(waitpid(pid, None), Ok(WaitStatus::PtraceSyscall(pid)));
        calls.extend(entered(process.0.as_raw()));
    }
    assert_eq!(calls.last(), Some(&(libc::SYS_rt_sigprocmask as u64)), "its first system call");
    ptrace::syscall(pid, None).expect("it is stopped");
    assert_eq!(waitpid(pid, None), Ok(WaitStatus::PtraceSyscall(pid)), "the call's exit");
    process
}

/// The number of the system call that is being entered, if one is.
fn entered(pid: i32) -> Option<u64> {
    let mut info = SyscallInfo::default();
    // SAFETY: the kernel writes at most the size that is named.
    let got = unsafe { libc::ptrace(GET_SYSCALL_INFO, pid, size_of_val(&info), &raw mut info) };
    Errno::result(got).expect("Linux 5.3");
    (info.op == AT_ENTRY).then_some(info.number)
}

#[track_caller]
fn no_term_is_lost(pid1: bool, times: usize) {
    for time in 0..times {
        let process = held(pid1);
        process.signal(libc::SIGTERM);
        ptrace::detach(process.0, None).expect("it is stopped");
        let mut end = None;
        common::instance::until("its end", || {
            end = process.ended();
            end.is_some()
        });
        // By itself, and not by a signal that hit it unprepared.
        assert_eq!(end, Some(WaitStatus::Exited(process.0, 143)), "TERM number {time}");
    }
}

#[test]
fn no_term_is_lost_in_the_first_instructions() {
    no_term_is_lost(false, 100);
}

#[test]
fn no_term_is_lost_in_the_first_instructions_of_pid_1() {
    if is_root("a PID namespace") {
        no_term_is_lost(true, 100);
    }
}

#[test]
fn a_program_is_not_started_after_the_stop_request() {
    let folder = common::directory();
    // Blocked by whatever started us, it is still pending when we begin.
    let block = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); \
                 os.kill(os.getpid(), signal.SIGTERM); os.execv(sys.argv[1], sys.argv[1:])";
    let file = folder.path().join("started");
    let output = common::run(Command::new("python3").args(["-c", block, SUNDOWN, "--", "touch", common::text(&file)]));
    assert_eq!(output.code, Some(143), "{}", output.stderr);
    assert!(output.stderr.contains("TERM came before the program was started"), "{}", output.stderr);
    assert!(!file.exists());
}

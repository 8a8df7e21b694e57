//! A network of one's own, so that what others open and close at the same time is neither seen nor in the way.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;

use nix::errno::Errno;

/// Gives this thread, and all that it starts from now on, a new network namespace with a loopback. False, loudly, where
/// that needs more rights than we have.
#[track_caller]
pub fn own() -> bool {
    if !super::is_root("a network of its own") {
        return false;
    }
    // SAFETY: takes a number; it moves this thread alone.
    let moved = Errno::result(unsafe { libc::unshare(libc::CLONE_NEWNET) });
    moved.expect("a network namespace");
    let up = super::run(Command::new("ip").env("PATH", super::path()).args(["link", "set", "lo", "up"]));
    assert_eq!(up.code, Some(0), "{}", up.stderr);
    true
}

/// Runs this in the network of another process.
pub fn inside<T: Send>(pid: i32, act: impl FnOnce() -> T + Send) -> T {
    let network = File::open(format!("/proc/{pid}/ns/net")).expect("the process is there");
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: takes numbers; it moves this thread alone, and the descriptor is open.
            Errno::result(unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) }).expect("root may");
            act()
        });
        thread.join().expect("the thread inside has not panicked")
    })
}

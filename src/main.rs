//! sundown: starts a container's program, runs as PID 1 in front of it, and brings it down without losing a request.
#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code, reason = "main, which all hangs on, is not part of the tests"))]

mod cgroup;
mod check;
mod child;
mod cli;
mod compat;
mod control;
mod entry;
mod fallback;
mod http;
mod keepalive;
mod launch;
mod lifecycle;
mod notify;
mod plan;
mod report;
mod sidecar;
mod signals;
mod supervisor;
mod traffic;
mod tree;
mod trial;

/// C's `main`, in place of Rust's: the runtime's own start would set SIGPIPE to ignored before we could see what it was.
/// Every signal is blocked by now: the stub in [`entry`] saw to that before libc's first instruction.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(argc: libc::c_int, argv: *const *const libc::c_char) -> libc::c_int {
    let inherited = signals::Inherited::take_over(entry::original_mask());
    // SAFETY: the C runtime passes what execve(2) was given: argc strings.
    let args = unsafe { entry::args(argc, argv) };
    i32::from(launch::main(&args, inherited))
}

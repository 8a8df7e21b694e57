//! sundown: starts a container's program, runs as PID 1 in front of it, and brings it down without losing a request.
#![cfg_attr(not(test), no_main)]

mod check;
mod child;
mod entry;
mod http;
mod signals;

/// C's `main`, in place of Rust's: the runtime's own start would set SIGPIPE to ignored before we could see what it was.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(_argc: libc::c_int, _argv: *const *const libc::c_char) -> libc::c_int {
    let inherited = signals::Inherited::take_over(entry::original_mask());
    println!("{inherited:?} {:?}", signals::pending());
    0
}

//! Descriptors 0 to 2, where whatever started us has closed one of them.

use std::io;

/// Plugs each of 0, 1 and 2 that is closed, so that no descriptor of ours is ever taken for stdin, stdout or stderr.
///
/// The plug is an epoll instance: it needs no /dev/null, reads and writes of it fail with EINVAL (so `println!` would
/// panic), poll(2) never finds it writable, and it is closed on exec, so that the child finds the descriptor closed as
/// it was given to us. To be called before anything else is opened.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM.
pub fn sanitize_std_fds() -> io::Result<()> {
    for fd in 0..=2 {
        if is_closed(fd) {
            plug()?;
        }
    }
    Ok(())
}

fn is_closed(fd: i32) -> bool {
    // SAFETY: takes a number and only reads the descriptor's flags.
    unsafe { libc::fcntl(fd, libc::F_GETFD) == -1 }
}

/// Opens a plug in the lowest free place, which is the one that was found closed. It stays open for good.
fn plug() -> io::Result<()> {
    // SAFETY: takes flags only and touches no memory of ours.
    match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

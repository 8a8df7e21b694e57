//! Lines of text without a wait and without allocation, from the child before its exec too.

use std::ffi::CStr;
use std::fmt::{self, Write};
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::signals::Signal;

/// What a pipe takes at once (PIPE_BUF, pipe(7)). A longer line is cut off.
const LONGEST: usize = 4096;

struct Line {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One place is left for the line's end.
        let room = &mut self.bytes[self.len..LONGEST - 1];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

/// Writes a line if whoever reads there takes it at once: an init must not wait for a reader of its log.
pub(super) fn say(fd: i32, text: fmt::Arguments) {
    let mut line = Line { bytes: [0; _], len: 0 };
    let _ = line.write_fmt(text);
    line.bytes[line.len] = b'\n';
    if is_ready(fd) {
        let _ = nix::unistd::write(borrow(fd), &line.bytes[..=line.len]);
    }
}

fn is_ready(fd: i32) -> bool {
    let mut ready = [PollFd::new(borrow(fd), PollFlags::POLLOUT)];
    poll(&mut ready, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// Writes all of a text, and waits for whoever reads it.
pub(super) fn write(fd: i32, mut text: &[u8]) {
    while !text.is_empty() {
        match nix::unistd::write(borrow(fd), text) {
            Ok(0) => return,
            Ok(len) => text = &text[len..],
            Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

fn borrow(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: 1 and 2 are open from the first instructions of main on, and nothing of ours closes them.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// An error's text in libc's words.
pub(super) struct Words(pub(super) Errno);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; 128];
        // SAFETY: the buffer is ours and as long as said.
        unsafe { libc::strerror_r(self.0 as i32, bytes.as_mut_ptr().cast(), bytes.len()) };
        f.write_str(CStr::from_bytes_until_nul(&bytes).ok().and_then(|text| text.to_str().ok()).unwrap_or_default())
    }
}

/// What libc calls a signal (strsignal(3)).
pub(super) struct Called(pub(super) Signal);

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: takes a number.
        let text = unsafe { libc::strsignal(self.0.number()) };
        if text.is_null() {
            return write!(f, "{}", self.0);
        }
        // SAFETY: a string that holds until the next call, and there is one thread.
        let text = unsafe { CStr::from_ptr(text) };
        f.write_str(text.to_str().unwrap_or_default())
    }
}

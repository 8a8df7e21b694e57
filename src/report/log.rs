//! The log: stderr only, and never at the price of a wait.
//!
//! A log pipe that nobody reads must not stop PID 1. The description behind stderr is shared with the child, so it must not
//! be made non-blocking either: a pipe or a terminal is opened anew, and that description is. Where that cannot be done, a
//! line is written only when poll(2) says that it can be taken, which is less sure: a terminal may take the half of it and
//! make us wait, and the child may fill the pipe in between. What is not taken at once is counted, and the loss is told with
//! the next line that gets through.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::SystemTime;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::ending::Ending;
use super::line;
use crate::plan::LogFormat;

const STDERR: i32 = 2;
/// What a pipe that poll calls writable takes at once (PIPE_BUF, pipe(7)).
const AT_ONCE: usize = 4096;

/// Our own description of what stderr is; -1 where there is none.
static OWN: AtomicI32 = AtomicI32::new(-1);
static DROPPED: AtomicU64 = AtomicU64::new(0);
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Sets the log up. To be called once.
pub fn init(format: LogFormat, level: Level) {
    IS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    if let Some(own) = reopen() {
        OWN.store(own.into_raw_fd(), Ordering::Relaxed);
    }
    // It fails if it is set twice, and the first goes on then.
    let _ = tracing::subscriber::set_global_default(Log { format, level });
}

/// Writes one line, before the log is set up or after it can be trusted.
pub fn plain(text: impl fmt::Display) {
    put(&format!("sundown: {text}\n"));
}

/// Says why the program was not started, before or after the log is set up.
pub fn not_started(code: u8, text: &str) {
    match IS_JSON.load(Ordering::Relaxed) {
        true => tracing::error!(code, ending = Ending::NotStarted.name(), "{text}"),
        false => plain(text),
    }
}

/// What becomes of an event: one line, written at once or not at all. Spans are not for a log of a few lines.
struct Log {
    format: LogFormat,
    level: Level,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.into())
    }

    fn event(&self, event: &Event<'_>) {
        put(&match self.format {
            LogFormat::Text => line::text(event),
            LogFormat::Json => line::json(event, SystemTime::now()),
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Writes a line to stderr, or drops what that cannot take at once.
fn put(line: &str) {
    let dropped = DROPPED.load(Ordering::Relaxed);
    if dropped > 0 && write_at_once(loss(dropped).as_bytes()) {
        DROPPED.fetch_sub(dropped, Ordering::Relaxed);
    }
    if !line.as_bytes().chunks(AT_ONCE).all(write_at_once) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

fn loss(lines: u64) -> String {
    let text = format!("{lines} log lines were dropped, since nobody read stderr");
    match IS_JSON.load(Ordering::Relaxed) {
        true => format!("{{\"level\":\"WARN\",\"message\":\"{text}\"}}\n"),
        false => format!("sundown: warning: {text}\n"),
    }
}

/// Opens stderr anew, without waits, if it is a pipe or a terminal (proc_pid_fd(5)). It stays open for good.
fn reopen() -> Option<File> {
    let path = "/proc/self/fd/2";
    let kind = std::fs::metadata(path).ok()?.file_type();
    let open = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok();
    (kind.is_fifo() || kind.is_char_device()).then(open).flatten()
}

/// Writes without waiting; false if it cannot all be taken now. An error other than that is nobody's to hear.
fn write_at_once(bytes: &[u8]) -> bool {
    let own = OWN.load(Ordering::Relaxed);
    // SAFETY: descriptor 2 is open from the first instructions of main on and our own from the start of the log on, and
    // nothing of ours closes them.
    let stderr = unsafe { BorrowedFd::borrow_raw(if own >= 0 { own } else { STDERR }) };
    let is_ready = || {
        let mut ready = [PollFd::new(stderr, PollFlags::POLLOUT)];
        poll(&mut ready, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    };
    (own >= 0 || is_ready())
        && match nix::unistd::write(stderr, bytes) {
            Ok(written) => written == bytes.len(),
            Err(error) => error != nix::errno::Errno::EAGAIN,
        }
}

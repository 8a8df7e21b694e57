//! The log: stderr only, and never at the price of a wait.
//!
//! A log pipe that nobody reads must not stop PID 1. The description behind stderr is shared with the child, so it must not
//! be made non-blocking either: a pipe or a terminal is opened anew, and that description is. Where that cannot be done, a
//! line is written only when poll(2) says that it can be taken, which is less sure: a terminal may take the half of it and
//! make us wait, and the child may fill the pipe in between. What is not taken at once is counted, and the loss is told with
//! the next line that gets through.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::ending::Ending;
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
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(|| Stderr);
    let _ = match format {
        LogFormat::Text => builder.event_format(Text).try_init(),
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_target(false)
            .with_current_span(false)
            .with_span_list(false)
            .try_init(),
    };
}

/// Writes one line, before the log is set up or after it can be trusted.
pub fn plain(text: impl fmt::Display) {
    let _ = Stderr.write_all(format!("sundown: {text}\n").as_bytes());
}

/// Says why the program was not started, before or after the log is set up.
pub fn not_started(code: u8, text: &str) {
    match IS_JSON.load(Ordering::Relaxed) {
        true => tracing::error!(code, ending = Ending::NotStarted.name(), "{text}"),
        false => plain(text),
    }
}

/// `sundown: text` for a person; the level is named where it is not the usual one.
struct Text;

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        writer.write_str(match *event.metadata().level() {
            Level::ERROR => "sundown: error: ",
            Level::WARN => "sundown: warning: ",
            Level::INFO => "sundown: ",
            Level::DEBUG => "sundown: debug: ",
            Level::TRACE => "sundown: trace: ",
        })?;
        event.record(&mut Message(&mut writer));
        writeln!(writer)
    }
}

/// Writes the message and leaves the fields to JSON.
struct Message<'a, 'b>(&'a mut Writer<'b>);

impl Visit for Message<'_, '_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

/// Stderr that drops what it cannot take at once.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let dropped = DROPPED.load(Ordering::Relaxed);
        if dropped > 0 && write_at_once(loss(dropped).as_bytes()) {
            DROPPED.fetch_sub(dropped, Ordering::Relaxed);
        }
        if !line.chunks(AT_ONCE).all(write_at_once) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

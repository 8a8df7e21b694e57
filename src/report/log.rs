//! The log: stderr only, and never at the price of a wait.
//!
//! A log pipe that nobody reads must not stop PID 1. The description behind stderr is shared with the child, so it must not
//! be made non-blocking either: a line is written only when poll(2) says that it can be taken at once, else it is counted
//! and the loss is told with the next line that gets through.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::plan::LogFormat;

const STDERR: i32 = 2;
/// What a pipe that poll calls writable takes at once (PIPE_BUF, pipe(7)).
const AT_ONCE: usize = 4096;

static DROPPED: AtomicU64 = AtomicU64::new(0);
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Sets the log up. To be called once.
pub fn init(format: LogFormat, level: Level) {
    IS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
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

/// Writes without waiting; false if it cannot be taken now. An error other than that is nobody's to hear.
fn write_at_once(bytes: &[u8]) -> bool {
    // SAFETY: descriptor 2 is open from the first instructions of main on, and nothing of ours closes it.
    let stderr = unsafe { BorrowedFd::borrow_raw(STDERR) };
    let mut ready = [PollFd::new(stderr, PollFlags::POLLOUT)];
    let is_ready = poll(&mut ready, PollTimeout::ZERO).is_ok_and(|count| count > 0);
    is_ready && nix::unistd::write(stderr, bytes) != Err(nix::errno::Errno::EAGAIN)
}

//! For how long a server keeps an idle connection: one GET, and then waiting. It blocks, and is for subcommands only.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::HttpCheck;
use super::answer::{self, Answer};

/// What was measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measured {
    /// Host and port.
    pub authority: String,
    /// The answer's status.
    pub status: u16,
    /// What the answer's field `Keep-Alive` said.
    pub keep_alive: Option<String>,
    /// Whether the answer said that its connection is closed.
    pub says_close: bool,
    /// How it ended.
    pub idle: Idle,
}

/// What became of the idle connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// The server closed it so long after its answer.
    ClosedAfter(Duration),
    /// It was still open after this time.
    OpenAfter(Duration),
}

impl Measured {
    /// The seconds of `Keep-Alive: timeout=5`.
    pub fn said_timeout(&self) -> Option<u32> {
        let parts = self.keep_alive.as_deref()?.split(',');
        parts.filter_map(|part| part.trim().strip_prefix("timeout=")?.trim().parse().ok()).next()
    }
}

/// Asks once, and waits for the server to close. Either may take `limit`.
///
/// # Errors
/// In one line, why there was no answer.
pub fn measure(check: &HttpCheck, limit: Duration) -> Result<Measured, String> {
    let authority = &check.endpoint.authority;
    let tell = |error: io::Error| match error.kind() {
        io::ErrorKind::TimedOut => format!("{authority}: no whole answer within {limit:?}"),
        io::ErrorKind::ConnectionRefused => format!("{authority}: connection refused"),
        _ => format!("{authority}: {error}"),
    };
    let mut stream = connect(check, Instant::now() + limit).map_err(tell)?;
    let Answer { status, keep_alive, says_close } = ask(&mut stream, check).map_err(tell)?;
    let answered = Instant::now();
    stream.get_mut().until = answered + limit;
    let idle = match wait(&mut stream) {
        Ok(()) => Idle::ClosedAfter(answered.elapsed()),
        Err(_) => Idle::OpenAfter(limit),
    };
    Ok(Measured { authority: authority.clone(), status, keep_alive, says_close, idle })
}

/// A connection that is read until a moment, and no longer.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // SO_RCVTIMEO would do, but long ones are late by an eighth: they are in the kernel's coarse timers, poll's are not.
        let mut ready = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        let left = left(self.until)?.as_millis() + 1;
        match poll(&mut ready, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => self.stream.read(buffer),
        }
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// Connects to the first address that takes it; the error is the first one's, since the others are second guesses.
fn connect(check: &HttpCheck, until: Instant) -> io::Result<BufReader<Timed>> {
    let mut first = None;
    for address in &check.endpoint.addresses {
        let connected = left(until).and_then(|left| TcpStream::connect_timeout(address, left));
        match connected {
            // Nobody listens: see the checks' own connecting.
            Ok(stream) if stream.local_addr()? == *address => {
                first = first.or(Some(io::ErrorKind::ConnectionRefused.into()));
            }
            Ok(stream) => return Ok(BufReader::new(Timed { stream, until })),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
}

fn ask(stream: &mut BufReader<Timed>, check: &HttpCheck) -> io::Result<Answer> {
    let (host, path, version) = (&check.endpoint.authority, &check.path, env!("CARGO_PKG_VERSION"));
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sundown/{version}\r\nAccept: */*\r\n\r\n");
    stream.get_mut().stream.write_all(request.as_bytes())?;
    answer::read(stream)
}

/// Waits for the end, whatever comes before it. A reset is one too.
///
/// # Errors
/// It had not come in time.
fn wait(stream: &mut BufReader<Timed>) -> io::Result<()> {
    let mut waste = [0; 1024];
    loop {
        match stream.read(&mut waste) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::TimedOut => return Err(error),
                _ => return Ok(()),
            },
        }
    }
}

//! The asking itself: one connection, one small GET, one status line back.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Endpoint, HttpCheck, Method, OwnConnections, TcpCheck};

/// How much of an answer's first line is read, in bytes: its version and status are the first twelve.
const STATUS_LINE_BYTES: usize = 256;

/// How much of the rest is taken, and for how long: an app that is cut off in its answer may log an error each time.
const REST_BYTES: usize = 16 * 1024;
const REST_TIME: Duration = Duration::from_millis(100);

/// How soon one that is waited for is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// GETs the path. Passes on a status of 200 to 399, as the kubelet's probe does; redirects are not followed. The error
/// says in one line what came instead. Takes at most `limit`, and a tenth of a second for the rest of the answer.
pub async fn http(check: &HttpCheck, limit: Duration, own: &OwnConnections) -> Result<(), String> {
    send(Method::Get, check, false, limit, own).await
}

/// The same by any method. A `patient` one waits, as long as its time lasts, for somebody to take the connection.
pub async fn send(
    method: Method,
    check: &HttpCheck,
    patient: bool,
    limit: Duration,
    own: &OwnConnections,
) -> Result<(), String> {
    let authority = &check.endpoint.authority;
    let mut refused = None;
    let ask = async {
        let mut stream = loop {
            match connect(&check.endpoint, own).await {
                Ok(stream) => break stream,
                Err(reason) if !patient => return Err(reason),
                Err(reason) => refused = Some(reason),
            }
            tokio::time::sleep(AGAIN).await;
        };
        refused = None;
        stream.write_all(request(method, check).as_bytes()).await.map_err(|error| tell(authority, &error))?;
        let status = read_status(&mut stream).await.map_err(|error| tell(authority, &error))?;
        Ok((stream, status))
    };
    let asked = timeout(limit, ask).await;
    let (stream, status) = asked.unwrap_or_else(|_| Err(refused.unwrap_or_else(|| too_late(authority, limit))))?;
    hear_out(stream).await;
    match status {
        200..=399 => Ok(()),
        _ => Err(format!("{authority} answered {status}")),
    }
}

/// Connects. The error says in one line what came instead. Takes at most `limit`.
pub async fn tcp(check: &TcpCheck, limit: Duration, own: &OwnConnections) -> Result<(), String> {
    let connected = timeout(limit, connect(&check.endpoint, own)).await;
    connected.unwrap_or_else(|_| Err(too_late(&check.endpoint.authority, limit))).map(drop)
}

/// Connects to the first address that takes it; the error is the first one's, since the others are second guesses.
async fn connect(endpoint: &Endpoint, own: &OwnConnections) -> Result<TcpStream, String> {
    let mut first = None;
    for &address in &endpoint.addresses {
        match connect_one(address, own).await {
            Ok(stream) => return Ok(stream),
            Err(error) => first = first.or(Some(error)),
        }
    }
    let error = first.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into());
    Err(tell(&endpoint.authority, &error))
}

async fn connect_one(address: SocketAddr, own: &OwnConnections) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    let local = stream.local_addr()?;
    own.note(local);
    if local == address {
        // Nobody listens: the kernel chose the very port as ours, and we are connected to ourselves (RFC 9293, section 3.5,
        // simultaneous open). It would hold the port that the app is about to take.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

fn request(method: Method, check: &HttpCheck) -> String {
    let HttpCheck { endpoint, path } = check;
    let (host, version) = (&endpoint.authority, env!("CARGO_PKG_VERSION"));
    // A POST says that it has no body (RFC 9110, section 8.6).
    let length = if method == Method::Post { "Content-Length: 0\r\n" } else { "" };
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sundown/{version}\r\nAccept: */*\r\n{length}Connection: close\r\n\r\n"
    )
}

/// The status of the answer's first line (RFC 9112, section 4).
async fn read_status(stream: &mut TcpStream) -> io::Result<u16> {
    let mut line = [0; STATUS_LINE_BYTES];
    let mut length = 0;
    while length < line.len() && !line[..length].contains(&b'\n') {
        match stream.read(&mut line[length..]).await? {
            0 if length == 0 => return Err(io::Error::other("closed without an answer")),
            0 => break,
            read => length += read,
        }
    }
    parse_status(&line[..length]).ok_or_else(|| io::Error::other("the answer is not HTTP"))
}

pub(super) fn parse_status(line: &[u8]) -> Option<u16> {
    let (minor, rest) = line.strip_prefix(b"HTTP/1.")?.split_first()?;
    let (digits, rest) = rest.strip_prefix(b" ")?.split_at_checked(3)?;
    let delimited = matches!(rest.first(), None | Some(b' ' | b'\r' | b'\n'));
    let number = digits.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(digits).ok()?.parse().ok())?;
    number.filter(|_| minor.is_ascii_digit() && delimited)
}

/// Takes the rest of the answer, within limits; what it says does not matter.
async fn hear_out(mut stream: TcpStream) {
    let rest = async {
        let (mut waste, mut left) = ([0; 1024], REST_BYTES);
        while let Ok(read @ 1..) = stream.read(&mut waste).await {
            left = left.saturating_sub(read);
            if left == 0 {
                break;
            }
        }
    };
    let _ = timeout(REST_TIME, rest).await;
}

fn tell(authority: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("{authority}: connection refused"),
        io::ErrorKind::ConnectionReset => format!("{authority}: connection reset"),
        _ => format!("{authority}: {error}"),
    }
}

fn too_late(authority: &str, limit: Duration) -> String {
    format!("{authority}: no answer within {limit:?}")
}

#[cfg(test)]
mod tests;

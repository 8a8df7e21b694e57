//! A raw HTTP client that never retries, and what is needed around it: free ports and latencies.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The most that one request may take before it counts as failed.
pub const BOUND: Duration = Duration::from_secs(10);

/// Between two looks at a condition that is waited for.
pub const PAUSE: Duration = Duration::from_millis(5);

/// A loopback address whose port was free a moment ago.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A connection whose reads and writes fail after [`BOUND`].
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, BOUND)?;
    stream.set_read_timeout(Some(BOUND))?;
    stream.set_write_timeout(Some(BOUND))?;
    Ok(stream)
}

/// Sends these bytes on a new connection and reads until the server closes it.
pub fn exchange(address: SocketAddr, request: &[u8]) -> io::Result<String> {
    let mut stream = connect(address)?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    String::from_utf8(answer).map_err(io::Error::other)
}

/// One request on a connection of its own: the whole answer.
pub fn request(address: SocketAddr, method: &str, path: &str) -> io::Result<String> {
    exchange(address, format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())
}

/// The status of an answer; 0 if it is none.
pub fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// One GET, sent once: status and body.
pub fn try_get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let answer = request(address, "GET", path)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status(&answer), body.to_owned()))
}

/// One GET, sent once, that must be answered: status and body.
pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    try_get(address, path).unwrap_or_else(|error| panic!("GET {path} at {address}: {error}"))
}

/// Asks until it is answered with this status, and fails after [`BOUND`]. Returns the body.
pub fn wait_for_status(address: SocketAddr, path: &str, wanted: u16) -> String {
    let start = Instant::now();
    loop {
        let last = try_get(address, path);
        match last {
            Ok((status, body)) if status == wanted => return body,
            _ if start.elapsed() > BOUND => panic!("{path} at {address} was to be {wanted}, and is {last:?}"),
            _ => std::thread::sleep(PAUSE),
        }
    }
}

/// How long probes took, each on a connection of its own.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Half of them were as quick.
    pub median: Duration,
    /// None took longer.
    pub worst: Duration,
}

/// Asks `count` times, one after the other, and fails if one has another status.
pub fn probe_latency(address: SocketAddr, path: &str, wanted: u16, count: usize) -> Latency {
    let probe = || {
        let start = Instant::now();
        let (status, body) = get(address, path);
        assert_eq!(status, wanted, "{path}: {body}");
        start.elapsed()
    };
    let mut times: Vec<_> = (0..count.max(1)).map(|_| probe()).collect();
    times.sort();
    Latency { median: times[times.len() / 2], worst: times[times.len() - 1] }
}

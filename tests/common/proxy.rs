//! A stand-in for the proxies that run beside a job, and for ever unless they are told: it ends at `POST /quitquitquit`.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::instance::BOUND;

pub struct Proxy {
    pub address: SocketAddr,
    run: JoinHandle<Vec<String>>,
}

impl Proxy {
    /// It runs until it is told.
    pub fn start() -> Self {
        Self::start_at(TcpListener::bind("127.0.0.1:0").expect("a port"))
    }

    /// The same, on a port of the caller's.
    pub fn start_at(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("it is bound");
        Self { address, run: std::thread::spawn(move || serve(&listener)) }
    }

    /// `POST` and its URL.
    pub fn quit(&self) -> String {
        format!("POST http://{}/quitquitquit", self.address)
    }

    /// Waits for its end, and gives the first lines of what it was asked.
    #[track_caller]
    pub fn asked(self) -> Vec<String> {
        let limit = Instant::now() + BOUND;
        while !self.run.is_finished() {
            assert!(Instant::now() < limit, "nobody has told the proxy");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.run.join().expect("it does not panic")
    }

    pub fn runs(&self) -> bool {
        !self.run.is_finished()
    }
}

fn serve(listener: &TcpListener) -> Vec<String> {
    let mut asked = Vec::new();
    loop {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.set_read_timeout(Some(BOUND)).expect("a time");
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
            request.push(byte[0]);
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        let first = request.lines().next().unwrap_or_default().to_owned();
        let quits = first.starts_with("POST /quitquitquit ") && request.contains("Content-Length: 0\r\n");
        let status = if quits { "200 OK" } else { "404 Not Found" };
        let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        asked.push(first);
        if quits {
            return asked;
        }
    }
}

//! Checks against small servers on threads, with real sockets.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::check::Check;

const LIMIT: Duration = Duration::from_secs(5);

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A server that takes one request, gives `answer` and closes. Returns its port and, in the end, what it was asked.
fn server(answer: &'static [u8]) -> (u16, thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        let _ = stream.write_all(answer);
        String::from_utf8(request).unwrap()
    });
    (port, asked)
}

fn ask(url: &str, limit: Duration) -> Result<(), String> {
    match Check::parse(url).unwrap() {
        Check::Http(check) => run(http(&check, limit, &OwnConnections::default())),
        Check::Tcp(check) => run(tcp(&check, limit, &OwnConnections::default())),
        other => panic!("{other:?} asks nobody"),
    }
}

#[test]
fn statuses_pass_as_they_do_for_the_kubelet() {
    for (answer, said) in [
        (&b"HTTP/1.1 200 OK\r\n\r\n"[..], None),
        (b"HTTP/1.0 204\r\n\r\n", None),
        (b"HTTP/1.1 399 \r\n\r\n", None),
        (b"HTTP/1.1 200", None),
        (b"HTTP/1.1 400 Bad\r\n\r\n", Some("answered 400")),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Some("answered 503")),
        (b"HTTP/1.1 199 \r\n\r\n", Some("answered 199")),
        (b"HTTP/1.1 2000 \r\n\r\n", Some("not HTTP")),
        (b"HTTP/1.1 +20 \r\n\r\n", Some("not HTTP")),
        (b"SSH-2.0-x\r\n", Some("not HTTP")),
        (b"", Some("closed without an answer")),
    ] {
        let (port, server) = server(answer);
        let result = ask(&format!("http://127.0.0.1:{port}/health?a=b"), LIMIT);
        match said {
            None => assert_eq!(result, Ok(()), "{}", answer.escape_ascii()),
            Some(said) => assert!(result.as_ref().is_err_and(|error| error.contains(said)), "{result:?}"),
        }
        let request = server.join().unwrap();
        assert!(request.starts_with("GET /health?a=b HTTP/1.1\r\n"), "{request}");
        assert!(request.contains(&format!("\r\nHost: 127.0.0.1:{port}\r\n")), "{request}");
        assert!(request.contains("\r\nConnection: close\r\n"), "{request}");
    }
}

#[test]
fn an_answer_without_end_is_read_no_further_than_needed() {
    static LONG: [u8; 1 << 20] = [b'x'; 1 << 20];
    let (port, server) = server(&LONG);
    assert!(ask(&format!("http://127.0.0.1:{port}/"), LIMIT).unwrap_err().contains("not HTTP"));
    server.join().unwrap();
}

#[test]
fn who_accepts_and_is_silent_is_given_up_in_time() {
    // A hung app: the kernel completes the connection, nobody answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let start = Instant::now();
    assert!(ask(&url, Duration::from_millis(50)).unwrap_err().contains("no answer within 50ms"));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn a_port_that_nobody_has_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for url in [format!("http://127.0.0.1:{port}/"), format!("tcp://127.0.0.1:{port}"), format!("tcp://:{port}")] {
        assert!(ask(&url, LIMIT).unwrap_err().ends_with(": connection refused"), "{url}");
    }
}

#[test]
fn localhost_is_both_families() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("skipped: this machine has no IPv6 loopback");
        return;
    };
    let port = listener.local_addr().unwrap().port();
    assert_eq!(ask(&format!("tcp://localhost:{port}"), LIMIT), Ok(()));
    assert_eq!(ask(&format!("tcp://[::1]:{port}"), LIMIT), Ok(()));
}

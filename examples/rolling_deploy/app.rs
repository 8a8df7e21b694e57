//! The app: an HTTP/1.1 server that keeps connections, answers late on request, and does not handle SIGTERM.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::process::{self, ExitCode};
use std::thread;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use crate::common::wire::read_message;

/// The first argument of a process that is to be an app; the second is where it listens.
pub const ROLE: &str = "--be-the-app-at";

/// Where to serve, if this process is to be an app.
pub fn address_from_arguments(mut arguments: impl Iterator<Item = String>) -> Option<SocketAddr> {
    arguments.find(|argument| argument == ROLE)?;
    arguments.next()?.parse().ok()
}

/// Serves until killed, or until the demonstration is gone and with it the other end of stdin.
pub fn serve(address: SocketAddr) -> ExitCode {
    thread::spawn(|| {
        // Its end is all that matters, and an error is one.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let error = LocalSet::new().block_on(&runtime, accept_all(address)).expect_err("it accepts for ever");
    eprintln!("app at {address}: {error}");
    ExitCode::FAILURE
}

async fn accept_all(address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        // A client that went away is no business of the others.
        tokio::task::spawn_local(async { answer_all(stream).await.ok() });
    }
}

async fn answer_all(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(request) = read_message(&mut stream).await? {
        let ms = asked_delay(&request.start);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        let body = format!("done in {ms} ms\n");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

/// The milliseconds of `POST /work?ms=250 HTTP/1.1`.
fn asked_delay(request_line: &str) -> u64 {
    let query = request_line.split(' ').nth(1).and_then(|target| target.split_once("ms="));
    query.and_then(|(_, ms)| ms.parse().ok()).unwrap_or(0)
}

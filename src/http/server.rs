//! The loop that accepts and the task behind each connection, with their limits.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::header::USER_AGENT;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::answer::{Question, answer};
use super::guests::{Activity, Guests};
use super::{Answers, Visitor};

/// What a client may cost.
#[derive(Clone, Copy)]
struct Limits {
    /// Connections at a time; one more takes the place of the longest idle.
    connections: usize,
    /// How long a request's head may take, and a connection be idle before it. Longer than the 60 s at which scrapers
    /// and load balancers come again, so that they keep theirs.
    head: Duration,
    /// How long an ended connection may take to be closed by its client too.
    farewell: Duration,
}

const LIMITS: Limits = Limits { connections: 128, head: Duration::from_secs(75), farewell: Duration::from_secs(1) };

/// The longest request head, in bytes; more is answered with 431 (RFC 6585).
const HEAD_BYTES: usize = 8 * 1024;

/// What is read and thrown away of a client that goes on sending after its answer, in bytes.
const FAREWELL_BYTES: usize = 256 * 1024;

/// The pause after an accept(2) that failed, which would else fail again at once, and so on for ever.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers requests until it is dropped, and every connection with it. Must run in a [`tokio::task::LocalSet`]; with
/// no connection open nothing of it ever wakes up. Fails only at the start, if the runtime cannot watch the socket.
pub async fn serve(listener: std::net::TcpListener, answers: Rc<dyn Answers>) -> io::Result<Infallible> {
    // The supervisor's own files come first where few may be open.
    let connections = LIMITS.connections.min(open_files_limit() / 4);
    serve_within(Limits { connections, ..LIMITS }, listener, answers).await
}

async fn serve_within(
    limits: Limits,
    listener: std::net::TcpListener,
    answers: Rc<dyn Answers>,
) -> io::Result<Infallible> {
    let listener = TcpListener::from_std(listener)?;
    let mut guests: Guests<AbortHandle> = Guests::new(limits.connections);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            Some(ended) = tasks.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                guests.leave(|guest| guest.id() == id);
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    if guests.is_full() {
                        evict(&mut guests);
                    }
                    let activity = guests.arrival();
                    let task = converse(limits, stream, peer.ip(), Rc::clone(&answers), activity.clone());
                    guests.seat(tasks.spawn_local(task), activity);
                    // The new one is read before the next is let in: in a burst of more connections than there are
                    // seats, a probe would else be evicted before it was looked at.
                    yield_now().await;
                }
                // The client has gone again already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => yield_now().await,
                // No file or no memory is left (EMFILE, ENFILE, ENOMEM): give one back, and let others do so.
                Err(_) => {
                    evict(&mut guests);
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

fn evict(guests: &mut Guests<AbortHandle>) {
    if let Some(longest_idle) = guests.evict() {
        longest_idle.abort();
    }
}

/// The soft limit on open files (getrlimit(2)).
fn open_files_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit to the address, which is of a live local.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0;
    if failed { usize::MAX } else { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) }
}

/// One connection from its first byte to its end.
async fn converse(limits: Limits, mut stream: TcpStream, peer: IpAddr, answers: Rc<dyn Answers>, activity: Activity) {
    // hyper's buffers are only made for one who speaks: a silent client costs a task and a descriptor.
    if !matches!(timeout(limits.head, stream.readable()).await, Ok(Ok(()))) {
        return;
    }
    // An answer is one small write; nothing is gained by waiting for more.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| respond(&*answers, peer, &activity, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(HEAD_BYTES)
        // A client may end its side after its request, as `nc` does.
        .half_close(true)
        .serve_connection(TokioIo::new(&mut stream), service);
    // How it ended is the client's affair: a log line for each would be a way to fill the log.
    let _ = pin!(connection).await;
    farewell(limits, stream).await;
}

async fn respond(
    answers: &dyn Answers,
    peer: IpAddr,
    activity: &Activity,
    request: Request<Incoming>,
) -> Result<Response<http_body_util::Full<hyper::body::Bytes>>, Infallible> {
    // One request a turn: a client that sends them in one go gets no more of the thread than the others.
    yield_now().await;
    answers.request();
    let has_body = !request.body().is_end_stream();
    let visitor = Visitor::new(peer, request.headers().get(USER_AGENT));
    let question = Question {
        visitor: &visitor,
        method: request.method(),
        path: request.uri().path(),
        headers: request.headers(),
        has_body,
    };
    let response = answer(answers, &question, activity).await;
    activity.note();
    Ok(response)
}

/// Ends our side and waits, within limits, for the client to end its own. To close with unread bytes would reset the
/// connection, and the client could lose the answer that it was sent (RFC 9112, section 9.6).
async fn farewell(limits: Limits, mut stream: TcpStream) {
    let _ = timeout(limits.farewell, async {
        stream.shutdown().await?;
        let mut waste = [0; 1024];
        let mut left = FAREWELL_BYTES;
        while left > 0 {
            match stream.read(&mut waste).await? {
                0 => break,
                read => left = left.saturating_sub(read),
            }
            yield_now().await;
        }
        io::Result::Ok(())
    })
    .await;
}

#[cfg(test)]
mod tests;

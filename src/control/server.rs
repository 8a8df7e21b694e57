//! The instance's end of the control socket.

use std::cell::Cell;
use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::{Ask, Reply, address, is_trusted};
use crate::supervisor::Order;

/// More clients than this at once are sent away: hooks and probes are few.
const SEATS: usize = 64;
/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// No request is longer.
const LONGEST: usize = 32;

/// Opens the socket. Nobody is served before [`serve`].
///
/// # Errors
/// EPERM, EACCES: a security policy forbids it.
pub fn open() -> io::Result<StdListener> {
    let listener = StdListener::bind_addr(&address(std::process::id())?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves clients for as long as it is polled. `open` counts the connections: a hook's must be closed before PID 1 exits.
pub async fn serve(listener: StdListener, orders: UnboundedSender<Order>, open: Rc<Cell<usize>>) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    loop {
        match listener.accept().await {
            Ok((stream, _)) if open.get() < SEATS => {
                let guard = Seat::take(open.clone());
                let orders = orders.clone();
                tokio::task::spawn_local(async move {
                    let _guard = guard;
                    let _ = talk(stream, &orders).await;
                });
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
        tokio::task::yield_now().await;
    }
}

struct Seat(Rc<Cell<usize>>);

impl Seat {
    fn take(open: Rc<Cell<usize>>) -> Self {
        open.set(open.get() + 1);
        Self(open)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

async fn talk(mut stream: UnixStream, orders: &UnboundedSender<Order>) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    let reply = if is_trusted(peer.uid(), peer.pid().unwrap_or(0)) {
        let Ok(asked) = tokio::time::timeout(PATIENCE, read(&mut stream)).await else { return Ok(()) };
        match asked? {
            Some(ask) => answer(ask, orders).await,
            None => Reply::no("this instance does not know that request: is the client of another version?"),
        }
    } else {
        Reply::no(format!(
            "permission denied: uid {} asked, and only the instance's own user or root of this container may",
            peer.uid()
        ))
    };
    stream.write_all(format!("{}\n{}", reply.code, reply.text).as_bytes()).await?;
    stream.shutdown().await?;
    // The client closes its end by exiting: only then may PID 1 exit without killing it.
    let _ = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 16])).await;
    Ok(())
}

async fn read(stream: &mut UnixStream) -> io::Result<Option<Ask>> {
    let mut line = [0; LONGEST];
    let mut length = 0;
    while length < LONGEST && !line[..length].contains(&b'\n') {
        match stream.read(&mut line[length..]).await? {
            0 => break,
            read => length += read,
        }
    }
    let word = line[..length].split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(str::from_utf8(word).ok().and_then(Ask::parse))
}

async fn answer(ask: Ask, orders: &UnboundedSender<Order>) -> Reply {
    let (reply, answered) = oneshot::channel();
    // To a hook that is as good as done; to a probe it is a no.
    let going_down = || {
        let code = u8::from(!matches!(ask, Ask::PreStop | Ask::Stop | Ask::StopNow));
        Reply { code, text: "the container is going down already".into() }
    };
    if orders.send(Order::Asked(ask, reply)).is_err() {
        return going_down();
    }
    answered.await.unwrap_or_else(|_| going_down())
}

//! Telling systemd where we are, by its protocol (sd_notify(3)): datagrams of `NAME=value` lines to a Unix socket.
//!
//! Nothing here waits. What the socket cannot take now is sent later, and what it will never take is told once.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The variable that names the socket.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Whom we tell, if anybody.
#[derive(Default)]
pub struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// What has not been sent yet.
    lines: String,
    is_ready: bool,
    is_stopping: bool,
    status: String,
}

impl Notifier {
    /// Opens the way to this socket: a path, or `@name` for an abstract one. Without an address nobody is ever told.
    pub fn open(address: Option<OsString>) -> Self {
        let Some(address) = address.filter(|address| !address.is_empty()) else { return Self::default() };
        match open(&address) {
            Ok(to) => Self { to: Some(to), ..Self::default() },
            Err(error) => {
                tracing::warn!("{NOTIFY_SOCKET}={}: {error}; systemd is told nothing", address.display());
                Self::default()
            }
        }
    }

    /// Whether there is somebody to tell.
    pub fn is_on(&self) -> bool {
        self.to.is_some()
    }

    /// The program is ready. Only the first time counts.
    pub fn ready(&mut self) {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.lines.push_str("READY=1\n");
        }
    }

    /// A stop was asked for. Only the first time counts.
    pub fn stopping(&mut self) {
        if !std::mem::replace(&mut self.is_stopping, true) {
            self.lines.push_str("STOPPING=1\n");
        }
    }

    /// Where we are, in a line. The same again is not sent.
    pub fn status(&mut self, status: &str) {
        if self.is_on() && self.status != status {
            self.status = status.to_owned();
            let _ = writeln!(self.lines, "STATUS={}", status.replace('\n', " "));
        }
    }

    /// The time-out of the state that the service is in is not to come before this has passed.
    pub fn extend(&mut self, time: Duration) {
        let _ = writeln!(self.lines, "EXTEND_TIMEOUT_USEC={}", time.as_micros());
    }

    /// Sends what there is to say.
    pub fn flush(&mut self) {
        let Some((socket, address)) = &self.to else { return self.lines.clear() };
        if self.lines.is_empty() {
            return;
        }
        match socket.send_to_addr(self.lines.as_bytes(), address) {
            Ok(_) => self.lines.clear(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!("{NOTIFY_SOCKET}: {error}; systemd is told nothing more");
                self.to = None;
                self.lines.clear();
            }
        }
    }

    /// Whether something is left that the socket could not take.
    pub fn is_behind(&self) -> bool {
        !self.lines.is_empty()
    }
}

fn open(address: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(address)?,
        _ => return Err(io::Error::other("neither a path nor an abstract name")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(name: &str) -> (UnixDatagram, Notifier) {
        let name = format!("sundown-test-{}-{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let receiver = UnixDatagram::bind_addr(&address).expect("nobody else has it");
        receiver.set_nonblocking(true).expect("a socket");
        (receiver, Notifier::open(Some(format!("@{name}").into())))
    }

    fn heard(receiver: &UnixDatagram) -> Option<String> {
        let mut message = [0; 1024];
        let length = receiver.recv(&mut message).ok()?;
        Some(String::from_utf8_lossy(&message[..length]).into_owned())
    }

    #[test]
    fn each_is_said_once_and_a_status_when_it_changes() {
        let (receiver, mut notifier) = receiver("once");
        for _ in 0..2 {
            notifier.ready();
            notifier.status("running: ready");
            notifier.flush();
        }
        notifier.stopping();
        notifier.status("draining: a\nb");
        notifier.extend(Duration::from_millis(1500));
        notifier.flush();
        assert_eq!(heard(&receiver).as_deref(), Some("READY=1\nSTATUS=running: ready\n"));
        assert_eq!(
            heard(&receiver).as_deref(),
            Some("STOPPING=1\nSTATUS=draining: a b\nEXTEND_TIMEOUT_USEC=1500000\n")
        );
        assert_eq!(heard(&receiver), None);
    }

    #[test]
    fn what_a_full_socket_cannot_take_is_sent_later() {
        let (receiver, mut notifier) = receiver("full");
        let mut said = 0;
        while !notifier.is_behind() {
            said += 1;
            assert!(said < 100_000, "it is never full");
            notifier.status(&said.to_string());
            notifier.flush();
        }
        notifier.ready();
        while heard(&receiver).is_some() {}
        notifier.flush();
        assert!(!notifier.is_behind());
        assert_eq!(heard(&receiver), Some(format!("STATUS={said}\nREADY=1\n")));
    }

    #[test]
    fn nobody_is_told_where_nobody_is_there() {
        for address in [None, Some(""), Some("vsock:2:9"), Some("/no/such/socket"), Some("@no-such-socket-of-sundown")]
        {
            let mut notifier = Notifier::open(address.map(Into::into));
            notifier.ready();
            notifier.status("x");
            notifier.flush();
            assert!(!notifier.is_on() && !notifier.is_behind(), "{address:?}");
        }
    }
}

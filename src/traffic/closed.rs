//! Connections that end, told by the kernel as it happens (the groups SKNLGRP_INET_TCP_DESTROY of NETLINK_SOCK_DIAG; no
//! privilege). Without them a connection that comes and goes between two samples would not be counted.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::traffic::diag::message::{Message, Messages};
use crate::traffic::diag::{self, Connection, Error};

/// SKNLGRP_INET_TCP_DESTROY is group 1, SKNLGRP_INET6_TCP_DESTROY group 3.
const GROUPS: u32 = 1 << 0 | 1 << 2;
/// A message is one socket, of about 400 bytes.
const BUFFER: usize = 4096;
/// More than the kernel keeps for us.
const MOST_READS: usize = 4096;

/// The ends of connections, since it was opened.
#[derive(Debug)]
pub struct Closed {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Closed {
    /// Begins to listen. What is not fetched is kept by the kernel up to its socket buffer, some 150 ends, and costs nothing
    /// of ours until it is.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: diag::open(GROUPS)?, buffer: vec![0; BUFFER] })
    }

    /// Hands on each connection that has ended since the last call. False if the kernel had to drop some.
    pub fn each(&mut self, each: &mut dyn FnMut(&Connection)) -> bool {
        let mut complete = true;
        for _ in 0..MOST_READS {
            match diag::receive(&self.socket, &mut self.buffer) {
                Ok(length) => rows(self.buffer.get(..length).unwrap_or_default()).for_each(|row| each(&row)),
                Err(Errno::ENOBUFS) => complete = false,
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        complete
    }
}

impl AsRawFd for Closed {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn rows(datagram: &[u8]) -> impl Iterator<Item = Connection> {
    Messages::of(datagram).flatten().filter_map(|(message, _)| match message {
        Message::Row(row) => Connection::parse(row),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    #[test]
    fn short_connections_are_all_told() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let mut closed = Closed::open().expect("the groups");
        let mut cookies = std::collections::HashSet::new();
        for round in 1..=4 {
            for _ in 0..20 {
                drop((TcpStream::connect(address).expect("a connection"), listener.accept().expect("a connection")));
            }
            // The kernel tells from a work queue.
            let until = Instant::now() + Duration::from_secs(10);
            while cookies.len() < round * 20 && Instant::now() < until {
                closed.each(&mut |row| {
                    if row.local == address {
                        cookies.insert(row.cookie);
                    }
                });
            }
            assert_eq!(cookies.len(), round * 20);
        }
    }
}

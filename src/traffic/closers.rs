//! Who closed first: of connections that have ended, those that the app itself has closed.

use crate::traffic::diag::{Client, Connection, Error, Family, States};
use crate::traffic::ours::{Found, Hints, Listener, Ours};
use crate::traffic::sampler::both;

/// Asks the kernel. It holds a socket of sock_diag.
#[derive(Debug)]
pub struct Closers {
    client: Client,
    hints: Hints,
    ours: Ours,
}

impl Closers {
    /// Opens it. [`Self::find`] comes next.
    ///
    /// # Errors
    /// Those of socket(2).
    pub fn open(hints: Hints) -> Result<Self, Error> {
        Ok(Self { client: Client::open()?, hints, ours: Ours::default() })
    }

    /// Finds the listeners of these processes, which are the tree's. It reads the list of each one's descriptors.
    ///
    /// # Errors
    /// Those of [`Client::dump`].
    pub fn find(&mut self, pids: impl Iterator<Item = i32>) -> Result<Found, Error> {
        let mut all = Vec::new();
        let client = &mut self.client;
        both(|family| client.dump(family, States::LISTENING, &[], &mut |row| all.push(Listener::from(row))))?;
        self.ours = Ours::among(&all, pids, &self.hints);
        Ok(self.ours.found)
    }

    /// Whether this was a connection to one of the listeners that were found.
    pub fn has(&self, connection: &Connection) -> bool {
        self.ours.has(connection)
    }

    /// Keeps those that the app has closed: what is left of them waits for the network to forget them (RFC 9293, section
    /// 3.6). Where the kernel keeps none of these, nothing is kept.
    ///
    /// # Errors
    /// Those of [`Client::dump`].
    pub fn keep_closed_by_app(&mut self, ended: &mut Vec<Connection>) -> Result<(), Error> {
        let mut ports: Vec<u16> = ended.iter().map(|row| row.local.port()).collect();
        ports.sort_unstable();
        ports.dedup();
        let mut closed = Vec::new();
        for family in Family::BOTH.into_iter().filter(|family| ended.iter().any(|row| row.family == *family)) {
            self.client.dump(family, States::CLOSED_BY_US, &ports, &mut |left| {
                if ended.iter().any(|row| (row.local, row.remote) == (left.local, left.remote)) {
                    closed.push((left.local, left.remote));
                }
            })?;
        }
        ended.retain(|row| closed.contains(&(row.local, row.remote)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use crate::traffic::closed::Closed;

    /// The end of a connection, and whether the server is known to have closed it.
    fn ended(listener: &str, close: impl FnOnce(TcpStream, TcpStream)) -> (Closers, Vec<Connection>) {
        let listener = TcpListener::bind(listener).expect("a port");
        let address = listener.local_addr().expect("its address");
        let mut closers = Closers::open(Hints::default()).expect("sock_diag");
        assert_eq!(closers.find(std::iter::once(std::process::id() as i32)), Ok(Found::Descriptors));
        let mut closed = Closed::open().expect("the groups");
        let client = TcpStream::connect(("127.0.0.1", address.port())).expect("a connection");
        close(listener.accept().expect("a connection").0, client);
        let mut rows = Vec::new();
        let until = Instant::now() + Duration::from_secs(10);
        while rows.is_empty() && Instant::now() < until {
            closed.each(&mut |row| rows.extend((row.local.port() == address.port()).then_some(*row)));
        }
        assert!(closers.has(&rows[0]));
        closers.keep_closed_by_app(&mut rows).expect("sock_diag");
        (closers, rows)
    }

    #[test]
    fn who_closed_first_is_told() {
        for listener in ["127.0.0.1:0", "[::]:0"] {
            let (_, rows) = ended(listener, |server, client| {
                drop(server);
                drop(client);
            });
            assert_eq!(rows.len(), 1, "the server, on {listener}");
            let (_, rows) = ended(listener, |server, client| {
                drop(client);
                drop(server);
            });
            assert_eq!(rows.len(), 0, "the client, on {listener}");
        }
    }
}

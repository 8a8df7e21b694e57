//! A client of NETLINK_SOCK_DIAG (sock_diag(7)): the kernel's own list of TCP sockets, with what it knows of each. It needs
//! no privilege, asks and never changes, and is never waited for: the kernel has its answer ready when it is asked.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType};

use ask::Ask;
use message::{Message, Messages};

pub mod ask;
pub(super) mod message;
pub mod row;
#[cfg(test)]
mod tests;

pub use ask::{Family, States};
pub use row::{Connection, Info, State};

/// The kernel fills no message of a dump beyond this (netlink_dump).
const BUFFER: usize = 32 * 1024;
/// A dump that goes on after this many messages, some 300,000 sockets, is given up.
const MOST_READS: usize = 4096;

/// Why the kernel's list cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// Not for us: SELinux (EACCES) or a seccomp filter (EPERM).
    Denied(Errno),
    /// There is none: no `inet_diag` in this kernel, or gVisor.
    Unsupported(Errno),
    /// It broke off, or was not understood.
    Failed(Errno),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::EACCES | Errno::EPERM => Self::Denied(errno),
            // ENOENT: nobody answers for the family.
            Errno::ENOSYS | Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT | Errno::ESOCKTNOSUPPORT | Errno::ENOENT => {
                Self::Unsupported(errno)
            }
            _ => Self::Failed(errno),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(errno) => {
                write!(f, "sock_diag: {} (SELinux or a seccomp filter forbids it)", errno.desc())
            }
            Self::Unsupported(errno) => write!(f, "sock_diag: {} (the kernel has none; gVisor)", errno.desc()),
            Self::Failed(errno) => write!(f, "sock_diag: {}", errno.desc()),
        }
    }
}

/// The connection to the kernel, with the one buffer that every answer is read into.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    sequence: u32,
    ask: Vec<u8>,
    buffer: Vec<u8>,
}

impl Client {
    /// Opens it.
    ///
    /// # Errors
    /// Those of socket(2) on AF_NETLINK.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: open(0)?, sequence: 0, ask: Vec::new(), buffer: vec![0; BUFFER] })
    }

    /// Hands each TCP socket of this family in one of these states to `each`. With `ports`, only those whose local port is
    /// one of them; the kernel leaves out the rest where they are not too many, so look again.
    ///
    /// # Errors
    /// Those of the kernel; [`Error::Failed`] with EPROTO for an answer that makes no sense, with EOVERFLOW for one without
    /// end. What was handed over until then is right, but not all. After an error the client is used up.
    pub fn dump(
        &mut self,
        family: Family,
        states: States,
        ports: &[u16],
        each: &mut dyn FnMut(&Connection),
    ) -> Result<(), Error> {
        self.sequence = self.sequence.wrapping_add(1);
        Ask { family, states, ports, sequence: self.sequence }.write_to(&mut self.ask);
        socket::send(self.socket.as_raw_fd(), &self.ask, MsgFlags::empty())?;
        for _ in 0..MOST_READS {
            // EAGAIN is an error here: each read makes the kernel write the next part before it returns.
            let length = receive(&self.socket, &mut self.buffer)?;
            if read_part(self.buffer.get(..length).unwrap_or_default(), self.sequence, each)? {
                return Ok(());
            }
        }
        Err(Error::Failed(Errno::EOVERFLOW))
    }
}

/// Opens a socket of sock_diag that never blocks, and joins these groups (a bit mask).
///
/// # Errors
/// Those of socket(2) and bind(2).
pub(super) fn open(groups: u32) -> Result<OwnedFd, Error> {
    let socket = socket::socket(
        AddressFamily::Netlink,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        SockProtocol::NetlinkSockDiag,
    )?;
    if groups != 0 {
        socket::bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    }
    Ok(socket)
}

/// Reads one datagram of the kernel's. One of another process's, which only root could send, counts as empty.
///
/// # Errors
/// Those of recv(2); EAGAIN where there is none.
pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    let (length, from) = socket::recvfrom::<NetlinkAddr>(socket.as_raw_fd(), buffer)?;
    Ok(if from.is_some_and(|from| from.pid() == 0) { length } else { 0 })
}

/// Hands on the rows of one datagram. True when it ends the dump.
fn read_part(part: &[u8], sequence: u32, each: &mut dyn FnMut(&Connection)) -> Result<bool, Error> {
    for message in Messages::of(part) {
        match message.ok_or(Errno::EPROTO)? {
            // The rest of a dump that was given up.
            (_, other) if other != sequence => {}
            (Message::Row(row), _) => each(&Connection::parse(row).ok_or(Errno::EPROTO)?),
            (Message::Done, _) => return Ok(true),
            (Message::Failed(errno), _) => return Err(Errno::from_raw(errno).into()),
            (Message::Other, _) => {}
        }
    }
    Ok(false)
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let (Error::Denied(errno) | Error::Unsupported(errno) | Error::Failed(errno)) = error;
        errno.into()
    }
}

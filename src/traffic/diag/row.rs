//! One TCP socket as sock_diag shows it: `struct inet_diag_msg` (linux/inet_diag.h) and the attributes behind it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::ask::Family;
use super::message::{attributes, number32, number64};

/// A state of TCP, by the kernel's number (net/tcp_states.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State(pub u8);

impl State {
    #![allow(missing_docs, reason = "the names are those of RFC 9293")]
    pub const ESTABLISHED: Self = Self(1);
    pub const FIN_WAIT1: Self = Self(4);
    pub const FIN_WAIT2: Self = Self(5);
    pub const TIME_WAIT: Self = Self(6);
    pub const CLOSE_WAIT: Self = Self(8);
    pub const LAST_ACK: Self = Self(9);
    pub const LISTEN: Self = Self(10);
    pub const CLOSING: Self = Self(11);
}

/// One socket.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Connection {
    /// The family of the socket; one that listens on IPv6 takes IPv4 too.
    pub family: Family,
    /// Its own end. IPv4 in IPv6 is shown as IPv4.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Its state.
    pub state: State,
    /// The number by which /proc/PID/fd knows it; 0 if no process has it: it was not accepted yet, or is closed.
    pub inode: u64,
    /// What it is known by for as long as it lives, never given twice.
    pub cookie: u64,
    /// Bytes that the app has not read; of a listener, the connections that it has not accepted.
    pub rqueue: u32,
    /// Bytes not sent, or not acknowledged; of a listener, the greatest length of its queue.
    pub wqueue: u32,
    /// What TCP has counted, where the kernel says it.
    pub info: Option<Info>,
    /// The cgroup (v2) that made it, as [`super::super::ours::own_cgroup`] gives it; only from kernel 5.8 on.
    pub cgroup: Option<u64>,
}

/// The part of `struct tcp_info` (linux/tcp.h) that is of use here. Times are rounded to the kernel's tick, 1 to 10 ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Info {
    /// Milliseconds since data last came; since the connection began, if none has.
    pub last_data_recv_ms: u32,
    /// Milliseconds since data was last sent; since the connection began, if none was.
    pub last_data_sent_ms: u32,
    /// Milliseconds since the other end last acknowledged something, with data or without.
    pub last_ack_recv_ms: u32,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Bytes that have come and are in order. The end of the stream counts as one.
    pub bytes_received: u64,
    /// Bytes sent that are acknowledged. The end of the stream counts as one.
    pub bytes_acked: u64,
    /// Segments sent, the answer to the first SYN included.
    pub segs_out: u32,
    /// Segments sent that carried data.
    pub data_segs_out: u32,
}

/// `struct inet_diag_msg`.
pub const ROW: usize = 72;
/// `INET_DIAG_INFO`.
pub const INFO: u16 = 2;
/// `INET_DIAG_CGROUP_ID`.
const CGROUP_ID: u16 = 21;

impl Connection {
    /// Whether a request waits for its answer, by this one look; none where the kernel does not say. A tie counts as answered.
    pub fn waits_for_answer(&self) -> Option<bool> {
        let info = self.info?;
        let is_moving = self.inode == 0 || self.rqueue > 0 || self.wqueue > 0;
        let unanswered = info.data_segs_out == 0 || info.last_data_recv_ms < info.last_data_sent_ms;
        Some(is_moving || info.bytes_received > 0 && unanswered)
    }

    /// Since a byte last moved; since the connection came, if none has.
    pub fn still(&self) -> Duration {
        let info = self.info.unwrap_or_default();
        Duration::from_millis(info.last_data_recv_ms.min(info.last_data_sent_ms).into())
    }

    /// Reads a row and its attributes; none where it is too short or of no family that we know.
    pub fn parse(row: &[u8]) -> Option<Self> {
        let (head, rest) = row.split_at_checked(ROW)?;
        let family = Family::of_number(head[0])?;
        let (mut info, mut cgroup) = (None, None);
        for (kind, value) in attributes(rest) {
            match kind {
                INFO => info = Info::parse(value),
                CGROUP_ID => cgroup = number64(value, 0),
                _ => {}
            }
        }
        Some(Self {
            family,
            local: address(head, family, 8, 4)?,
            remote: address(head, family, 24, 6)?,
            state: State(head[1]),
            inode: number32(head, 68)?.into(),
            cookie: number64(head, 44)?,
            rqueue: number32(head, 56)?,
            wqueue: number32(head, 60)?,
            info,
            cgroup,
        })
    }
}

impl Info {
    /// Reads `struct tcp_info`, which grows with the kernel. None where it ends before what we need, as before 4.6.
    fn parse(text: &[u8]) -> Option<Self> {
        Some(Self {
            unacked: number32(text, 24)?,
            last_data_sent_ms: number32(text, 44)?,
            last_data_recv_ms: number32(text, 52)?,
            last_ack_recv_ms: number32(text, 56)?,
            bytes_acked: number64(text, 120)?,
            bytes_received: number64(text, 128)?,
            segs_out: number32(text, 136)?,
            data_segs_out: number32(text, 156)?,
        })
    }
}

/// The address at one place of the row and the port at the other, both in the network's order.
fn address(head: &[u8], family: Family, address_at: usize, port_at: usize) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*head.get(port_at..)?.first_chunk()?);
    let text = head.get(address_at..)?;
    let address = match family {
        Family::V4 => IpAddr::from(Ipv4Addr::from(*text.first_chunk::<4>()?)),
        Family::V6 => IpAddr::from(Ipv6Addr::from(*text.first_chunk::<16>()?)).to_canonical(),
    };
    Some(SocketAddr::new(address, port))
}

//! /proc/net/tcp and tcp6 (proc_pid_net(5), Documentation/networking/proc_net_tcp.rst): what is left where sock_diag is
//! denied or missing, and the one place where the kernel shows, without a duplicate of the socket, whether the last
//! request's acknowledgement went out alone.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::traffic::diag::{Connection, Family, State};

/// A line is 150 bytes and at most 180 long; the kernel hands out whole lines, a page at a time.
const BUFFER: usize = 32 * 1024;

/// One row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    /// All but what TCP has counted, and no cgroup. The cookie is made of the two addresses, which name a connection too.
    pub connection: Connection,
    /// Whether TCP is in what the kernel calls ping-pong mode: it has answered data with data, and expects to do so again.
    /// A delayed acknowledgement that had to go out alone ends it. `getsockopt(TCP_QUICKACK)` is its reverse.
    pub in_pingpong: bool,
}

/// Reads the lists into one buffer that is kept.
#[derive(Debug)]
pub struct Reader {
    buffer: Vec<u8>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { buffer: vec![0; BUFFER] }
    }
}

impl Reader {
    /// Hands each TCP socket of this family to `each`. A row that makes no sense is passed over.
    ///
    /// # Errors
    /// Those of open(2) and read(2) on the list.
    pub fn each(&mut self, family: Family, each: &mut dyn FnMut(&Row)) -> io::Result<()> {
        let mut list = File::open(match family {
            Family::V4 => "/proc/self/net/tcp",
            Family::V6 => "/proc/self/net/tcp6",
        })?;
        let mut kept = 0;
        loop {
            let read = list.read(&mut self.buffer[kept..])?;
            if read == 0 {
                return Ok(());
            }
            let text = &self.buffer[..kept + read];
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            text[..whole]
                .split(|byte| *byte == b'\n')
                .filter_map(|line| Row::parse(line, family))
                .for_each(|row| each(&row));
            kept = text.len() - whole;
            self.buffer.copy_within(whole..whole + kept, 0);
            if kept == self.buffer.len() {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }
}

impl Row {
    /// `sl local remote st tx:rx tr:when retrnsmt uid timeout inode ref pointer rto ato quick<<1|pingpong cwnd ssthresh`.
    pub fn parse(line: &[u8], family: Family) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let local = address(fields.nth(1)?, family)?;
        let remote = address(fields.next()?, family)?;
        let state = State(number(fields.next()?, 16)?.try_into().ok()?);
        let mut queues = fields.next()?.split(|byte| *byte == b':');
        let wqueue = number(queues.next()?, 16)? as u32;
        let rqueue = number(queues.next()?, 16)? as u32;
        let inode = number(fields.nth(4)?, 10)?;
        let acks = fields.nth(4).and_then(|field| number(field, 10)).unwrap_or_default();
        let cookie = cookie(local, remote);
        let connection =
            Connection { family, local, remote, state, inode, cookie, rqueue, wqueue, info: None, cgroup: None };
        Some(Self { connection, in_pingpong: acks & 1 == 1 })
    }
}

/// `0100007F:1F90`: each 32-bit word of the address as a number of this machine's, and the port as a number.
fn address(text: &[u8], family: Family) -> Option<SocketAddr> {
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (address, port) = (text.get(..colon)?, number(text.get(colon + 1..)?, 16)?);
    let mut octets = [0; 16];
    let words = address.chunks(8).zip(octets.chunks_mut(4));
    for (word, octets) in words {
        octets.copy_from_slice(&(number(word, 16)? as u32).to_ne_bytes());
    }
    let address = match (family, address.len()) {
        (Family::V4, 8) => IpAddr::from(Ipv4Addr::from(*octets.first_chunk::<4>()?)),
        (Family::V6, 32) => IpAddr::from(Ipv6Addr::from(octets)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(address, port.try_into().ok()?))
}

/// FNV-1a over the addresses. Two connections with the same one would be counted as one, once in some 10^15 samples.
fn cookie(local: SocketAddr, remote: SocketAddr) -> u64 {
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    [local, remote].into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, end| {
        let hash = end.port().to_be_bytes().into_iter().fold(hash, add);
        match end.ip() {
            IpAddr::V4(address) => address.octets().into_iter().fold(hash, add),
            IpAddr::V6(address) => address.octets().into_iter().fold(hash, add),
        }
    })
}

fn number(text: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(str::from_utf8(text).ok()?, radix).ok()
}

/// How many connections this network namespace has accepted since it was made (`Tcp: PassiveOpens`, RFC 4022), those of
/// its other containers and of our own endpoint among them.
///
/// # Errors
/// Those of open(2) and read(2); InvalidData where the counter is not there.
pub fn passive_opens() -> io::Result<u64> {
    let mut buffer = [0; 4096];
    let length = File::open("/proc/self/net/snmp")?.read(&mut buffer)?;
    parse_passive_opens(&buffer[..length]).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Two lines that start with `Tcp:`, the names and the numbers.
fn parse_passive_opens(text: &[u8]) -> Option<u64> {
    let mut lines = text.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"Tcp: "));
    let at = lines.next()?.split(|byte| *byte == b' ').position(|name| name == b"PassiveOpens")?;
    number(lines.next()?.split(|byte| *byte == b' ').nth(at)?, 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    const LINE: &str = "   0: 0100007F:1F90 0900000A:9C40 01 00000005:00000003 00:00000000 00000000     0        0 4242 1 \
                        00000000e62e8ef0 20 4 31 10 -1                 ";

    #[test]
    #[cfg(target_endian = "little")]
    fn a_row_is_read() {
        let row = Row::parse(LINE.as_bytes(), Family::V4).expect("a row");
        let seen = row.connection;
        assert_eq!(seen.local, "127.0.0.1:8080".parse().expect("an address"));
        assert_eq!(seen.remote, "10.0.0.9:40000".parse().expect("an address"));
        assert_eq!((seen.state, seen.inode, seen.rqueue, seen.wqueue), (State::ESTABLISHED, 4242, 3, 5));
        assert!(row.in_pingpong);
        let line = LINE
            .replace("0100007F:", "0000000000000000FFFF00000100007F:")
            .replace("0900000A:", "00000000000000000000000001000000:");
        let row = Row::parse(line.as_bytes(), Family::V6).expect("a row");
        assert_eq!(row.connection.local, "127.0.0.1:8080".parse().expect("an address"));
        assert_eq!(row.connection.remote, "[::1]:40000".parse().expect("an address"));
    }

    #[test]
    fn what_is_no_row_is_passed_over() {
        for end in 0..LINE.len() {
            let _ = Row::parse(&LINE.as_bytes()[..end], Family::V4);
            let _ = Row::parse(&LINE.as_bytes()[end..], Family::V6);
        }
        assert_eq!(Row::parse(b"  sl  local_address rem_address   st tx_queue rx_queue", Family::V4), None);
        assert_eq!(Row::parse(LINE.as_bytes(), Family::V6), None);
        assert_eq!(Row::parse(&[0xff; 200], Family::V4), None);
        let gvisor = &LINE[..LINE.find(" 20 4").expect("the fields that gVisor may leave out")];
        assert!(Row::parse(gvisor.as_bytes(), Family::V4).is_some_and(|row| !row.in_pingpong));
    }

    #[test]
    fn a_list_longer_than_the_buffer_is_read_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let _streams: Vec<_> =
            (0..400).map(|_| (TcpStream::connect(("127.0.0.1", port)).expect("a stream"), listener.accept())).collect();
        let (mut seen, mut cookies) = (0, std::collections::HashSet::new());
        let mut count = |row: &Row| {
            if row.connection.local.port() == port && row.connection.state == State::ESTABLISHED {
                seen += 1;
                cookies.insert(row.connection.cookie);
            }
        };
        Reader::default().each(Family::V4, &mut count).expect("the list");
        // The kernel may show a row twice while others come and go.
        assert!(seen >= 400 && cookies.len() == 400, "{seen} rows of {} connections", cookies.len());
    }

    #[test]
    fn accepted_connections_are_counted() {
        assert_eq!(parse_passive_opens(b"Ip: A B\nIp: 1 2\nTcp: RtoMin PassiveOpens X\nTcp: 200 71 -1\n"), Some(71));
        assert_eq!(parse_passive_opens(b"Tcp: RtoMin\nTcp: 200\n"), None);
        assert_eq!(parse_passive_opens(b""), None);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let before = passive_opens().expect("the counter");
        let _stream = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        assert!(passive_opens().expect("the counter") > before);
    }
}

//! The parser against everything that is no answer, and the client against this machine's kernel.

use std::net::{TcpListener, TcpStream};

use super::message::{Message, Messages, attributes};
use super::*;

/// A generator with a fixed seed (xorshift64*): the same cases each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut text = [(value.len() as u16 + 4).to_ne_bytes(), kind.to_ne_bytes()].concat();
    text.extend(value);
    text.resize(text.len().next_multiple_of(4), 0);
    text
}

fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut text = (body.len() as u32 + 16).to_ne_bytes().to_vec();
    text.extend(kind.to_ne_bytes());
    text.extend([0; 2]);
    text.extend(sequence.to_ne_bytes());
    text.extend([0; 4]);
    text.extend(body);
    text.resize(text.len().next_multiple_of(4), 0);
    text
}

/// A row for 127.0.0.1:8080 to 10.0.0.9:40000, with a `tcp_info` of this length whose every 32-bit word is its own place.
fn row(info_length: usize) -> Vec<u8> {
    let mut row = vec![0; row::ROW];
    row[0] = Family::V4.number();
    row[1] = State::ESTABLISHED.0;
    row[4..6].copy_from_slice(&8080u16.to_be_bytes());
    row[6..8].copy_from_slice(&40000u16.to_be_bytes());
    row[8..12].copy_from_slice(&[127, 0, 0, 1]);
    row[24..28].copy_from_slice(&[10, 0, 0, 9]);
    row[44..52].copy_from_slice(&77u64.to_ne_bytes());
    row[56..60].copy_from_slice(&3u32.to_ne_bytes());
    row[60..64].copy_from_slice(&5u32.to_ne_bytes());
    row[68..72].copy_from_slice(&4242u32.to_ne_bytes());
    let info: Vec<u8> = (0..info_length as u32).step_by(4).flat_map(u32::to_ne_bytes).collect();
    row.extend(attribute(row::INFO, &info[..info_length]));
    row.extend(attribute(21, &99u64.to_ne_bytes()));
    row
}

#[test]
fn a_row_is_read_with_all_that_it_says() {
    let seen = Connection::parse(&row(280)).expect("a row");
    assert_eq!(seen.local, "127.0.0.1:8080".parse().expect("an address"));
    assert_eq!(seen.remote, "10.0.0.9:40000".parse().expect("an address"));
    assert_eq!((seen.state, seen.inode, seen.cookie), (State::ESTABLISHED, 4242, 77));
    assert_eq!((seen.rqueue, seen.wqueue, seen.cgroup), (3, 5, Some(99)));
    let wide = |at: u64| if cfg!(target_endian = "little") { at | (at + 4) << 32 } else { at << 32 | (at + 4) };
    let info = Info {
        unacked: 24,
        last_data_sent_ms: 44,
        last_data_recv_ms: 52,
        last_ack_recv_ms: 56,
        bytes_acked: wide(120),
        bytes_received: wide(128),
        segs_out: 136,
        data_segs_out: 156,
    };
    assert_eq!(seen.info, Some(info));
}

#[test]
fn a_kernel_with_a_shorter_or_longer_tcp_info_is_no_trouble() {
    for length in (0..600).step_by(4) {
        let seen = Connection::parse(&row(length)).expect("a row");
        assert_eq!(seen.info.is_some(), length >= 160, "{length} bytes");
        assert_eq!(seen.cgroup, Some(99));
    }
    assert!(Connection::parse(&row(280)[..71]).is_none());
}

#[test]
fn ipv4_in_ipv6_is_shown_as_ipv4() {
    let mut row = row(0);
    row[0] = Family::V6.number();
    row[8..24].copy_from_slice(&"::ffff:10.1.2.3".parse::<std::net::Ipv6Addr>().expect("an address").octets());
    let seen = Connection::parse(&row).expect("a row");
    assert_eq!(seen.local, "10.1.2.3:8080".parse().expect("an address"));
    assert_eq!(seen.family, Family::V6);
}

#[test]
fn a_dump_ends_where_it_says_so_or_fails() {
    let read = |text: &[u8]| {
        let mut rows = 0;
        read_part(text, 7, &mut |_| rows += 1).map(|over| (over, rows))
    };
    let (by_family, done, error) = (20, libc::NLMSG_DONE as u16, libc::NLMSG_ERROR as u16);
    let one = message(by_family, 7, &row(280));
    assert_eq!(read(&one), Ok((false, 1)));
    assert_eq!(read(&[one.clone(), message(done, 7, &[0; 4])].concat()), Ok((true, 1)));
    assert_eq!(read(&[one.clone(), message(by_family, 6, &row(280))].concat()), Ok((false, 1)), "an older dump's");
    assert_eq!(read(&message(done, 7, &(-libc::ENOENT).to_ne_bytes())), Err(Error::Unsupported(Errno::ENOENT)));
    assert_eq!(read(&message(error, 7, &(-libc::EPERM).to_ne_bytes())), Err(Error::Denied(Errno::EPERM)));
    assert_eq!(read(&message(error, 7, &i32::MIN.to_ne_bytes())), Err(Error::Failed(Errno::EPROTO)));
    assert_eq!(read(&one[..40]), Err(Error::Failed(Errno::EPROTO)), "cut off");
    assert_eq!(read(&message(by_family, 7, &[0; 8])), Err(Error::Failed(Errno::EPROTO)), "no row");
}

/// Lengths are where parsers break, so they are what is changed most.
#[test]
fn whatever_comes_nothing_panics() {
    let mut random = Random(0x5eed);
    let good = [message(20, 7, &row(280)), message(20, 7, &row(232)), message(3, 7, &[0; 4])].concat();
    let mut rows = 0u64;
    for case in 0..400_000 {
        let mut text = match case % 4 {
            0 => (0..random.below(300)).map(|_| random.next() as u8).collect(),
            _ => good.clone(),
        };
        for _ in 0..random.below(6) {
            mutate(&mut text, &mut random);
        }
        let _ = read_part(&text, 7, &mut |_| rows += 1);
        let _ = Connection::parse(&text);
        assert!(attributes(&text).count() <= text.len() / 4 + 1);
        assert!(Messages::of(&text).count() <= text.len() / 16 + 1);
    }
    assert!(rows > 100_000, "the cases must not all be refused: {rows}");
}

fn mutate(text: &mut Vec<u8>, random: &mut Random) {
    if text.is_empty() {
        return;
    }
    let at = random.below(text.len());
    match random.below(5) {
        0 => text.truncate(at),
        1 => text[at] = random.next() as u8,
        2 => drop(text.drain(at..(at + random.below(8)).min(text.len()))),
        3 => text.insert(at, random.next() as u8),
        // A length: of the first message, of an attribute, or any other aligned number.
        _ => {
            let at = [0, 88, 88 + 284, at & !3][random.below(4)].min(text.len() - 1);
            let number = [0, 1, 3, 4, 15, 16, 17, u32::MAX, u32::MAX - 3, random.next() as u32][random.below(10)];
            let end = (at + 4).min(text.len());
            let count = end - at;
            text[at..end].copy_from_slice(&number.to_ne_bytes()[..count]);
        }
    }
}

#[test]
fn an_empty_message_does_not_hold_the_parser() {
    assert_eq!(Messages::of(&[0; 64]).collect::<Vec<_>>(), [None]);
    assert_eq!(attributes(&[0; 64]).count(), 0);
    assert_eq!(Messages::of(&message(1, 5, &[])).collect::<Vec<_>>(), [Some((Message::Other, 5))]);
}

#[test]
fn errors_are_told_apart() {
    assert_eq!(Error::from(Errno::EPERM), Error::Denied(Errno::EPERM));
    assert_eq!(Error::from(Errno::EPROTONOSUPPORT), Error::Unsupported(Errno::EPROTONOSUPPORT));
    assert_eq!(Error::from(Errno::EINVAL), Error::Failed(Errno::EINVAL));
    assert!(Error::from(Errno::EACCES).to_string().contains("SELinux"));
}

/// The kernel refuses a filter that is not well-formed, and a wrong one would let others pass.
#[test]
fn the_kernel_lets_only_the_ports_asked_for_pass() {
    let listeners: Vec<_> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let ports: Vec<u16> = listeners.iter().map(|one| one.local_addr().expect("its address").port()).collect();
    let _streams: Vec<_> =
        ports.iter().map(|port| TcpStream::connect(("127.0.0.1", *port)).expect("a connection")).collect();
    let mut client = Client::open().expect("sock_diag");
    let seen = |client: &mut Client, states, wanted: &[u16]| {
        let mut seen = Vec::new();
        client.dump(Family::V4, states, wanted, &mut |row| seen.push(row.local.port())).expect("a dump");
        seen.sort_unstable();
        seen
    };
    for count in 1..=4 {
        let mut wanted = ports[..count].to_vec();
        wanted.sort_unstable();
        assert_eq!(seen(&mut client, States::LISTENING, &wanted), wanted);
        assert_eq!(seen(&mut client, States::CONNECTED, &wanted), wanted);
    }
    let many: Vec<u16> = (1..=32).chain(ports[..1].iter().copied()).skip(1).collect();
    assert_eq!(many.len(), 32);
    assert_eq!(seen(&mut client, States::CONNECTED, &many), ports[..1]);
    let all = seen(&mut client, States::LISTENING, &[(1..=33).collect(), ports.clone()].concat());
    assert!(ports.iter().all(|port| all.contains(port)), "more than the kernel is asked to filter");
}

#[test]
fn a_listener_shows_its_queue_and_a_waiting_connection_no_inode() {
    let listener = TcpListener::bind("[::]:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let _waits: Vec<_> = (0..3).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("a connection")).collect();
    let mut client = Client::open().expect("sock_diag");
    let mut queue = None;
    client.dump(Family::V6, States::LISTENING, &[port], &mut |row| queue = Some(row.rqueue)).expect("a dump");
    assert_eq!(queue, Some(3));
    let mut rows = Vec::new();
    client.dump(Family::V6, States::CONNECTED, &[port], &mut |row| rows.push(*row)).expect("a dump");
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!((row.inode, row.state, row.local.port()), (0, State::ESTABLISHED, port));
        assert!(row.local.is_ipv4() && row.info.is_some_and(|info| info.bytes_received == 0));
    }
}

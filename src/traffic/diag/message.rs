//! The frame of netlink(7): messages one behind the other in a datagram, and attributes one behind the other in a message.
//! Every length in it is looked at before it is used; nothing here can panic on what it reads.

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A socket: `struct inet_diag_msg` and its attributes.
    Row(&'a [u8]),
    /// The dump is over.
    Done,
    /// It failed, with this errno.
    Failed(i32),
    /// An acknowledgement, or nothing that concerns us.
    Other,
}

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct nlattr`.
const ATTRIBUTE_HEADER: usize = 4;
/// The upper two bits of an attribute's type are flags (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// `SOCK_DIAG_BY_FAMILY`: a row of a dump.
pub const BY_FAMILY: u16 = 20;
/// `SOCK_DESTROY`: a row of the multicast of closed sockets.
pub const DESTROY: u16 = 21;

/// The messages of a datagram, each with its sequence number; none, once, where the frame is broken.
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Those in this datagram.
    pub fn of(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }

    fn message(&self) -> Option<(Message<'a>, u32, usize)> {
        let length = number32(self.rest, 0)? as usize;
        let body = self.rest.get(HEADER..length)?;
        let message = match number16(self.rest, 4)? {
            BY_FAMILY | DESTROY => Message::Row(body),
            kind if kind == libc::NLMSG_DONE as u16 => ended(body, Message::Done),
            kind if kind == libc::NLMSG_ERROR as u16 => ended(body, Message::Other),
            _ => Message::Other,
        };
        Some((message, number32(self.rest, 8)?, length))
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Option<(Message<'a>, u32)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let Some((message, sequence, length)) = self.message() else {
            self.rest = &[];
            return Some(None);
        };
        self.rest = self.rest.get(aligned(length)..).unwrap_or_default();
        Some(Some((message, sequence)))
    }
}

/// NLMSG_DONE and NLMSG_ERROR carry a negative errno, or 0 for success; an old NLMSG_DONE carries nothing.
fn ended<'a>(body: &[u8], well: Message<'a>) -> Message<'a> {
    match number32(body, 0).map_or(0, |code| code as i32) {
        0 => well,
        code => Message::Failed(code.checked_neg().unwrap_or(libc::EPROTO)),
    }
}

/// The attributes in this text as (type, value), up to the first whose length makes no sense.
pub fn attributes(text: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let length = usize::from(number16(rest, 0)?);
        let kind = number16(rest, 2)? & ATTRIBUTE_TYPE;
        let value = rest.get(ATTRIBUTE_HEADER..length)?;
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// NLMSG_ALIGN and NLA_ALIGN: everything starts at a multiple of four.
fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

/// The number in this machine's order that starts here, if it is there in full.
pub fn number16(text: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*text.get(at..)?.first_chunk()?))
}

/// The number in this machine's order that starts here, if it is there in full.
pub fn number32(text: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*text.get(at..)?.first_chunk()?))
}

/// The number in this machine's order that starts here, if it is there in full.
pub fn number64(text: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*text.get(at..)?.first_chunk()?))
}

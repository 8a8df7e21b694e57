//! What is asked of the kernel: `struct inet_diag_req_v2` (linux/inet_diag.h) and a filter for ports.

use super::message::BY_FAMILY;
use super::row::{INFO, State};

/// A family of addresses. A dump is of one: an IPv6 listener takes IPv4 too, and its connections are of IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// AF_INET.
    V4,
    /// AF_INET6.
    V6,
}

impl Family {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The kernel's number.
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => libc::AF_INET as u8,
            Self::V6 => libc::AF_INET6 as u8,
        }
    }

    /// The family of this number.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::BOTH.into_iter().find(|family| family.number() == number)
    }
}

/// A set of states, bit n for state n.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct States(u32);

impl States {
    /// Those that listen. The kernel looks at nothing else then: 0.03 ms, however many connections there are.
    pub const LISTENING: Self = Self(1 << State::LISTEN.0);
    /// Those on which a request can be in flight or an answer on its way. FIN_WAIT2 and TIME_WAIT have nothing left to say.
    pub const CONNECTED: Self = Self(
        1 << State::ESTABLISHED.0
            | 1 << State::CLOSE_WAIT.0
            | 1 << State::FIN_WAIT1.0
            | 1 << State::LAST_ACK.0
            | 1 << State::CLOSING.0,
    );

    /// Those that are left where our own side closed first.
    pub const CLOSED_BY_US: Self = Self(1 << State::FIN_WAIT2.0 | 1 << State::TIME_WAIT.0);

    /// Whether this state is one of them.
    pub fn contains(self, state: State) -> bool {
        state.0 < 32 && self.0 >> state.0 & 1 == 1
    }
}

/// One request.
pub struct Ask<'a> {
    /// Of which family.
    pub family: Family,
    /// In which states.
    pub states: States,
    /// Of which local ports; none stands for all.
    pub ports: &'a [u16],
    /// By which the answer is known.
    pub sequence: u32,
}

/// With more ports than this the kernel is asked for all: it would look at each socket as often as there are ports.
const MOST_PORTS: usize = 32;

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
const HEADER: usize = 16 + 56;
/// `INET_DIAG_REQ_BYTECODE`.
const BYTECODE: u16 = 1;
/// `INET_DIAG_BC_JMP`, which always goes where "no" points.
const JUMP: u8 = 1;
/// `INET_DIAG_BC_S_GE` and `_S_LE`: at least, and at most, this local port. `_S_EQ` would do, but came only with 5.9.
const AT_LEAST: u8 = 2;
const AT_MOST: u8 = 3;
/// `struct inet_diag_bc_op`; a comparison is two of them, the second with the port.
const OP: u16 = 4;
const COMPARISON: u16 = 2 * OP;
/// Two comparisons and a jump.
const BLOCK: u16 = 2 * COMPARISON + OP;

impl Ask<'_> {
    /// Writes the whole message in place of what was in there.
    pub fn write_to(&self, text: &mut Vec<u8>) {
        let filter = if self.ports.len() > MOST_PORTS { &[] } else { self.ports };
        text.clear();
        self.header(text, HEADER + filter_length(filter));
        self.request(text);
        if !filter.is_empty() {
            text.extend((filter_length(filter) as u16).to_ne_bytes());
            text.extend(BYTECODE.to_ne_bytes());
            any_of(filter, text);
        }
    }

    /// `struct nlmsghdr`.
    fn header(&self, text: &mut Vec<u8>, length: usize) {
        text.extend((length as u32).to_ne_bytes());
        text.extend(BY_FAMILY.to_ne_bytes());
        text.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
        text.extend(self.sequence.to_ne_bytes());
        text.extend(0u32.to_ne_bytes());
    }

    /// `struct inet_diag_req_v2`: family, protocol, the attributes wanted, padding, states, and an empty socket id.
    fn request(&self, text: &mut Vec<u8>) {
        text.extend([self.family.number(), libc::IPPROTO_TCP as u8, 1 << (INFO - 1), 0]);
        text.extend(self.states.0.to_ne_bytes());
        text.extend([0; 48]);
    }
}

/// The filter with the header of its attribute.
fn filter_length(ports: &[u16]) -> usize {
    match ports.len() {
        0 => 0,
        // The last block needs no jump.
        count => 4 + count * usize::from(BLOCK) - usize::from(OP),
    }
}

/// A program for the kernel that lets pass the sockets of these ports: a block for each, which jumps to the end, where
/// all that gets there passes, or leads to the next; the last one's "no" points beyond the end, which is a refusal.
fn any_of(ports: &[u16], text: &mut Vec<u8>) {
    let mut rest = ports.len() as u16 * BLOCK - OP;
    for port in ports {
        let is_last = rest < BLOCK;
        // From a comparison to the next block; beyond the last one's end.
        let next = if is_last { rest + 4 } else { BLOCK };
        comparison(AT_LEAST, next, *port, text);
        comparison(AT_MOST, next - COMPARISON, *port, text);
        if !is_last {
            op(JUMP, OP, rest - 2 * COMPARISON, text);
            rest -= BLOCK;
        }
    }
}

fn comparison(code: u8, no: u16, port: u16, text: &mut Vec<u8>) {
    op(code, COMPARISON, no, text);
    op(0, 0, port, text);
}

/// `struct inet_diag_bc_op`: how far to go on "yes" and on "no".
fn op(code: u8, yes: u16, no: u16, text: &mut Vec<u8>) {
    text.extend([code, yes as u8]);
    text.extend(no.to_ne_bytes());
}

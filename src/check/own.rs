//! Our own checks' connections: the app sees a client like any other, and a drain must not wait for it.

use std::cell::RefCell;
use std::net::SocketAddr;

/// So many are remembered: one that is still seen was made a moment ago, and its port may be another's later.
const REMEMBERED: usize = 4;

/// Our ends of the connections that checks made last.
#[derive(Default, Debug)]
pub struct OwnConnections {
    last: RefCell<[Option<SocketAddr>; REMEMBERED]>,
}

impl OwnConnections {
    /// Takes one down.
    pub(super) fn note(&self, local: SocketAddr) {
        let mut last = self.last.borrow_mut();
        last.rotate_right(1);
        last[0] = Some(canonical(local));
    }

    /// Whether the other end of a connection of the app's is one of them.
    pub fn has(&self, remote: SocketAddr) -> bool {
        self.last.borrow().contains(&Some(canonical(remote)))
    }
}

/// The same on a socket of either family.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_few_are_known_on_either_family() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let own = OwnConnections::default();
        own.note(address("127.0.0.1:40000"));
        assert!(own.has(address("[::ffff:127.0.0.1]:40000")) && !own.has(address("127.0.0.1:40001")));
        (1..=REMEMBERED as u16).for_each(|port| own.note(SocketAddr::from(([127, 0, 0, 1], port))));
        assert!(!own.has(address("127.0.0.1:40000")) && own.has(address("127.0.0.1:1")));
    }
}

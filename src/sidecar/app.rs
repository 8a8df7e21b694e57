//! The app as a sidecar sees it: sockets that listen on its ports. Nothing else of it can be seen from another container.

use crate::traffic::listeners;

/// What has become of it since the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Nothing.
    None,
    /// It has come.
    Came,
    /// It has gone.
    Gone,
    /// It has gone and come back, quicker than we looked.
    Another,
}

/// The app's listeners at the last look.
#[derive(Debug)]
pub(super) struct App {
    ports: Vec<u16>,
    /// Their inodes, which no other socket has as long as they are open.
    listeners: Vec<u64>,
}

impl App {
    /// The app with these ports, not looked for yet.
    pub(super) fn new(ports: Vec<u16>) -> Self {
        Self { ports, listeners: Vec::new() }
    }

    /// Looks for it.
    pub(super) fn look(&mut self) -> Change {
        let seen = listeners::on_ports(&self.ports);
        self.note(seen)
    }

    /// Whether it was there.
    pub(super) fn is_there(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// One listener that stays is enough for it to be the same: workers come and go, and a reload passes sockets on.
    fn note(&mut self, seen: Vec<u64>) -> Change {
        let before = std::mem::replace(&mut self.listeners, seen);
        match (before.is_empty(), self.listeners.is_empty()) {
            (true, true) => Change::None,
            (true, false) => Change::Came,
            (false, true) => Change::Gone,
            (false, false) if before.iter().any(|inode| self.listeners.contains(inode)) => Change::None,
            (false, false) => Change::Another,
        }
    }
}

/// Its ports, for people.
impl std::fmt::Display for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        write!(f, "port{} {}", if ports.len() == 1 { "" } else { "s" }, ports.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_as_long_as_one_listener_stays() {
        let mut app = App::new(vec![3000]);
        for (seen, change) in [
            (&[][..], Change::None),
            (&[1, 2], Change::Came),
            (&[2, 3], Change::None),
            (&[3], Change::None),
            (&[4], Change::Another),
            (&[], Change::Gone),
            (&[], Change::None),
            (&[5], Change::Came),
        ] {
            assert_eq!(app.note(seen.to_vec()), change, "{seen:?}");
        }
    }

    #[test]
    fn it_is_found_by_its_ports_and_by_nothing_else() {
        let (one, other) = (std::net::TcpListener::bind("127.0.0.1:0"), std::net::TcpListener::bind("127.0.0.1:0"));
        let (one, _other) = (one.expect("a port"), other.expect("a port"));
        let mut app = App::new(vec![one.local_addr().expect("its address").port()]);
        assert_eq!((app.look(), app.listeners.len()), (Change::Came, 1));
        drop(one);
        assert_eq!((app.look(), app.is_there()), (Change::Gone, false));
    }
}

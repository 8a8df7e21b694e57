//! Which listeners are the app's, and so which connections. The containers of a pod share one network: a neighbour's
//! sockets stand in the same lists.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use crate::traffic::diag::{Connection, Family};
use crate::traffic::listeners::{self, Held};

/// A TCP listener.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Listener {
    /// Its family.
    pub family: Family,
    /// What it is bound to.
    pub local: SocketAddr,
    /// The number by which /proc/PID/fd knows it.
    pub inode: u64,
    /// The cgroup that made it, where that is known.
    pub cgroup: Option<u64>,
    /// How many connections wait to be accepted.
    pub queue: u32,
}

/// How the app's listeners were told from others'.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Found {
    /// By the ports that were stated.
    Stated,
    /// By the descriptors of the tree's processes.
    Descriptors,
    /// By descriptors, and by the cgroup where those could not be read.
    Cgroup,
    /// Not: none listens, or some process hides its descriptors and the cgroup says nothing.
    #[default]
    Not,
}

/// Where to look for the app's listeners.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// The ports that were stated (`--ports`); empty if none were. They decide alone.
    pub ports: Vec<u16>,
    /// The inode of our own endpoint, which is nobody's listener.
    pub own_endpoint: Option<u64>,
    /// Our cgroup, as [`own_cgroup`] gives it.
    pub cgroup: Option<u64>,
}

/// The app's listeners.
#[derive(Default, Debug)]
pub struct Ours {
    listeners: Vec<Listener>,
    ports: Vec<u16>,
    /// How they were found.
    pub found: Found,
}

impl From<&Connection> for Listener {
    fn from(row: &Connection) -> Self {
        let Connection { family, local, inode, cgroup, rqueue, .. } = *row;
        Self { family, local, inode, cgroup, queue: rqueue }
    }
}

impl Ours {
    /// Picks those of the tree's processes from all that there are.
    pub fn among(all: &[Listener], pids: impl Iterator<Item = i32>, hints: &Hints) -> Self {
        let (listeners, found) = pick(all, hints, |inodes| listeners::held(pids, inodes));
        Self::of(listeners, found, hints)
    }

    fn of(listeners: Vec<Listener>, found: Found, hints: &Hints) -> Self {
        let mut ports: Vec<u16> = listeners.iter().map(|listener| listener.local.port()).collect();
        // Connections may outlive a stated port's listener.
        ports.extend(&hints.ports);
        ports.sort_unstable();
        ports.dedup();
        let found = if ports.is_empty() { Found::Not } else { found };
        Self { listeners, ports, found }
    }

    /// The ports, sorted, each once.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.listeners.len()
    }

    /// Whether a listener of this inode is one of them.
    pub fn listens(&self, inode: u64) -> bool {
        self.listeners.iter().any(|listener| listener.inode == inode)
    }

    /// Whether connections of this family may be ours: a dump of the other need not be paid for.
    pub fn uses(&self, family: Family) -> bool {
        self.found == Found::Stated || self.listeners.iter().any(|listener| listener.family == family)
    }

    /// Whether one of our listeners took this connection.
    pub fn has(&self, connection: &Connection) -> bool {
        let port = connection.local.port();
        if self.found == Found::Stated {
            return self.ports.binary_search(&port).is_ok();
        }
        self.listeners.iter().any(|listener| {
            let address = listener.local.ip();
            listener.local.port() == port
                && listener.family == connection.family
                && (address.is_unspecified() || address == connection.local.ip())
                // A connection has its listener's cgroup: SO_REUSEPORT lets a neighbour have the same address.
                && agree(listener.cgroup, connection.cgroup)
        })
    }
}

/// Whether two cgroups are not known to differ.
fn agree(one: Option<u64>, other: Option<u64>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
}

/// `held` says which of these inodes the tree holds; it is asked only where no ports were stated.
fn pick(all: &[Listener], hints: &Hints, held: impl FnOnce(&[u64]) -> Held) -> (Vec<Listener>, Found) {
    let candidates = all.iter().filter(|listener| Some(listener.inode) != hints.own_endpoint).copied();
    if !hints.ports.is_empty() {
        return (candidates.filter(|listener| hints.ports.contains(&listener.local.port())).collect(), Found::Stated);
    }
    let inodes: Vec<u64> = candidates.clone().map(|listener| listener.inode).collect();
    let held = held(&inodes);
    let by_cgroup = hints.cgroup.filter(|_| held.some_hidden);
    let is_ours = |listener: &Listener| {
        held.inodes.binary_search(&listener.inode).is_ok() || by_cgroup.is_some_and(|own| listener.cgroup == Some(own))
    };
    let found = match by_cgroup {
        Some(_) => Found::Cgroup,
        None if held.some_hidden && held.inodes.is_empty() => Found::Not,
        None => Found::Descriptors,
    };
    (candidates.filter(is_ours).collect(), found)
}

/// The id of our own cgroup: the inode of its directory in the v2 hierarchy (kernfs gives one number for both). None on v1
/// and in the root cgroup, where it would be everybody's.
pub fn own_cgroup() -> Option<u64> {
    const ROOT: u64 = 1;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().find(|mount| is_cgroup2(mount))?;
    // Without a cgroup namespace the path may be the host's, and what is mounted then is our own directory.
    let inside = PathBuf::from(format!("{mount}{path}"));
    let directory = fs::metadata(inside).or_else(|_| fs::metadata(mount)).ok()?;
    Some(directory.ino()).filter(|id| *id != ROOT)
}

fn is_cgroup2(mount: &str) -> bool {
    statfs(Path::new(mount)).is_ok_and(|stat| stat.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::diag::State;
    use std::net::TcpListener;

    fn listener(local: &str, inode: u64, cgroup: Option<u64>) -> Listener {
        let local: SocketAddr = local.parse().expect("an address");
        let family = if local.is_ipv4() { Family::V4 } else { Family::V6 };
        Listener { family, local, inode, cgroup, queue: 0 }
    }

    fn connection(local: &str, family: Family, cgroup: Option<u64>) -> Connection {
        Connection {
            family,
            local: local.parse().expect("an address"),
            remote: "10.0.0.9:40000".parse().expect("an address"),
            state: State::ESTABLISHED,
            inode: 7,
            cookie: 7,
            rqueue: 0,
            wqueue: 0,
            info: None,
            cgroup,
        }
    }

    fn nobody() -> std::iter::Empty<i32> {
        std::iter::empty()
    }

    /// What is found where a process of the tree does not show its descriptors.
    fn hidden(all: &[Listener], hints: &Hints) -> Ours {
        let (listeners, found) = pick(all, hints, |_| Held { inodes: Vec::new(), some_hidden: true });
        Ours::of(listeners, found, hints)
    }

    #[test]
    fn the_trees_descriptors_tell_whose_a_listener_is() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let inode = nix::sys::stat::fstat(&socket).expect("a socket").st_ino;
        let address = socket.local_addr().expect("its address").to_string();
        let all = [listener(&address, inode, Some(5)), listener("0.0.0.0:9", 999_999_999, Some(5))];
        let me = || std::iter::once(std::process::id() as i32);
        let ours = Ours::among(&all, me(), &Hints::default());
        assert_eq!((ours.len(), ours.found), (1, Found::Descriptors));
        assert!(ours.listens(inode) && ours.uses(Family::V4) && !ours.uses(Family::V6));
        let own_endpoint = Hints { own_endpoint: Some(inode), ..Hints::default() };
        assert_eq!(Ours::among(&all, me(), &own_endpoint).found, Found::Not);
        assert_eq!(Ours::among(&all, nobody(), &Hints::default()).found, Found::Not);
    }

    #[test]
    fn where_descriptors_are_hidden_the_cgroup_tells() {
        let all =
            [listener("0.0.0.0:80", 1, Some(5)), listener("0.0.0.0:81", 2, Some(6)), listener("[::]:82", 3, None)];
        let hints = |cgroup| Hints { cgroup, ..Hints::default() };
        let ours = hidden(&all, &hints(Some(5)));
        assert_eq!((ours.ports(), ours.found), (&[80][..], Found::Cgroup));
        assert_eq!(hidden(&all, &hints(None)).found, Found::Not);
        assert_eq!(Ours::among(&all, nobody(), &hints(Some(5))).found, Found::Not, "nothing is hidden");
    }

    #[test]
    fn stated_ports_decide_alone() {
        let all = [listener("0.0.0.0:80", 1, Some(5)), listener("0.0.0.0:81", 2, Some(5))];
        let hints = Hints { ports: vec![81, 90], cgroup: Some(5), own_endpoint: None };
        let ours = hidden(&all, &hints);
        assert_eq!((ours.ports(), ours.len(), ours.found), (&[81, 90][..], 1, Found::Stated));
        assert!(ours.has(&connection("10.0.0.1:90", Family::V6, Some(6))));
        assert!(!ours.has(&connection("10.0.0.1:80", Family::V4, Some(5))));
    }

    #[test]
    fn a_neighbours_connection_on_the_same_port_is_not_ours() {
        let hints = Hints { cgroup: Some(5), ..Hints::default() };
        let all = [listener("127.0.0.1:80", 1, Some(5)), listener("[::]:81", 2, Some(5))];
        let ours = hidden(&all, &hints);
        assert!(ours.has(&connection("127.0.0.1:80", Family::V4, Some(5))));
        assert!(ours.has(&connection("127.0.0.1:80", Family::V4, None)), "an old kernel does not say");
        assert!(!ours.has(&connection("10.0.0.1:80", Family::V4, Some(5))), "another address");
        assert!(!ours.has(&connection("127.0.0.1:80", Family::V4, Some(6))), "another container");
        assert!(ours.has(&connection("10.0.0.1:81", Family::V6, Some(5))), "IPv4 on an IPv6 listener");
        assert!(!ours.has(&connection("10.0.0.1:81", Family::V4, Some(5))), "a listener of IPv4 would have it");
    }

    #[test]
    fn our_cgroup_is_read_without_a_panic() {
        assert_ne!(own_cgroup(), Some(1));
    }
}

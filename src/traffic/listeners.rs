//! Whether the tree listens: its socket descriptors (/proc/PID/fd) against the kernel's lists (/proc/net, proc_pid_net(5)).

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;

use crate::traffic::diag;

/// Inodes of sockets that wait for somebody: TCP and Unix listeners, and UDP sockets that are bound and not connected.
#[derive(Default, Debug)]
struct Listening {
    inodes: Vec<u64>,
    tcp_ports: Vec<(u16, u64)>,
}

/// Whether any of these processes listens. With `ports`, whether somebody listens on one of them. An unreadable process
/// counts as listening where any socket but our own (`own_inode`) does.
pub fn listens(pids: impl Iterator<Item = i32>, ports: &[u16], own_inode: Option<u64>) -> bool {
    let mut listening = Listening::read();
    listening.inodes.retain(|inode| Some(*inode) != own_inode);
    if !ports.is_empty() {
        return listening.tcp_ports.iter().any(|(port, _)| ports.contains(port));
    }
    if listening.inodes.is_empty() {
        return false;
    }
    for pid in pids {
        match holds_one_of(pid, &listening.inodes) {
            Some(false) => {}
            Some(true) | None => return true,
        }
    }
    false
}

/// The inodes of all TCP listeners on these ports, whoever they belong to.
pub fn on_ports(ports: &[u16]) -> Vec<u64> {
    let all = Listening::of_tcp().tcp_ports;
    all.into_iter().filter(|(port, _)| ports.contains(port)).map(|(_, inode)| inode).collect()
}

impl Listening {
    fn read() -> Self {
        let mut all = Self::of_tcp();
        for file in ["udp", "udp6"] {
            each_row(file, |row| all.inodes.extend(inet_row(row, "07").map(|(_, inode)| inode)));
        }
        each_row("unix", |row| all.inodes.extend(unix_row(row)));
        all
    }

    /// Asks the kernel for its listeners alone, where it can be asked: /proc/net/tcp holds every connection as well, and a
    /// look while somebody probes must not cost more the busier the app is.
    fn of_tcp() -> Self {
        let mut all = Self::default();
        let asked = all.ask_for_tcp();
        if asked.is_err() {
            all = Self::default();
            all.read_tcp();
        }
        all
    }

    fn ask_for_tcp(&mut self) -> Result<(), diag::Error> {
        let mut client = diag::Client::open()?;
        for family in diag::Family::BOTH {
            client.dump(family, diag::States::LISTENING, &[], &mut |row| self.add_tcp(row.local.port(), row.inode))?;
        }
        Ok(())
    }

    fn read_tcp(&mut self) {
        for file in ["tcp", "tcp6"] {
            each_row(file, |row| {
                if let Some((port, inode)) = inet_row(row, "0A") {
                    self.add_tcp(port, inode);
                }
            });
        }
    }

    fn add_tcp(&mut self, port: u16, inode: u64) {
        self.inodes.push(inode);
        self.tcp_ports.push((port, inode));
    }
}

/// Gives the rows one by one: behind a balancer the kernel's list has megabytes of connections, which are not for us to
/// hold. The heading reads as no socket's row.
fn each_row(list: &str, mut take: impl FnMut(&[u8])) {
    let Ok(file) = File::open(format!("/proc/self/net/{list}")) else { return };
    let mut file = BufReader::new(file);
    let mut row = Vec::new();
    while file.read_until(b'\n', &mut row).is_ok_and(|length| length > 0) {
        // The paths of Unix sockets need not be UTF-8.
        take(row.trim_ascii_end());
        row.clear();
    }
}

/// `0: 0100007F:1F90 00000000:0000 0A ... uid timeout inode`: the local port and the inode.
fn inet_row(line: &[u8], state: &str) -> Option<(u16, u64)> {
    let mut fields = str::from_utf8(line).ok()?.split_whitespace();
    let local = fields.nth(1)?;
    if fields.nth(1)? != state {
        return None;
    }
    let port = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
    Some((port, fields.nth(5)?.parse().ok()?))
}

/// `address: refcount protocol flags type state inode path`, the flags with __SO_ACCEPTCON for a listener.
fn unix_row(line: &[u8]) -> Option<u64> {
    const ACCEPTS: u32 = 1 << 16;
    let mut fields = line
        .split(|byte| *byte == b' ')
        .filter(|field| !field.is_empty())
        .map(|field| str::from_utf8(field).unwrap_or_default());
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let inode = fields.nth(2)?.parse().ok()?;
    (flags & ACCEPTS != 0).then_some(inode)
}

/// Which of some sockets a set of processes holds.
#[derive(Default, Debug)]
pub struct Held {
    /// Their inodes, sorted, each once.
    pub inodes: Vec<u64>,
    /// Whether some process would not show its descriptors: it runs as another user, or is not dumpable (proc(5)).
    pub some_hidden: bool,
}

/// Which of the sockets with these inodes the processes have open.
pub fn held(pids: impl Iterator<Item = i32>, among: &[u64]) -> Held {
    let mut held = Held::default();
    for pid in pids {
        match sockets(pid) {
            Ok(inodes) => held.inodes.extend(inodes.filter(|inode| among.contains(inode))),
            // It has ended meanwhile, and hides nothing.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            Err(_) => held.some_hidden = true,
        }
    }
    held.inodes.sort_unstable();
    held.inodes.dedup();
    held
}

/// Whether the process has one of these sockets open; none if we may not look.
fn holds_one_of(pid: i32, inodes: &[u64]) -> Option<bool> {
    Some(sockets(pid).ok()?.any(|inode| inodes.contains(&inode)))
}

/// The inodes of the process's sockets.
///
/// # Errors
/// EACCES: it is not ours to look into. Root of a container has CAP_DAC_OVERRIDE and so may list another user's descriptors,
/// but without CAP_SYS_PTRACE not read one (proc_pid_fd(5)).
fn sockets(pid: i32) -> io::Result<impl Iterator<Item = u64>> {
    let mut entries = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten().peekable();
    if let Some(first) = entries.peek()
        && let Err(error) = fs::read_link(first.path())
        && error.raw_os_error() == Some(libc::EACCES)
    {
        return Err(error);
    }
    let inode = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        let inode = target.as_os_str().as_bytes().strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
        str::from_utf8(inode).ok()?.parse::<u64>().ok()
    };
    Ok(entries.filter_map(inode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixListener;

    #[test]
    fn our_own_listener_is_seen_and_can_be_left_out() {
        let me = || std::iter::once(std::process::id() as i32);
        // Another may be given the port that was ours at once, but not each time.
        let is_gone = |_| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("its address").port();
            assert!(listens(me(), &[], None));
            assert!(listens(me(), &[port], None));
            assert!(!listens(std::iter::empty(), &[], None));
            drop(listener);
            !listens(me(), &[port], None)
        };
        assert!((0..5).any(is_gone));
    }

    #[test]
    fn the_kernel_and_its_list_agree() {
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).expect("a port");
        let other = TcpListener::bind("127.0.0.1:0").expect("a port");
        let ports = [&listener, &other].map(|socket| socket.local_addr().expect("its address").port());
        let (mut asked, mut listed) = (Listening::default(), Listening::default());
        asked.ask_for_tcp().expect("the kernel can be asked");
        listed.read_tcp();
        for port in ports {
            let find = |all: &Listening| all.tcp_ports.iter().find(|(known, _)| *known == port).copied();
            assert!(find(&asked).is_some());
            assert_eq!(find(&asked), find(&listed));
        }
    }

    #[test]
    fn rows_are_read_and_garbage_is_not() {
        let row = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0";
        assert_eq!(inet_row(row.as_bytes(), "0A"), Some((8080, 12345)));
        assert_eq!(inet_row(row.as_bytes(), "07"), None);
        assert_eq!(inet_row(b"", "0A"), None);
        assert_eq!(inet_row(b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when", "0A"), None);
        let row = b"0000000000000000: 00000002 00000000 00010000 0001 01 4242 /run/x.sock";
        assert_eq!(unix_row(row), Some(4242));
        assert_eq!(unix_row(b"0: 2 0 0 1 3 4243"), None);
        assert_eq!(unix_row(b"x"), None);
        assert_eq!(unix_row(b"Num       RefCount Protocol Flags    Type St Inode Path"), None);
    }

    #[test]
    fn udp_and_unix_sockets_count_as_listening() {
        let inode = |fd: std::os::fd::RawFd| {
            let target = fs::read_link(format!("/proc/self/fd/{fd}")).expect("a descriptor");
            target
                .to_string_lossy()
                .trim_start_matches("socket:[")
                .trim_end_matches(']')
                .parse::<u64>()
                .expect("an inode")
        };
        use std::os::fd::AsRawFd;
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let folder = tempfile::tempdir().expect("a folder");
        let unix = UnixListener::bind(folder.path().join("s")).expect("a socket");
        let listening = Listening::read();
        assert!(listening.inodes.contains(&inode(udp.as_raw_fd())));
        assert!(listening.inodes.contains(&inode(unix.as_raw_fd())));
    }
}

//! Where the endpoint listens: `--http ADDR`, and the socket for it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::{Ipv6V6Only, ReuseAddr};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket};

/// An address to listen on: `:9180` or `9180` (every address of both families), `127.0.0.1:9180`, `[::1]:9180`,
/// `localhost:9180` (127.0.0.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    host: Host,
    port: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Host {
    Every,
    One(IpAddr),
}

/// Why an [`Address`] could not be listened on. Its text names the option, the cause and the way out.
#[derive(Debug)]
pub struct BindError {
    address: Address,
    errno: Errno,
}

impl Address {
    /// Reads the option's value. The error is the reason alone, to stand behind the option's name and value.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        let host = Host::parse(host).ok_or_else(|| not_an_address(text, host))?;
        match port.parse() {
            Ok(0) => Err("port 0 would be any free port; name one, as in :9180".to_owned()),
            Ok(port) => Ok(Self { host, port }),
            Err(_) => Err(format!("'{port}' is not a port from 1 to 65535")),
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether only what runs beside us can ask there.
    pub fn is_loopback(&self) -> bool {
        matches!(self.host, Host::One(address) if address.is_loopback())
    }

    /// Opens the socket and listens: close-on-exec, non-blocking, and no runtime is needed yet.
    pub fn bind(&self) -> Result<TcpListener, BindError> {
        let listener = match self.host {
            Host::One(address) => open((address, self.port).into()),
            Host::Every => match open((Ipv6Addr::UNSPECIFIED, self.port).into()) {
                // A kernel booted with ipv6.disable=1, or a sandbox without the family.
                Err(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL) => open((Ipv4Addr::UNSPECIFIED, self.port).into()),
                result => result,
            },
        };
        listener.map_err(|errno| BindError { address: *self, errno })
    }
}

impl Host {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::Every),
            "localhost" => Some(Self::One(Ipv4Addr::LOCALHOST.into())),
            _ => match text.strip_prefix('[') {
                Some(rest) => rest.strip_suffix(']')?.parse().ok().map(|address: Ipv6Addr| Self::One(address.into())),
                None => text.parse().ok().map(|address: Ipv4Addr| Self::One(address.into())),
            },
        }
    }
}

fn not_an_address(text: &str, host: &str) -> String {
    if text.parse::<Ipv6Addr>().is_ok() || host.parse::<Ipv6Addr>().is_ok() {
        return "an IPv6 address stands in brackets, as in [::1]:9180".to_owned();
    }
    format!("'{host}' is not an IP address (write :9180 for every address, 127.0.0.1:9180 or [::1]:9180)")
}

/// A listening socket. The queue is as long as the kernel allows (net.core.somaxconn): a burst of connections that
/// overflows it would cost a probe among them a second, until its SYN is sent again.
fn open(address: SocketAddr) -> nix::Result<TcpListener> {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd: OwnedFd = socket(family, SockType::Stream, flags, None)?;
    // Else a restart within a minute would find the port taken by connections in TIME_WAIT.
    setsockopt(&fd, ReuseAddr, &true)?;
    if address.is_ipv6() {
        // Said aloud, since the sysctl net.ipv6.bindv6only could say otherwise.
        setsockopt(&fd, Ipv6V6Only, &false)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&fd, Backlog::MAXALLOWABLE)?;
    Ok(fd.into())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Host::Every => write!(f, ":{}", self.port),
            Host::One(address) => SocketAddr::from((address, self.port)).fmt(f),
        }
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, errno } = self;
        write!(f, "--http {address}: ")?;
        match errno {
            Errno::EACCES => {
                f.write_str("permission denied (ports below 1024 need CAP_NET_BIND_SERVICE; try :9180)")
            }
            Errno::EADDRINUSE => f.write_str(
                "address in use (something else listens there; the containers of a pod share their ports: choose another)",
            ),
            Errno::EADDRNOTAVAIL => {
                write!(f, "no such address on this machine (:{} is every address)", address.port)
            }
            _ => io::Error::from(*errno).fmt(f),
        }
    }
}

impl std::error::Error for BindError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_address_is_read() {
        let read = |text| Address::parse(text).map(|address| address.to_string());
        for (text, read_as) in [
            (":9180", ":9180"),
            ("9180", ":9180"),
            ("127.0.0.1:9180", "127.0.0.1:9180"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:9180", "[::1]:9180"),
            ("localhost:9180", "127.0.0.1:9180"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(read_as), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_way_out() {
        for (text, said) in [
            ("", "not a port"),
            (":0", "port 0"),
            (":65536", "not a port"),
            ("127.0.0.1", "not a port"),
            ("example.com:80", "not an IP address"),
            ("::1", "in brackets"),
            ("fe80::1:9180", "in brackets"),
            ("[127.0.0.1]:80", "not an IP address"),
            ("http://:9180", "not an IP address"),
        ] {
            let error = Address::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    fn on_free_port(host: Host) -> (TcpListener, Address) {
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address { host, port: probe.local_addr().unwrap().port() };
        drop(probe);
        (address.bind().unwrap(), address)
    }

    #[test]
    fn every_address_is_of_both_families() {
        let (_listener, Address { port, .. }) = on_free_port(Host::Every);
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            std::net::TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        }
    }

    #[test]
    fn a_port_in_use_is_told() {
        let (_listener, address) = on_free_port(Host::One(Ipv4Addr::LOCALHOST.into()));
        let error = address.bind().unwrap_err().to_string();
        assert!(error.starts_with(&format!("--http {address}: address in use (")), "{error}");
    }

    #[test]
    fn an_address_of_another_machine_is_told() {
        // 192.0.2.0/24 is for documentation (RFC 5737): nobody has it.
        let error = Address::parse("192.0.2.1:9180").unwrap().bind().unwrap_err().to_string();
        assert_eq!(error, "--http 192.0.2.1:9180: no such address on this machine (:9180 is every address)");
    }

    #[test]
    fn a_privileged_port_is_told_with_the_way_out() {
        let error = BindError { address: Address::parse("0.0.0.0:80").unwrap(), errno: Errno::EACCES };
        let said = "permission denied (ports below 1024 need CAP_NET_BIND_SERVICE; try :9180)";
        assert_eq!(error.to_string(), format!("--http 0.0.0.0:80: {said}"));
    }
}

//! Where a check goes: the part of `http://` and `tcp://` behind the slashes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Endpoint;

/// A GET of one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpCheck {
    pub(super) endpoint: Endpoint,
    pub(super) path: String,
}

/// A connection to one port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpCheck {
    pub(super) endpoint: Endpoint,
}

impl HttpCheck {
    /// Reads `HOST[:PORT][/PATH][?QUERY]`; the port is 80 where none is named, and a fragment is not sent (RFC 9110,
    /// section 7.1).
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Some(bad) = text.chars().find(|c| !c.is_ascii_graphic()) {
            return Err(format!("{bad:?} cannot stand in a URL; write it percent-encoded"));
        }
        let text = text.split('#').next().unwrap_or_default();
        let (authority, path) = text.split_at(text.find(['/', '?']).unwrap_or(text.len()));
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { endpoint: Endpoint::parse(authority, Some(80))?, path })
    }
}

impl TcpCheck {
    /// Reads `[HOST]:PORT`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        Endpoint::parse(text, None).map(|endpoint| Self { endpoint })
    }
}

impl Endpoint {
    fn parse(text: &str, default_port: Option<u16>) -> Result<Self, String> {
        if text.contains('@') {
            return Err("a user or password is not sent; leave out what stands before the @".to_owned());
        }
        let (host, port) = split_port(text)?;
        let port = match (port, default_port) {
            (Some(port), _) | (None, Some(port)) => port,
            (None, None) => return Err("names no port, as in tcp://:3000".to_owned()),
        };
        let addresses: Vec<_> = addresses(host)?.into_iter().map(|address| SocketAddr::new(address, port)).collect();
        let host = if host.is_empty() { "localhost" } else { host };
        let authority = if default_port == Some(port) { host.to_owned() } else { format!("{host}:{port}") };
        Ok(Self { authority, addresses })
    }
}

fn split_port(text: &str) -> Result<(&str, Option<u16>), String> {
    // The colons of an address in brackets are its own.
    let colon = text.rfind(':').filter(|colon| !text[*colon..].contains(']'));
    let Some(colon) = colon else { return Ok((text, None)) };
    match text[colon + 1..].parse() {
        Ok(0) | Err(_) => Err(format!("'{}' is not a port from 1 to 65535", &text[colon + 1..])),
        Ok(port) => Ok((&text[..colon], Some(port))),
    }
}

/// `localhost` is mapped here: a static glibc cannot resolve it in an image without its files.
fn addresses(host: &str) -> Result<Vec<IpAddr>, String> {
    if host.is_empty() || host.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let address = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse().map(IpAddr::V6),
        None => host.parse().map(IpAddr::V4),
    };
    address.map(|address| vec![address]).map_err(|_| {
        if host.contains(':') {
            return "an IPv6 address stands in brackets, as in [::1]:3000".to_owned();
        }
        format!(
            "'{host}' is not an IP address, and a static binary resolves no names but localhost: ask by a program that does, as in exec:nc -z {host} PORT"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (String, Vec<String>, String) {
        let check = HttpCheck::parse(text).unwrap();
        let addresses = check.endpoint.addresses.iter().map(SocketAddr::to_string).collect();
        (check.endpoint.authority, addresses, check.path)
    }

    #[test]
    fn a_url_is_read() {
        for (text, authority, addresses, path) in [
            ("127.0.0.1:3000/health", "127.0.0.1:3000", &["127.0.0.1:3000"][..], "/health"),
            ("[::1]:3000", "[::1]:3000", &["[::1]:3000"], "/"),
            ("[::1]", "[::1]", &["[::1]:80"], "/"),
            ("localhost:3000/a?b=c#d", "localhost:3000", &["127.0.0.1:3000", "[::1]:3000"], "/a?b=c"),
            (":3000/x", "localhost:3000", &["127.0.0.1:3000", "[::1]:3000"], "/x"),
            ("127.0.0.1?x=/y", "127.0.0.1", &["127.0.0.1:80"], "/?x=/y"),
            ("", "localhost", &["127.0.0.1:80", "[::1]:80"], "/"),
            ("/a:b]", "localhost", &["127.0.0.1:80", "[::1]:80"], "/a:b]"),
        ] {
            let addresses: Vec<_> = addresses.iter().map(|&text| text.to_owned()).collect();
            assert_eq!(read(text), (authority.to_owned(), addresses, path.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_asked_is_refused_with_the_reason() {
        for (text, said) in [
            ("app:3000/", "resolves no names but localhost"),
            ("::1", "in brackets"),
            ("127.0.0.1:0/", "not a port"),
            ("127.0.0.1:", "not a port"),
            ("127.0.0.1:http/", "not a port"),
            ("me:secret@127.0.0.1/", "user or password"),
            ("127.0.0.1/a b", "percent-encoded"),
            ("127.0.0.1/\r\nX: y", "percent-encoded"),
        ] {
            let error = HttpCheck::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_tcp_check_names_its_port() {
        assert_eq!(TcpCheck::parse(":3000").unwrap().endpoint.addresses.len(), 2);
        assert!(TcpCheck::parse("127.0.0.1").unwrap_err().contains("no port"));
        assert!(TcpCheck::parse("127.0.0.1:80/x").unwrap_err().contains("not a port"));
    }
}

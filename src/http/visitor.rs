//! Who asks: an address and what it calls itself.

use std::fmt;
use std::net::IpAddr;

use hyper::header::HeaderValue;

/// What is kept of a User-Agent, in bytes: `ELB-HealthChecker/2.0` and `kube-probe/1.31` are shorter.
const KEPT: usize = 40;

/// A client of the endpoint. Its port says nothing, since many a prober takes a new one each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visitor {
    address: IpAddr,
    agent: [u8; KEPT],
}

impl Visitor {
    /// From the connection's other end and the request's User-Agent (RFC 9110, section 10.1.5).
    pub fn new(address: IpAddr, agent: Option<&HeaderValue>) -> Self {
        let mut kept = [0; KEPT];
        let told = agent.map_or(&b""[..], HeaderValue::as_bytes);
        for (kept, byte) in kept.iter_mut().zip(told) {
            // It is a stranger's word and goes into the log.
            *kept = if byte.is_ascii_graphic() || *byte == b' ' { *byte } else { b'?' };
        }
        Self { address: address.to_canonical(), agent: kept }
    }

    /// What it calls itself; empty if it does not.
    pub fn agent(&self) -> &str {
        let length = self.agent.iter().position(|byte| *byte == 0).unwrap_or(KEPT);
        str::from_utf8(&self.agent[..length]).unwrap_or_default()
    }

    /// Its address; an IPv4 one where a socket of both families shows `::ffff:10.0.0.1`.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether it is a balancer of a cloud, by its name: AWS's classic, ALB and NLB health checks, and Google's.
    pub fn is_cloud_balancer(&self) -> bool {
        self.agent.starts_with(b"ELB-HealthChecker/") || self.agent.starts_with(b"GoogleHC/")
    }

    /// Whether it is a kubelet, whose probes say nothing about any balancer.
    pub fn is_kubelet(&self) -> bool {
        self.agent.starts_with(b"kube-probe/")
    }
}

impl fmt::Display for Visitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.agent() {
            "" => write!(f, "{}", self.address),
            agent => write!(f, "{} ({agent})", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visitor(address: &str, agent: &[u8]) -> Visitor {
        let agent = HeaderValue::from_bytes(agent).expect("a header's value");
        Visitor::new(address.parse().expect("an address"), Some(&agent))
    }

    #[test]
    fn it_is_known_by_address_and_agent() {
        let alb = visitor("::ffff:10.0.0.1", b"ELB-HealthChecker/2.0");
        assert_eq!(alb, visitor("10.0.0.1", b"ELB-HealthChecker/2.0"), "one host on a socket of both families");
        assert_ne!(alb, visitor("10.0.0.2", b"ELB-HealthChecker/2.0"));
        assert_ne!(alb, visitor("10.0.0.1", b"kube-probe/1.31"));
        assert!(visitor("10.0.0.1", b"kube-probe/1.31").is_kubelet() && !alb.is_kubelet());
        assert_eq!(alb.to_string(), "10.0.0.1 (ELB-HealthChecker/2.0)");
        assert_eq!(Visitor::new(alb.address(), None).to_string(), "10.0.0.1");
    }

    #[test]
    fn a_long_or_a_strange_agent_is_cut_and_cleaned() {
        let strange = visitor("10.0.0.1", &[b'x'; 1000]);
        assert_eq!(strange.agent().len(), KEPT);
        assert_eq!(visitor("10.0.0.1", b"a\tb\xffc").agent(), "a?b?c");
    }
}

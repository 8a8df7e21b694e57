//! Real balancers that check `/readyz`: HAProxy and Envoy. Each pod has a front of its own, behind which are the pod, as long
//! as the balancer routes to it, and the rest of the service, from then on.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use super::haproxy;
use super::pod;

/// How long a balancer may take to start and to find its pods healthy.
const START: Duration = Duration::from_secs(30);

/// Which balancer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Haproxy,
    Envoy,
}

/// How it checks.
#[derive(Clone, Copy, Debug)]
pub struct Checking {
    pub kind: Kind,
    pub period: Duration,
    /// So many failing answers in a row make it let go.
    pub threshold: u32,
    /// Where its connections come from, in which it differs from another one before the same pods.
    pub source: Ipv4Addr,
}

/// What makes it let go, if its check does not do so before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LetsGo {
    /// Its check alone.
    ByCheck,
    /// It is told that the target is to go, and goes on checking it.
    Deregistered,
    /// It is told so, and checks no more.
    Silenced,
}

/// A pod as a balancer knows it.
#[derive(Clone, Copy)]
pub struct Target {
    pub app: SocketAddr,
    pub readyz: SocketAddr,
}

/// A running balancer, ended when dropped.
pub struct Balancer {
    pub checking: Checking,
    /// Where clients of each pod connect to.
    pub fronts: Vec<SocketAddr>,
    targets: Vec<Target>,
    rest: SocketAddr,
    process: Child,
    scratch: PathBuf,
    /// Where Envoy tells how it is.
    admin: SocketAddr,
}

impl Balancer {
    /// Starts one, its files in `scratch`, and waits until it routes to all of the targets.
    ///
    /// # Errors
    ///
    /// Where it cannot be started or does not find all healthy; its own words are in the error.
    pub fn start(checking: Checking, targets: &[Target], rest: SocketAddr, scratch: &Path) -> io::Result<Balancer> {
        let mut fronts = pod::free_addresses(targets.len() + 1)?;
        let admin = fronts.pop().expect("one more than there are targets");
        let scratch = scratch.join(format!("{:?}-{}", checking.kind, checking.source));
        fs::create_dir_all(&scratch)?;
        let (config, log) = (scratch.join("config.json"), scratch.join("log"));
        let output = fs::File::create(&log)?;
        let mut command = match checking.kind {
            Kind::Haproxy => {
                let mut command = pod::command_that_dies_with_us("haproxy");
                command.args(["-db", "-f"]);
                command
            }
            Kind::Envoy => {
                let mut command = pod::command_that_dies_with_us("envoy");
                command.args(["--concurrency", "1", "--use-dynamic-base-id", "-l", "warning", "-c"]);
                command
            }
        };
        let text = match checking.kind {
            Kind::Haproxy => haproxy_config(checking, targets, &fronts, rest, &scratch),
            Kind::Envoy => envoy_config(checking, &fronts, admin, &scratch),
        };
        fs::write(&config, text)?;
        if checking.kind == Kind::Envoy {
            for (at, target) in targets.iter().enumerate() {
                write_endpoints(&scratch, at, Some((*target, "UNKNOWN")), rest)?;
            }
        }
        let process = command.arg(&config).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()?;
        let targets = targets.to_vec();
        let balancer = Balancer { checking, fronts, targets, rest, process, scratch, admin };
        pod::wait_until(START, || balancer.routes().is_ok_and(|routes| routes.iter().all(|routes| *routes)))
            .map_err(|_| io::Error::other(format!("{:?} does not get ready:\n{}", checking.kind, pod::tail(&log))))?;
        Ok(balancer)
    }

    /// To which of the targets it routes.
    ///
    /// # Errors
    ///
    /// Where it does not say.
    pub fn routes(&self) -> io::Result<Vec<bool>> {
        let told = match self.checking.kind {
            Kind::Haproxy => haproxy::ask(&self.socket(), "show servers state")?,
            Kind::Envoy => envoy_stats(self.admin)?,
        };
        let routes_to = |at: usize| match self.checking.kind {
            // Its columns: backend's number and name, server's number and name, address, whether it is up, and what it was told.
            Kind::Haproxy => told.lines().map(|line| line.split(' ').collect::<Vec<_>>()).any(|words| {
                words.get(1).is_some_and(|name| *name == name_of(at))
                    && words.get(3) == Some(&"pod")
                    && words.get(5..7) == Some(&["2", "0"])
            }),
            // The pod and the rest.
            Kind::Envoy => told.lines().any(|line| line == format!("cluster.{}.membership_healthy: 2", name_of(at))),
        };
        Ok((0..self.targets.len()).map(routes_to).collect())
    }

    /// Tells it that this target is to go.
    ///
    /// # Errors
    ///
    /// Where it cannot be told.
    pub fn take_out(&self, at: usize, how: LetsGo) -> io::Result<()> {
        let name = name_of(at);
        match (self.checking.kind, how) {
            (_, LetsGo::ByCheck) => Ok(()),
            (Kind::Haproxy, _) => {
                // HAProxy checks a server that drains, and not one in maintenance.
                let state = if how == LetsGo::Deregistered { "drain" } else { "maint" };
                let answer = haproxy::ask(&self.socket(), &format!("set server {name}/pod state {state}"))?;
                if answer.trim().is_empty() { Ok(()) } else { Err(io::Error::other(answer)) }
            }
            (Kind::Envoy, LetsGo::Deregistered) => {
                write_endpoints(&self.scratch, at, Some((self.targets[at], "DRAINING")), self.rest)
            }
            (Kind::Envoy, LetsGo::Silenced) => write_endpoints(&self.scratch, at, None, self.rest),
        }
    }

    fn socket(&self) -> PathBuf {
        self.scratch.join("socket")
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn name_of(at: usize) -> String {
    format!("pod{at}")
}

fn haproxy_config(
    checking: Checking,
    targets: &[Target],
    fronts: &[SocketAddr],
    rest: SocketAddr,
    scratch: &Path,
) -> String {
    let Checking { period, threshold, source, .. } = checking;
    let (socket, inter) = (scratch.join("socket"), period.as_millis());
    let mut config = format!(
        "
global
    stats socket {} mode 600 level admin
    nbthread 1
    maxconn 4000
defaults
    mode http
    timeout connect 2s
    timeout server 60s
    timeout client 1h
    timeout http-keep-alive 1h
    retries 0
    http-reuse always
    option httpchk GET /readyz
    default-server source {source}
",
        socket.display()
    );
    for (at, (target, front)) in targets.iter().zip(fronts).enumerate() {
        let (app, port, name) = (target.app, target.readyz.port(), name_of(at));
        let _ = write!(
            config,
            "
listen {name}
    bind {front}
    server pod {app} check port {port} inter {inter}ms fall {threshold} rise 2
    server rest {rest} backup
"
        );
    }
    config
}

fn envoy_config(checking: Checking, fronts: &[SocketAddr], admin: SocketAddr, scratch: &Path) -> String {
    let Checking { period, threshold, source, .. } = checking;
    let period = format!("{}s", period.as_secs_f64());
    let (mut listeners, mut clusters) = (Vec::new(), Vec::new());
    for (at, front) in fronts.iter().enumerate() {
        let (name, front, file) = (name_of(at), socket_address(*front), endpoints_file(scratch, at));
        let filters = "type.googleapis.com/envoy.extensions.filters";
        listeners.push(format!(
            r#"{{"address": {front}, "filter_chains": [{{"filters": [{{"name": "http", "typed_config": {{
                "@type": "{filters}.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "{name}",
                "http_filters": [{{"name": "router", "typed_config": {{"@type": "{filters}.http.router.v3.Router"}}}}],
                "route_config": {{"virtual_hosts": [{{"name": "all", "domains": ["*"],
                    "routes": [{{"match": {{"prefix": "/"}}, "route": {{"cluster": "{name}", "timeout": "0s"}}}}]}}]}}
            }}}}]}}]}}"#
        ));
        // Without `retriable_statuses` the first 503 is enough, whatever the threshold; without `ignore_health_on_host_removal`
        // it routes to a target that it was told to forget until its check fails.
        clusters.push(format!(
            r#"{{"name": "{name}", "type": "EDS", "connect_timeout": "2s", "ignore_health_on_host_removal": true,
                "eds_cluster_config": {{"eds_config": {{"resource_api_version": "V3", "path_config_source": {{"path": "{}"}}}}}},
                "common_lb_config": {{"healthy_panic_threshold": {{"value": 0}}}},
                "upstream_bind_config": {{"source_address": {{"address": "{source}", "port_value": 0}}}},
                "health_checks": [{{"timeout": "0.9s", "interval": "{period}", "no_traffic_interval": "{period}",
                    "unhealthy_threshold": {threshold}, "healthy_threshold": 2,
                    "http_health_check": {{"path": "/readyz", "retriable_statuses": [{{"start": 500, "end": 600}}]}}}}]}}"#,
            file.display()
        ));
    }
    let (listeners, clusters, admin) = (listeners.join(",\n"), clusters.join(",\n"), socket_address(admin));
    format!(
        r#"{{"node": {{"id": "test", "cluster": "test"}}, "admin": {{"address": {admin}}},
            "static_resources": {{"listeners": [{listeners}], "clusters": [{clusters}]}}}}"#
    )
}

fn endpoints_file(scratch: &Path, at: usize) -> PathBuf {
    scratch.join(format!("{}.json", name_of(at)))
}

/// Tells Envoy the endpoints of a pod's front: the pod, with its state, if it is to be one, and the rest behind it.
fn write_endpoints(scratch: &Path, at: usize, pod: Option<(Target, &str)>, rest: SocketAddr) -> io::Result<()> {
    let (name, rest) = (name_of(at), socket_address(rest));
    let pod = pod.map_or_else(String::new, |(target, state)| {
        let (address, port) = (socket_address(target.app), target.readyz.port());
        format!(
            r#"{{"endpoint": {{"address": {address}, "health_check_config": {{"port_value": {port}}}}}, "health_status": "{state}"}}"#
        )
    });
    let text = format!(
        r#"{{"resources": [{{"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name": "{name}",
            "endpoints": [{{"priority": 0, "lb_endpoints": [{pod}]}}, {{"priority": 1, "lb_endpoints": [
                {{"endpoint": {{"address": {rest}, "health_check_config": {{"disable_active_health_check": true}}}}}}]}}]}}]}}"#
    );
    // It looks when a file is moved to the name, and would read half of one that is being written.
    let (new, file) = (scratch.join(format!("{name}.new")), endpoints_file(scratch, at));
    fs::write(&new, text)?;
    fs::rename(new, file)
}

fn socket_address(address: SocketAddr) -> String {
    format!(r#"{{"socket_address": {{"address": "{}", "port_value": {}}}}}"#, address.ip(), address.port())
}

fn envoy_stats(admin: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /stats?filter=membership_healthy HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

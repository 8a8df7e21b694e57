//! A real HAProxy in front of the pods: no retries, connections reused always, targets put in and taken out by its
//! runtime socket, as a controller does it.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use super::pod::{self, Pod};

/// Where the balancer's own checks go. Whether one fails makes the target go, or the controller that takes it out 3 s
/// after the stop request: whichever is first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// To the app's own port, by HAProxy's defaults: every 2 s, three failures in a row.
    App,
    /// To sundown's `/readyz` each second; one failure is enough.
    Readyz,
}

/// A running HAProxy, ended when dropped.
pub struct Haproxy {
    /// Where clients connect to.
    pub address: SocketAddr,
    process: Child,
    socket: PathBuf,
}

impl Haproxy {
    /// Starts one with empty slots for `slots` pods, its files in `scratch`, and waits until it answers.
    ///
    /// # Errors
    ///
    /// Where it cannot be started, or does not answer within 10 s; its own words are in the error.
    pub fn start(scratch: &Path, slots: usize, checks: Checks) -> io::Result<Haproxy> {
        let address = pod::free_address()?;
        let socket = scratch.join("haproxy.sock");
        let config = scratch.join("haproxy.cfg");
        let log = scratch.join("haproxy.log");
        fs::write(&config, configuration(address, &socket, slots, checks))?;
        let output = fs::File::create(&log)?;
        let process = pod::command_that_dies_with_us("haproxy")
            .arg("-db")
            .arg("-f")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let haproxy = Haproxy { address, process, socket };
        pod::wait_until(Duration::from_secs(10), || ask(&haproxy.socket, "show info").is_ok())
            .map_err(|_| io::Error::other(format!("haproxy does not answer:\n{}", pod::tail(&log))))?;
        Ok(haproxy)
    }

    /// Puts the pod into rotation, in the slot of its number.
    ///
    /// # Errors
    ///
    /// Where HAProxy refuses, in its words.
    pub fn add(&self, pod: &Pod) -> io::Result<()> {
        self.add_target(pod.number, pod.app, pod.readyz)
    }

    /// The same for any target.
    ///
    /// # Errors
    ///
    /// Where HAProxy refuses, in its words.
    pub fn add_target(&self, number: usize, app: SocketAddr, readyz: Option<SocketAddr>) -> io::Result<()> {
        let server = server(number);
        let (ip, port) = (app.ip(), app.port());
        self.command(&format!("set server {server} addr {ip} port {port}"))?;
        if let Some(readyz) = readyz {
            self.command(&format!("set server {server} check-port {}", readyz.port()))?;
        }
        self.command(&format!("set server {server} state ready"))
    }

    /// Takes the pod of this number out of rotation. Requests under way are not touched.
    ///
    /// # Errors
    ///
    /// Where HAProxy refuses, in its words.
    pub fn remove(&self, number: usize) -> io::Result<()> {
        self.command(&format!("set server {} state maint", server(number)))
    }

    /// A command that has nothing to say when all is well. What is said anyway is about a change of address.
    fn command(&self, command: &str) -> io::Result<()> {
        let answer = ask(&self.socket, command)?;
        let answer = answer.trim();
        match answer.is_empty() || answer.contains("changed from") || answer.contains("updated") {
            true => Ok(()),
            false => Err(io::Error::other(format!("haproxy, asked to `{command}`: {answer}"))),
        }
    }
}

/// Asks a HAProxy by its runtime socket.
///
/// # Errors
///
/// Where it does not answer within 5 s.
pub fn ask(socket: &Path, command: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    writeln!(stream, "{command}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn server(number: usize) -> String {
    format!("app/pod{number}")
}

fn configuration(address: SocketAddr, socket: &Path, slots: usize, checks: Checks) -> String {
    let socket = socket.display();
    let (request, check) = match checks {
        Checks::App => ("", "check"),
        Checks::Readyz => ("option httpchk GET /readyz", "check inter 1s fall 1 rise 1"),
    };
    format!(
        "
global
    stats socket {socket} mode 600 level admin
    nbthread 1
    maxconn 1000
defaults
    mode http
    timeout connect 2s
    timeout server 60s
    # Longer than any run: a client's idle connection is never closed on it.
    timeout client 1h
    timeout http-keep-alive 1h
    retries 0
frontend clients
    bind {address}
    default_backend app
backend app
    balance roundrobin
    http-reuse always
    # Idle connections go well before node closes them, after 5 s: whoever sends must be the one who closes.
    default-server pool-purge-delay 2s
    {request}
    server-template pod 1-{slots} 127.0.0.1:1 disabled {check}
"
    )
}

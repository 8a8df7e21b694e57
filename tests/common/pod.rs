//! A pod as a cluster runs it: a PID namespace whose PID 1 is an init, with node behind it, or `yarn start` and node behind
//! that.
#![allow(dead_code, reason = "each test file uses its part")]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};

/// The service that the pods run.
const SERVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/node-service");
/// The same on node alone. Its own default closes an idle connection after 5 s, which a balancer that knows nothing of it
/// takes for an open one.
const KEEPS_CONNECTIONS: &str = "require('./server.js').keepAliveTimeout = 600_000";
/// The same with [`super::load::ELSEWHERE`] in each answer.
const MARKS_ANSWERS: &str = "
    const server = require('./server.js');
    server.keepAliveTimeout = 600_000;
    server.prependListener('request', (_, answer) => answer.setHeader('x-elsewhere', 'yes'));
";
/// The pods' addresses count up from here. Not 127.0.0.1, from which the load's and the balancer's connections go out: one
/// of those could take the port before the listener does.
const PODS: Ipv4Addr = Ipv4Addr::new(127, 0, 2, 0);
/// How long yarn and node may take to start on a busy machine.
const START: Duration = Duration::from_secs(60);

/// What runs as PID 1, and in front of what.
#[derive(Clone, Copy)]
pub enum Init {
    /// sundown in front of `yarn start`, with this drain; with its endpoint if the balancer is to look at it.
    Sundown { drain: Duration, endpoint: bool },
    /// sundown with these options in front of node, which keeps an idle connection for longer than any run takes: if one is
    /// closed on a request, that is not node's doing. It costs less than yarn, so that many can run side by side.
    Alone { options: &'static [&'static str], endpoint: bool },
    /// Nothing before node, which marks its answers as from elsewhere: what stays when a pod goes.
    Rest,
    /// One of those that pass the signal on and end when their child does, in front of `yarn start`: `tini`, `dumb-init`.
    Other(&'static str),
}

/// A running pod, ended with all that is in it when dropped.
pub struct Pod {
    /// Which one of the run's pods, from 1.
    pub number: usize,
    /// Where the app listens.
    pub app: SocketAddr,
    /// Where sundown's endpoint listens, if the pod has one.
    pub readyz: Option<SocketAddr>,
    /// `unshare`: its end and its exit status are those of the namespace's PID 1.
    process: Child,
    log: PathBuf,
}

/// A stop request that is under way.
pub struct Stopping {
    pod: Pod,
    asked: Instant,
}

/// How a pod ended that had been asked to.
pub struct Stopped {
    pub number: usize,
    /// When it was asked.
    pub asked: Instant,
    /// From then to the end of PID 1.
    pub took: Duration,
    /// PID 1's exit code; 128 and the signal's number if one ended it.
    pub code: i32,
    /// The last of what the pod said.
    pub last_words: String,
}

impl Pod {
    /// Starts a pod and returns before it serves.
    ///
    /// # Errors
    ///
    /// Where there is no port or no process to be had.
    pub fn start(init: Init, number: usize, scratch: &Path) -> io::Result<Pod> {
        // No two pods have one address: a port that was free a moment ago may be another pod's by the time that it is used.
        let address = Ipv4Addr::from_bits(PODS.to_bits() + u32::try_from(number).map_err(io::Error::other)?);
        let endpoint = matches!(init, Init::Sundown { endpoint: true, .. } | Init::Alone { endpoint: true, .. });
        let app = free_address_at(address)?;
        let readyz = endpoint.then(|| free_address_at(address)).transpose()?;
        let log = scratch.join(format!("pod{number}.log"));
        let output = fs::File::create(&log)?;
        let process = command_that_dies_with_us("unshare")
            .args(namespace_options())
            .arg("--")
            .args(init_command(init, readyz))
            .arg("--")
            .args(program(init))
            .current_dir(SERVICE)
            .env("HOST", app.ip().to_string())
            .env("PORT", app.port().to_string())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        Ok(Pod { number, app, readyz, process, log })
    }

    /// Waits until the app answers, and sundown's `/readyz` too where the balancer will ask for it.
    ///
    /// # Errors
    ///
    /// Where that does not come within a minute; what the pod said is in the error.
    pub fn wait_ready(&mut self) -> io::Result<()> {
        let mut ended = None;
        let (app, readyz) = (self.app, self.readyz);
        let ready = wait_until(START, || {
            ended = self.process.try_wait().ok().flatten();
            ended.is_some() || (answers(app, "/health") && readyz.is_none_or(|endpoint| answers(endpoint, "/readyz")))
        });
        match (ready, ended) {
            (Ok(()), None) => Ok(()),
            (_, ended) => {
                let state = ended.map_or("does not get ready".to_owned(), |status| format!("ended at once: {status}"));
                Err(io::Error::other(format!("pod {} {state}\n{}", self.number, tail(&self.log))))
            }
        }
    }

    /// Sends SIGTERM to the namespace's PID 1, as the kubelet does.
    ///
    /// # Errors
    ///
    /// Where the namespace has no PID 1 any more.
    pub fn stop(self) -> io::Result<Stopping> {
        let unshare = self.process.id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"))?;
        let pid_1 = children.trim().parse().map_err(|_| {
            io::Error::other(format!("pod {} ended before it was asked to\n{}", self.number, tail(&self.log)))
        })?;
        kill(Pid::from_raw(pid_1), Signal::SIGTERM)?;
        Ok(Stopping { pod: self, asked: Instant::now() })
    }
}

impl Stopping {
    /// The pod's number.
    pub fn number(&self) -> usize {
        self.pod.number
    }

    /// Waits until nothing is left of the pod.
    ///
    /// # Errors
    ///
    /// Where it is still there after `bound`; what it said is in the error.
    pub fn wait_gone(mut self, bound: Duration) -> io::Result<Stopped> {
        let mut status = None;
        let gone = wait_until(bound, || {
            status = self.pod.process.try_wait().ok().flatten();
            status.is_some()
        });
        let (number, last_words) = (self.pod.number, tail(&self.pod.log));
        match (gone, status) {
            (Ok(()), Some(status)) => {
                let (asked, took) = (self.asked, self.asked.elapsed());
                Ok(Stopped { number, asked, took, code: exit_code(status), last_words })
            }
            _ => Err(io::Error::other(format!("pod {number} is still there after {bound:?}\n{last_words}"))),
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // `--kill-child` takes the whole namespace along. Both fail only where it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Why pods cannot be run here, if so: what is missing, and how to have it.
pub fn missing(programs: &[&str]) -> Option<String> {
    let path = search_path();
    for program in ["setpriv", "unshare", "node"].iter().chain(programs) {
        if !env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
            return Some(format!(
                "`{program}` is not on PATH (nor in bin/ of SUNDOWN_TEST_TOOLS, which may hold yarn 1 from npm)"
            ));
        }
    }
    let reason = match Command::new("unshare").args(namespace_options()).arg("true").env("PATH", &path).output() {
        Ok(made) if made.status.success() => return None,
        Ok(refused) => String::from_utf8_lossy(&refused.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!("no PID namespace to be had here: {reason}"))
}

/// An address to listen on that is no pod's.
///
/// # Errors
///
/// Where no port is left.
pub fn free_address() -> io::Result<SocketAddr> {
    free_address_at(Ipv4Addr::new(127, 0, 0, 2))
}

/// So many of them.
///
/// # Errors
///
/// Where no port is left.
pub fn free_addresses(count: usize) -> io::Result<Vec<SocketAddr>> {
    let taken: io::Result<Vec<_>> = (0..count).map(|_| TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0))).collect();
    taken?.iter().map(TcpListener::local_addr).collect()
}

fn free_address_at(address: Ipv4Addr) -> io::Result<SocketAddr> {
    TcpListener::bind((address, 0))?.local_addr()
}

/// A command that the kernel kills if we die without having ended it, with the tools on its PATH and no `SUNDOWN_*` of
/// ours in its environment, which sundown would take for options.
pub fn command_that_dies_with_us(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]).env("PATH", search_path());
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SUNDOWN_")) {
        command.env_remove(name);
    }
    command
}

/// Waits for a condition, looking at it every 20 ms.
///
/// # Errors
///
/// `TimedOut` where it did not come to be.
pub fn wait_until(bound: Duration, mut condition: impl FnMut() -> bool) -> io::Result<()> {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > bound {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The last twenty lines of a log.
pub fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn init_command(init: Init, readyz: Option<SocketAddr>) -> Vec<String> {
    let mut command = match init {
        Init::Other(program) => vec![program.to_owned()],
        Init::Rest => vec!["env".to_owned()],
        Init::Sundown { drain, .. } => {
            vec![sundown(), "--drain-delay".to_owned(), format!("{}ms", drain.as_millis())]
        }
        Init::Alone { options, .. } => [sundown()].into_iter().chain(options.iter().map(|&o| o.to_owned())).collect(),
    };
    if let Some(address) = readyz {
        command.extend(["--http".to_owned(), address.to_string()]);
    }
    command
}

/// Another build of it can be put to the test, say one for musl.
fn sundown() -> String {
    env::var("SUNDOWN_TEST_BINARY").unwrap_or(env!("CARGO_BIN_EXE_sundown").to_owned())
}

fn program(init: Init) -> &'static [&'static str] {
    match init {
        Init::Alone { .. } => &["node", "-e", KEEPS_CONNECTIONS],
        Init::Rest => &["node", "-e", MARKS_ANSWERS],
        Init::Sundown { .. } | Init::Other(_) => &["yarn", "start"],
    }
}

/// Who is not root gets a user namespace too, and is root in it.
fn namespace_options() -> impl Iterator<Item = &'static str> {
    let user = if Uid::effective().is_root() { None } else { Some("--map-root-user") };
    ["--fork", "--pid", "--mount-proc", "--kill-child"].into_iter().chain(user)
}

/// The tools' folder, what we were given, and where Debian keeps haproxy.
pub fn search_path() -> OsString {
    let tools = env::var_os("SUNDOWN_TEST_TOOLS").map(|prefix| Path::new(&prefix).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = tools.into_iter().chain(env::split_paths(&path)).chain([PathBuf::from("/usr/sbin")]);
    env::join_paths(folders).expect("what was split on colons holds none")
}

/// Whether a GET is answered by a 200, within a second. It comes from nobody who routes, and says so.
fn answers(address: SocketAddr, path: &str) -> bool {
    let get = || -> io::Result<bool> {
        let second = Duration::from_secs(1);
        let mut stream = TcpStream::connect_timeout(&address, second)?;
        stream.set_read_timeout(Some(second))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: pod\r\nUser-Agent: kube-probe/1.31\r\nConnection: close\r\n\r\n")?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok(status.ends_with(b" 200"))
    };
    get().unwrap_or(false)
}

/// Of a process: 128 and the number for a signal.
pub fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or(status.signal().map(|signal| 128 + signal)).expect("it ended one way or the other")
}

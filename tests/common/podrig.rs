//! A pod without a cluster: containers with a PID and a mount namespace of their own that share one network namespace, and a
//! stand-in for the kubelet.
//!
//! It does what a kubelet of 1.34 was seen to do, and what its `killContainer` reads like: the containers are ended at the
//! same time, each by its hook, then TERM, then KILL at the end of what the hook has left of the grace period, but 2 s after
//! TERM at the soonest; native sidecars are told when all others have ended, the last one first. TERM follows a hook's
//! answer, whatever it is, at once; a hook to a dead port has failed at once; one that outlives the grace period is left.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::pod::{command_that_dies_with_us, exit_code, tail, wait_until};

/// How long a start, or an end that was forced, may take on a busy machine.
const BOUND: Duration = Duration::from_secs(20);
/// What a container has after TERM at the least, whatever its hook has used up (kubelet, minimumGracePeriodInSeconds).
const LEAST: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);
/// The node's own address, from which a kubelet asks.
const NODE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The network that the pods are in. It is the calling thread's from now on, and that of all threads and processes which
/// that one starts: a balancer and a client that are started after it reach the pods, and nothing else does.
pub struct Cluster(());

impl Cluster {
    /// Moves the calling thread into a network namespace of its own, with a bridge.
    ///
    /// # Errors
    /// Where one cannot be made: that takes root.
    pub fn enter() -> io::Result<Self> {
        // SAFETY: takes a flag, and moves this thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        ip("link set lo up")?;
        // By itself a bridge takes the lowest address of its ports: it would change as pods come and go, and what they send
        // would go astray until they notice.
        ip("link add pods address 02:00:0a:4d:00:01 type bridge")?;
        ip("link set pods up")?;
        ip(&format!("addr add {NODE}/16 dev pods"))?;
        Ok(Self(()))
    }
}

/// One that is given once a set of what makes a pod is missing here, if so.
pub fn missing(programs: &[&str]) -> Option<String> {
    if !nix::unistd::Uid::effective().is_root() {
        return Some("a network namespace needs root".into());
    }
    super::pod::missing(&[&["ip", "nsenter"], programs].concat())
}

/// A preStop hook.
#[derive(Clone)]
pub enum Hook {
    /// A command in the container.
    Exec(Vec<String>),
    /// A GET at the pod's address.
    HttpGet { port: u16, path: String, headers: Vec<(String, String)> },
}

impl Hook {
    /// `lifecycle.preStop.httpGet`, with a token if there is one.
    pub fn http(port: u16, path: &str, token: Option<&str>) -> Self {
        let header = |token| ("Authorization".to_owned(), format!("Bearer {token}"));
        Self::HttpGet { port, path: path.into(), headers: token.map(header).into_iter().collect() }
    }
}

/// A container of a pod's specification.
#[derive(Clone)]
pub struct Container {
    name: &'static str,
    argv: Vec<String>,
    env: Vec<(String, String)>,
    folder: Option<PathBuf>,
    hook: Option<Hook>,
    native: bool,
}

impl Container {
    /// One with this command as its PID 1.
    pub fn new(name: &'static str, argv: &[&str]) -> Self {
        let argv = argv.iter().map(|&word| word.into()).collect();
        Self { name, argv, env: vec![], folder: None, hook: None, native: false }
    }

    /// With a variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Started in this folder.
    pub fn within(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// With a preStop hook.
    pub fn hook(mut self, hook: Hook) -> Self {
        self.hook = Some(hook);
        self
    }

    /// As a native sidecar: an init container with `restartPolicy: Always`. Started before and ended after all others.
    pub fn native(mut self) -> Self {
        self.native = true;
        self
    }
}

/// A running pod, killed with all that is in it when dropped.
pub struct Pod {
    /// Its address in the cluster.
    pub ip: Ipv4Addr,
    /// Which one of the cluster's, from 1.
    pub number: usize,
    grace: Duration,
    /// Holds the network namespace, as a pod's pause container does.
    pause: Child,
    scratch: PathBuf,
    running: Vec<Running>,
}

/// A container that runs, or has ended.
struct Running {
    spec: Container,
    /// `unshare`: its end and exit status are those of the namespace's PID 1.
    process: Child,
    pid: i32,
}

/// How a container ended. Times count from the pod's deletion.
#[derive(Clone, Debug)]
pub struct Ended {
    pub name: &'static str,
    /// What the hook came to, and when.
    pub hook: Option<(Result<String, String>, Duration)>,
    /// When it was sent TERM; not at all if it had ended before.
    pub told: Option<Duration>,
    pub gone: Duration,
    /// The exit code of its PID 1; 128 and the signal's number if one ended it.
    pub code: i32,
    /// It had to be killed.
    pub killed: bool,
}

impl Pod {
    /// Starts the pod, native sidecars first, and returns before it serves. To be called on the cluster's thread.
    ///
    /// # Errors
    /// Where a namespace, an interface or a process cannot be had.
    pub fn start(
        _cluster: &Cluster,
        number: usize,
        grace: Duration,
        containers: Vec<Container>,
        scratch: &Path,
    ) -> io::Result<Self> {
        let pause = quiet(command_that_dies_with_us("unshare").args(["--net", "--", "sleep", "infinity"])).spawn()?;
        let [high, low] = (number as u16).to_be_bytes();
        let ip_address = Ipv4Addr::new(10, 77, high + 1, low);
        let mut pod = Self { ip: ip_address, number, grace, pause, scratch: scratch.into(), running: vec![] };
        pod.connect()?;
        let (native, others): (Vec<_>, Vec<_>) = containers.into_iter().partition(|container| container.native);
        for container in native.into_iter().chain(others) {
            let running = pod.run(container)?;
            pod.running.push(running);
        }
        Ok(pod)
    }

    /// An address of the pod.
    pub fn at(&self, port: u16) -> SocketAddr {
        (self.ip, port).into()
    }

    /// The pid, as it is seen from here, of a container's PID 1.
    pub fn pid(&self, name: &str) -> i32 {
        self.container(name).pid
    }

    /// What a container has said, all its starts together.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.log_file(name)).unwrap_or_default()
    }

    /// Sends a container's PID 1 a signal, from outside of its namespace.
    pub fn signal(&self, name: &str, signal: Signal) {
        kill(Pid::from_raw(self.pid(name)), signal).expect("it runs");
    }

    /// Waits for a container's end and gives its exit code, and how long that took.
    ///
    /// # Errors
    /// `TimedOut` where it goes on.
    pub fn wait(&mut self, name: &str) -> io::Result<(i32, Duration)> {
        let (began, running) = (Instant::now(), self.running.iter_mut().find(|running| running.spec.name == name));
        let code = running.expect("the container's name").wait(BOUND)?;
        Ok((code, began.elapsed()))
    }

    /// Ends one container and starts it again, as after a liveness probe that failed. To be called on the cluster's thread.
    ///
    /// # Errors
    /// Where it cannot be started again.
    pub fn restart(&mut self, name: &str) -> io::Result<Ended> {
        let (ip, grace) = (self.ip, self.grace);
        let at = self.running.iter().position(|running| running.spec.name == name).expect("the container's name");
        let ended = self.running[at].end(ip, grace, Instant::now(), || ())?;
        self.running[at] = self.run(self.running[at].spec.clone())?;
        Ok(ended)
    }

    /// Deletes the pod: ends every container, and says how each ended.
    ///
    /// # Errors
    /// Where one does not end even by KILL.
    pub fn delete(&mut self) -> io::Result<Vec<Ended>> {
        let (ip, grace, asked) = (self.ip, self.grace, Instant::now());
        thread::scope(|scope| {
            // Each waits for the end of all that are told before it: a sender is dropped with its thread.
            let (mut before, mut threads) = (None::<Turn>, Vec::new());
            let (sidecars, others): (Vec<_>, Vec<_>) = self.running.iter_mut().partition(|running| running.spec.native);
            let (done, turn) = mpsc::channel::<()>();
            for running in others {
                let done = done.clone();
                threads.push(scope.spawn(move || {
                    let _done = done;
                    running.end(ip, grace, asked, || ())
                }));
            }
            drop(done);
            before.replace(turn);
            for running in sidecars.into_iter().rev() {
                let (done, turn) = mpsc::channel::<()>();
                let wait = before.replace(turn).expect("one is always there");
                threads.push(scope.spawn(move || {
                    let _done = done;
                    let left = move || match wait.recv_timeout(grace.saturating_sub(asked.elapsed())) {
                        Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) | Ok(()) => (),
                    };
                    running.end(ip, grace, asked, left)
                }));
            }
            threads.into_iter().map(|thread| thread.join().expect("ending does not panic")).collect()
        })
    }

    /// A command in a container's namespaces, as `kubectl exec` runs it.
    pub fn exec(&self, name: &str, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid(name).to_string(), "--net", "--mount", "--pid", "--"]).args(words);
        command
    }

    fn container(&self, name: &str) -> &Running {
        self.running.iter().find(|running| running.spec.name == name).expect("the container's name")
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.scratch.join(format!("pod{}-{name}.log", self.number))
    }

    /// An interface in the pod, whose other end is on the bridge.
    fn connect(&mut self) -> io::Result<()> {
        let pause = self.pause.id();
        let own = fs::read_link("/proc/thread-self/ns/net")?;
        let space = PathBuf::from(format!("/proc/{pause}/ns/net"));
        wait_until(BOUND, || fs::read_link(&space).is_ok_and(|link| link != own))?;
        let (end, address) = (format!("pod{}", self.number), self.ip);
        ip(&format!("link add {end} type veth peer name eth0 netns {pause}"))?;
        ip(&format!("link set {end} master pods up"))?;
        let inside = |words: &str| {
            let mut command = Command::new("nsenter");
            succeeds(command.arg(format!("--net={}", space.display())).args(["ip"]).args(words.split(' ')))
        };
        inside("link set lo up")?;
        inside("link set eth0 up")?;
        inside(&format!("addr add {address}/16 dev eth0"))
    }

    fn run(&self, spec: Container) -> io::Result<Running> {
        let log = File::options().create(true).append(true).open(self.log_file(spec.name))?;
        let mut command = command_that_dies_with_us("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pause.id()));
        command.args(["unshare", "--fork", "--pid", "--mount-proc", "--kill-child", "--"]).args(&spec.argv);
        command.envs(spec.env.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &spec.folder {
            command.current_dir(folder);
        }
        let process = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let unshare = process.id();
        let mut running = Running { spec, process, pid: 0 };
        // To unshare(1) as PID 1 a signal is nothing: it is the program that has to hear.
        wait_until(BOUND, || {
            running.pid = first_child(unshare).unwrap_or(0);
            let comm = fs::read_to_string(format!("/proc/{}/comm", running.pid)).unwrap_or_default();
            running.pid > 0 && comm.trim() != "unshare" || running.has_ended()
        })?;
        Ok(running)
    }
}

/// Ends when all of those before have ended.
type Turn = mpsc::Receiver<()>;

impl Running {
    /// Hook, turn, TERM, KILL. `asked` is when the pod was deleted, `turn` waits until it may be told.
    fn end(&mut self, ip: Ipv4Addr, grace: Duration, asked: Instant, turn: impl FnOnce()) -> io::Result<Ended> {
        let hook = self.spec.hook.clone().map(|hook| (run_hook(hook, ip, self.pid, grace), asked.elapsed()));
        turn();
        let has_ended = self.has_ended();
        let told = (!has_ended).then(|| asked.elapsed());
        let mut killed = false;
        if !has_ended {
            // It may end at this very moment.
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGTERM);
            if self.wait(grace.saturating_sub(asked.elapsed()).max(LEAST)).is_err() {
                killed = true;
                let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            }
        }
        let code = self.wait(BOUND)?;
        // unshare(1) does not pass on that its child was killed.
        let code = if killed { 128 + Signal::SIGKILL as i32 } else { code };
        Ok(Ended { name: self.spec.name, hook, told, gone: asked.elapsed(), code, killed })
    }

    fn has_ended(&mut self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_some())
    }

    fn wait(&mut self, bound: Duration) -> io::Result<i32> {
        let until = Instant::now() + bound;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(exit_code(status));
            }
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // `--kill-child` takes a whole namespace along. All fail only where it has ended already.
        for child in self.running.iter_mut().map(|running| &mut running.process).chain([&mut self.pause]) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = ip(&format!("link del pod{}", self.number));
    }
}

/// Runs a hook for as long as the grace period is, and gives what it came to.
fn run_hook(hook: Hook, ip: Ipv4Addr, pid: i32, grace: Duration) -> Result<String, String> {
    match hook {
        Hook::Exec(words) => {
            let mut command = Command::new("nsenter");
            command.args(["--target", &pid.to_string(), "--net", "--mount", "--pid", "--"]).args(words);
            let mut child = quiet(&mut command).spawn().map_err(|error| error.to_string())?;
            let mut status = None;
            let _ = wait_until(grace, || {
                status = child.try_wait().ok().flatten();
                status.is_some()
            });
            match status {
                Some(status) if status.success() => Ok(status.to_string()),
                Some(status) => Err(status.to_string()),
                None => {
                    // nsenter(1) reaps the command that it has started; left to others, it would hold up the namespace's end.
                    if let Some(pid) = first_child(child.id()) {
                        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                    }
                    let _ = child.wait();
                    Err("it outlived the grace period".into())
                }
            }
        }
        Hook::HttpGet { port, path, headers } => get((ip, port).into(), &path, &headers, grace),
    }
}

/// One GET: status and body, as an error where it is no status from 200 to 399. A kubelet does not look at a hook's.
pub fn get(address: SocketAddr, path: &str, headers: &[(String, String)], bound: Duration) -> Result<String, String> {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, bound.max(LOOK))?;
        stream.set_read_timeout(Some(bound.max(LOOK)))?;
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: kube-lifecycle/1.34\r\n{headers}Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().map_err(|error| error.to_string())?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let text = format!("{status} {}", body.trim_end());
    if (200..400).contains(&status) { Ok(text) } else { Err(text) }
}

/// The last lines of all that the pod's containers have said.
pub fn last_words(pod: &Pod) -> String {
    let words = |running: &Running| format!("{}:\n{}", running.spec.name, tail(&pod.log_file(running.spec.name)));
    pod.running.iter().map(words).collect::<Vec<_>>().join("\n")
}

fn first_child(pid: u32) -> Option<i32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.split_whitespace().next()?.parse().ok()
}

fn ip(words: &str) -> io::Result<()> {
    succeeds(Command::new("ip").args(words.split(' ')))
}

fn succeeds(command: &mut Command) -> io::Result<()> {
    let output = command.env("PATH", super::pod::search_path()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))),
    }
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

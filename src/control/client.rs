//! The subcommands: the client's end of the control socket, and those that need no instance.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::{Ask, Reply, address, is_trusted, paint, prefix};
use crate::plan;
use crate::report::advice;

/// Runs a subcommand and gives its exit code: 0 for yes or done, 1 for no or a failure, 2 for bad usage.
pub fn run(name: &str, words: &[OsString]) -> u8 {
    let reply = match name {
        "sleep" => sleep(words),
        "explain" => explain(words),
        "test" => crate::trial::run(words),
        "keepalive" => crate::keepalive::run(words),
        _ => talk(name, words),
    };
    let is_report = name == "test" && reply.is_ok();
    let (code, text) = match reply {
        Ok(reply) => (reply.code, reply.text),
        Err(Failure::Usage(text)) => (2, format!("sundown {name}: {text}")),
        Err(Failure::Run(text)) => (1, format!("sundown {name}: {text}")),
    };
    if !text.is_empty() {
        let text = text.trim_end();
        let is_for_a_person = code == 0 && name == "status" && !text.starts_with('{') && paint::is_wanted();
        let line = format!("{}\n", if is_for_a_person { paint::paint(text) } else { text.to_owned() });
        // A reader that has gone away is no failure of the question. A report is one, however it ends.
        let _ = if code == 0 || is_report {
            io::stdout().write_all(line.as_bytes())
        } else {
            io::stderr().write_all(line.as_bytes())
        };
        let _ = io::stdout().flush();
    }
    code
}

/// Why a subcommand has no reply.
pub enum Failure {
    /// Bad usage, exit code 2.
    Usage(String),
    /// It could not be done, exit code 1.
    Run(String),
}

/// The words behind a subcommand.
#[derive(Default)]
struct Options {
    pid: Option<u32>,
    now: bool,
    json: bool,
}

impl Options {
    fn parse(name: &str, words: &[OsString]) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut words = words.iter().map(|word| word.to_string_lossy());
        while let Some(word) = words.next() {
            match (word.as_ref(), name) {
                ("--now", "stop") => options.now = true,
                ("--json", "status") => options.json = true,
                ("--pid", _) => options.pid = Some(pid(words.next().as_deref())?),
                (word, _) if word.starts_with("--pid=") => options.pid = Some(pid(word.strip_prefix("--pid="))?),
                (word, _) => return Err(Failure::Usage(format!("`{word}` is not understood (see sundown --help)"))),
            }
        }
        Ok(options)
    }
}

fn pid(word: Option<&str>) -> Result<u32, Failure> {
    word.and_then(|word| word.parse().ok()).ok_or_else(|| Failure::Usage("--pid takes the pid of an instance".into()))
}

fn talk(name: &str, words: &[OsString]) -> Result<Reply, Failure> {
    let options = Options::parse(name, words)?;
    let ask = match name {
        "prestop" => Ask::PreStop,
        "stop" if options.now => Ask::StopNow,
        "stop" => Ask::Stop,
        "ready" => Ask::Ready,
        "serve" => Ask::Serve,
        "live" => Ask::Live,
        "status" if options.json => Ask::StatusJson,
        _ => Ask::Status,
    };
    let pid = match options.pid {
        Some(pid) => pid,
        None => find()?,
    };
    self::ask(pid, ask)
}

/// The instance to talk to: PID 1 if that is one, else the only one.
fn find() -> Result<u32, Failure> {
    let mut pids = instances();
    pids.sort_unstable();
    pids.dedup();
    match pids[..] {
        [1, ..] => Ok(1),
        [pid] => Ok(pid),
        // /proc/net may be hidden; PID 1 is still the best guess.
        [] => Ok(1),
        _ => {
            let list: Vec<String> = pids.iter().map(u32::to_string).collect();
            Err(Failure::Run(format!("several instances run here, choose one by --pid: {}", list.join(", "))))
        }
    }
}

/// The pids in the names of all listening sockets of instances in this container (/proc/net/unix shows `@` for NUL).
fn instances() -> Vec<u32> {
    let table = fs::read("/proc/net/unix").unwrap_or_default();
    let start = format!("@{}", prefix());
    let name = |line: &[u8]| {
        let line = String::from_utf8_lossy(line).into_owned();
        let pid = line.split_whitespace().nth(7)?.strip_prefix(&start)?.parse().ok()?;
        Some(pid)
    };
    table.split(|byte| *byte == b'\n').filter_map(name).collect()
}

fn connect(pid: u32) -> Result<UnixStream, Failure> {
    let stream = address(pid).and_then(|address| UnixStream::connect_addr(&address)).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Failure::Run(format!(
            "no instance of sundown with pid {pid} runs in this container, or its control socket is off (--control off)"
        )),
        _ => Failure::Run(format!("cannot talk to pid {pid}: {error}")),
    })?;
    let peer = getsockopt(&stream, PeerCredentials)
        .map_err(|error| Failure::Run(format!("who answers cannot be seen: {error}")))?;
    // Root trusts an instance of any user: it could read and change it anyway.
    // SAFETY: geteuid has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    if is_trusted(peer.uid(), peer.pid()) || is_root && peer.pid() > 0 {
        Ok(stream)
    } else {
        Err(Failure::Run(format!(
            "permission denied: the instance with pid {pid} runs as uid {}; call it as that user or as root",
            peer.uid()
        )))
    }
}

/// Asks the instance with this pid.
///
/// # Errors
/// It is not there, does not answer, or is not ours to ask.
pub fn ask(pid: u32, ask: Ask) -> Result<Reply, Failure> {
    ask_instance(connect(pid)?, ask)
        .map_err(|error| Failure::Run(format!("the instance with pid {pid} does not answer: {error}")))
}

fn ask_instance(mut stream: UnixStream, ask: Ask) -> io::Result<Reply> {
    stream.write_all(format!("{}\n", ask.word()).as_bytes())?;
    let mut text = String::new();
    match stream.read_to_string(&mut text) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => return Err(error),
    }
    let reply =
        text.split_once('\n').and_then(|(code, text)| Some(Reply { code: code.parse().ok()?, text: text.to_owned() }));
    match (reply, ask) {
        (Some(reply), _) => Ok(reply),
        // It was there and is gone: the container is going down, which is what a hook is about.
        (None, Ask::PreStop | Ask::Stop | Ask::StopNow) => Ok(Reply::ok("the instance has ended")),
        (None, _) => Ok(Reply::no("the instance has ended")),
    }
}

fn explain(words: &[OsString]) -> Result<Reply, Failure> {
    match words {
        [] => advice::explain(None),
        [code] => advice::explain(Some(&code.to_string_lossy())),
        _ => return Err(Failure::Usage("one code is wanted, such as SD101; without one all are listed".into())),
    }
    .map(Reply::ok)
    .map_err(Failure::Run)
}

fn sleep(words: &[OsString]) -> Result<Reply, Failure> {
    let usage = || Failure::Usage("one duration is wanted: sundown sleep 15, 1m30s, infinity".into());
    let [word] = words else { return Err(usage()) };
    let word = word.to_str().ok_or_else(usage)?;
    if word == "infinity" {
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
    std::thread::sleep(plan::duration(word).map_err(Failure::Usage)?);
    Ok(Reply::ok(""))
}

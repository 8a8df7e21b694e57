//! An instance of the app as a process, with sundown in front of it or without.

use std::env;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::app;

/// What stands in front of the app.
pub enum Init {
    None,
    Sundown { binary: PathBuf, drain: Duration },
}

/// A running instance. It ends when dropped, since its stdin does then.
pub struct Instance {
    pub number: usize,
    pub address: SocketAddr,
    process: Child,
}

/// How an instance ended that had got a SIGTERM.
pub struct Stopped {
    /// The last line that it wrote to stderr, if it wrote any.
    pub last_words: Option<String>,
}

impl Instance {
    /// Starts the app, behind `init`, and waits until it takes connections.
    ///
    /// # Errors
    ///
    /// Where it cannot be started, ends at once, or takes none within 10 s.
    pub fn start(init: &Init, number: usize) -> io::Result<Instance> {
        let address = free_address()?;
        let app = env::current_exe()?;
        let mut command = match init {
            Init::None => Command::new(app),
            Init::Sundown { binary, drain } => {
                let mut command = Command::new(binary);
                command.args(["--drain-delay", &format!("{}ms", drain.as_millis()), "--log-format", "text", "--"]);
                command.arg(app);
                command
            }
        };
        // Options that somebody has set for another instance are not for these.
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SUNDOWN_")) {
            command.env_remove(name);
        }
        let process = command
            .args([app::ROLE, &address.to_string()])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::other(format!("{}: {error}", command.get_program().display())))?;
        let mut instance = Instance { number, address, process };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = instance.process.try_wait()? {
                let words = instance.words()?;
                return Err(io::Error::other(format!("an instance ended before it served ({status})\n{words}")));
            }
            if started.elapsed() > Duration::from_secs(10) {
                return Err(io::Error::other("an instance takes no connections after 10 s"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(instance)
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    ///
    /// Where it has ended before, or has not a minute later.
    pub fn stop(mut self) -> io::Result<Stopped> {
        let pid = i32::try_from(self.process.id()).map_err(io::Error::other)?;
        kill(Pid::from_raw(pid), Signal::SIGTERM)?;
        let asked = Instant::now();
        while self.process.try_wait()?.is_none() {
            if asked.elapsed() > Duration::from_secs(60) {
                return Err(io::Error::other("an instance has not ended a minute after SIGTERM"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        let words = self.words()?;
        Ok(Stopped { last_words: words.lines().last().map(str::to_owned) })
    }

    /// All that an instance which has ended wrote to stderr.
    fn words(&mut self) -> io::Result<String> {
        let mut words = String::new();
        self.process.stderr.take().expect("it is a pipe").read_to_string(&mut words)?;
        Ok(words)
    }
}

/// An address to listen on. Not 127.0.0.1, from which connections go out: one of those could take the port before the
/// listener does.
///
/// # Errors
///
/// Where no port is left.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0))?.local_addr()
}

/// The sundown that was built beside this example, brought up to date by cargo where that runs us.
///
/// # Errors
///
/// Where it is not there and cannot be built.
pub fn built_sundown() -> io::Result<PathBuf> {
    let example = env::current_exe()?;
    let profile =
        example.ancestors().nth(2).ok_or_else(|| io::Error::other("this example lies in no target folder"))?;
    let sundown = profile.join("sundown");
    if let Some(cargo) = env::var_os("CARGO") {
        build(Path::new(&cargo), profile)?;
    } else if !sundown.exists() {
        build(Path::new("cargo"), profile)?;
    }
    if sundown.exists() { Ok(sundown) } else { Err(io::Error::other(format!("no sundown at {}", sundown.display()))) }
}

/// Builds sundown into the folder that this example was built into: `TARGET/TRIPLE/release`, or `TARGET/release`.
fn build(cargo: &Path, profile: &Path) -> io::Result<()> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--bin", "sundown", "--manifest-path"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    command.arg("--profile").arg(if name(profile) == "debug" { "dev".to_owned() } else { name(profile) });
    let above = profile.parent().unwrap_or(profile);
    if name(above).matches('-').count() >= 2 {
        command.arg("--target").arg(name(above));
    }
    eprintln!("Building sundown, unless it is up to date ...");
    let status = command.status().map_err(|error| io::Error::other(format!("{}: {error}", cargo.display())))?;
    if status.success() { Ok(()) } else { Err(io::Error::other("sundown could not be built")) }
}

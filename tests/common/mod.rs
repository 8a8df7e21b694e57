//! What the tests that run the binary have in common.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub mod bare;
pub mod clients;
pub mod inits;
pub mod instance;
pub mod network;
pub mod session;

pub const SUNDOWN: &str = env!("CARGO_BIN_EXE_sundown");

/// How long anything here may take before it counts as hung.
const BOUND: Duration = Duration::from_secs(20);

pub const NOBODY: u32 = 65534;

/// Held while a file is written and while a process is forked: a child that is forked meanwhile holds the file open
/// until its exec, and running it would be ETXTBSY.
fn writing_or_forking() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Output {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Whoever started the tests in the background of a script or under nohup has these ignored (sh(1), nohup(1)): that is not to
/// reach what they start, since a shell cannot trap what it was given ignored.
pub fn heed_interrupts(command: &mut Command) {
    let heed = || {
        for number in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: sets no handler.
            unsafe { libc::signal(number, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: a few system calls, async-signal-safe.
    unsafe { command.pre_exec(heed) };
}

pub fn spawn(command: &mut Command) -> Child {
    heed_interrupts(command);
    // sundown warns of variables in its name that it does not know.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"SUNDOWN_TEST_")) {
        command.env_remove(name);
    }
    let _lock = writing_or_forking();
    command.spawn().expect("the test's command starts")
}

pub fn run(command: &mut Command) -> Output {
    let out = tempfile::tempdir().expect("a temporary directory");
    let (stdout, stderr) = (out.path().join("1"), out.path().join("2"));
    command.stdin(Stdio::null());
    command.stdout(File::create(&stdout).expect("a file")).stderr(File::create(&stderr).expect("a file"));
    let code = wait(&mut spawn(command));
    Output { code, stdout: read(&stdout), stderr: read(&stderr) }
}

pub fn read(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).expect("the file is there")).into_owned()
}

pub fn wait(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + BOUND;
    loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            return status.code();
        }
        if Instant::now() > until {
            let _ = child.kill();
            panic!("still running after {BOUND:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn sundown<'a>(argv: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(SUNDOWN);
    command.arg("--").args(argv);
    command
}

/// A directory that any user may read.
pub fn directory() -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    directory
}

pub fn write(directory: &TempDir, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
    write_to(directory.path(), name, content, mode)
}

pub fn write_to(directory: &Path, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
    let file = directory.join(name);
    let _lock = writing_or_forking();
    fs::write(&file, content).expect("room for it");
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
    file
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Says that something is not tested here, past the harness that hides what a passing test prints. Where nothing may be
/// skipped (SUNDOWN_TEST_NO_SKIP, as in CI), it is a failure.
#[track_caller]
pub fn skip(what: &str) {
    assert!(std::env::var_os("SUNDOWN_TEST_NO_SKIP").is_none(), "{what}, and nothing may be skipped");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

#[track_caller]
pub fn is_root(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skip(&format!("{what} needs root"));
    }
    root
}

/// PATH with the tools that `.ci/install-tools` has installed in front.
pub fn path() -> String {
    let tools = std::env::var("SUNDOWN_TEST_TOOLS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-tools").into());
    format!("{tools}/bin:{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// A free port. Another may take it before the server does, so the range is not shared with outgoing connections.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + (std::process::id() % 100) as u16 * 100;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Whether these programs are there.
#[track_caller]
pub fn has_tools(names: &[&str]) -> bool {
    let path = path();
    let is_there = |name: &str| path.split(':').any(|folder| Path::new(folder).join(name).exists());
    let missing: Vec<&str> = names.iter().copied().filter(|name| !is_there(name)).collect();
    if !missing.is_empty() {
        skip(&format!("{} not found; .ci/install-tools target/test-tools installs it", missing.join(", ")));
    }
    missing.is_empty()
}

/// Runs `command`, which must fail with that code, no output, and a line that has all these parts.
#[track_caller]
pub fn fails(command: &mut Command, code: i32, parts: &[&str]) {
    let output = run(command);
    assert_eq!(output.code, Some(code), "{}", output.stderr);
    assert_eq!(output.stdout, "");
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    for part in parts {
        assert!(output.stderr.contains(part), "{part:?} is not in {:?}", output.stderr);
    }
}

/// Raises the limit of open files as far as it goes, for this process and what it starts, and gives it.
pub fn raise_open_files() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("up to the hard limit");
    most
}

/// The CPU time that a process has used, by itself and in the kernel, to the tick of a hundredth of a second.
pub fn cpu_time(pid: i32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
    let ticks: u32 = fields.skip(11).take(2).map(|field| field.parse::<u32>().expect("a number")).sum();
    Duration::from_millis(10) * ticks
}

/// The resident memory of a process, and the part of it that is in no file, in bytes. Not what is private or dirty: whether a
/// page of the binary is, depends on who else runs it and on when it was linked.
pub fn memory(pid: i32) -> (u64, u64) {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel names it");
        line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).expect("a number") * 1024
    };
    (field("Rss:"), field("Anonymous:"))
}

//! What sundown costs: the size of its binary, its memory at idle, and how often it wakes up when nothing happens.
//!
//!     cargo bench --bench footprint

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const SUNDOWN: &str = env!("CARGO_BIN_EXE_sundown");

/// The binary as it is built by default, static on glibc, and its resident memory with the endpoint open.
const LIMIT: u64 = 2_500_000;
/// How long it is watched.
const IDLE: Duration = Duration::from_secs(5);
/// How long it may take to be at rest: past the eager looks of its start.
const START: Duration = Duration::from_secs(20);

/// Figures of one idle process, in bytes.
struct Idle {
    resident: u64,
    private: u64,
    wakeups: u64,
}

fn main() -> ExitCode {
    let size = fs::metadata(SUNDOWN).expect("it was built").len();
    let is_static = is_static(&fs::read(SUNDOWN).expect("it was built"));
    println!("binary           {size} bytes, {}", if is_static { "static" } else { "DYNAMIC" });
    // A binary that was only just linked is not on the disk yet, and its own pages would count as dirty.
    fs::File::open(SUNDOWN).and_then(|file| file.sync_all()).expect("it was built");
    let without = idle(&[]);
    let with = idle(&["--http", &free_address().to_string()]);
    let (plain, probed) = (without.line(), with.line());
    println!("without --http   {plain}");
    println!("with --http      {probed}");
    let kept = [
        ("the binary is static", is_static),
        ("the binary is below 2.5 MB", size < LIMIT),
        ("resident memory with the endpoint is below 2.5 MB", with.resident < LIMIT),
        ("it never wakes up at idle", without.wakeups + with.wakeups == 0),
    ];
    for (promise, _) in kept.iter().filter(|(_, kept)| !kept) {
        println!("FAILED: {promise}");
    }
    if kept.iter().all(|(_, kept)| *kept) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Idle {
    fn line(&self) -> String {
        let Self { resident, private, wakeups } = self;
        format!(
            "resident {} kB, private dirty {} kB, {wakeups} voluntary context switches in {IDLE:?}",
            resident / 1024,
            private / 1024
        )
    }
}

/// Starts it with a child that sleeps, probes it once if it can be, and watches it.
fn idle(options: &[&str]) -> Idle {
    let mut process = Running(
        Command::new(SUNDOWN)
            .args(options)
            .args(["--ready-check", "running", "--", "sleep", "60"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let pid = process.0.id();
    let limit = Instant::now() + START;
    while state(pid) != Some('S') || child_of(pid).as_deref() != Some("sleep\n") {
        assert!(Instant::now() < limit, "it does not come to rest");
        std::thread::sleep(Duration::from_millis(20));
    }
    if let ["--http", address] = options {
        probe(address);
    }
    // A connection's farewell may take a second.
    std::thread::sleep(Duration::from_millis(1500));
    let before = wakeups(pid);
    std::thread::sleep(IDLE);
    let wakeups = wakeups(pid) - before;
    let (resident, private) = memory(pid);
    assert!(process.0.try_wait().expect("it is our child").is_none(), "it still runs");
    Idle { resident, private, wakeups }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Its child goes first, by the one signal that it passes on.
        // SAFETY: takes two numbers; the process is ours and not reaped yet.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn child_of(pid: u32) -> Option<String> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    fs::read_to_string(format!("/proc/{}/comm", children.trim())).ok()
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}

fn probe(address: &str) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

fn wakeups(pid: u32) -> u64 {
    field(&format!("/proc/{pid}/status"), "voluntary_ctxt_switches:")
}

/// Resident memory, and what of it is of this process alone: the clean rest is the binary's file.
fn memory(pid: u32) -> (u64, u64) {
    let rollup = format!("/proc/{pid}/smaps_rollup");
    (field(&rollup, "Rss:") * 1024, field(&rollup, "Private_Dirty:") * 1024)
}

fn field(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name} in {file}"));
    line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

/// Whether the program header table names no interpreter (elf(5)): a static binary, position-independent or not.
fn is_static(elf: &[u8]) -> bool {
    const INTERP: u32 = 3;
    let number =
        |at: usize, len: usize| elf[at..at + len].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let (table, entry, count) = (number(32, 8) as usize, number(54, 2) as usize, number(56, 2) as usize);
    (0..count).all(|at| number(table + at * entry, 4) as u32 != INTERP)
}

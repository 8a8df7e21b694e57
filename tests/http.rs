//! The endpoint of the finished program: what it answers, and that no client changes what a probe gets.

#[path = "common/http.rs"]
mod client;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use client::{BOUND, connect, exchange, free_address, get, probe_latency, request, status, wait_for_status};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// An instance in front of `sleep`. Its end is the child's: both are gone when this is dropped.
struct Sundown {
    process: Child,
    address: SocketAddr,
}

impl Sundown {
    fn start(options: &[&str]) -> Self {
        let address = free_address();
        let process = Command::new(env!("CARGO_BIN_EXE_sundown"))
            .args(["--http", &address.to_string()])
            .args(options)
            .args(["--", "sleep", "600"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, address }
    }

    /// One that is ready at once.
    fn ready(options: &[&str]) -> Self {
        let instance = Self::start(&[&["--ready-check", "running"], options].concat());
        wait_for_status(instance.address, "/readyz", 200);
        instance
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }

    /// Kilobytes that are resident.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// CPU time used so far, in clock ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    fn limit_open_files(&self, soft: u64) {
        let limit = libc::rlimit { rlim_cur: soft, rlim_max: open_files().rlim_max };
        // SAFETY: prlimit reads one rlimit from the address, which is of a live local, and writes none.
        let result =
            unsafe { libc::prlimit(self.pid().as_raw(), libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut()) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }
}

impl Drop for Sundown {
    fn drop(&mut self) {
        let id = self.process.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
        if wait(&mut self.process).is_none() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// Waits for its end, for a second at most.
fn wait(process: &mut Child) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        if let Ok(Some(status)) = process.try_wait() {
            return Some(status);
        }
        thread::sleep(client::PAUSE);
    }
    None
}

#[test]
fn readyz_is_503_with_the_reason_until_the_app_listens() {
    let sundown = Sundown::start(&[]);
    let body = wait_for_status(sundown.address, "/readyz", 503);
    assert!(body.starts_with("starting") && body.lines().count() == 1, "{body}");
}

#[test]
fn readyz_is_200_while_running_and_503_from_the_stop_request_on() {
    let sundown = Sundown::ready(&["--drain-delay", "60s"]);
    kill(sundown.pid(), Signal::SIGTERM).unwrap();
    let body = wait_for_status(sundown.address, "/readyz", 503);
    assert!(body.starts_with("draining") && body.lines().count() == 1, "{body}");
    assert_eq!(get(sundown.address, "/servez").0, 200, "the app still serves in the drain");
}

#[test]
fn livez_without_a_check_is_404_with_the_reason() {
    let (status, body) = get(Sundown::ready(&[]).address, "/livez");
    assert_eq!(status, 404);
    assert!(body.contains("--live-check"), "{body}");
}

#[test]
fn metrics_are_prometheus_text() {
    let sundown = Sundown::ready(&[]);
    let answer = request(sundown.address, "GET", "/metrics").unwrap();
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(answer.contains("\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{answer}");
    assert!(answer.ends_with('\n') && answer.contains("\nsundown_"), "{answer}");
}

#[test]
fn only_get_and_head_of_known_paths_are_answered() {
    let sundown = Sundown::ready(&[]);
    let head = request(sundown.address, "HEAD", "/readyz").unwrap();
    assert!(status(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");
    let post = request(sundown.address, "POST", "/readyz").unwrap();
    assert!(status(&post) == 405 && post.contains("\r\nallow: GET, HEAD\r\n"), "{post}");
    let (status, body) = get(sundown.address, "/status");
    assert!(status == 404 && body.contains("/readyz"), "{status} {body}");
}

#[test]
fn a_huge_header_is_431() {
    let sundown = Sundown::ready(&[]);
    let huge = format!("GET /readyz HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024));
    assert_eq!(status(&exchange(sundown.address, huge.as_bytes()).unwrap()), 431);
    assert_eq!(get(sundown.address, "/readyz").0, 200);
}

#[test]
fn silent_and_slow_clients_change_nothing_for_a_probe() {
    let sundown = Sundown::ready(&[]);
    let Some(silent) = room_for(3_000) else { return };
    let before = sundown.resident();
    let _slow = byte_a_second(connect(sundown.address).unwrap());
    let mut clients = Vec::with_capacity(silent);
    while clients.len() < silent {
        clients.push(connect(sundown.address).unwrap());
        if clients.len() % 100 == 0 {
            assert_quick(sundown.address, 5);
        }
    }
    assert_quick(sundown.address, 200);
    let grown = sundown.resident().saturating_sub(before);
    println!("{silent} silent clients: {grown} kB more resident");
    assert!(grown < 3 * 1024, "{silent} clients made it grow by {grown} kB");
}

#[test]
fn clients_that_never_end_their_request_grow_nothing() {
    let sundown = Sundown::ready(&[]);
    let before = sundown.resident();
    let unfinished = format!("GET /readyz HTTP/1.1\r\nX: {}", "x".repeat(8_000));
    let clients: Vec<_> = (0..500)
        .map(|_| {
            let mut client = connect(sundown.address).unwrap();
            let _ = client.write_all(unfinished.as_bytes());
            client
        })
        .collect();
    assert_quick(sundown.address, 100);
    let grown = sundown.resident().saturating_sub(before);
    println!("{} unfinished requests: {grown} kB more resident", clients.len());
    assert!(grown < 6 * 1024, "{} clients made it grow by {grown} kB", clients.len());
}

#[test]
fn without_a_file_descriptor_left_it_waits_and_does_not_spin() {
    let sundown = Sundown::ready(&[]);
    let usual = open_files().rlim_cur;
    sundown.limit_open_files(3);
    let before = sundown.ticks();
    let mut client = connect(sundown.address).unwrap();
    client.write_all(b"GET /readyz HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    assert!(client.read(&mut [0]).is_err(), "nothing can have accepted it");
    assert!(sundown.ticks() - before < 30, "{} ticks in a second", sundown.ticks() - before);

    sundown.limit_open_files(usual);
    client.set_read_timeout(Some(BOUND)).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(status(&answer), 200, "{answer}");
}

#[test]
fn few_open_files_are_not_all_for_clients() {
    let address = free_address();
    let script = format!("ulimit -Sn 40; exec \"$0\" --http {address} --ready-check running -- sleep 600");
    let process = Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_sundown")]).spawn().unwrap();
    let sundown = Sundown { process, address };
    wait_for_status(address, "/readyz", 200);
    let _clients: Vec<_> = (0..100).map(|_| connect(address).unwrap()).collect();
    assert_quick(address, 20);
    let open = fs::read_dir(format!("/proc/{}/fd", sundown.pid())).unwrap().count();
    assert!(open < 36, "{open} of 40 descriptors are open");
}

#[test]
fn a_port_in_use_is_an_error_before_the_child_is_started() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let output = run_to_end(&["--http", &address.to_string(), "--", "echo", "started"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("--http {address}: address in use")), "{said}");
    assert_eq!(output.stdout, b"");
}

#[test]
fn an_address_that_is_none_is_an_error_before_the_child_is_started() {
    let output = run_to_end(&["--http", "example.com:80", "--", "echo", "started"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("'example.com' is not an IP address"), "{said}");
    assert_eq!(output.stdout, b"");
}

fn run_to_end(arguments: &[&str]) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_sundown"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if wait(&mut process).is_none() {
        process.kill().unwrap();
    }
    process.wait_with_output().unwrap()
}

/// The bound for a hung app holds under a flood too: this machine's own noise is in it.
fn assert_quick(address: SocketAddr, probes: usize) {
    let latency = probe_latency(address, "/readyz", 200, probes);
    println!("{probes} probes: {latency:?}");
    assert!(latency.median < Duration::from_millis(50), "{latency:?}");
    assert!(latency.worst < Duration::from_secs(1), "{latency:?}");
}

/// Sends a request's head at one byte a second until the sender that is returned is dropped.
fn byte_a_second(mut stream: TcpStream) -> mpsc::Sender<()> {
    let (stop, stopped) = mpsc::channel();
    thread::spawn(move || {
        for byte in b"GET /readyz HTTP/1.1\r\nX-Slow: ".iter().chain(std::iter::repeat(&b'x')) {
            if stream.write_all(&[*byte]).is_err() {
                break;
            }
            if stopped.recv_timeout(Duration::from_secs(1)) != Err(mpsc::RecvTimeoutError::Timeout) {
                break;
            }
        }
    });
    stop
}

/// Raises the limit on open files for that many connections; none, and loudly, where that is not allowed.
fn room_for(connections: usize) -> Option<usize> {
    let needed = connections as u64 + 200;
    let limit = open_files();
    if limit.rlim_max < needed {
        eprintln!("SKIPPED: {connections} connections need {needed} open files, the hard limit is {}", limit.rlim_max);
        return None;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_cur.max(needed), ..limit };
    // SAFETY: setrlimit reads one rlimit from the address, which is of a live local.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    Some(connections)
}

fn open_files() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes one rlimit to the address, which is of a live local.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    limit
}

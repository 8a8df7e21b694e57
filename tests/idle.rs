//! At idle it does nothing at all. How much memory that takes is the affair of `cargo bench --bench footprint`.

mod common;
#[path = "common/http.rs"]
mod http;

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::clients::{Clients, Habit};
use common::instance::{Instance, Launch, python, until};

/// How long it is watched.
const IDLE: Duration = Duration::from_secs(5);

/// How often its threads have given up the core, and been taken off it.
fn switches(instance: &Instance) -> u64 {
    let threads = fs::read_dir(format!("/proc/{}/task", instance.pid)).expect("it runs").flatten();
    let statuses = threads.map(|thread| fs::read_to_string(thread.path().join("status")).expect("it runs"));
    statuses
        .map(|status| count(&status, "voluntary_ctxt_switches:") + count(&status, "nonvoluntary_ctxt_switches:"))
        .sum()
}

fn count(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|count| count.trim().parse().ok()).expect("the kernel counts them")
}

/// Asleep, and not waiting for a core on a busy machine.
fn is_asleep(instance: &Instance) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", instance.pid)).expect("it runs");
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
}

/// Waits until it has not woken up for a second, past the eager looks of its start, and then watches it.
#[track_caller]
fn never_wakes_up(instance: &Instance) {
    let mut last = 0;
    until("a second without waking up", || {
        let before = std::mem::replace(&mut last, switches(instance));
        std::thread::sleep(Duration::from_secs(1));
        before == last && is_asleep(instance)
    });
    let before = switches(instance);
    std::thread::sleep(IDLE);
    assert_eq!(switches(instance) - before, 0, "it woke up; the log is {}", instance.log());
}

#[test]
fn it_never_wakes_up_at_idle() {
    let instance = Launch::sundown(&[]).start(&["{app}"]);
    instance.wait_record("app up");
    never_wakes_up(&instance);
}

#[test]
fn it_never_wakes_up_at_idle_with_the_endpoint() {
    let address = http::free_address();
    let instance = Launch::sundown(&["--http", &address.to_string()]).start(&["{app}", "port=0"]);
    http::wait_for_status(address, "/readyz", 200);
    never_wakes_up(&instance);
}

/// A hundred requests a second go to the app, over kept connections and new ones: none of them is looked at before a stop is
/// asked for.
#[test]
fn it_never_wakes_up_while_the_app_serves() {
    if !common::has_tools(&["node"]) {
        return;
    }
    let address = http::free_address();
    let launch = Launch::sundown(&["--http", &http::free_address().to_string()]);
    let launch = launch.env("PORT", address.port().to_string()).env("HOST", address.ip().to_string());
    let service = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/node-service/server.js");
    let instance = launch.start(&["node", service]);
    http::wait_for_status(address, "/health", 200);
    let kept = Habit { connections: 2, answer: (5, 6), think: (20, 21), ..Habit::THINKING };
    let clients = Clients::start(address, kept, 1);
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::SeqCst) {
                let _ = http::try_get(address, "/health");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let before = clients.answered();
        let watched = std::panic::catch_unwind(|| never_wakes_up(&instance));
        enough.store(true, Ordering::SeqCst);
        watched.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(clients.answered() - before > 200, "the app did not serve");
    });
    assert_eq!(clients.outcome().failed, 0);
}

#[test]
fn a_sidecar_never_wakes_up_at_idle() {
    let app = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = app.local_addr().expect("its address").port().to_string();
    let address = http::free_address();
    let words = [common::SUNDOWN, "sidecar", "--ports", &port, "--http", &address.to_string(), "--prestop-open"];
    let instance = Launch::other(&words).start(&[]);
    http::wait_for_status(address, "/readyz", 200);
    never_wakes_up(&instance);
}

#[test]
fn it_never_wakes_up_at_idle_after_thousands_of_signals_and_orphans() {
    let instance =
        Launch::sundown(&[]).start(&["sh", "-c", "for i in $(seq 500); do (true &); done; exec {app} every=HUP"]);
    instance.wait_record("app up");
    for _ in 0..2000 {
        instance.signal(libc::SIGHUP);
    }
    instance.wait_record("app heard SIGHUP");
    never_wakes_up(&instance);
}

#[test]
fn it_never_wakes_up_at_idle_once_it_has_waited_and_told_systemd() {
    use std::os::unix::net::UnixDatagram;
    let (folder, there) = (common::directory(), http::free_address());
    let path = folder.path().join("notify");
    let systemd = UnixDatagram::bind(&path).expect("room for it");
    let listener = std::net::TcpListener::bind(there).expect("it is free");
    let check = format!("tcp://{there}");
    let options = ["--wait-for", &check, "--outlive", &check, "--on-exit", "exec:true", "--notify", "self"];
    let launch = Launch::sundown(&options).env("NOTIFY_SOCKET", path.display().to_string());
    let instance = launch.start(&["{app}", "port=0"]);
    instance.wait_record("app up");
    drop(listener);
    never_wakes_up(&instance);
    let mut message = [0; 256];
    systemd.set_nonblocking(true).expect("a socket");
    let told = std::iter::from_fn(|| systemd.recv(&mut message).ok().map(|length| message[..length].to_vec()));
    assert!(told.last().is_some_and(|last| last.starts_with(b"READY=1")));
}

#[test]
fn it_never_wakes_up_at_idle_while_it_looks_for_closes() {
    if !common::is_root("a network namespace") {
        return;
    }
    // Of its own: until the look is over, each close of anybody's connection in it wakes us.
    let options = ["--lb", "alb", "--grace-period", "60s"];
    let instance = Launch::sundown(&options).namespace("--net").start(&["{app}", "port=0"]);
    instance.wait_record("app up");
    never_wakes_up(&instance);
}

/// It closes what has been idle for half a second and some.
const CLOSES_SOON: &str = "
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, timeout = 'HTTP/1.1', 0.7
    def do_GET(self):
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()";

fn ask(address: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    Some(stream)
}

#[test]
fn closes_do_not_wake_it_once_it_has_seen_enough() {
    let address = http::free_address();
    let options = ["--lb", "alb", "--grace-period", "60s"];
    let port = address.port().to_string();
    let instance = Launch::sundown(&options).start(&[python(), "-c", CLOSES_SOON, &port]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let mut held = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                held.extend(ask(address));
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        let watched = std::panic::catch_unwind(|| {
            instance.wait_log("closes idle connections to port");
            never_wakes_up(&instance);
        });
        is_over.store(true, Ordering::Relaxed);
        clients.join().expect("it has not panicked");
        watched.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

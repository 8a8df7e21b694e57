//! At idle it does nothing at all. How much memory that takes is the affair of `cargo bench --bench footprint`.

mod common;
#[path = "common/http.rs"]
mod http;

use std::fs;
use std::time::Duration;

use common::instance::{Instance, Launch, until};

/// How long it is watched.
const IDLE: Duration = Duration::from_secs(5);

fn voluntary_switches(instance: &Instance) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", instance.pid)).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
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
        let before = std::mem::replace(&mut last, voluntary_switches(instance));
        std::thread::sleep(Duration::from_secs(1));
        before == last && is_asleep(instance)
    });
    let before = voluntary_switches(instance);
    std::thread::sleep(IDLE);
    assert_eq!(voluntary_switches(instance) - before, 0, "it woke up; the log is {}", instance.log());
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

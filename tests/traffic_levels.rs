//! What a drain sees where the kernel lets it see less, or a container lacks every right: a request in flight is waited for
//! at each level, and what is missing is said once.

mod common;
#[path = "common/http.rs"]
mod http;
#[path = "common/oci.rs"]
mod oci;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use common::clients::Client;
use common::instance::{Instance, Launch, between};
use common::network;
use oci::Container;

const SERVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/node-service/server.js");
const WINDOW: Duration = Duration::from_secs(1);
const ENOUGH: Duration = Duration::from_secs(2);
const OPTIONS: [&str; 6] = ["--log-format", "text", "--drain-delay", "300ms", "--drain-timeout", "9s"];
const PROC_NET: &str = "connections are counted, whether they are idle cannot be seen";
const BLIND: &str = "traffic cannot be seen";

/// Makes socket(2) fail with this error for that family, in what the command becomes and all that descends from it. By the
/// number alone: other families and calls are as ever.
fn deny_sockets(command: &mut std::process::Command, family: i32, error: i32) {
    // struct seccomp_data (seccomp(2)): the call's number, and the lower half of its first argument.
    const NUMBER: u32 = 0;
    const FIRST: u32 = 16;
    let load = |at| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0);
    let skip_unless = |value, count| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, count);
    let give = |what| instruction(libc::BPF_RET | libc::BPF_K, what, 0, 0);
    let mut program = [
        load(NUMBER),
        skip_unless(libc::SYS_socket as u32, 3),
        load(FIRST),
        skip_unless(family as u32, 1),
        give(libc::SECCOMP_RET_ERRNO | error as u32),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: takes numbers.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        // SAFETY: the filter and its program outlive the call.
        check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) })
    };
    // SAFETY: two system calls, async-signal-safe.
    unsafe { command.pre_exec(install) };
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The service, with netlink denied by this error.
fn without_netlink(launch: Launch, error: i32) -> Option<(Instance, SocketAddr)> {
    if !network::own() || !common::has_tools(&["node"]) {
        return None;
    }
    let address = http::free_address();
    let launch = launch.env("PORT", address.port().to_string()).env("HOST", address.ip().to_string());
    let launch = launch.prepared(move |command| deny_sockets(command, libc::AF_NETLINK, error));
    let instance = launch.start(&["node", SERVICE]);
    http::wait_for_status(address, "/health", 200);
    Some((instance, address))
}

#[track_caller]
fn counts_connections_from_proc(error: i32, reason: &str) {
    let Some((mut instance, address)) = without_netlink(Launch::sundown(&OPTIONS), error) else { return };
    let mut client = Client::connect(address);
    client.ask(2000).expect("sent");
    instance.signal(libc::SIGTERM);
    assert_eq!(client.answer().expect("an answer").0, 200, "{}", instance.log());
    // That it is idle now is not seen: what ends the drain is that it is gone.
    drop(client);
    let gone = Instant::now();
    instance.wait();
    between(gone.elapsed(), Duration::ZERO, WINDOW + ENOUGH);
    said_once(&instance, PROC_NET, reason);
    assert!(instance.log().contains("the traffic quiet"), "{}", instance.log());
}

#[track_caller]
fn said_once(instance: &Instance, level: &str, reason: &str) {
    let log = instance.log();
    let said: Vec<&str> = log.lines().filter(|line| line.contains(level)).collect();
    assert!(said.len() == 1 && said[0].contains(reason), "{level:?}, {reason:?}: {log}");
}

#[test]
fn where_netlink_is_not_permitted_connections_are_counted() {
    counts_connections_from_proc(libc::EPERM, "Operation not permitted");
}

#[test]
fn where_netlink_is_forbidden_connections_are_counted() {
    counts_connections_from_proc(libc::EACCES, "Permission denied");
}

#[test]
fn where_the_kernel_has_no_sock_diag_connections_are_counted() {
    counts_connections_from_proc(libc::EPROTONOSUPPORT, "Protocol not supported");
}

#[test]
fn where_nothing_can_be_seen_the_drain_has_its_least_length() {
    // PID 1 keeps its number through the shell's exec, and with it the folder.
    let hide = ["sh", "-c", "mount -t tmpfs none /proc/1/net && exec \"$@\"", "sh"];
    let launch = Launch::sundown(&OPTIONS).pid1().through(&hide);
    let Some((instance, address)) = without_netlink(launch, libc::EPERM) else { return };
    let mut client = Client::connect(address);
    client.ask(8000).expect("sent");
    let asked = Instant::now();
    instance.signal(libc::SIGTERM);
    instance.wait_log("the drain is over after");
    between(asked.elapsed(), Duration::from_millis(300), Duration::from_millis(300) + ENOUGH);
    said_once(&instance, BLIND, "Operation not permitted");
    assert!(instance.log().contains("its time was up"), "{}", instance.log());
}

/// Docker's default profile allows some 350 calls and denies the rest. This is the other way about: it allows all but what
/// that profile denies to a container without capabilities and an init that looks at others might wish for. Like there,
/// sockets of all families are allowed but for AF_VSOCK.
fn denied_by_docker() -> String {
    let denied = [
        "acct",
        "bpf",
        "fanotify_init",
        "kcmp",
        "keyctl",
        "mount",
        "open_by_handle_at",
        "perf_event_open",
        "pidfd_getfd",
        "process_madvise",
        "setns",
        "syslog",
        "umount2",
        "unshare",
        "userfaultfd",
    ];
    format!(
        r#"{{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[
        {{"names":{denied:?},"action":"SCMP_ACT_ERRNO","errnoRet":1}},
        {{"names":["clone3"],"action":"SCMP_ACT_ERRNO","errnoRet":38}},
        {{"names":["socket"],"action":"SCMP_ACT_ERRNO","errnoRet":1,
        "args":[{{"index":0,"value":40,"op":"SCMP_CMP_EQ"}}]}}]}}"#
    )
}

/// Busybox's httpd with a page that takes 2 s.
const WORDS: [&str; 11] = [
    "/sundown",
    "--log-format",
    "text",
    "--drain-delay",
    "300ms",
    "--drain-timeout",
    "9s",
    "--",
    "httpd",
    "-fp",
    "127.0.0.1:8080",
];
const PAGE: &str = "#!/bin/sh\nsleep 2\nprintf 'Content-Type: text/plain\\r\\n\\r\\ndone\\n'\n";

#[test]
fn nobody_without_any_right_sees_requests_in_flight_behind_a_filter_like_dockers() {
    let container = Container::of_nobody().file("cgi-bin/slow", PAGE).seccomp(denied_by_docker());
    let Some(mut container) = container.run(&WORDS) else { return };
    let address: SocketAddr = "127.0.0.1:8080".parse().expect("an address");
    let (answered, _idle) = network::inside(container.pid(), || {
        common::instance::until("the server listens", || http::connect(address).is_ok());
        // It never asks for anything: only where a request can be told from a connection does it not count.
        let idle = http::connect(address).expect("a connection");
        let mut stream = http::connect(address).expect("a connection");
        stream.write_all(b"GET /cgi-bin/slow HTTP/1.0\r\n\r\n").expect("sent");
        container.stop();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.") && answer.ends_with("done\n"), "{answer:?}: {}", container.stderr());
        (Instant::now(), idle)
    });
    container.wait_stderr("the drain is over after");
    between(answered.elapsed(), Duration::ZERO, WINDOW + ENOUGH);
    let log = container.stderr();
    assert!(log.contains("the traffic quiet") && !log.contains("cannot be"), "{log}");
    assert_eq!(container.code(), Some(143), "{log}");
}

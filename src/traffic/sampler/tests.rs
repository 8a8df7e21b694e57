//! What a sample costs, and what is left at the lower levels.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::PoisonError;
use std::time::Instant;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};

use super::*;
use crate::traffic::live::LOOPBACK;

fn me() -> impl Iterator<Item = i32> {
    std::iter::once(std::process::id() as i32)
}

fn stated(listener: &TcpListener) -> Hints {
    Hints { ports: vec![listener.local_addr().expect("its address").port()], ..Hints::default() }
}

/// A sampler that had to step down this far.
fn at(source: Source, hints: Hints) -> Sampler {
    let mut sampler = Sampler::new(hints);
    sampler.step_down(source, "denied".to_owned());
    sampler.find(me());
    sampler
}

#[test]
fn from_proc_net_connections_are_counted_and_all_may_be_in_flight() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let mut sampler = at(Source::ProcNet, stated(&listener));
    assert_eq!(sampler.take_reason().as_deref(), Some("denied"));
    assert_eq!(sampler.take_reason(), None, "each step is told once");
    let first = sampler.sample(Duration::from_secs(1), &|_| false);
    assert_eq!((first.level, first.listeners, first.totals.connections), (Level::ProcNet, 1, 0));
    let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).expect("a connection")).collect();
    let accepted: Vec<_> = (0..2).map(|_| listener.accept().expect("a connection")).collect();
    let totals = sampler.sample(Duration::from_secs(2), &|_| false).totals;
    assert_eq!((totals.connections, totals.in_flight, totals.untold, totals.accept_queue), (3, 3, 2, 1));
    assert_eq!((totals.new, totals.last_active), (3, Some(Duration::from_secs(2))));
    drop((clients, accepted));
}

#[test]
fn the_blind_see_nothing_and_say_so() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut sampler = at(Source::Blind, stated(&listener));
    let seen = sampler.sample(Duration::from_secs(1), &|_| false);
    assert_eq!((seen.level, seen.listeners, seen.totals), (Level::Blind, 0, Totals::default()));
}

#[test]
fn what_is_refused_is_tried_once_and_what_breaks_off_twice() {
    let mut sampler = Sampler::new(Hints::default());
    let tries = std::cell::Cell::new(0);
    sampler.at_some_level(|sampler| {
        tries.set(tries.get() + 1);
        if sampler.level() == Level::Diag { Err(Error::Denied(Errno::EACCES)) } else { Ok(()) }
    });
    assert_eq!((tries.get(), sampler.level()), (2, Level::ProcNet));
    assert!(sampler.take_reason().is_some_and(|reason| reason.contains("Permission denied")));
    let mut sampler = Sampler::new(Hints::default());
    tries.set(0);
    sampler.at_some_level(|sampler| {
        tries.set(tries.get() + 1);
        if sampler.level() == Level::Blind { Ok(()) } else { Err(Error::Failed(Errno::ENOBUFS)) }
    });
    assert_eq!((tries.get(), sampler.level()), (4, Level::Blind));
}

#[test]
fn probers_are_left_out_and_a_new_listener_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let mut sampler = at(Source::ProcNet, stated(&listener));
    sampler.reopen();
    sampler.find(me());
    let client = TcpStream::connect(address).expect("a connection");
    let prober = client.local_addr().expect("its address");
    let seen = sampler.sample(Duration::from_secs(1), &|connection| connection.remote == prober);
    assert_eq!((seen.level, seen.totals.connections), (Level::Diag, 0));
    assert_eq!(sampler.sample(Duration::from_secs(1), &|_| false).totals.connections, 1);
    let _another = TcpListener::bind("127.0.0.1:0").expect("a port");
    assert!(sampler.sample(Duration::from_secs(1), &|_| false).listeners_changed);
}

#[test]
fn a_dear_sample_is_taken_seldom() {
    let mut sampler = Sampler::new(Hints::default());
    let (quiet, tie) = (Totals::default(), Totals { young_ties: 1, ..Totals::default() });
    sampler.ties.by_ack_mode = ack_mode::Trust::Full;
    assert_eq!(sampler.pace(&tie, Duration::from_millis(1)), PACE);
    assert_eq!(sampler.pace(&quiet, Duration::from_millis(15)), Duration::from_millis(600));
    assert_eq!(sampler.pace(&quiet, Duration::from_millis(150)), SLOWEST);
    sampler.ties.by_ack_mode = ack_mode::Trust::Answered;
    assert_eq!(sampler.pace(&tie, Duration::ZERO), TIE_PACE);
    assert_eq!(sampler.pace(&quiet, Duration::ZERO), PACE);
}

const CONNECTIONS: usize = 10_000;

/// Runs one of the ignored tests in a process of its own.
fn run_alone(test: &str) -> String {
    let this = std::env::current_exe().expect("the tests");
    let test = format!("traffic::sampler::tests::{test}");
    let run = Command::new(this).args(["--exact", &test, "--ignored", "--nocapture"]).output().expect("the test runs");
    let told = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
    told
}

#[test]
fn where_sock_diag_is_denied_it_is_said_and_connections_are_counted() {
    run_alone("deny_netlink");
}

#[test]
#[ignore = "run by where_sock_diag_is_denied_it_is_said_and_connections_are_counted: its filter cannot be taken off"]
fn deny_netlink() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let _client = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    let mut before = Sampler::new(stated(&listener));
    forbid_sockets(libc::AF_NETLINK as u32);
    let mut sampler = Sampler::new(stated(&listener));
    assert_eq!((sampler.level(), sampler.find(me())), (Level::ProcNet, Found::Stated));
    let seen = sampler.sample(Duration::from_secs(1), &|_| false);
    assert_eq!((seen.totals.connections, seen.totals.accept_queue, seen.new_is_a_floor), (1, 1, true));
    let reason = sampler.take_reason().expect("a reason");
    assert!(reason.contains("not permitted") && reason.contains("seccomp"), "{reason}");
    assert_eq!((before.find(me()), before.level()), (Found::Stated, Level::Diag), "an open one goes on");
}

/// A seccomp filter (seccomp(2)) that answers EPERM to socket(2) of this family, as container runtimes' profiles do.
fn forbid_sockets(family: u32) {
    const ARGUMENT: u32 = 16;
    let op = |code: u32, yes, no, k| libc::sock_filter { code: code as u16, jt: yes, jf: no, k };
    let (load, equal, answer) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::BPF_RET);
    let low_half = if cfg!(target_endian = "little") { ARGUMENT } else { ARGUMENT + 4 };
    let mut program = [
        op(load, 0, 0, 0),
        op(equal, 0, 3, libc::SYS_socket as u32),
        op(load, 0, 0, low_half),
        op(equal, 0, 1, family),
        op(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    nix::sys::prctl::set_no_new_privs().expect("it is always allowed");
    // SAFETY: the filter points to as many instructions as it says, and the kernel copies them.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(set, 0);
}

#[test]
fn a_user_without_privileges_sees_all_that_root_does() {
    if nix::unistd::geteuid().is_root() {
        run_alone("look_as_nobody");
    } else {
        eprintln!("SKIPPED: it takes root to become another user; the other tests show it here");
    }
}

#[test]
#[ignore = "run by a_user_without_privileges_sees_all_that_root_does: there is no way back"]
fn look_as_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let _client = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    nix::unistd::setuid(nix::unistd::Uid::from_raw(65534)).expect("we are root");
    // Our parent is still root, and hides its descriptors from us.
    let mut sampler = Sampler::new(Hints::default());
    assert_eq!(sampler.find(std::iter::once(nix::unistd::getppid().as_raw())), Found::Not);
    let mut sampler = Sampler::new(stated(&listener));
    assert_eq!((sampler.find(me()), sampler.level()), (Found::Stated, Level::Diag));
    let seen = sampler.sample(Duration::from_secs(1), &|_| false);
    assert_eq!((seen.totals.connections, seen.totals.accept_queue, seen.new_is_a_floor), (1, 1, false));
}

#[test]
fn ten_thousand_connections_are_cheap_and_memory_does_not_grow() {
    let _alone = LOOPBACK.write().unwrap_or_else(PoisonError::into_inner);
    println!("{}", run_alone("measure_ten_thousand_connections"));
}

#[test]
#[ignore = "run by ten_thousand_connections_are_cheap_and_memory_does_not_grow"]
fn measure_ten_thousand_connections() {
    let needed = CONNECTIONS as u64 + 100;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit");
    if hard < needed || setrlimit(Resource::RLIMIT_NOFILE, needed, hard).is_err() {
        eprintln!("SKIPPED: {needed} descriptors are needed, {hard} are allowed");
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let mut peer = peer(address.port());
    let accepted: Vec<_> = (0..CONNECTIONS).map(|_| listener.accept().expect("a connection").0).collect();
    // Half of them have had a request and an answer in one tick: these ties are decided once.
    for mut stream in accepted.iter().step_by(2) {
        stream.read_exact(&mut [0]).expect("a request");
        stream.write_all(b"x").expect("a peer");
    }
    let mut sampler = Sampler::new(stated(&listener));
    sampler.find(me());
    let start = Instant::now();
    // Room for the undecided is made once, when the ties are old.
    while start.elapsed() < Duration::from_secs(10) && sampler.sample(start.elapsed(), &|_| false).totals.young_ties > 0
    {
    }
    let (mut memory, mut costs) = (0, Vec::with_capacity(100));
    for round in 1..=100 {
        let before = used();
        let seen = sampler.sample(start.elapsed(), &|_| false);
        costs.push(used() - before);
        assert_eq!(seen.totals.connections as usize, CONNECTIONS);
        if round == 10 {
            memory = resident();
        }
    }
    let growth = resident() - memory;
    costs.sort_unstable();
    println!("{CONNECTIONS} connections: a sample takes {:?} of CPU time, at most {:?}", costs[50], costs[99]);
    println!("memory: {memory} KiB after 10 samples, {growth} KiB more after 100");
    let _ = peer.kill();
    let _ = peer.wait();
    assert!(growth <= 0, "{growth} KiB");
}

/// The other ends, in a process with descriptors of its own.
fn peer(port: u16) -> std::process::Child {
    let script = format!(
        "import socket, time
all = [socket.create_connection(('127.0.0.1', {port})) for _ in range({CONNECTIONS})]
for one in all[::2]: one.sendall(b'x')
print(flush=True)
time.sleep(600)"
    );
    let mut command = Command::new("python3");
    command.args(["-c", &script]).stdout(Stdio::piped()).spawn().expect("python3")
}

fn used() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("it cannot fail");
    let duration =
        |time: nix::sys::time::TimeVal| Duration::from_micros((time.tv_sec() * 1_000_000 + time.tv_usec()) as u64);
    duration(usage.user_time()) + duration(usage.system_time())
}

/// The memory that is ours alone, in KiB. VmRSS is counted in batches, and would be off by some 100 KiB.
fn resident() -> i64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("our memory");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

//! What is missing, forbidden, full or broken must not be the app's end.

mod common;
#[path = "common/http.rs"]
mod http;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::instance::{Instance, Launch, until};
use common::{SUNDOWN, is_root, spawn};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{Resource, setrlimit};

/// What a kill at the deadline may be late.
const LATE: Duration = Duration::from_millis(500);

// ---- The log ----

/// A child that is killed when dropped.
struct Running(Child);

impl Running {
    fn signal(&self, number: i32) {
        // SAFETY: takes two numbers; the process is ours and not reaped yet.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, number) }, 0);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn flags(fd: &impl std::os::fd::AsFd) -> OFlag {
    OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).expect("it is open"))
}

/// Fills a pipe or a terminal to the brim, without changing the description that the child will share.
fn fill(path: &str) -> usize {
    let mut own = File::options().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).expect(path);
    let mut total = 0;
    while let Ok(written) = own.write(&[b'x'; 64]) {
        total += written;
    }
    while let Ok(written) = own.write(b"x") {
        total += written;
    }
    total
}

#[test]
fn a_log_pipe_that_nobody_reads_stops_nothing() {
    let (mut reader, writer) = io::pipe().expect("a pipe");
    let filled = fill(&format!("/proc/self/fd/{}", writer.as_raw_fd()));
    let folder = common::directory();
    let record = folder.path().join("record");
    let app = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/app.py");
    let mut command = Command::new(SUNDOWN);
    command.args(["--log-format", "text", "--drain-delay", "100ms", "--", "python3", app, common::text(&record)]);
    command.args(["catch=TERM", "cleanup=1"]).stdin(Stdio::null()).stderr(writer.try_clone().expect("a descriptor"));
    let mut process = Running(spawn(&mut command));
    until("the app is up", || record.exists() && common::read(&record).contains("app up"));
    process.signal(libc::SIGTERM);
    // What it says of the stop is lost; the stop is not.
    until("the app has heard", || common::read(&record).contains("app heard SIGTERM"));
    assert!(!flags(&writer).contains(OFlag::O_NONBLOCK), "what the child shares is as it was");
    let mut waste = vec![0; filled];
    reader.read_exact(&mut waste).expect("it is in the pipe");
    assert_eq!(common::wait(&mut process.0), Some(0));
    // The pipe ends with its last writer; these two are ours.
    drop((writer, command));
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("UTF-8");
    assert!(text.contains("log lines were dropped, since nobody read stderr"), "{text}");
    assert!(text.contains("exit"), "the last line gets through: {text}");
    assert_eq!(common::read(&record).lines().count(), 3, "up, heard, clean");
}

// ---- A bug of ours ----

fn panicking(options: &[&str]) -> (Launch, SocketAddr) {
    let address = http::free_address();
    let listen = address.to_string();
    let all = [&["--http", &listen, "--x-panic-on-request"], options].concat();
    (Launch::sundown(&all), address)
}

/// The request that is its end is not answered.
fn make_it_panic(instance: &Instance, address: SocketAddr) {
    until("the endpoint is there", || http::connect(address).is_ok());
    // The fallback never returns, so the connection stays open and silent: the answer is not waited for.
    let mut stream = http::connect(address).expect("it listens");
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is there");
    instance.wait_log("a bug in sundown");
}

#[test]
fn after_a_panic_signals_are_still_forwarded_and_the_exit_code_is_the_apps() {
    let (launch, address) = panicking(&[]);
    let mut instance = launch.start(&["{app}", "catch=TERM", "every=HUP", "cleanup=1", "exit=7"]);
    instance.wait_record("app up");
    make_it_panic(&instance, address);
    instance.signal(libc::SIGHUP);
    instance.wait_record("app heard SIGHUP");
    // It survived this one before, and does still.
    instance.signal(libc::SIGUSR2);
    for _ in 0..3 {
        instance.signal(libc::SIGTERM);
    }
    assert_eq!(instance.wait().0, 7, "{}", instance.log());
    assert_eq!((instance.count("app heard SIGTERM"), instance.count("app clean")), (1, 1), "{:?}", instance.record());
}

#[test]
fn after_a_panic_as_pid_1_too() {
    if !is_root("a PID namespace") {
        return;
    }
    let (launch, address) = panicking(&[]);
    let mut instance = launch.pid1().start(&["{app}", "catch=TERM", "cleanup=1", "exit=7"]);
    instance.wait_record("app up");
    make_it_panic(&instance, address);
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 7, "{}", instance.log());
    assert_eq!((instance.count("app heard SIGTERM"), instance.count("app clean")), (1, 1), "{:?}", instance.record());
}

#[test]
fn after_a_panic_orphans_are_reaped() {
    let (launch, address) = panicking(&[]);
    let loop_ = "while :; do (sleep 0.05 & echo $! >> {dir}/orphans); sleep 0.02; done";
    let instance = launch.start(&["sh", "-c", loop_]);
    until("some orphans", || instance.file("orphans").exists());
    make_it_panic(&instance, address);
    let orphans =
        || -> Vec<i32> { common::read(&instance.file("orphans")).lines().filter_map(|pid| pid.parse().ok()).collect() };
    let before = orphans().len();
    until("more of them", || orphans().len() > before + 20);
    let zombies = || orphans().iter().filter(|pid| state(**pid) == Some('Z')).count();
    until("no zombie", || zombies() <= 1);
}

fn state(pid: i32) -> Option<char> {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn after_a_panic_the_stated_deadline_is_kept() {
    let (launch, address) = panicking(&["--grace-period", "4s", "--kill-margin", "2s", "--drain-delay", "0"]);
    let mut instance = launch.start(&["sh", "-c", "{app} ignore=TERM fork=setsid"]);
    instance.wait_record("app2 up");
    make_it_panic(&instance, address);
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!(code, 137, "{}", instance.log());
    assert!(took >= Duration::from_millis(1990) && took < Duration::from_secs(2) + LATE, "{took:?}");
    for name in ["app up ", "app2 up "] {
        let pid = instance.wait_record(name).parse().expect("a pid");
        until("all of it is killed", || matches!(state(pid), None | Some('Z')));
    }
}

#[test]
fn a_panic_after_the_stop_request_neither_restarts_the_clock_nor_tells_twice() {
    let (launch, address) = panicking(&["--grace-period", "5s", "--kill-margin", "2s", "--drain-delay", "0"]);
    let mut instance = launch.start(&["{app}", "every=TERM"]);
    instance.wait_record("app up");
    let began = Instant::now();
    instance.signal(libc::SIGTERM);
    instance.wait_record("app heard SIGTERM");
    make_it_panic(&instance, address);
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 137, "{}", instance.log());
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(2990) && took < Duration::from_secs(3) + LATE, "{took:?}");
    assert_eq!(instance.count("app heard SIGTERM"), 1);
}

#[test]
fn a_panic_during_the_drain_tells_the_app_at_once() {
    let (launch, address) = panicking(&["--drain-delay", "15s", "--ready-check", "running"]);
    let mut instance = launch.start(&["{app}", "catch=TERM", "port=0", "exit=3"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    instance.wait_log("stop asked for");
    assert_eq!(instance.count("app heard SIGTERM"), 0);
    make_it_panic(&instance, address);
    assert_eq!(instance.wait().0, 3, "{}", instance.log());
    assert_eq!(instance.count("app heard SIGTERM"), 1);
}

// ---- What the kernel or the sandbox refuses ----

/// A seccomp filter that answers one system call with an error, as a sandbox or an old kernel would.
fn without_call(command: &mut Command, number: libc::c_long, argument: Option<u32>, error: i32) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    // seccomp_data: the call's number stands first, the low half of its first argument at 16.
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let test = argument.map_or([step(LOAD, 0, 0, 0), step(EQUAL, 0, 1, number as u32)], |argument| {
        [step(LOAD, 0, 0, 16), step(EQUAL, 0, 1, argument)]
    });
    let filter = [
        step(LOAD, 0, 0, 0),
        step(EQUAL, 0, 3, number as u32),
        test[0],
        test[1],
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let set = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: takes numbers.
        Errno::result(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        // SAFETY: the program and the filter behind it live through the call; the kernel copies them.
        let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
        Ok(Errno::result(done).map(drop)?)
    };
    // SAFETY: system calls only, async-signal-safe.
    unsafe { command.pre_exec(set) };
}

/// The app behind a shell hears once and cleans up: what an init is for, when something is amiss.
#[track_caller]
fn does_its_job(prepare: impl FnOnce(Launch) -> Launch) -> Instance {
    let mut instance = prepare(Launch::sundown(&[])).start(&["sh", "-c", "{app} catch=TERM cleanup=1 exit=4; exit $?"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    let (code, _) = instance.wait();
    assert_eq!((instance.count("app heard SIGTERM"), instance.count("app clean")), (1, 1), "{}", instance.log());
    assert_eq!(code, 4, "{}", instance.log());
    instance
}

#[test]
fn without_pidfd_open_it_works() {
    for error in [libc::ENOSYS, libc::EPERM] {
        does_its_job(|launch| launch.prepared(move |command| without_call(command, libc::SYS_pidfd_open, None, error)));
    }
}

#[test]
fn without_pidfd_send_signal_it_works() {
    for error in [libc::ENOSYS, libc::EPERM] {
        does_its_job(|launch| {
            launch.prepared(move |command| without_call(command, libc::SYS_pidfd_send_signal, None, error))
        });
    }
}

#[test]
fn without_the_right_to_be_a_subreaper_it_works_and_says_so() {
    let option = Some(libc::PR_SET_CHILD_SUBREAPER as u32);
    let instance = does_its_job(|launch| {
        launch.prepared(move |command| without_call(command, libc::SYS_prctl, option, libc::EPERM))
    });
    assert!(instance.log().contains("orphans of the app cannot be seen"), "{}", instance.log());
}

#[test]
fn without_sockets_it_works_and_says_so() {
    let unix = Some(libc::AF_UNIX as u32);
    let instance = does_its_job(|launch| {
        launch.prepared(move |command| without_call(command, libc::SYS_socket, unix, libc::EACCES))
    });
    assert!(instance.log().contains("no control socket"), "{}", instance.log());
}

#[test]
fn with_few_descriptors_it_works() {
    for limit in [16, 20] {
        let address = http::free_address();
        let listen = address.to_string();
        let set = move || Ok(setrlimit(Resource::RLIMIT_NOFILE, limit, limit)?);
        let mut instance = Launch::sundown(&["--http", &listen])
            .prepared(move |command| {
                // SAFETY: one system call, async-signal-safe.
                let _ = unsafe { command.pre_exec(set) };
            })
            .start(&["sh", "-c", "{app} catch=TERM cleanup=1 exit=4; exit $?"]);
        instance.wait_record("app up");
        // More clients than there are descriptors.
        let clients: Vec<_> = (0..40).filter_map(|_| http::connect(address).ok()).collect();
        instance.signal(libc::SIGTERM);
        assert_eq!(instance.wait().0, 4, "{limit}: {}", instance.log());
        assert_eq!((instance.count("app heard SIGTERM"), instance.count("app clean")), (1, 1), "{limit}");
        drop(clients);
    }
}

// ---- A terminal that nobody reads ----

#[test]
fn a_terminal_that_nobody_reads_stops_nothing() {
    let (master, slave) = common::session::open_pty();
    let path = std::fs::read_link(format!("/proc/self/fd/{}", slave.as_raw_fd())).expect("a terminal");
    let _ = fill(common::text(&path));
    // Room for less than a line of ours: poll(2) calls it writable, and a plain write would wait for the rest.
    let mut some = [0; 100];
    let read = nix::unistd::read(&master, &mut some).expect("it is full");
    assert!(read > 0);
    let mut command = Command::new(SUNDOWN);
    command.args(["--log-format", "text", "--", "sleep", "60"]).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(slave.try_clone().expect("a descriptor"));
    let mut process = Running(spawn(&mut command));
    until("it is at rest", || state(process.0.id() as i32) == Some('S'));
    let child = format!("/proc/{0}/task/{0}/children", process.0.id());
    until("the child runs", || std::fs::read_to_string(&child).is_ok_and(|pids| !pids.is_empty()));
    process.signal(libc::SIGTERM);
    assert_eq!(common::wait(&mut process.0), Some(143));
    assert!(!flags(&slave).contains(OFlag::O_NONBLOCK), "what the child shares is as it was");
}

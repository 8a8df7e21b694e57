//! What systemd is told: a socket of the test's stands for its own (sd_notify(3)).

mod common;

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::instance::{BOUND, Instance, Launch, between, secs};

/// A socket that listens as systemd does, and when it heard what.
struct Systemd {
    /// What NOTIFY_SOCKET is set to.
    address: String,
    heard: Receiver<(Instant, String)>,
}

impl Systemd {
    fn new(name: &str) -> Self {
        let name = format!("sundown-test/{}-{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("nobody else has it");
        Self { address: format!("@{name}"), heard: listen(socket) }
    }

    /// The lines of all messages until one starts so, with the time of each.
    #[track_caller]
    fn until(&self, start: &str) -> Vec<(Instant, String)> {
        let mut lines: Vec<(Instant, String)> = Vec::new();
        while !lines.iter().any(|(_, line)| line.starts_with(start)) {
            let told = self.heard.recv_timeout(BOUND);
            let (at, message) = told.unwrap_or_else(|_| panic!("waited for {start:?} after {lines:?}"));
            lines.extend(message.lines().map(|line| (at, line.to_owned())));
        }
        lines
    }

    /// The lines of all that has been said by now.
    fn rest(&self) -> Vec<(Instant, String)> {
        let told = std::iter::from_fn(|| self.heard.recv_timeout(Duration::from_millis(200)).ok());
        told.flat_map(|(at, text)| text.lines().map(|line| (at, line.to_owned())).collect::<Vec<_>>()).collect()
    }
}

fn listen(socket: UnixDatagram) -> Receiver<(Instant, String)> {
    let (tell, heard) = channel();
    std::thread::spawn(move || {
        let mut message = [0; 4096];
        while let Ok(length) = socket.recv(&mut message) {
            if tell.send((Instant::now(), String::from_utf8_lossy(&message[..length]).into_owned())).is_err() {
                return;
            }
        }
    });
    heard
}

/// A port that no outgoing connection is given meanwhile.
fn free_address() -> std::net::SocketAddr {
    std::net::SocketAddr::from(([127, 0, 0, 1], common::free_port()))
}

fn launch(systemd: &Systemd, options: &[&str]) -> Launch {
    Launch::sundown(&[&["--log-format", "text"], options].concat()).env("NOTIFY_SOCKET", &systemd.address)
}

fn lines(told: &[(Instant, String)]) -> Vec<&str> {
    told.iter().map(|(_, line)| line.as_str()).collect()
}

fn extensions(told: &[(Instant, String)]) -> Vec<(Instant, Duration)> {
    let micros = |line: &str| line.strip_prefix("EXTEND_TIMEOUT_USEC=")?.parse().ok();
    told.iter().filter_map(|(at, line)| Some((*at, Duration::from_micros(micros(line)?)))).collect()
}

/// What the app was asked to show of its environment.
fn socket_of_child(instance: &Instance) -> String {
    instance.wait_record("app up");
    fs::read_to_string(instance.file("socket")).expect("it is there").trim().to_owned()
}

const SHOWS_SOCKET: [&str; 3] = ["sh", "-c", "echo \"$NOTIFY_SOCKET\" >{dir}/socket; exec {app} catch=TERM"];

#[test]
fn it_is_told_of_each_phase_in_order() {
    let systemd = Systemd::new("order");
    let gate = free_address();
    let needed = free_address();
    let (ready, wait) = (format!("tcp://{gate}"), format!("tcp://{needed}"));
    let pace = ["--check-period", "50ms"];
    let options = [&["--ready-check", &ready, "--wait-for", &wait, "--drain-delay", "300ms"], &pace[..]].concat();
    let mut instance = launch(&systemd, &options).start(&SHOWS_SOCKET);
    assert_eq!(lines(&systemd.until("STATUS")), [format!("STATUS=starting: waiting for {wait}")]);
    let _needed = TcpListener::bind(needed).expect("it is free");
    assert_eq!(socket_of_child(&instance), "", "two would speak");
    assert_eq!(lines(&systemd.rest()), ["STATUS=starting: the app has not been ready yet"]);
    let gate = TcpListener::bind(gate).expect("it is free");
    assert_eq!(lines(&systemd.until("STATUS"))[..], ["READY=1", "STATUS=running: ready"]);
    // Not ready for a while: READY is not said again, since systemd knows no way back.
    drop(gate);
    let told = systemd.until("STATUS=running: the ready check fails");
    assert!(!lines(&told).contains(&"READY=1"), "{told:?}");
    instance.signal(libc::SIGTERM);
    let told = systemd.until("STATUS=draining");
    let told = lines(&told);
    assert!(told[0] == "STOPPING=1" && told[1].starts_with("STATUS=draining: stop asked for by SIGTERM"), "{told:?}");
    systemd.until("STATUS=stopping");
    instance.wait();
    let rest = systemd.rest();
    assert!(!lines(&rest).iter().any(|line| line.starts_with("STOPPING") || line.starts_with("READY")), "{rest:?}");
}

#[test]
fn a_drain_longer_than_systemds_time_out_is_extended_until_its_end() {
    let systemd = Systemd::new("extend");
    let mut instance = launch(&systemd, &["--notify", "self", "--drain-delay", "7s"]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    systemd.until("READY=1");
    let asked = Instant::now();
    instance.signal(libc::SIGTERM);
    instance.wait();
    let ended = Instant::now();
    between(ended - asked, secs(6.9), secs(9.0));
    let told = systemd.rest();
    let extensions = extensions(&told);
    assert!(extensions.len() >= 2, "it is never renewed: {told:?}");
    // Systemd's time-out is as short as can be: it is over as soon as an extension is.
    let mut granted = asked + secs(0.5);
    for (at, time) in &extensions {
        assert!(*at <= granted, "the time was over before more was asked for: {told:?}");
        granted = granted.max(*at + *time);
    }
    assert!(granted >= ended, "the last one was over before the end: {told:?}");
    assert!(extensions.iter().all(|(_, time)| *time <= secs(10.0)), "{told:?}");
}

#[test]
fn of_a_stated_grace_period_no_more_is_asked_for_than_there_is() {
    let systemd = Systemd::new("stated");
    let options = ["--notify", "self", "--drain-delay", "1s", "--grace-period", "6s"];
    let mut instance = launch(&systemd, &options).start(&["{app}", "catch=TERM"]);
    systemd.until("READY=1");
    instance.signal(libc::SIGTERM);
    instance.wait();
    let extensions = extensions(&systemd.rest());
    assert_eq!(extensions.len(), 1, "{extensions:?}");
    between(extensions[0].1, secs(5.5), secs(6.0));
}

#[test]
fn a_stop_that_needs_no_drain_asks_only_for_what_may_come() {
    let systemd = Systemd::new("none");
    let mut instance = launch(&systemd, &["--notify", "self"]).start(&["sh", "-c", "exit 3"]);
    assert_eq!(instance.wait().0, 3);
    let told = systemd.rest();
    assert!(extensions(&told).is_empty() && !lines(&told).contains(&"STOPPING=1"), "nobody asked: {told:?}");
}

#[test]
fn the_socket_is_the_programs_unless_we_know_when_it_is_ready() {
    let ready = ["--ready-check", "exec:true"];
    let endpoint = free_address().to_string();
    for (number, (options, passed_on, ours)) in [
        (&[][..], true, false),
        (&["--notify", "child", ready[0], ready[1]], true, false),
        (&["--notify", "self"], false, true),
        (&ready, false, true),
        (&["--http", &endpoint, "--ready-check", "running"], false, true),
        (&["--http", "off"], true, false),
        (&["--notify", "off", ready[0], ready[1]], false, false),
    ]
    .into_iter()
    .enumerate()
    {
        let systemd = Systemd::new(&format!("whose-{number}"));
        let mut instance = launch(&systemd, options).start(&SHOWS_SOCKET);
        let expected = if passed_on { systemd.address.as_str() } else { "" };
        assert_eq!(socket_of_child(&instance), expected, "{options:?}");
        if ours {
            systemd.until("READY=1");
        }
        instance.signal(libc::SIGTERM);
        instance.wait();
        assert_eq!(!systemd.rest().is_empty(), ours, "{options:?}");
    }
}

#[test]
fn what_is_run_beside_the_program_does_not_speak_for_it_either() {
    let systemd = Systemd::new("beside");
    let options = ["--notify", "self", "--on-exit", "exec:sh -c 'echo \"$NOTIFY_SOCKET\" >{dir}/socket'"];
    let mut instance = launch(&systemd, &options).start(&["true"]);
    instance.wait();
    assert_eq!(fs::read_to_string(instance.file("socket")).expect("it was done"), "\n");
}

#[test]
fn a_path_will_do_and_one_that_nobody_has_is_told_once_and_stops_nothing() {
    let folder = common::directory();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("room for it");
    let systemd = Systemd { address: path.display().to_string(), heard: listen(socket) };
    let options = ["--notify", "self"];
    let mut instance = launch(&systemd, &options).start(&["{app}", "catch=TERM"]);
    systemd.until("READY=1");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 0);
    let launch = Launch::sundown(&["--log-format", "text", "--notify", "self"]).env("NOTIFY_SOCKET", "{dir}/nobody");
    let mut instance = launch.start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 0);
    assert_eq!(instance.log().matches("NOTIFY_SOCKET").count(), 1, "{}", instance.log());
}

#[test]
fn the_example_unit_is_one_that_systemd_takes() {
    if !common::has_tools(&["systemd-analyze"]) {
        return;
    }
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/systemd/app.service");
    let unit = fs::read_to_string(unit).expect("the example");
    // What it starts has to be there, and is not where it is installed.
    let folder = common::directory();
    let starts = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts something");
    let (sundown, program) =
        (starts.split(' ').next().expect("a word"), starts.split(" -- ").nth(1).expect("a program"));
    assert_eq!(sundown, "/usr/local/bin/sundown");
    let here = unit.replace(sundown, common::SUNDOWN).replace(program, "/bin/true");
    let file = common::write(&folder, "app.service", here, 0o644);
    let mut verify = std::process::Command::new("systemd-analyze");
    let verified = common::run(verify.args(["verify", "--man=no"]).arg(&file).env("PATH", common::path()));
    assert_eq!((verified.code, verified.stderr.as_str()), (Some(0), ""), "{}", verified.stdout);
    // And its words are ours.
    let options = starts.split(" -- ").next().expect("options").split(' ').skip(1);
    let mut run = std::process::Command::new(common::SUNDOWN);
    assert_eq!(common::run(run.args(options).args(["--", "true"])).code, Some(0));
}

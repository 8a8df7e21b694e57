//! A drain that looks at the traffic, in front of a node service that has never heard of SIGTERM: what is in flight is waited
//! for, between the least and the greatest length, and nothing else is.

mod common;
#[path = "common/http.rs"]
mod http;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::instance::{Instance, Launch};

const SERVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/node-service/server.js");
const ENOUGH: Duration = Duration::from_secs(1);

/// The service, ready, behind sundown with these options; none where there is no node.
fn service(options: &[&str]) -> Option<(Instance, SocketAddr)> {
    if !common::has_tools(&["node"]) {
        return None;
    }
    let address = http::free_address();
    let launch = Launch::sundown(&[&["--log-format", "text"], options].concat());
    let launch = launch.env("PORT", address.port().to_string()).env("HOST", address.ip().to_string());
    let instance = launch.start(&["node", SERVICE]);
    http::wait_for_status(address, "/health", 200);
    Some((instance, address))
}

/// Sends a request that the service answers after this long, and gives the answer's status and when it came.
fn work(address: SocketAddr, ms: u32) -> JoinHandle<(u16, Instant)> {
    let mut stream = http::connect(address).expect("a connection");
    let head = format!("POST /work?ms={ms} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    std::thread::spawn(move || {
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        (http::status(&answer), Instant::now())
    })
}

/// Stops it and gives how long that took.
fn stop(instance: &mut Instance) -> Duration {
    let began = Instant::now();
    instance.signal(libc::SIGTERM);
    instance.wait();
    began.elapsed()
}

#[test]
fn a_request_in_flight_is_waited_for_beyond_the_least_time() {
    let options = ["--drain-delay", "300ms", "--drain-timeout", "9s", "--drain-quiet", "400ms"];
    let Some((mut instance, address)) = service(&options) else { return };
    let answer = work(address, 2000);
    stop(&mut instance);
    let (ended, (status, answered)) = (Instant::now(), answer.join().expect("the client"));
    assert_eq!(status, 200, "{}", instance.log());
    let after = ended.duration_since(answered);
    assert!(after < Duration::from_millis(400) + ENOUGH, "{after:?} after the answer: {}", instance.log());
    assert!(instance.log().contains("its least time was over and the traffic quiet"), "{}", instance.log());
}

#[test]
fn the_greatest_length_ends_it_whatever_is_in_flight() {
    let Some((mut instance, address)) = service(&["--drain-delay", "200ms", "--drain-timeout", "1s"]) else { return };
    let answer = work(address, 8000);
    let took = stop(&mut instance);
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(1) + ENOUGH, "{took:?}: {}", instance.log());
    assert_ne!(answer.join().expect("the client").0, 200);
    for said in ["its greatest length was over, and traffic went on", "1 request still in flight"] {
        assert!(instance.log().contains(said), "{said:?} is not in {}", instance.log());
    }
}

#[test]
fn nothing_is_waited_for_where_nobody_is_connected() {
    let Some((mut instance, _)) = service(&["--drain-delay", "500ms", "--drain-timeout", "9s"]) else { return };
    let took = stop(&mut instance);
    assert!(
        took >= Duration::from_millis(500) && took < Duration::from_millis(500) + ENOUGH,
        "{took:?}: {}",
        instance.log()
    );
}

#[test]
fn an_idle_connection_does_not_stretch_it() {
    let Some((mut instance, address)) = service(&["--drain-delay", "300ms", "--drain-timeout", "9s"]) else { return };
    let mut stream = http::connect(address).expect("a connection");
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut answer = [0; 1024];
    assert!(stream.read(&mut answer).expect("an answer") > 0);
    let took = stop(&mut instance);
    // The window of a second counts from the answer on.
    assert!(took < Duration::from_secs(1) + ENOUGH, "{took:?}: {}", instance.log());
}

#[test]
fn quiet_never_undercuts_the_least_time() {
    let Some((mut instance, _)) = service(&["--drain-delay", "2s", "--drain-quiet", "100ms"]) else { return };
    let took = stop(&mut instance);
    assert!(took >= Duration::from_secs(2), "{took:?}: {}", instance.log());
}

#[test]
fn a_fixed_drain_looks_at_nothing() {
    let options = ["--drain-delay", "500ms", "--drain-timeout", "9s", "--drain-until", "delay"];
    let Some((mut instance, address)) = service(&options) else { return };
    let answer = work(address, 8000);
    let took = stop(&mut instance);
    assert!(took < Duration::from_millis(500) + ENOUGH, "{took:?}: {}", instance.log());
    assert_ne!(answer.join().expect("the client").0, 200);
}

#[test]
fn connections_that_never_go_quiet_do_not_keep_a_drain_until_no_new_one_comes() {
    let options =
        ["--drain-delay", "300ms", "--drain-timeout", "9s", "--drain-until", "no-new", "--drain-quiet", "700ms"];
    let Some((mut instance, address)) = service(&options) else { return };
    let old = work(address, 8000);
    let began = Instant::now();
    instance.signal(libc::SIGTERM);
    instance.wait_log("draining for at least 300ms");
    let new = work(address, 100);
    instance.wait();
    let took = began.elapsed();
    assert_eq!(new.join().expect("the client").0, 200, "{}", instance.log());
    assert_ne!(old.join().expect("the client").0, 200);
    assert!(
        took >= Duration::from_millis(700) && took < Duration::from_millis(900) + ENOUGH,
        "{took:?}: {}",
        instance.log()
    );
    for said in ["no new connection came", "1 new connection meanwhile, the last after"] {
        assert!(instance.log().contains(said), "{said:?} is not in {}", instance.log());
    }
}

#[test]
fn a_stop_that_takes_long_says_what_may_hold_it() {
    if !common::has_tools(&["node"]) {
        return;
    }
    let address = http::free_address();
    let app = "process.on('SIGTERM', () => server.close()); const server = require(process.argv[1]);";
    let launch = Launch::sundown(&["--log-format", "text", "--grace-period", "4s", "--kill-margin", "1s"]);
    let launch = launch.env("PORT", address.port().to_string()).env("HOST", address.ip().to_string());
    let mut instance = launch.start(&["node", "-e", app, SERVICE]);
    http::wait_for_status(address, "/health", 200);
    let answer = work(address, 2500);
    instance.signal(libc::SIGTERM);
    instance.wait_log("the app is still stopping: 1 connection, 1 with a request in flight");
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    assert_eq!(answer.join().expect("the client").0, 200);
}

#[test]
fn an_app_whose_listeners_cannot_be_told_from_others_is_said() {
    if !common::is_root("changing the user") {
        return;
    }
    // The app is another user's, and sundown may not look into its descriptors.
    let blind = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
    let other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let options = ["--log-format", "text", "--drain-delay", "300ms", "--drain-timeout", "9s"];
    let mut instance =
        Launch::sundown(&options).through(&blind).start(&[&other[..], &["{app}", "catch=TERM", "port=0"]].concat());
    instance.wait_record("app up");
    let took = stop(&mut instance);
    // By their cgroup they can be, where that is not shared by all that runs here.
    let by_cgroup = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let is_told = instance.log().contains("its listeners cannot be told from others'");
    assert_eq!(is_told, !by_cgroup, "{}", instance.log());
    assert!(by_cgroup || took < Duration::from_secs(1) + ENOUGH, "{took:?}: {}", instance.log());
}

#[test]
fn our_own_check_of_the_app_is_no_traffic() {
    if !common::has_tools(&["node"]) {
        return;
    }
    let address = http::free_address();
    let check = format!("http://{address}/health");
    let options =
        ["--ready-check", &check, "--check-period", "100ms", "--drain-delay", "500ms", "--drain-timeout", "9s"];
    let launch = Launch::sundown(&[&["--log-format", "text"], &options[..]].concat());
    let launch = launch.env("PORT", address.port().to_string()).env("HOST", address.ip().to_string());
    let mut instance = launch.start(&["node", SERVICE]);
    http::wait_for_status(address, "/health", 200);
    // It is running when its own check has passed as well: else there would be no drain.
    std::thread::sleep(Duration::from_millis(500));
    let took = stop(&mut instance);
    assert!(
        took >= Duration::from_millis(500) && took < Duration::from_secs(1) + ENOUGH,
        "{took:?}: {}",
        instance.log()
    );
    assert!(!instance.log().contains("meanwhile"), "{}", instance.log());
}

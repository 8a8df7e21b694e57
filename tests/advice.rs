//! Each advice, provoked by a real set-up, and its absence from a sound one.

mod common;
#[path = "common/http.rs"]
mod http;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::instance::{Instance, Launch, until};

const SERVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/node-service");
/// What the tree is examined after, and somewhat more: a busy machine may let the program listen before sundown's own clock starts.
const GROWN_UP: Duration = Duration::from_millis(3800);

/// A server with a handler for TERM that finishes its requests and closes idle connections.
const SOUND: &str = "const server = require('http').createServer((_, answer) => answer.end('ok'));
process.on('SIGTERM', () => { server.close(); server.closeIdleConnections(); });
server.listen(process.env.PORT, '127.0.0.1');";

fn launch(options: &[&str]) -> (Launch, SocketAddr) {
    let address = http::free_address();
    let launch = Launch::sundown(&[&["--log-format", "text"], options].concat());
    let launch = launch.env("PATH", common::path()).env("PORT", address.port().to_string());
    (launch.env("HOST", address.ip().to_string()).env("HOME", "{dir}"), address)
}

fn listens(address: SocketAddr) {
    until("it listens", || TcpStream::connect(address).is_ok());
}

/// Stops it once it is old enough, and gives the codes of all advice that it was given.
#[track_caller]
fn stop_when_grown_up(instance: &mut Instance) -> Vec<String> {
    std::thread::sleep(GROWN_UP);
    instance.signal(libc::SIGTERM);
    instance.wait();
    given(instance)
}

fn given(instance: &Instance) -> Vec<String> {
    let log = instance.log();
    let code = |line: &str| {
        let (_, rest) = line.split_once("SD")?;
        let (number, _) = rest.split_once(": ")?;
        number.parse::<u16>().is_ok().then(|| format!("SD{number}"))
    };
    log.lines().filter(|line| line.starts_with("sundown: ")).filter_map(code).collect()
}

#[track_caller]
fn says(instance: &Instance, text: &str) {
    assert!(instance.log().contains(text), "{text:?} is not in {}", instance.log());
}

#[test]
fn a_sound_set_up_is_given_none() {
    if !common::has_tools(&["node"]) {
        return;
    }
    let endpoint = http::free_address();
    let (launch, address) = launch(&["--http", &endpoint.to_string(), "--drain-delay", "1s", "--grace-period", "20s"]);
    let mut instance = launch.start(&["node", "-e", SOUND]);
    http::wait_for_status(endpoint, "/readyz", 200);
    let prober = std::thread::spawn(move || {
        while http::try_get(endpoint, "/readyz").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let mut client = http::connect(address).expect("a connection");
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    assert!(client.read(&mut [0; 1024]).expect("an answer") > 0);
    assert_eq!(stop_when_grown_up(&mut instance), [""; 0], "{}", instance.log());
    prober.join().expect("the prober");
}

#[test]
fn a_chain_of_wrappers_is_named_with_the_way_out() {
    if !common::has_tools(&["node", "yarn"]) {
        return;
    }
    let (launch, address) = launch(&["--drain-delay", "0"]);
    let mut instance = launch.start(&["yarn", "--silent", "--cwd", SERVICE, "start"]);
    listens(address);
    assert!(stop_when_grown_up(&mut instance).contains(&"SD101".to_owned()), "{}", instance.log());
    says(&instance, "SD101: the app is started through others (yarn > ");
    says(&instance, r#"to be rid of them start ["#);
}

#[test]
fn an_app_that_nothing_would_make_stop_in_order_is_named() {
    let (launch, address) = launch(&[]);
    let server = "import os, http.server as s; s.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), s.BaseHTTPRequestHandler).serve_forever()";
    let mut instance = launch.start(&[common::instance::python(), "-c", server]);
    listens(address);
    assert_eq!(stop_when_grown_up(&mut instance), ["SD102"], "{}", instance.log());
    says(&instance, "SD102: nothing in the tree catches SIGTERM (python does not)");
}

#[test]
fn a_stop_signal_that_is_not_the_programs_own_is_named() {
    if !common::has_tools(&["nginx"]) {
        return;
    }
    let (launch, address) = launch(&["--stop-signal", "TERM"]);
    let config = format!(
        "daemon off; pid {{dir}}/pid; error_log {{dir}}/error; worker_processes 1; events {{}}
http {{ access_log off; client_body_temp_path {{dir}}/1; proxy_temp_path {{dir}}/2; fastcgi_temp_path {{dir}}/3;
uwsgi_temp_path {{dir}}/4; scgi_temp_path {{dir}}/5; server {{ listen {address}; return 204; }} }}"
    );
    let mut instance = launch.file("nginx.conf", &config).start(&["nginx", "-c", "{dir}/nginx.conf"]);
    listens(address);
    assert_eq!(stop_when_grown_up(&mut instance), ["SD103"], "{}", instance.log());
    says(&instance, "SD103: --stop-signal begins with SIGTERM, and nginx finishes its requests on SIGQUIT");
}

#[test]
fn a_stop_signal_that_the_image_has_inherited_is_named() {
    if !common::is_root("a PID namespace") {
        return;
    }
    // From outside, as the runtime sends it.
    let (launch, _) = launch(&[]);
    let mut instance = launch.pid1().start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGQUIT);
    instance.wait();
    assert_eq!(given(&instance), ["SD103"], "{}", instance.log());
    says(&instance, "SD103: the stop was asked for by SIGQUIT, which python does not stop on");
}

#[test]
fn a_grace_period_that_is_not_stated_is_named_at_the_stop() {
    let (launch, _) = launch(&["--drain-delay", "0"]);
    let mut instance = launch.env("KUBERNETES_SERVICE_HOST", "10.0.0.1").start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    assert_eq!(instance.log(), "", "a clean start says nothing");
    instance.signal(libc::SIGTERM);
    instance.wait();
    assert_eq!(given(&instance), ["SD205"], "{}", instance.log());
}

#[test]
fn a_balancer_that_nobody_named_is_known_by_its_health_check() {
    let endpoint = http::free_address();
    let (launch, _) = launch(&["--http", &endpoint.to_string()]);
    let instance = launch.start(&["{app}", "catch=TERM", "port=0"]);
    http::wait_for_status(endpoint, "/readyz", 200);
    let request = "GET /readyz HTTP/1.1\r\nHost: x\r\nUser-Agent: ELB-HealthChecker/2.0\r\nConnection: close\r\n\r\n";
    for _ in 0..2 {
        http::exchange(endpoint, request.as_bytes()).expect("an answer");
    }
    assert_eq!(given(&instance), ["SD206"], "{}", instance.log());
    says(&instance, "SD206: 127.0.0.1 (ELB-HealthChecker/2.0) asks for /readyz, and neither --lb");
}

#[test]
fn an_endpoint_that_nobody_asks_is_named() {
    let endpoint = http::free_address();
    let (launch, _) = launch(&["--http", &endpoint.to_string(), "--drain-delay", "300ms"]);
    let mut instance = launch.start(&["{app}", "catch=TERM", "port=0"]);
    instance.wait_record("app up");
    let ready = || {
        let mut client = std::process::Command::new(common::SUNDOWN);
        common::run(client.args(["ready", "--pid", &instance.pid.to_string()])).code == Some(0)
    };
    until("it is ready", ready);
    instance.signal(libc::SIGTERM);
    instance.wait();
    assert_eq!(given(&instance), ["SD302"], "{}", instance.log());
}

#[test]
fn a_prober_that_does_not_come_in_the_drain_is_named() {
    let endpoint = http::free_address();
    let (launch, _) = launch(&["--http", &endpoint.to_string(), "--drain-delay", "300ms"]);
    let mut instance = launch.start(&["{app}", "catch=TERM", "port=0"]);
    http::wait_for_status(endpoint, "/readyz", 200);
    (0..3).for_each(|_| assert_eq!(http::get(endpoint, "/readyz").0, 200));
    instance.signal(libc::SIGTERM);
    instance.wait();
    assert_eq!(given(&instance), ["SD303"], "{}", instance.log());
    says(&instance, "SD303: nobody has asked for /readyz since the stop request; 127.0.0.1");
}

#[test]
fn requests_that_come_after_the_least_drain_and_after_the_drain_are_named() {
    if !common::has_tools(&["node"]) {
        return;
    }
    let (launch, address) = launch(&["--drain-delay", "200ms", "--drain-timeout", "1s", "--drain-quiet", "900ms"]);
    // It serves on for two seconds after it was told.
    let app = format!(
        "{SOUND} process.removeAllListeners('SIGTERM'); process.on('SIGTERM', () => setTimeout(() => process.exit(0), 2000));"
    );
    let mut instance = launch.start(&["node", "-e", &app]);
    listens(address);
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let client = std::thread::spawn(move || {
        while http::request(address, "POST", "/").is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    until("the client is at work", || asked.load(Ordering::Relaxed) > 3);
    instance.signal(libc::SIGTERM);
    instance.wait();
    client.join().expect("the client");
    assert_eq!(given(&instance), ["SD401", "SD403"], "{}", instance.log());
    says(&instance, " after the least drain of 200ms, the last ");
    says(&instance, " came after the app was told");
}

#[test]
fn a_stop_that_nearly_takes_too_long_and_one_that_is_killed_are_named() {
    for (clean_up, says_too) in [("2.7", "a little slower, and it is killed"), ("9", "it was killed")] {
        let (launch, _) = launch(&["--grace-period", "4s", "--kill-margin", "1s"]);
        let mut instance = launch.start(&["{app}", "catch=TERM", &format!("cleanup={clean_up}")]);
        instance.wait_record("app up");
        instance.signal(libc::SIGTERM);
        instance.wait();
        assert_eq!(given(&instance), ["SD404"], "{}", instance.log());
        says(&instance, says_too);
    }
}

#[test]
fn idle_connections_that_hold_the_stop_are_named() {
    if !common::has_tools(&["node"]) {
        return;
    }
    let (launch, address) = launch(&["--grace-period", "4s", "--kill-margin", "1s"]);
    let app = SOUND.replace("server.closeIdleConnections();", "").replace("server.close();", "");
    let mut instance = launch.start(&["node", "-e", &app]);
    listens(address);
    let mut client = http::connect(address).expect("a connection");
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    assert!(client.read(&mut [0; 1024]).expect("an answer") > 0);
    instance.signal(libc::SIGTERM);
    instance.wait_log("SD405: 1 idle connection holds the stop");
    instance.wait();
}

#[test]
fn children_that_their_parent_does_not_reap_are_named() {
    let (launch, _) = launch(&[]);
    // It waits until each has ended, and leaves it unreaped.
    let parent = "import os, signal, time\nfor pid in [os.fork() or os._exit(0) for _ in range(20)]:\n  os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\nsignal.signal(15, lambda *_: os._exit(0))\nopen('up', 'w')\ntime.sleep(60)";
    let mut instance = launch.file("x", "").start(&[common::instance::python(), "-c", parent]);
    until("its children have ended", || instance.file("up").exists());
    instance.signal(libc::SIGTERM);
    instance.wait();
    assert_eq!(given(&instance), ["SD601"], "{}", instance.log());
    says(&instance, "SD601: 20 children of python (pid ");
}

#[test]
fn every_code_is_explained() {
    let explain = |words: &[&str]| {
        let mut command = std::process::Command::new(common::SUNDOWN);
        common::run(command.arg("explain").args(words))
    };
    let list = explain(&[]).stdout;
    for line in list.lines() {
        let (code, title) = line.split_once(": ").expect("a code and a title");
        let page = explain(&[code]);
        assert_eq!((page.code, page.stderr.as_str()), (Some(0), ""));
        assert!(page.stdout.starts_with(&format!("# {code}: {title}\n")), "{}", page.stdout);
    }
    let unknown = explain(&["SD999"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(1), ""));
    assert!(unknown.stderr.contains("there is no advice SD999"), "{}", unknown.stderr);
}

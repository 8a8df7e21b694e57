//! How long real servers keep idle connections: seen from the closes of three, and measured by the subcommand.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use common::instance::{Instance, Launch, between, comes_true, secs, until};
use common::{free_port, has_tools};

/// How far the figure may be from the truth.
const EXACT: f64 = 0.5;
/// Between two clients, so that no two connections are closed at one moment.
const APART: Duration = Duration::from_millis(500);
/// Three are enough where none is missed.
const CLIENTS: usize = 4;

const NODE: &str = "
const server = require('http').createServer((request, response) => response.end('ok'));
server.keepAliveTimeout = Number(process.argv[3]);
server.listen(process.argv[2], '127.0.0.1');";

const WSGI: &str = r#"
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"#;

const ASGI: &str = r#"
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
"#;

const NGINX: &str = "
daemon off; worker_processes 1; pid {dir}/pid; error_log stderr;
events {}
http {
    access_log off; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; keepalive_timeout 7;
    fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    server { listen 127.0.0.1:PORT; return 200 ok; }
}";

/// A server below sundown.
struct Server {
    instance: Instance,
    port: u16,
}

impl Server {
    fn start(options: &[&str], file: (&str, &str), program: &[&str]) -> Self {
        let port = free_port();
        let fill = |text: &str| text.replace("PORT", &port.to_string());
        let words: Vec<String> = program.iter().map(|word| fill(word)).collect();
        let launch = Launch::sundown(options).env("PATH", common::path()).env("HOME", "{dir}");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let instance = launch.file(file.0, &fill(file.1)).start(&words);
        until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { instance, port }
    }

    fn node(options: &[&str], millis: &str) -> Self {
        Self::start(options, ("app.js", NODE), &["node", "app.js", "PORT", millis])
    }

    fn uvicorn(options: &[&str]) -> Self {
        let program = ["uvicorn", "asgi:app", "--port", "PORT", "--timeout-keep-alive", "5", "--lifespan", "off"];
        Self::start(options, ("asgi.py", ASGI), &program)
    }

    /// A connection that is idle, after one request and its answer.
    fn idle(&self) -> TcpStream {
        idle(self.port)
    }

    /// Holds connections until the server closes them, one after the other or all beside each other.
    fn hold_some(&self, one_by_one: bool) {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let stream = self.idle();
            let client = std::thread::spawn(move || closed_by_server(stream));
            if one_by_one {
                client.join().expect("it was closed");
            } else {
                clients.push(client);
                std::thread::sleep(APART);
            }
        }
        clients.into_iter().for_each(|client| client.join().expect("it was closed"));
    }

    /// What the subcommand says.
    fn measure(&self) -> f64 {
        let output = keepalive(&[&format!("http://127.0.0.1:{}/", self.port), "--json"]);
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        number(&output.stdout, "closed_after_seconds").unwrap_or_else(|| panic!("{}", output.stdout))
    }

    fn status(&self, options: &[&str]) -> String {
        let pid = self.instance.pid.to_string();
        common::run(Command::new(common::SUNDOWN).args(["status", "--pid", &pid]).args(options)).stdout
    }

    /// What was seen of the closes, once it was.
    fn seen(&self) -> f64 {
        let mut seen = None;
        let is_seen = || {
            seen = number(&self.status(&["--json"]), "keepalive_seconds");
            seen.is_some()
        };
        assert!(comes_true(is_seen), "nothing is seen of the closes: {}", self.instance.log());
        seen.expect("it was waited for")
    }

    fn warnings(&self) -> usize {
        self.instance.log().matches("closes idle connections to port").count()
    }
}

fn idle(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(15))).expect("a time");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("the server reads");
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok") {
        let mut part = [0; 512];
        let length = stream.read(&mut part).expect("an answer");
        assert!(length > 0, "closed before its answer");
        answer.extend(&part[..length]);
    }
    stream
}

fn closed_by_server(mut stream: TcpStream) {
    assert_eq!(stream.read(&mut [0]).expect("closed in time"), 0);
}

fn keepalive(words: &[&str]) -> common::Output {
    common::run(Command::new(common::SUNDOWN).arg("keepalive").args(words))
}

/// The number behind this key.
fn number(json: &str, key: &str) -> Option<f64> {
    let (_, rest) = json.split_once(&format!("\"{key}\":"))?;
    rest.split([',', '}']).next()?.parse().ok()
}

#[track_caller]
fn is_exact(seconds: f64, truth: f64) {
    assert!((seconds - truth).abs() <= EXACT, "{seconds} s, and the truth is {truth} s");
}

#[test]
fn node_that_closes_before_the_balancer_is_warned_of_with_figure_and_setting() {
    if !has_tools(&["node"]) {
        return;
    }
    let server = Server::node(&["--lb", "alb", "--grace-period", "60s"], "5000");
    let measured = std::thread::scope(|scope| {
        let measured = scope.spawn(|| server.measure());
        server.hold_some(false);
        measured.join().expect("it was measured")
    });
    // It says 5 s, and adds one of its own.
    is_exact(measured, 6.0);
    is_exact(server.seen(), 6.0);
    server.instance.wait_log("server.keepAliveTimeout = 75_000");
    for part in ["after 6", "3 closes seen", "keeps them for 60s", "502"] {
        assert!(server.instance.log().contains(part), "{part:?} is not in {}", server.instance.log());
    }
    assert!(server.status(&[]).contains("s, of 3 closes seen"), "{}", server.status(&[]));
    assert_eq!(server.warnings(), 1, "{}", server.instance.log());
}

#[test]
fn gunicorn_with_threads_is_seen_and_measured() {
    if !has_tools(&["gunicorn"]) {
        return;
    }
    let options = ["--bind", "127.0.0.1:PORT", "--threads", "4", "--keep-alive", "2", "wsgi:app"];
    let program = [&["gunicorn", "--worker-class", "gthread"], &options[..]].concat();
    let server = Server::start(&["--lb-idle-timeout", "60s"], ("wsgi.py", WSGI), &program);
    // It looks at its connections when something happens, and once a second.
    server.hold_some(true);
    is_exact(server.seen(), 2.0);
    server.instance.wait_log("start gunicorn with --keep-alive 75");
    is_exact(server.measure(), 2.0);
}

#[test]
fn uvicorn_that_outlasts_the_balancer_is_seen_measured_and_not_warned_of() {
    if !has_tools(&["uvicorn"]) {
        return;
    }
    let server = Server::uvicorn(&["--lb-idle-timeout", "3s"]);
    let measured = std::thread::scope(|scope| {
        let measured = scope.spawn(|| server.measure());
        server.hold_some(false);
        measured.join().expect("it was measured")
    });
    is_exact(measured, 5.0);
    is_exact(server.seen(), 5.0);
    assert_eq!(server.warnings(), 0, "{}", server.instance.log());
}

#[test]
fn nginx_is_seen_and_measured() {
    if !has_tools(&["nginx"]) {
        return;
    }
    let server = Server::start(&["--lb", "gclb"], ("nginx.conf", NGINX), &["nginx", "-c", "{dir}/nginx.conf"]);
    let measured = std::thread::scope(|scope| {
        let measured = scope.spawn(|| server.measure());
        server.hold_some(false);
        measured.join().expect("it was measured")
    });
    is_exact(measured, 7.0);
    is_exact(server.seen(), 7.0);
    server.instance.wait_log("keepalive_timeout 620s;");
}

#[test]
fn closes_of_the_clients_say_nothing_of_a_server_that_keeps_its_connections() {
    if !has_tools(&["node"]) {
        return;
    }
    let server = Server::node(&["--lb", "alb", "--grace-period", "60s"], "65000");
    for _ in 0..4 {
        let client = server.idle();
        std::thread::sleep(Duration::from_secs(1));
        drop(client);
    }
    let output = keepalive(&[&format!("http://localhost:{}", server.port), "--timeout", "1s"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stdout.contains("still open after 1s"), "{}", output.stdout);
    assert_eq!(number(&server.status(&["--json"]), "keepalive_seconds"), None);
    assert_eq!(server.warnings(), 0, "{}", server.instance.log());
}

#[test]
fn nobody_looks_where_no_balancers_time_is_known() {
    if !has_tools(&["uvicorn"]) {
        return;
    }
    let server = Server::uvicorn(&["--lb", "service"]);
    server.hold_some(false);
    assert_eq!(number(&server.status(&["--json"]), "keepalive_seconds"), None);
}

#[test]
fn what_cannot_be_measured_is_told_with_the_reason() {
    let port = free_port();
    let refused = keepalive(&[&format!("http://127.0.0.1:{port}/")]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("connection refused"), "{}", refused.stderr);
    let https = keepalive(&["https://127.0.0.1/"]);
    assert_eq!(https.code, Some(2));
    assert!(https.stderr.contains("does not speak TLS"), "{}", https.stderr);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (address, began) = (silent.local_addr().expect("its address"), Instant::now());
    let late = keepalive(&[&format!("http://{address}/"), "--timeout", "500ms"]);
    assert_eq!(late.code, Some(1));
    assert!(late.stderr.contains("no whole answer within 500ms"), "{}", late.stderr);
    between(began.elapsed(), secs(0.5), secs(5.0));
}

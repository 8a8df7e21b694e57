//! Servers with workers, and those with a stop signal of their own: the master hears once, and requests in flight are
//! answered.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::free_port;
use common::instance::{Instance, Launch, until};

/// How long the slow answers take.
const SLOW: Duration = Duration::from_secs(1);
/// What a stop may take beyond that; the servers look at their workers only so often.
const GRACE: Duration = Duration::from_millis(1500);

fn can_run(tools: &[&str]) -> bool {
    common::is_root("a PID namespace") && common::has_tools(tools)
}

fn launch(options: &[&str]) -> Launch {
    Launch::sundown(options).pid1().env("PATH", common::path()).env("HOME", "{dir}").env("RECORD", "{dir}/record")
}

fn wait_for_port(port: u16) {
    until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
}

/// Sends a request.
fn ask(port: u16, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").expect("the server reads");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
    stream
}

/// The first line of the whole answer, and the length of its body.
fn answer(stream: TcpStream) -> (String, usize) {
    let mut answer = BufReader::new(stream);
    let (mut first, mut rest) = (String::new(), Vec::new());
    let _ = answer.read_line(&mut first);
    let _ = answer.read_to_end(&mut rest);
    let body = rest.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |at| rest.len() - at - 4);
    (first.trim().to_owned(), body)
}

/// The answer has begun, and is not over.
fn has_begun(_: &Instance, stream: &TcpStream) -> bool {
    stream.peek(&mut [0]).is_ok_and(|length| length > 0)
}

/// What the stop is to look like.
struct Wanted<'a> {
    signal: i32,
    path: &'a str,
    /// How the only line about telling begins.
    told: &'a str,
    length: usize,
}

/// Stops the instance once a slow request is in flight: it must be answered in full.
fn stop_while_asking(
    mut instance: Instance,
    port: u16,
    wanted: &Wanted<'_>,
    is_in_flight: impl Fn(&Instance, &TcpStream) -> bool,
) -> Instance {
    let stream = ask(port, wanted.path);
    until("the request is in flight", || is_in_flight(&instance, &stream));
    instance.signal(wanted.signal);
    let asked = std::thread::spawn(move || answer(stream));
    let (code, took) = instance.wait();
    let (status, length) = asked.join().expect("the client has not panicked");
    let log = instance.log();
    assert!(status.ends_with("200 OK") && length == wanted.length, "{status:?}, {length} bytes; {log}");
    assert_eq!(code, 0, "{log}");
    assert!(took < SLOW + GRACE, "{took:?}; {log}");
    let is_telling = |line: &&str| line.contains(" sent to ") && line.contains(" is told;");
    let tellings: Vec<&str> = log.lines().filter(is_telling).collect();
    assert!(tellings.len() == 1 && tellings[0].contains(wanted.told), "{log}");
    instance
}

const WSGI: &str = r#"
import os, time
def record(text):
    with open(os.environ["RECORD"], "a") as file:
        file.write(f"{text}\n")
def app(environ, start_response):
    record("request")
    time.sleep(1)
    start_response("200 OK", [("Content-Length", "4")])
    return [b"done"]
"#;

const GUNICORN: &str = r#"
from wsgi import record
import signal
def post_worker_init(worker):
    def hear(number, frame):
        record("worker heard " + signal.Signals(number).name)
        worker.handle_exit(number, frame)
    signal.signal(signal.SIGTERM, hear)
    record("worker up")
def worker_exit(server, worker):
    record("worker clean")
"#;

#[test]
fn gunicorn_hears_once_and_its_workers_hear_from_it() {
    if !can_run(&["gunicorn"]) {
        return;
    }
    let port = free_port();
    let instance = launch(&[]).file("wsgi.py", WSGI).file("conf.py", GUNICORN).start(&[
        "gunicorn",
        "--config",
        "conf.py",
        "--workers",
        "2",
        "--bind",
        &format!("127.0.0.1:{port}"),
        "wsgi:app",
    ]);
    until("both workers are up", || instance.count("worker up") == 2);
    let wanted = Wanted { signal: libc::SIGTERM, path: "/", told: "SIGTERM sent to gunicorn", length: 4 };
    let instance = stop_while_asking(instance, port, &wanted, |instance, _| instance.count("request") == 1);
    // The workers hear once, from their master.
    assert_eq!(instance.count("worker heard SIGTERM"), 2, "{:?}", instance.record());
    assert_eq!(instance.count("worker clean"), 2, "{:?}", instance.record());
}

const ASGI: &str = r#"
import asyncio, os
def record(text):
    with open(os.environ["RECORD"], "a") as file:
        file.write(f"{text}\n")
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                record("worker up")
            else:
                record("worker clean")
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    record("request")
    await asyncio.sleep(1)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})
"#;

#[test]
fn uvicorn_hears_once_and_its_workers_hear_from_it() {
    if !can_run(&["uvicorn"]) {
        return;
    }
    let port = free_port();
    let instance = launch(&[]).file("asgi.py", ASGI).start(&[
        "uvicorn",
        "asgi:app",
        "--port",
        &port.to_string(),
        "--workers",
        "2",
    ]);
    until("both workers are up", || instance.count("worker up") == 2);
    let wanted = Wanted { signal: libc::SIGTERM, path: "/", told: "SIGTERM sent to uvicorn", length: 4 };
    let instance = stop_while_asking(instance, port, &wanted, |instance, _| instance.count("request") == 1);
    assert_eq!(instance.count("worker clean"), 2, "{:?}", instance.record());
}

/// A quarter of a megabyte at a quarter of a megabyte per second.
const BODY: usize = 256 * 1024;

#[test]
fn nginx_gets_quit_and_answers_what_is_in_flight() {
    if !can_run(&["nginx"]) {
        return;
    }
    let port = free_port();
    let config = format!(
        "daemon off; worker_processes 2; pid {{dir}}/pid; error_log stderr;
        events {{}}
        http {{
            access_log off; client_body_temp_path {{dir}}/body; proxy_temp_path {{dir}}/proxy;
            fastcgi_temp_path {{dir}}/fastcgi; uwsgi_temp_path {{dir}}/uwsgi; scgi_temp_path {{dir}}/scgi;
            server {{ listen 127.0.0.1:{port}; root {{dir}}; limit_rate 256k; sendfile off; output_buffers 1 16k; }}
        }}"
    );
    // TERM from outside, as the kubelet sends it, and QUIT, as the image's own STOPSIGNAL says.
    for signal in [libc::SIGTERM, libc::SIGQUIT] {
        let start = launch(&[]).file("nginx.conf", &config).file("slow", &"x".repeat(BODY));
        let instance = start.start(&["nginx", "-c", "{dir}/nginx.conf"]);
        wait_for_port(port);
        let wanted = Wanted { signal, path: "/slow", told: "SIGQUIT sent to nginx", length: BODY };
        stop_while_asking(instance, port, &wanted, has_begun);
    }
}

#[test]
fn apache_stops_on_winch_from_outside() {
    if !can_run(&["apache2"]) {
        return;
    }
    let port = free_port();
    let config = format!(
        "ServerRoot {{dir}}
        ServerName localhost
        Listen 127.0.0.1:{port}
        PidFile {{dir}}/pid
        DefaultRuntimeDir {{dir}}
        ErrorLog /dev/stderr
        LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
        LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
        LoadModule ratelimit_module /usr/lib/apache2/modules/mod_ratelimit.so
        LoadModule env_module /usr/lib/apache2/modules/mod_env.so
        User nobody
        Group nogroup
        DocumentRoot {{dir}}
        <Location />
            SetOutputFilter RATE_LIMIT
            SetEnv rate-limit 256
        </Location>"
    );
    for signal in [libc::SIGTERM, libc::SIGWINCH] {
        let start = launch(&[]).file("httpd.conf", &config).file("slow", &"x".repeat(BODY));
        let instance = start.start(&["apache2", "-D", "FOREGROUND", "-f", "{dir}/httpd.conf"]);
        wait_for_port(port);
        let wanted = Wanted { signal, path: "/slow", told: "SIGWINCH sent to apache2", length: BODY };
        stop_while_asking(instance, port, &wanted, has_begun);
    }
}

#[test]
fn haproxy_gets_usr1_and_answers_what_is_in_flight() {
    if !can_run(&["haproxy"]) {
        return;
    }
    let (port, upstream, requests) = (free_port(), free_port(), Arc::new(AtomicUsize::new(0)));
    serve_slowly(upstream, requests.clone());
    let config = format!(
        "defaults\n mode http\n timeout connect 5s\n timeout client 5s\n timeout server 5s\n\
        listen x\n bind 127.0.0.1:{port}\n server a 127.0.0.1:{upstream}\n"
    );
    // In master-worker mode the master hears, and its worker from it.
    for mode in ["-db", "-W"] {
        let instance = launch(&[]).file("haproxy.cfg", &config).start(&["haproxy", mode, "-f", "{dir}/haproxy.cfg"]);
        wait_for_port(port);
        let wanted = Wanted { signal: libc::SIGTERM, path: "/", told: "SIGUSR1 sent to haproxy", length: 4 };
        let before = requests.load(Ordering::Relaxed);
        stop_while_asking(instance, port, &wanted, |_, _| requests.load(Ordering::Relaxed) > before);
    }
}

/// A slow upstream, which counts its requests.
fn serve_slowly(port: u16, requests: Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            requests.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(SLOW);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone");
        }
    });
}

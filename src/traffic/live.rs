//! The whole of it against real servers on loopback, the worst case for ties: request and answer fall into one tick.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::traffic::ours::{Found, Hints};
use crate::traffic::sampler::{Level, Sampler, Seen};

mod drains;

const NODE: &str = "
const http = require('http');
http.createServer((request, response) => {
  if (request.url == '/slow') return setTimeout(() => response.end('ok'), 3000);
  if (request.url != '/stream') return response.end('ok');
  let parts = 0;
  const timer = setInterval(() => {
    response.write('part');
    if (++parts == 4) { clearInterval(timer); response.end('ok'); }
  }, 800);
}).listen(0, function () { console.log(this.address().port); });";

const PYTHON: &str = "
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        parts = 4 if self.path == '/stream' else 0
        self.send_response(200)
        self.send_header('Content-Length', str(4 * parts + 2))
        if self.path == '/slow': time.sleep(3)
        self.end_headers()
        for part in range(parts):
            time.sleep(0.8)
            self.wfile.write(b'part')
        self.wfile.write(b'ok')
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
server.handle_error = lambda *_: None
print(server.server_address[1], flush=True)
server.serve_forever()";

/// Held to read by who measures time here, and to write by who fills the machine's tables with connections: a sample looks
/// at all of them.
pub static LOOPBACK: RwLock<()> = RwLock::new(());

/// A server that is killed at the end of its test.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(program: &str, option: &str, script: &str) -> Option<Self> {
        let mut command = Command::new(program);
        command.args([option, script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            eprintln!("SKIPPED: there is no {program} here");
            return None;
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("its port");
        Some(Self { child, port: line.trim().parse().expect("a port") })
    }

    /// Node listens on IPv6 for both, Python on IPv4.
    fn all() -> (RwLockReadGuard<'static, ()>, Vec<Self>) {
        let shared = LOOPBACK.read().unwrap_or_else(PoisonError::into_inner);
        let all = [("node", "-e", NODE), ("python3", "-c", PYTHON)]
            .into_iter()
            .filter_map(|(program, option, script)| Self::start(program, option, script));
        (shared, all.collect())
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a bound");
        Client(stream)
    }

    fn watch(&self) -> Watch {
        let mut sampler = Sampler::new(Hints::default());
        assert_eq!(sampler.find(std::iter::once(self.pid())), Found::Descriptors);
        assert_eq!((sampler.ports(), sampler.level()), (&[self.port][..], Level::Diag));
        assert_eq!(sampler.take_reason(), None);
        Watch { sampler, start: Instant::now() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Client(TcpStream);

impl Client {
    fn ask(&mut self, path: &str) {
        self.0.write_all(request(path).as_bytes()).expect("a request");
    }

    /// In several segments, which TCP acknowledges at once.
    fn ask_in_parts(&mut self, path: &str) {
        for part in request(path).as_bytes().chunks(9) {
            self.0.write_all(part).expect("a request");
        }
    }

    fn answer(&mut self) {
        let (mut text, mut buffer) = (Vec::new(), [0; 1024]);
        while !text.ends_with(b"ok") && !text.ends_with(b"ok\r\n0\r\n\r\n") {
            let length = self.0.read(&mut buffer).expect("an answer");
            assert!(length > 0, "closed before its answer");
            text.extend(&buffer[..length]);
        }
    }

    fn has_answer(&self) -> bool {
        self.0.set_nonblocking(true).expect("a socket");
        let has = self.0.peek(&mut [0]).is_ok();
        self.0.set_nonblocking(false).expect("a socket");
        has
    }
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")
}

/// A sampler at its own pace.
struct Watch {
    sampler: Sampler,
    start: Instant,
}

impl Watch {
    fn sample(&mut self) -> Seen {
        self.sampler.sample(self.start.elapsed(), &|_| false)
    }

    /// Samples until this holds, and says how long that took.
    fn until(&mut self, what: &str, holds: impl Fn(&Self, &Seen) -> bool) -> Duration {
        let start = Instant::now();
        loop {
            let seen = self.sample();
            if holds(self, &seen) {
                return start.elapsed();
            }
            assert!(start.elapsed() < Duration::from_secs(15), "{what}: {seen:?}");
            std::thread::sleep(seen.next);
        }
    }

    fn until_quiet(&mut self, window: Duration) -> Duration {
        self.until("quiet", |watch, seen| seen.totals.quiet_for(watch.start.elapsed(), Duration::ZERO) >= window)
    }
}

/// The request comes in the same tick as the answer to the one before: for as long as it waits it is a tie.
#[test]
fn a_request_in_flight_is_busy_until_its_answer_and_quiet_after_the_window() {
    for ask in [Client::ask as fn(&mut Client, &str), Client::ask_in_parts] {
        let (_shared, servers) = Server::all();
        servers.iter().for_each(|server| follow_a_slow_request(server, ask));
    }
}

fn follow_a_slow_request(server: &Server, ask: fn(&mut Client, &str)) {
    let mut client = server.connect();
    ask(&mut client, "/");
    client.answer();
    ask(&mut client, "/slow");
    let mut watch = server.watch();
    let answered = watch.until("answered", |_, seen| {
        let has_answer = client.has_answer();
        assert!(has_answer || seen.totals.in_flight == 1, "{seen:?}");
        has_answer
    });
    assert!(answered > Duration::from_secs(2), "it was in flight for {answered:?}");
    let quiet = watch.until_quiet(Duration::from_secs(1));
    assert!(quiet < Duration::from_secs(2), "{quiet:?}");
    let totals = watch.sample().totals;
    assert_eq!((totals.connections, totals.in_flight, totals.new), (1, 0, 0));
}

#[test]
fn idle_keep_alive_connections_are_quiet_within_the_window() {
    let (_shared, servers) = Server::all();
    for server in servers {
        let mut watch = server.watch();
        watch.sample();
        let mut clients: Vec<_> = (0..8).map(|_| server.connect()).collect();
        clients.iter_mut().for_each(|client| client.ask("/"));
        clients.iter_mut().for_each(Client::answer);
        let quiet = watch.until_quiet(Duration::from_secs(1));
        assert!(quiet < Duration::from_secs(2), "{quiet:?}");
        let totals = watch.sample().totals;
        assert_eq!((totals.connections, totals.in_flight, totals.new), (8, 0, 8));
    }
}

/// Ties of both kinds, past the time of a delayed acknowledgement, side by side.
#[test]
fn old_ties_are_told_apart() {
    let (_shared, servers) = Server::all();
    for server in servers {
        let mut clients: Vec<_> = (0..40).map(|_| server.connect()).collect();
        for (at, client) in clients.iter_mut().enumerate() {
            client.ask("/");
            client.answer();
            if at % 2 == 1 {
                client.ask("/slow");
            }
        }
        let mut watch = server.watch();
        watch.until("20 idle and 20 in flight", |_, seen| {
            let (waiting, totals) = (clients.iter().filter(|client| !client.has_answer()).count(), seen.totals);
            assert!(waiting == 40, "an answer came before the ties were told apart: {seen:?}");
            totals.in_flight == 20
        });
        clients.iter_mut().skip(1).step_by(2).for_each(Client::answer);
        watch.until("all idle", |_, seen| seen.totals.in_flight == 0);
    }
}

#[test]
fn a_stream_with_pauses_shorter_than_the_window_is_never_quiet() {
    let (_shared, servers) = Server::all();
    for server in servers {
        let mut client = server.connect();
        client.ask("/stream");
        let mut watch = server.watch();
        let streamed = std::thread::spawn(move || {
            client.answer();
            (client, Instant::now())
        });
        watch.until_quiet(Duration::from_secs(1));
        let quiet_at = Instant::now();
        let (_client, answered_at) = streamed.join().expect("an answer");
        assert!(quiet_at.saturating_duration_since(answered_at) > Duration::from_millis(900), "quiet before the end");
    }
}

#[test]
fn what_a_stopped_app_does_not_accept_is_busy() {
    let (_shared, servers) = Server::all();
    for server in servers {
        let mut watch = server.watch();
        watch.sample();
        let pid = Pid::from_raw(server.pid());
        signal::kill(pid, Signal::SIGSTOP).expect("it is our child");
        let mut clients: Vec<_> = (0..5).map(|_| server.connect()).collect();
        clients.iter_mut().for_each(|client| client.ask("/"));
        watch.until("five in the queue", |_, seen| seen.totals.accept_queue == 5);
        let totals = watch.sample().totals;
        assert_eq!((totals.in_flight, totals.new), (5, 5));
        signal::kill(pid, Signal::SIGCONT).expect("it is our child");
        clients.iter_mut().for_each(Client::answer);
        watch.until("none in the queue", |_, seen| seen.totals.accept_queue == 0 && seen.totals.in_flight == 0);
    }
}

#[test]
fn short_connections_are_all_counted_and_those_of_others_are_not() {
    // New servers for each: what has just been closed may be told late.
    for turn in [0, 1] {
        let (_shared, mut servers) = Server::all();
        if turn == 1 {
            servers.reverse();
        }
        if let (Some(server), Some(neighbour)) = (servers.first(), servers.last()) {
            count_short_connections(server, neighbour);
        }
    }
}

fn count_short_connections(server: &Server, neighbour: &Server) {
    let mut watch = server.watch();
    watch.sample();
    for _ in 0..4 {
        // Nothing is sampled between these.
        for _ in 0..20 {
            let mut client = server.connect();
            client.ask("/");
            client.answer();
            drop(neighbour.connect());
        }
        watch.until("the connections closed", |_, seen| seen.totals.connections == 0);
    }
    let expected = if server.port == neighbour.port { 160 } else { 80 };
    watch.until("all counted", |_, seen| seen.totals.new >= expected || seen.new_is_a_floor);
    let seen = watch.sample();
    if seen.new_is_a_floor {
        eprintln!("SKIPPED: others close so many connections here that the kernel had to drop some");
        return;
    }
    assert_eq!(seen.totals.new, expected);
}

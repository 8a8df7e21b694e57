//! Whole drains in front of real servers, by what the clients notice: no request is lost, whoever sends it and however, and
//! the end of the traffic is seen soon. How often and how soon, is the affair of `cargo bench --bench quiet_drain`.

mod common;
#[path = "common/http.rs"]
mod http;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::clients::{Client, Clients, Habit};
use common::instance::{Instance, Launch, between, secs, until};
use common::network;

const SERVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/node-service/server.js");
/// The service, whose idle connections stay open for longer than any drain here.
const PATIENT: [&str; 4] = ["node", "-e", "require(process.argv[1]).keepAliveTimeout = 60e3", SERVICE];
/// The window of quiet, if nothing else is said.
const WINDOW: Duration = Duration::from_secs(1);
/// What a busy machine may add. What is undecided would take 5 s, and what is not seen 18 s.
const ENOUGH: Duration = Duration::from_secs(2);

/// For how long what cannot be decided counts as a request in flight.
const UNDECIDED: Duration = Duration::from_secs(5);

/// sundown with these options, whose drain is held by nothing but the traffic.
fn sundown(options: &[&str]) -> Launch {
    Launch::sundown(&[&["--log-format", "text", "--drain-delay", "200ms", "--drain-timeout", "18s"], options].concat())
}

/// Starts the program, which is told its address by HOST and PORT, and waits until it answers.
#[track_caller]
fn start(launch: Launch, address: SocketAddr, program: &[&str]) -> Instance {
    let launch = launch.env("PORT", address.port().to_string()).env("HOST", address.ip().to_string());
    let instance = launch.env("PATH", common::path()).start(program);
    http::wait_for_status(address, "/health", 200);
    instance
}

/// The service in a network of its own; none, loudly, where that cannot be had.
fn service(options: &[&str]) -> Option<(Instance, SocketAddr)> {
    if !network::own() || !common::has_tools(&["node"]) {
        return None;
    }
    let address = http::free_address();
    Some((start(sundown(options), address, &PATIENT), address))
}

/// A request that is answered after this long: the answer's status, and when it was whole.
fn work(address: SocketAddr, ms: u32) -> JoinHandle<(u16, Instant)> {
    let mut client = Client::connect(address);
    client.ask(ms).expect("sent");
    std::thread::spawn(move || (client.answer().map_or(0, |(status, _)| status), Instant::now()))
}

/// Waits for the end of the drain, and says when it was.
#[track_caller]
fn drained(instance: &Instance) -> Instant {
    instance.wait_log("the drain is over after");
    Instant::now()
}

/// Stops it and gives how long the drain took.
#[track_caller]
fn drain(instance: &Instance) -> Duration {
    let began = Instant::now();
    instance.signal(libc::SIGTERM);
    drained(instance).duration_since(began)
}

/// Answers in five parts, the first of which comes a while after the request, so that the two are told apart.
const STREAM: &str = "
require('http').createServer((request, response) => {
  if (request.url === '/health') return response.end('ok');
  let part = 0;
  const pause = Number(process.env.PAUSE);
  const next = () => {
    response.write(`part ${++part}\\n`);
    setTimeout(part < 4 ? next : () => response.end('the end\\n'), pause);
  };
  setTimeout(next, 300);
}).listen(Number(process.env.PORT), process.env.HOST);";

/// A stream with these pauses, of which some has come when the stop is asked for.
fn stream(options: &[&str], pause: Duration) -> Option<(Instance, TcpStream)> {
    if !network::own() || !common::has_tools(&["node"]) {
        return None;
    }
    let address = http::free_address();
    let launch = sundown(options).env("PAUSE", pause.as_millis().to_string());
    let instance = start(launch, address, &["node", "-e", STREAM]);
    let mut stream = http::connect(address).expect("a connection");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
    let mut first = [0; 512];
    let length = stream.read(&mut first).expect("an answer");
    assert!(String::from_utf8_lossy(&first[..length]).starts_with("HTTP/1.1 200 "));
    instance.signal(libc::SIGTERM);
    Some((instance, stream))
}

/// Fails unless the stream comes whole and the drain is over soon after it.
#[track_caller]
fn comes_whole((instance, mut stream): (Instance, TcpStream), window: Duration) {
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("nobody cuts it off");
    let whole = Instant::now();
    assert!(rest.ends_with("the end\n\r\n0\r\n\r\n"), "{rest:?}: {}", instance.log());
    between(drained(&instance).duration_since(whole), Duration::ZERO, window + ENOUGH);
}

#[test]
fn a_stream_that_pauses_for_less_than_the_window_is_not_cut() {
    let Some(stream) = stream(&[], Duration::from_millis(800)) else { return };
    comes_whole(stream, WINDOW);
}

#[test]
fn a_stream_with_long_pauses_is_not_cut_where_the_window_is_longer() {
    // Four pauses: longer than any time for which something undecided is held to be busy.
    let Some(stream) = stream(&["--drain-quiet", "4s"], Duration::from_secs(3)) else { return };
    comes_whole(stream, secs(4.0));
}

/// What docs/drain.md says is not seen.
#[test]
fn a_stream_that_pauses_for_longer_than_the_window_is_cut() {
    let Some((instance, mut stream)) = stream(&[], Duration::from_secs(8)) else { return };
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest);
    assert!(!rest.contains("part 2"), "{rest:?}: {}", instance.log());
    assert!(instance.log().contains("the traffic quiet"), "{}", instance.log());
}

/// Three services side by side whose load goes on after the stop request, and ends with a request that takes long. Nothing is
/// lost, and the drains are over soon after the last answer: how soon in most, the bench says.
#[track_caller]
fn loses_nothing_and_ends_soon(habit: Habit) {
    if !network::own() || !common::has_tools(&["node"]) {
        return;
    }
    let begin = |seed| std::thread::spawn(move || drain_under_load(habit, seed));
    let begun: Vec<_> = (0..3).map(begin).collect();
    let late: Vec<Duration> = begun.into_iter().map(|drain| drain.join().expect("nothing was lost")).collect();
    // On a machine that is busy with other things a tie is undecided now and then.
    assert!(late.iter().any(|late| *late < WINDOW + ENOUGH), "{late:?}");
    assert!(late.iter().all(|late| *late < WINDOW + UNDECIDED + ENOUGH), "{late:?}");
}

/// From the last answer to the end of the app.
fn drain_under_load(habit: Habit, seed: u64) -> Duration {
    let address = http::free_address();
    let mut instance = start(sundown(&[]), address, &PATIENT);
    let clients = Clients::start(address, habit, seed);
    until("each has had some answers", || clients.answered() > habit.connections * 4);
    instance.signal(libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(1500));
    clients.enough();
    instance.wait();
    let ended = Instant::now();
    let outcome = clients.outcome();
    assert_eq!(outcome.failed, 0, "{outcome:?}, {:?} ago: {}", outcome.last.elapsed(), instance.log());
    ended.duration_since(outcome.last)
}

#[test]
fn a_busy_proxy_loses_nothing_and_its_end_is_seen_soon() {
    loses_nothing_and_ends_soon(Habit::BUSY_PROXY.with_a_slow_last("busy proxy"));
}

#[test]
fn clients_that_think_lose_nothing_and_their_end_is_seen_soon() {
    // Some answers come within the kernel's tick: whether a request waits cannot be told by the times.
    let quick = Habit { answer: (0, 30), ..Habit::THINKING };
    loses_nothing_and_ends_soon(quick.with_a_slow_last("thinking clients"));
}

#[test]
fn short_connections_are_all_counted() {
    // The kernel tells of the end of a connection by a worker of its own, which on a starved machine comes a second late.
    let Some((instance, address)) = service(&["--drain-quiet", "4s"]) else { return };
    instance.signal(libc::SIGTERM);
    instance.wait_log("draining for at least 200ms");
    // Most come and go between two looks.
    for _ in 0..80 {
        assert_eq!(Client::connect(address).work(0).expect("an answer"), 200);
    }
    drained(&instance);
    assert!(instance.log().contains(", 80 new connections meanwhile, the last after "), "{}", instance.log());
}

/// One at a time, and after `/close` none until there is a file `open`.
const QUEUEING: &str = r#"
import http.server, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server.is_closed = self.path == "/close"
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *_): pass
server = http.server.HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler)
server.is_closed = False
while True:
    while server.is_closed and not os.path.exists("open"): time.sleep(0.02)
    server.handle_request()
"#;

#[test]
fn connections_that_the_app_has_not_accepted_are_waited_for() {
    if !network::own() {
        return;
    }
    let address = http::free_address();
    let launch = sundown(&["--drain-quiet", "400ms"]).file("app.py", QUEUEING);
    let instance = start(launch, address, &[common::instance::python(), "app.py"]);
    assert_eq!(http::get(address, "/close").0, 200);
    let waiting: Vec<_> = (0..5).map(|_| std::thread::spawn(move || http::get(address, "/").0)).collect();
    until("five are in the queue", || queue_of(address) == 5);
    instance.signal(libc::SIGTERM);
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(2));
    assert!(!instance.log().contains("the drain is over"), "{:?}: {}", began.elapsed(), instance.log());
    std::fs::write(instance.file("open"), "").expect("room for it");
    for answer in waiting {
        assert_eq!(answer.join().expect("an answer"), 200, "{}", instance.log());
    }
    let answered = Instant::now();
    let late = drained(&instance).duration_since(answered);
    assert!(late < Duration::from_millis(400) + ENOUGH, "{late:?}: {}", instance.log());
}

/// How many connections the app has not accepted, by ss(8)'s count.
fn queue_of(address: SocketAddr) -> usize {
    let port = format!("sport = :{}", address.port());
    let mut command = std::process::Command::new("ss");
    let output = common::run(command.env("PATH", common::path()).args(["-Hltn", &port]));
    output.stdout.split_whitespace().nth(1).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// A server in the same network that is none of ours, and clients that keep it busy.
fn busy_neighbour() -> (Instance, Clients) {
    let address = http::free_address();
    let instance = start(Launch::other(&["env"]), address, &PATIENT);
    let clients = Clients::start(address, Habit::BUSY_PROXY, 7);
    until("the neighbour is busy", || clients.answered() > 8);
    (instance, clients)
}

#[test]
fn a_busy_neighbour_in_the_same_network_does_not_stretch_it() {
    let Some((instance, _)) = service(&[]) else { return };
    let (_neighbour, clients) = busy_neighbour();
    let took = drain(&instance);
    let before = clients.answered();
    until("the neighbour was busy all the time", || clients.answered() > before);
    assert!(took < WINDOW + ENOUGH, "{took:?}: {}", instance.log());
    assert!(!instance.log().contains("meanwhile"), "{}", instance.log());
    assert_eq!(clients.outcome().failed, 0);
}

/// A cgroup of its own; removed when dropped, after what was in it.
struct Cgroup(std::path::PathBuf);

impl Cgroup {
    /// None, loudly, where there is no cgroup v2 to be had.
    fn new(name: &str) -> Option<Self> {
        let mount = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .into_iter()
            .map(std::path::Path::new)
            .find(|mount| mount.join("cgroup.controllers").exists());
        let folder = mount.map(|mount| mount.join(format!("sundown-test-{name}-{}", std::process::id())));
        match folder.map(|folder| std::fs::create_dir(&folder).map(|()| folder)) {
            Some(Ok(folder)) => return Some(Self(folder)),
            Some(Err(error)) => common::skip(&format!("a cgroup cannot be made: {error}")),
            None => common::skip("there is no cgroup v2"),
        }
        None
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        common::instance::comes_true(|| std::fs::remove_dir(&self.0).is_ok());
    }
}

/// The app hides its descriptors, as that of another user does, so its listeners are told from the neighbour's by the cgroup.
#[test]
fn a_busy_neighbour_in_another_cgroup_does_not_stretch_it() {
    if !network::own() || !common::has_tools(&["node"]) {
        return;
    }
    let Some(cgroup) = Cgroup::new("neighbour") else { return };
    let address = http::free_address();
    let enter = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", cgroup.0.display());
    let blind = ["sh", "-c", &enter, "sh", "setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
    let other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut instance = start(sundown(&[]).through(&blind), address, &[&other[..], &PATIENT].concat());
    let (_neighbour, clients) = busy_neighbour();
    let answer = work(address, 2000);
    instance.signal(libc::SIGTERM);
    instance.wait();
    let ended = Instant::now();
    let (status, answered) = answer.join().expect("the client");
    assert_eq!(status, 200, "{}", instance.log());
    assert!(ended.duration_since(answered) < WINDOW + ENOUGH, "{}", instance.log());
    assert_eq!(clients.outcome().failed, 0);
    drop((instance, cgroup));
}

#[test]
fn probes_of_our_own_endpoint_do_not_stretch_it() {
    let endpoint = "127.0.0.1:9180";
    let Some((instance, _)) = service(&["--http", endpoint]) else { return };
    let endpoint: SocketAddr = endpoint.parse().expect("an address");
    let enough = AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        // Ten times as often as a kubelet and a Prometheus do, on connections of their own and on kept ones.
        scope.spawn(|| {
            let mut kept = http::connect(endpoint).expect("it listens");
            while !enough.load(Ordering::SeqCst) {
                let _ = http::try_get(endpoint, "/readyz");
                let _ = http::try_get(endpoint, "/metrics");
                let _ = kept.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
                let _ = kept.read(&mut [0; 1024]);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let took = drain(&instance);
        enough.store(true, Ordering::SeqCst);
        took
    });
    assert!(took < WINDOW + ENOUGH, "{took:?}: {}", instance.log());
    // Of the service's own connections, the one that asked whether it was up may be told as late as that.
    assert!(!instance.log().contains("new connections meanwhile"), "{}", instance.log());
}

const CLOSING: &str = "
process.on('SIGTERM', () => server.close());
const server = require(process.argv[1]);
server.keepAliveTimeout = 60e3;";

const WSGI: &str = r#"
import time, urllib.parse
def app(environ, start_response):
    ms = urllib.parse.parse_qs(environ["QUERY_STRING"]).get("ms", ["0"])[0]
    time.sleep(int(ms) / 1000)
    start_response("200 OK", [("Content-Length", "4")])
    return [b"done"]
"#;

const ASGI: &str = r#"
import asyncio, urllib.parse
async def app(scope, receive, send):
    ms = urllib.parse.parse_qs(scope["query_string"].decode()).get("ms", ["0"])[0]
    await asyncio.sleep(int(ms) / 1000)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})
"#;

/// Has idle connections and a request in flight when the stop comes: the request is answered, and nothing else holds the drain.
#[track_caller]
fn answers_what_is_in_flight(tool: &str, program: impl FnOnce(SocketAddr) -> Vec<String>) {
    if !network::own() || !common::has_tools(&[tool]) {
        return;
    }
    let address = http::free_address();
    let words = program(address);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let instance = start(sundown(&[]).file("wsgi.py", WSGI).file("asgi.py", ASGI), address, &words);
    let mut idle: Vec<Client> = (0..4).map(|_| Client::connect(address)).collect();
    for client in &mut idle {
        assert_eq!(client.work(0).expect("an answer"), 200);
    }
    let answer = work(address, 2000);
    instance.signal(libc::SIGTERM);
    let ended = drained(&instance);
    let (status, answered) = answer.join().expect("the client");
    assert_eq!(status, 200, "{}", instance.log());
    between(ended.duration_since(answered), Duration::from_millis(1), WINDOW + ENOUGH);
    assert!(instance.log().contains("the traffic quiet"), "{}", instance.log());
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.into()).collect()
}

#[test]
fn node_without_a_handler_answers_what_is_in_flight() {
    answers_what_is_in_flight("node", |_| words(&PATIENT));
}

#[test]
fn node_that_closes_on_term_answers_what_is_in_flight() {
    answers_what_is_in_flight("node", |_| words(&["node", "-e", CLOSING, SERVICE]));
}

#[test]
fn gunicorn_with_threads_answers_what_is_in_flight() {
    answers_what_is_in_flight("gunicorn", |address| {
        let bind = address.to_string();
        let threads = ["--worker-class", "gthread", "--threads", "8", "--keep-alive", "60"];
        words(&[&["gunicorn"], &threads[..], &["--bind", &bind, "wsgi:app"]].concat())
    });
}

#[test]
fn uvicorn_answers_what_is_in_flight() {
    answers_what_is_in_flight("uvicorn", |address| {
        let port = address.port().to_string();
        words(&["uvicorn", "--timeout-keep-alive", "60", "--port", &port, "asgi:app"])
    });
}

/// The bench has ten thousand, of a release build.
#[test]
fn a_thousand_connections_cost_little_and_memory_does_not_grow() {
    let most = common::raise_open_files() as usize;
    let Some((instance, address)) = service(&[]) else { return };
    let mut clients: Vec<Client> = (0..1000.min(most.saturating_sub(200))).map(|_| Client::connect(address)).collect();
    for client in &mut clients {
        assert_eq!(client.work(0).expect("an answer"), 200);
    }
    let answer = work(address, 7000);
    instance.signal(libc::SIGTERM);
    std::thread::sleep(Duration::from_secs(1));
    let ((resident, own), cpu) = (common::memory(instance.pid), common::cpu_time(instance.pid));
    std::thread::sleep(Duration::from_secs(4));
    let used = common::cpu_time(instance.pid) - cpu;
    let (resident_then, own_then) = common::memory(instance.pid);
    // It takes a fortieth of a core by itself, and grows by no more than a few pages.
    assert!(used < Duration::from_millis(400), "{used:?} in 4 s: {}", instance.log());
    assert!(own_then < own + 32_768, "{own} bytes, then {own_then}");
    // Code that runs for the first time is read in by the dozen pages.
    assert!(resident_then < resident + 262_144, "{resident} bytes, then {resident_then}");
    assert_eq!(answer.join().expect("the client").0, 200, "{}", instance.log());
}

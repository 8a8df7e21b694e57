//! The endpoint over real sockets, with limits small enough to be reached.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Instant;

use super::*;
use crate::http::{Address, Prestop, Verdict};

const TEXT: &str = "text/plain; charset=utf-8";
const BOUND: Duration = Duration::from_secs(10);
const SMALL: Limits = Limits { connections: 2, head: Duration::from_secs(30), farewell: Duration::from_millis(100) };

#[derive(Default)]
struct Fixed {
    requests: Cell<u32>,
}

impl Answers for Fixed {
    fn readyz(&self, _visitor: &Visitor) -> Verdict {
        Verdict { ok: false, text: "draining: SIGTERM".to_owned() }
    }

    fn servez(&self) -> Verdict {
        Verdict { ok: true, text: "draining: still serves".to_owned() }
    }

    fn livez(&self) -> Option<Verdict> {
        None
    }

    fn metrics(&self) -> std::pin::Pin<Box<dyn Future<Output = String> + '_>> {
        Box::pin(async { format!("sundown_requests {}\n", self.requests.get()) })
    }

    fn prestop(&self, authorization: Option<&hyper::header::HeaderValue>) -> Prestop<'_> {
        match authorization.map(|value| value.as_bytes()) {
            Some(b"Bearer right") => Prestop::Wait(Box::pin(async {
                sleep(Duration::from_millis(600)).await;
                "drained".to_owned()
            })),
            _ => Prestop::Denied,
        }
    }

    fn request(&self) {
        self.requests.set(self.requests.get() + 1);
    }
}

fn bound() -> (std::net::TcpListener, SocketAddr) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listener = Address::parse(&format!("127.0.0.1:{port}")).unwrap().bind().unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn with_client(limits: Limits, client: impl FnOnce(SocketAddr) + Send + 'static) {
    let (listener, address) = bound();
    serve_while(limits, listener, move || client(address));
}

/// Serves on this thread for as long as the client, on its own, runs.
fn serve_while(limits: Limits, listener: std::net::TcpListener, client: impl FnOnce() + Send + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (done, mut ended) = socket_pair(&runtime);
    let client = thread::spawn(move || {
        let _done = done;
        client();
    });
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            end = serve_within(limits, listener, Rc::new(Fixed::default())) => panic!("ended with {end:?}"),
            _ = ended.read_u8() => {}
        }
    });
    client.join().unwrap();
}

/// Two ends: the runtime hears when the client's is dropped, by a panic too.
fn socket_pair(runtime: &tokio::runtime::Runtime) -> (std::os::unix::net::UnixStream, tokio::net::UnixStream) {
    let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let _entered = runtime.enter();
    (theirs, tokio::net::UnixStream::from_std(ours).unwrap())
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream
}

/// Sends, and reads until the server closes.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
}

/// One GET on a connection that stays; reads the answer's head and `body`.
fn get_and_stay(stream: &mut TcpStream, path: &str, body: &str) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(body.as_bytes()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
}

fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_path_has_its_status_type_and_line() {
    with_client(SMALL, |address| {
        for (path, status, kind, body) in [
            ("/readyz", "503 Service Unavailable", TEXT, "draining: SIGTERM\n"),
            ("/readyz?verbose=1", "503 Service Unavailable", TEXT, "draining: SIGTERM\n"),
            ("http://pod:9180/servez", "200 OK", TEXT, "draining: still serves\n"),
            ("/metrics", "200 OK", "text/plain; version=0.0.4; charset=utf-8", "sundown_requests 4\n"),
            ("/livez", "404 Not Found", TEXT, "a 200 here would hide a dead app\n"),
            ("/", "404 Not Found", TEXT, "/readyz, /servez, /livez and /metrics\n"),
        ] {
            let answer = get(address, path);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{path}: {answer}");
            assert!(answer.contains(&format!("\r\ncontent-type: {kind}\r\n")), "{path}: {answer}");
            assert!(answer.contains("\r\ncache-control: no-store\r\n"), "{path}: {answer}");
            assert!(answer.ends_with(body), "{path}: {answer}");
        }
    });
}

#[test]
fn head_is_get_without_the_body() {
    with_client(SMALL, |address| {
        let answer = ask(address, "HEAD /servez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("\r\ncontent-length: 23\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    });
}

#[test]
fn other_methods_are_refused_and_bodies_not_read() {
    with_client(SMALL, |address| {
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            // The body never comes: an answer shows that nobody waits for it.
            let answer = ask(address, &format!("{method} /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n"));
            assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
            assert!(answer.contains("\r\nallow: GET, HEAD\r\n"), "{answer}");
            assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        }
        let answer = ask(address, "GET /servez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    });
}

#[test]
fn http_1_0_pipelines_and_half_closed_clients_are_served() {
    with_client(SMALL, |address| {
        assert!(ask(address, "GET /servez HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 200 "));

        let two = "GET /servez HTTP/1.1\r\nHost: x\r\n\r\nGET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n";
        assert_eq!(ask(address, two).matches("HTTP/1.1 200 OK").count(), 2);

        let mut half = connect(address);
        half.write_all(b"GET /servez HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        half.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        half.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("still serves\n"), "{answer}");
    });
}

#[test]
fn a_head_beyond_its_limits_is_told_so() {
    with_client(SMALL, |address| {
        let huge = format!("GET /readyz HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024));
        assert!(ask(address, &huge).starts_with("HTTP/1.1 431 "));
        let many = format!("GET /readyz HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(101));
        assert!(ask(address, &many).starts_with("HTTP/1.1 431 "));
        assert!(ask(address, "not http\r\n\r\n").starts_with("HTTP/1.1 400 "));
    });
}

#[test]
fn the_longest_idle_makes_room() {
    with_client(SMALL, |address| {
        let (mut scraper, mut silent) = (connect(address), connect(address));
        get_and_stay(&mut silent, "/servez", "serves\n");
        get_and_stay(&mut scraper, "/servez", "serves\n");
        // Bytes are no sign of life, an answer is.
        silent.write_all(b"GET /").unwrap();
        assert!(get(address, "/servez").ends_with("serves\n"));
        assert!(is_closed(&mut silent));
        get_and_stay(&mut scraper, "/servez", "serves\n");
    });
}

const HOOK: &str = "GET /prestop HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer right\r\nConnection: close\r\n\r\n";

#[test]
fn a_hook_keeps_its_seat_and_has_its_time() {
    let limits = Limits { connections: 4, head: Duration::from_millis(100), ..SMALL };
    with_client(limits, |address| {
        let mut hook = connect(address);
        hook.write_all(HOOK.as_bytes()).unwrap();
        // Older than all of these, and longer than a head may take.
        for _ in 0..20 {
            assert!(get(address, "/servez").ends_with("still serves\n"));
        }
        let mut answer = String::new();
        hook.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("drained\n"), "{answer}");
    });
}

#[test]
fn hooks_cannot_keep_the_others_out() {
    with_client(Limits { connections: 4, ..SMALL }, |address| {
        let _hooks: Vec<_> = (0..10)
            .map(|_| {
                let mut hook = connect(address);
                hook.write_all(HOOK.as_bytes()).unwrap();
                hook
            })
            .collect();
        assert!(get(address, "/servez").ends_with("still serves\n"));
    });
}

#[test]
fn a_hook_is_a_get_with_the_right_word() {
    with_client(SMALL, |address| {
        let denied = get(address, "/prestop");
        assert!(denied.starts_with("HTTP/1.1 401 ") && denied.contains("\r\nwww-authenticate: Bearer\r\n"), "{denied}");
        let head = ask(address, &HOOK.replace("GET", "HEAD"));
        assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("\r\nallow: GET\r\n"), "{head}");
    });
}

#[test]
fn who_says_nothing_is_sent_away_in_time() {
    let limits = Limits { head: Duration::from_millis(200), ..SMALL };
    with_client(limits, |address| {
        let start = Instant::now();
        let (mut silent, mut slow) = (connect(address), connect(address));
        slow.write_all(b"GET /servez HT").unwrap();
        assert!(is_closed(&mut silent));
        assert!(is_closed(&mut slow));

        let mut idle = connect(address);
        get_and_stay(&mut idle, "/servez", "serves\n");
        assert!(is_closed(&mut idle));
        assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    });
}

#[test]
fn who_asks_without_reading_holds_up_only_itself() {
    with_client(SMALL, |address| {
        let mut greedy = connect(address);
        greedy.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        let requests = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1_000);
        // Ends once both sockets' buffers are full: the server reads no further than it can answer.
        while greedy.write_all(requests.as_bytes()).is_ok() {}
        assert!(get(address, "/servez").ends_with("serves\n"));
    });
}

#[test]
fn who_still_sends_when_it_is_answered_is_not_reset() {
    with_client(Limits { farewell: BOUND, ..SMALL }, |address| {
        let mut client = connect(address);
        client.write_all(&[b'x'; 2 * HEAD_BYTES]).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        for _ in 0..3 {
            client.write_all(&[b'x'; HEAD_BYTES]).expect("the server was to hear it out");
        }
    });
}

#[test]
fn a_burst_does_not_wash_out_a_probe_before_it_is_looked_at() {
    let (listener, address) = bound();
    let mut probe = connect(address);
    probe.write_all(b"GET /servez HTTP/1.0\r\n\r\n").unwrap();
    let silent: Vec<_> = (0..50).map(|_| connect(address)).collect();
    serve_while(Limits { connections: 16, ..SMALL }, listener, move || {
        let mut answer = String::new();
        probe.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("still serves\n"), "{answer}");
        drop(silent);
    });
}

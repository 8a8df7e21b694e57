//! A sidecar beside an app whose image is left alone, in pods without a cluster: see tests/common/podrig.rs.

#[allow(dead_code, reason = "rolling.rs uses the rest")]
mod common {
    pub mod beside;
    pub mod haproxy;
    pub mod load;
    pub mod pod;
    pub mod podrig;
    pub mod wire;
}

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::beside::{PORT, Rollout, SERVICE, SIDECARS, SUNDOWN, TOKEN, sidecar, wait_ready};
use common::load::Load;
use common::pod::wait_until;
use common::podrig::{self, Cluster, Container, Ended, Hook, Pod};
use nix::sys::signal::Signal;

const BOUND: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(1500);

/// One at a time where the load counts: several at once would measure the machine.
fn turn() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says past the harness that something is not tested here.
#[track_caller]
fn skip(what: &str) {
    assert!(std::env::var_os("SUNDOWN_TEST_NO_SKIP").is_none(), "{what}, and nothing may be skipped");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

/// A pod with node and a sidecar, ready.
struct Rig {
    pod: Pod,
    cluster: Cluster,
    scratch: tempfile::TempDir,
}

impl Rig {
    /// With these containers; none where pods cannot be made here.
    fn of(grace: u64, containers: Vec<Container>, tools: &[&str]) -> Option<Self> {
        if let Some(obstacle) = podrig::missing(tools) {
            skip(&obstacle);
            return None;
        }
        let scratch = tempfile::tempdir().expect("a folder");
        let cluster = Cluster::enter().expect("a network");
        let grace = Duration::from_secs(grace);
        let pod = Pod::start(&cluster, 1, grace, containers, scratch.path()).expect("a pod");
        Some(Self { pod, cluster, scratch })
    }

    fn ready(grace: u64, containers: Vec<Container>) -> Option<Self> {
        let rig = Self::of(grace, containers, &["tini"])?;
        wait_ready(&rig.pod).unwrap_or_else(|error| panic!("{error}"));
        Some(rig)
    }

    fn get(&self, path: &str, token: Option<&str>) -> Result<String, String> {
        let headers: Vec<_> =
            token.map(|token| ("Authorization".to_owned(), format!("Bearer {token}"))).into_iter().collect();
        podrig::get(self.pod.at(SIDECARS), path, &headers, BOUND)
    }

    fn log(&self) -> String {
        self.pod.log("sidecar")
    }

    #[track_caller]
    fn wait_log(&self, part: &str) {
        let said = wait_until(BOUND, || self.log().contains(part));
        assert!(said.is_ok(), "waited for {part:?} in {}", self.log());
    }

    #[track_caller]
    fn wait_readyz(&self, part: &str) {
        let said = wait_until(BOUND, || match self.get("/readyz", None) {
            Ok(text) | Err(text) => text.contains(part),
        });
        assert!(said.is_ok(), "waited for {part:?} in /readyz: {}", self.log());
    }

    fn delete(&mut self) -> Vec<Ended> {
        self.pod.delete().expect("all end")
    }
}

/// node behind tini, which ends on TERM, with the sidecar as its hook.
fn app() -> Container {
    unhooked().hook(Hook::http(SIDECARS, "/prestop", Some(TOKEN)))
}

fn unhooked() -> Container {
    Container::new("app", &["tini", "--", "node", "server.js"]).within(SERVICE).env("PORT", &PORT.to_string())
}

fn of<'a>(ended: &'a [Ended], name: &str) -> &'a Ended {
    ended.iter().find(|ended| ended.name == name).expect("the container's name")
}

#[track_caller]
fn between(took: Duration, least: Duration, most: Duration) {
    assert!((least..=most).contains(&took), "{took:?} is not between {least:?} and {most:?}");
}

// Replacements under load.

#[test]
fn nothing_is_lost_with_the_sidecar_as_the_hook_of_a_node_that_is_pid_1() {
    let Some(outcome) = run(Rollout::NODE) else { return };
    assert_nothing_was_lost(&outcome, Rollout::NODE.drain());
}

#[test]
fn requests_are_lost_without_the_hook() {
    let Some(outcome) = run(Rollout::NODE_WITHOUT) else { return };
    assert!(outcome.tally.lost() > 0, "nothing is lost of {}: this set-up proves nothing", outcome.tally.sent);
}

#[test]
fn nothing_is_lost_where_term_ends_the_app_at_once() {
    let Some(outcome) = run(Rollout::TINI) else { return };
    assert_nothing_was_lost(&outcome, Rollout::TINI.drain());
}

fn run(rollout: Rollout) -> Option<common::beside::Outcome> {
    let _turn = turn();
    if let Some(obstacle) = rollout.obstacle() {
        skip(&format!("{}: {obstacle}", rollout.name));
        return None;
    }
    Some(rollout.short().run().unwrap_or_else(|error| panic!("{}: {error}", rollout.name)))
}

#[track_caller]
fn assert_nothing_was_lost(outcome: &common::beside::Outcome, drain: Duration) {
    assert_eq!(outcome.tally.lost(), 0, "lost: {} of {}", outcome.tally.kinds(), outcome.tally.sent);
    for (ended, said) in &outcome.pods {
        let (answer, held) = of(ended, "app").hook.clone().expect("it has one");
        assert!(answer.is_ok_and(|answer| answer.starts_with("200 drained for")), "{said}");
        assert!(held >= drain && held < drain + SLACK, "{held:?}: {ended:?}\n{said}");
        let sidecar = of(ended, "sidecar");
        assert_eq!((sidecar.code, sidecar.killed), (0, false), "{said}");
        // An app that has to be killed uses up the sidecar's turn: both are told, and killed, at the end of the grace period.
        assert!(sidecar.gone.saturating_sub(of(ended, "app").gone) < SECOND, "{ended:?}\n{said}");
    }
}

// The hook.

#[test]
fn without_the_token_nothing_changes() {
    let Some(rig) = Rig::ready(10, vec![app(), sidecar(&["--drain-delay", "1s"])]) else { return };
    for token in [None, Some("wrong"), Some("")] {
        let answer = rig.get("/prestop", token).expect_err("denied");
        assert!(answer.starts_with("401 ") && !answer.contains(TOKEN), "{answer}");
    }
    let head = exchange(&rig, &format!("HEAD /prestop HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"));
    assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
    assert_eq!(rig.get("/readyz", None).as_deref(), Ok("200 running: ready"), "{}", rig.log());
    assert!(!rig.log().contains("stop asked for") && !rig.log().contains(TOKEN), "{}", rig.log());
    assert_eq!(rig.log().matches("without the right token was sent away").count(), 1, "{}", rig.log());
}

/// A raw request; the connection's end is asked for.
fn exchange(rig: &Rig, head: &str) -> String {
    let mut stream = TcpStream::connect(rig.pod.at(SIDECARS)).expect("it listens");
    write!(stream, "{head}Connection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn who_may_call_it_can_be_said_in_three_ways_and_has_to_be() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "from-a-file\n").expect("room");
    let file = file.path().to_str().expect("UTF-8");
    let port = PORT.to_string();
    for (options, variable, token, wanted) in [
        (&["--prestop-token-file", file][..], "", Some("from-a-file"), "200 "),
        (&["--prestop-token-file", file], "", None, "401 "),
        (&[], "from-the-environment", Some("from-the-environment"), "200 "),
        (&[], "from-the-environment", Some("another"), "401 "),
        (&["--prestop-open"], "", None, "200 "),
        (&[], "", None, "404 no token is set"),
    ] {
        let own = [SUNDOWN, "sidecar", "--ports", &port, "--log-format", "text"];
        let container = Container::new("sidecar", &[&own[..], options].concat()).env("SUNDOWN_PRESTOP_TOKEN", variable);
        let Some(rig) = Rig::of(10, vec![container], &[]) else { return };
        wait_until(BOUND, || rig.get("/metrics", None).is_ok()).expect("it serves");
        let answer = match rig.get("/prestop", token) {
            Ok(text) | Err(text) => text,
        };
        // The app was never there, so that there is no drain.
        assert!(answer.starts_with(wanted), "{options:?}: {answer}");
    }
}

#[test]
fn fifty_hooks_are_one_drain() {
    let Some(rig) = Rig::ready(20, vec![app(), sidecar(&["--drain-delay", "2s", "--drain-until", "delay"])]) else {
        return;
    };
    let began = Instant::now();
    let rig = &rig;
    let answers: Vec<_> = thread::scope(|scope| {
        let hooks: Vec<_> =
            (0..50).map(|_| scope.spawn(move || (rig.get("/prestop", Some(TOKEN)), began.elapsed()))).collect();
        rig.wait_log("draining for");
        // One joins in the middle, and restarts nothing.
        thread::sleep(SECOND);
        let late = scope.spawn(move || (rig.get("/prestop", Some(TOKEN)), began.elapsed()));
        hooks.into_iter().chain([late]).map(|hook| hook.join().expect("a client")).collect()
    });
    for (answer, took) in answers {
        assert!(answer.as_ref().is_ok_and(|answer| answer.starts_with("200 drained for 2")), "{answer:?}");
        between(took, Duration::from_secs(2), Duration::from_secs(2) + SLACK);
    }
    assert_eq!(rig.log().matches("stop asked for").count(), 1, "{}", rig.log());
    assert!(rig.log().contains("51 hooks are answered"), "{}", rig.log());
}

#[test]
fn a_hook_that_hangs_up_does_not_end_the_drain() {
    let Some(rig) = Rig::ready(20, vec![app(), sidecar(&["--drain-delay", "2s", "--drain-until", "delay"])]) else {
        return;
    };
    let began = Instant::now();
    let mut hook = TcpStream::connect(rig.pod.at(SIDECARS)).expect("it listens");
    write!(hook, "GET /prestop HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n").expect("sent");
    rig.wait_log("draining for");
    drop(hook);
    rig.wait_readyz("draining");
    // The next one waits for the rest of it.
    let answer = rig.get("/prestop", Some(TOKEN));
    assert!(answer.as_ref().is_ok_and(|answer| answer.starts_with("200 drained for 2")), "{answer:?}");
    between(began.elapsed(), Duration::from_secs(2), Duration::from_secs(2) + SLACK);
}

#[test]
fn slow_and_many_clients_delay_no_hook_and_no_probe() {
    let Some(rig) = Rig::ready(20, vec![app(), sidecar(&["--drain-delay", "2s", "--drain-until", "delay"])]) else {
        return;
    };
    let head = format!("GET /prestop HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    // It says what it wants a byte at a time, and never comes to the end.
    let mut slow = TcpStream::connect(rig.pod.at(SIDECARS)).expect("it listens");
    slow.write_all(&head.as_bytes()[..10]).expect("sent");
    // This one waits, and is older than all that come now: more than there are seats.
    let mut waits = TcpStream::connect(rig.pod.at(SIDECARS)).expect("it listens");
    waits.set_read_timeout(Some(BOUND)).expect("a time");
    let began = Instant::now();
    waits.write_all(head.as_bytes()).expect("sent");
    rig.wait_log("draining for");
    let _silent: Vec<_> = (0..200).map(|_| TcpStream::connect(rig.pod.at(SIDECARS)).expect("it listens")).collect();
    for _ in 0..20 {
        let asked = Instant::now();
        assert!(rig.get("/servez", None).is_ok(), "{}", rig.log());
        assert!(asked.elapsed() < SECOND, "{:?}", asked.elapsed());
    }
    let mut answer = [0; 15];
    waits.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    between(began.elapsed(), Duration::from_secs(2), Duration::from_secs(2) + SLACK);
}

#[test]
fn a_request_in_flight_is_seen_from_beside_the_app() {
    let options = ["--drain-delay", "200ms", "--drain-timeout", "9s", "--drain-quiet", "300ms"];
    let Some(mut rig) = Rig::ready(15, vec![app(), sidecar(&options).native()]) else { return };
    let mut work = TcpStream::connect(rig.pod.at(PORT)).expect("it listens");
    work.write_all(b"POST /work?ms=2500 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let ended = rig.delete();
    let mut answer = String::new();
    let _ = work.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}: {}", rig.log());
    let held = of(&ended, "app").hook.clone().expect("it has one").1;
    between(held, Duration::from_secs(2), Duration::from_millis(2800) + SLACK);
}

// The sidecar's own end.

#[test]
fn a_native_sidecar_is_told_after_the_app_and_exits_at_once() {
    let Some(mut rig) = Rig::ready(10, vec![app(), sidecar(&["--drain-delay", "500ms"]).native()]) else { return };
    let ended = rig.delete();
    let (app, own) = (of(&ended, "app"), of(&ended, "sidecar"));
    assert!(own.told.is_some_and(|told| told >= app.gone), "{ended:?}");
    let took = own.gone - own.told.expect("it was told");
    assert!(took < Duration::from_millis(500), "{took:?}: {}", rig.log());
    assert_eq!((own.code, own.killed), (0, false), "{}", rig.log());
    assert!(rig.log().contains("as a native sidecar, after the app; exit code 0"), "{}", rig.log());
}

#[test]
fn an_ordinary_sidecar_stays_until_the_app_has_gone() {
    let Some(mut rig) = Rig::ready(15, vec![app(), sidecar(&["--drain-delay", "1500ms", "--grace-period", "15s"])])
    else {
        return;
    };
    let ended = rig.delete();
    let (app, own) = (of(&ended, "app"), of(&ended, "sidecar"));
    let (answer, held) = app.hook.clone().expect("it has one");
    assert!(answer.is_ok(), "{answer:?}: {}", rig.log());
    between(held, Duration::from_millis(1400), Duration::from_millis(1500) + SLACK);
    assert!(own.told.is_some_and(|told| told < SECOND), "both are told at once: {ended:?}");
    assert!(own.gone > held && own.gone.saturating_sub(app.gone) < SECOND, "{ended:?}: {}", rig.log());
    assert_eq!((own.code, own.killed), (0, false), "{}", rig.log());
    for said in ["as an ordinary container, together with the app", "the sidecar ends: the app has gone; exit code 0"] {
        assert!(rig.log().contains(said), "{said:?} is not in {}", rig.log());
    }
}

#[test]
fn an_ordinary_sidecar_never_stays_beyond_the_stated_limit() {
    // node as PID 1 goes on after TERM, until it is killed.
    let node = Container::new("app", &["node", "server.js"]).within(SERVICE).env("PORT", &PORT.to_string());
    let node = node.hook(Hook::http(SIDECARS, "/prestop", Some(TOKEN)));
    let Some(mut rig) = Rig::ready(6, vec![node, sidecar(&["--drain-delay", "500ms", "--grace-period", "6s"])]) else {
        return;
    };
    let ended = rig.delete();
    let (app, own) = (of(&ended, "app"), of(&ended, "sidecar"));
    assert!(app.killed, "{ended:?}");
    assert_eq!((own.code, own.killed), (0, false), "{ended:?}: {}", rig.log());
    between(own.gone, Duration::from_secs(4), Duration::from_secs(6));
    assert!(rig.log().contains("the limit is near; exit code 0"), "{}", rig.log());
}

#[test]
fn an_app_that_is_restarted_alone_becomes_ready_again() {
    let Some(mut rig) = Rig::ready(10, vec![app(), sidecar(&["--drain-delay", "500ms"]).native()]) else { return };
    for _ in 0..2 {
        let ended = rig.pod.restart("app").expect("it starts again");
        assert!(ended.hook.is_some_and(|(answer, _)| answer.is_ok()), "{}", rig.log());
        rig.wait_readyz("running: ready");
    }
    assert_eq!(rig.log().matches("stop asked for by the preStop hook").count(), 2, "{}", rig.log());
    let ended = rig.delete();
    assert_eq!(of(&ended, "sidecar").code, 0, "{}", rig.log());
}

#[test]
fn a_call_that_was_no_pods_end_is_forgotten_when_the_grace_period_has_passed() {
    let options = ["--drain-delay", "200ms", "--grace-period", "2s", "--kill-margin", "500ms"];
    let Some(rig) = Rig::ready(10, vec![app(), sidecar(&options)]) else { return };
    let began = Instant::now();
    assert!(rig.get("/prestop", Some(TOKEN)).is_ok(), "{}", rig.log());
    rig.wait_readyz("503 stopping");
    rig.wait_readyz("200 running: ready");
    // Not before a kubelet would have killed the app.
    between(began.elapsed(), Duration::from_secs(2), Duration::from_secs(4) + SLACK);
    assert!(rig.log().contains("nobody has ended the app: it was no pod's end"), "{}", rig.log());
    // And the next one is a drain as any other.
    let answer = rig.get("/prestop", Some(TOKEN));
    assert!(answer.as_ref().is_ok_and(|answer| answer.starts_with("200 drained for")), "{answer:?}");
}

#[test]
fn an_app_that_crashes_and_comes_back_is_not_ready_meanwhile() {
    let Some(mut rig) = Rig::ready(10, vec![unhooked(), sidecar(&["--drain-delay", "500ms"])]) else { return };
    rig.pod.signal("app", Signal::SIGKILL);
    rig.pod.wait("app").expect("it dies");
    rig.wait_readyz("503 running: the ready check fails");
    rig.pod.restart("app").expect("it starts again");
    rig.wait_readyz("200 running: ready");
}

#[test]
fn a_sidecar_waits_for_an_app_that_is_not_there_yet_and_ends_without_it() {
    let Some(mut rig) = Rig::of(10, vec![sidecar(&["--drain-delay", "5s"])], &[]) else { return };
    rig.wait_readyz("503 starting");
    // No drain for an app that was never ready.
    let began = Instant::now();
    assert!(rig.get("/prestop", Some(TOKEN)).is_ok(), "{}", rig.log());
    rig.pod.signal("sidecar", Signal::SIGTERM);
    assert_eq!(rig.pod.wait("sidecar").expect("it ends").0, 0, "{}", rig.log());
    assert!(began.elapsed() < SLACK, "{:?}", began.elapsed());
}

#[test]
fn a_port_that_is_taken_is_a_clear_error() {
    let Some(rig) = Rig::ready(10, vec![unhooked(), sidecar(&[])]) else { return };
    let second = rig.pod.exec("app", &[SUNDOWN, "sidecar", "--ports", "3000"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(said.contains("--http :9180: address in use"), "{said}");
}

#[test]
fn the_control_socket_answers_for_a_sidecar_too() {
    let Some(mut rig) = Rig::ready(10, vec![unhooked(), sidecar(&["--drain-delay", "300ms"])]) else { return };
    let run = |words: &[&str]| {
        let output = rig.pod.exec("sidecar", &[&[SUNDOWN], words].concat()).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, status) = run(&["status"]);
    assert!(code == Some(0) && status.contains("app      listens on port 3000"), "{status}");
    let (_, json) = run(&["status", "--json"]);
    let file = rig.scratch.path().join("json");
    std::fs::write(&file, &json).expect("room");
    let python = Command::new("python3").args(["-m", "json.tool"]).arg(&file).output().expect("python");
    assert!(python.status.success(), "{json}");
    assert_eq!(run(&["ready"]).0, Some(0));
    assert!(run(&["prestop"]).1.starts_with("drained for"), "{}", rig.log());
    assert_eq!(run(&["ready"]).0, Some(1));
    assert_eq!(run(&["stop", "--now"]).0, Some(0));
    assert_eq!(rig.pod.wait("sidecar").expect("it ends").0, 0, "{}", rig.log());
}

#[test]
fn what_makes_no_sense_without_a_child_is_refused_by_name() {
    for (words, parts) in [
        (&["--ports", "3000", "node", "server.js"][..], &["`node`", "starts no program"][..]),
        (&["--ports", "3000", "--stop-signal", "QUIT"], &["--stop-signal QUIT", "has no child"]),
        (&["--ports", "3000", "--signal-to", "group"], &["--signal-to group", "has no child"]),
        (&["--ports", "3000", "--wrapper", "x"], &["--wrapper x", "has no child"]),
        (&["--ports", "3000", "--expand-env"], &["--expand-env", "has no child"]),
        (&["--ports", "3000", "--exit-zero-on-stop"], &["--exit-zero-on-stop", "has no child"]),
        (&["--ports", "3000", "--ready-check", "running"], &["--ready-check running", "has no child"]),
        (&["--ports", "3000", "--http", "off"], &["--http off"]),
        (&["--ports", "9180"], &["the sidecar's own port"]),
        (&[], &["--ports is missing"]),
    ] {
        let output = Command::new(SUNDOWN).arg("sidecar").args(words).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{words:?}: {part:?} is not in {said}");
        }
    }
}

// The stand-in for the kubelet does what one was seen to do.

#[test]
fn a_hook_to_a_dead_port_has_failed_and_term_follows_at_once() {
    let app = unhooked().hook(Hook::http(9999, "/prestop", None));
    let Some(mut rig) = Rig::ready(10, vec![app, sidecar(&[]).native()]) else { return };
    let ended = rig.delete();
    let app = of(&ended, "app");
    assert!(app.hook.as_ref().is_some_and(|(answer, _)| answer.is_err()), "{ended:?}");
    assert!(app.gone < SECOND && !app.killed, "{ended:?}");
}

#[test]
fn a_hook_that_outlives_the_grace_period_is_left_and_two_seconds_remain() {
    let hook = Hook::Exec(["sleep", "30"].map(String::from).to_vec());
    let Some(mut rig) = Rig::of(1, vec![Container::new("app", &["sleep", "infinity"]).hook(hook)], &[]) else { return };
    let ended = rig.delete();
    let app = of(&ended, "app");
    between(app.told.expect("it was told"), SECOND, SECOND + SLACK);
    between(app.gone, 3 * SECOND, 3 * SECOND + SLACK);
    assert!(app.killed && app.code == 137, "{ended:?}");
}

// Two instances in one pod.

const NGINX: &str = "daemon off; error_log stderr; pid PIDFILE; worker_processes 1; events {} \
    http { access_log off; client_body_temp_path TMP; proxy_temp_path TMP; fastcgi_temp_path TMP; uwsgi_temp_path TMP; \
    scgi_temp_path TMP; keepalive_timeout 0; upstream app { server 127.0.0.1:3000; keepalive 16; } \
    server { listen 8080; location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ''; \
    proxy_next_upstream off; } } }";

#[test]
fn the_app_is_told_after_the_nginx_in_front_of_it_has_gone() {
    let _turn = turn();
    let scratch = tempfile::tempdir().expect("a folder");
    let nginx_conf =
        NGINX.replace("PIDFILE", &path(scratch.path(), "nginx.pid")).replace("TMP", &path(scratch.path(), "tmp"));
    std::fs::write(scratch.path().join("nginx.conf"), nginx_conf).expect("room");
    let conf = path(scratch.path(), "nginx.conf");
    // nginx has the least length that the balancer needs, and hears QUIT; the app waits for nginx's port to close.
    let front =
        [SUNDOWN, "--log-format", "text", "--grace-period", "20s", "--drain-delay", "6s", "--", "nginx", "-c", &conf];
    let behind = [
        SUNDOWN,
        "--log-format",
        "text",
        "--grace-period",
        "20s",
        "--drain-while",
        "tcp://127.0.0.1:8080",
        "--drain-timeout",
        "15s",
        "--check-failures",
        "1",
        "--",
        "node",
        "server.js",
    ];
    let containers = |port: u16| {
        vec![
            Container::new("nginx", &front),
            Container::new("app", &behind).within(SERVICE).env("PORT", &port.to_string()),
        ]
    };
    let Some(mut rig) = Rig::of(20, containers(PORT), &["nginx", "haproxy"]) else { return };
    let answers = |pod: &Pod| podrig::get(pod.at(8080), "/health", &[], SECOND).is_ok();
    wait_until(BOUND, || answers(&rig.pod)).unwrap_or_else(|_| panic!("{}", podrig::last_words(&rig.pod)));
    let other =
        Pod::start(&rig.cluster, 2, Duration::from_secs(20), containers(PORT), rig.scratch.path()).expect("a pod");
    wait_until(BOUND, || answers(&other)).unwrap_or_else(|_| panic!("{}", podrig::last_words(&other)));
    let haproxy =
        common::haproxy::Haproxy::start(rig.scratch.path(), 2, common::haproxy::Checks::App).expect("HAProxy");
    for pod in [&rig.pod, &other] {
        haproxy.add_target(pod.number, pod.at(8080), None).expect("a target");
    }
    let load = Load::start(haproxy.address, 100);
    thread::sleep(SECOND);
    let ended = thread::scope(|scope| {
        let controller = scope.spawn(|| {
            thread::sleep(Duration::from_secs(3));
            haproxy.remove(1)
        });
        let ended = rig.delete();
        controller.join().expect("no panic").expect("HAProxy obeys");
        ended
    });
    let tally = load.finish();
    let said = podrig::last_words(&rig.pod);
    assert_eq!(tally.lost(), 0, "lost: {} of {}\n{said}", tally.kinds(), tally.sent);
    assert!(of(&ended, "nginx").gone <= of(&ended, "app").gone, "{ended:?}\n{said}");
    assert!(!of(&ended, "app").killed && !of(&ended, "nginx").killed, "{ended:?}\n{said}");
    assert!(rig.pod.log("app").contains("the --drain-while check fails: it holds no more"), "{said}");
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

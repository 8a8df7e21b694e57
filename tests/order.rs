//! In order: the program starts after what it needs, outlives whom it serves, and whoever waits for its end is told of it.

mod common;
#[path = "common/http.rs"]
mod http;
#[path = "common/proxy.rs"]
mod proxy;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::SUNDOWN;
use common::instance::{Instance, Launch, between, secs, until};
use proxy::Proxy;

const SLACK: Duration = Duration::from_secs(4);

/// A port that no outgoing connection is given meanwhile.
fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], common::free_port()))
}

fn launch(options: &[&str]) -> Launch {
    Launch::sundown(&[&["--log-format", "text"], options].concat())
}

#[track_caller]
fn says(instance: &Instance, text: &str) {
    assert!(instance.log().contains(text), "{text:?} is not in {}", instance.log());
}

/// Whether the process that has written its pid there is gone.
fn is_gone(pid: &Path) -> bool {
    let pid = fs::read_to_string(pid).expect("it ran");
    !Path::new(&format!("/proc/{}", pid.trim())).exists()
}

// Starting in order.

#[test]
fn the_program_is_started_once_every_check_has_passed() {
    let (endpoint, needed) = (free_address(), free_address());
    let (tcp, http_at) = (format!("tcp://{needed}"), endpoint.to_string());
    let options = ["--http", &http_at, "--wait-for", &tcp, "--wait-for", "exec:test -e {dir}/volume"];
    let instance = launch(&options).start(&["{app}", "port=0"]);
    let told = http::wait_for_status(endpoint, "/readyz", 503);
    assert_eq!(told, format!("starting: waiting for tcp://{needed}, a command\n"));
    assert_eq!(http::get(endpoint, "/servez").0, 503);
    assert!(http::get(endpoint, "/metrics").1.contains("sundown_phase{phase=\"starting\"} 1"));
    let listener = TcpListener::bind(needed).expect("it is free");
    until("the port is found", || http::get(endpoint, "/readyz").1 == "starting: waiting for a command\n");
    instance.wait_log("waiting for a command (test exited with 1), before the program is started");
    assert!(instance.record().is_empty(), "{:?}", instance.record());
    // What has passed once is not asked again.
    drop(listener);
    fs::write(instance.file("volume"), "").expect("room for it");
    instance.wait_record("app up");
    says(&instance, "all that was waited for is there after");
    http::wait_for_status(endpoint, "/readyz", 200);
}

#[test]
fn what_is_there_already_is_not_worth_a_word() {
    let there = TcpListener::bind("127.0.0.1:0").expect("a port");
    let check = format!("tcp://{}", there.local_addr().expect("bound"));
    let began = Instant::now();
    let mut instance = launch(&["--wait-for", &check]).start(&["sh", "-c", "exit 4"]);
    assert_eq!(instance.wait().0, 4);
    between(began.elapsed(), Duration::ZERO, SLACK);
    assert_eq!(instance.log(), "");
}

#[test]
fn several_stand_in_the_variable_one_a_line() {
    let launch = launch(&["--wait-timeout", "300ms"]);
    let launch = launch.env("SUNDOWN_WAIT_FOR", "exec:test -e {dir}/one\n\n  exec:test -e {dir}/two --x=,\n");
    let mut instance = launch.start(&["{app}"]);
    assert_eq!(instance.wait().0, 124);
    says(&instance, "a command (test exited with 1), a command (test exited with 2)");
}

#[test]
fn what_does_not_come_in_time_ends_it_with_a_code_of_its_own() {
    let needed = free_address();
    let check = format!("http://{needed}/health?password=x");
    let began = Instant::now();
    let mut instance = launch(&["--wait-for", &check, "--wait-timeout", "700ms"]).start(&["{app}"]);
    assert_eq!(instance.wait().0, 124, "{}", instance.log());
    between(began.elapsed(), secs(0.7), secs(0.7) + SLACK);
    says(
        &instance,
        &format!("for http://{needed}/health ({needed}: connection refused), which is all that --wait-timeout"),
    );
    assert!(instance.record().is_empty() && !instance.log().contains("password"), "{}", instance.log());
}

#[test]
fn zero_is_for_ever() {
    let check = format!("tcp://{}", free_address());
    let mut instance = launch(&["--wait-for", &check, "--wait-timeout", "0"]).start(&["{app}"]);
    instance.wait_log("before the program is started");
    assert!(instance.is_running());
}

#[test]
fn a_stop_request_ends_the_waiting_at_once() {
    let check = format!("tcp://{}", free_address());
    // QUIT is one, since nobody is there to catch it: images inherit STOPSIGNAL QUIT. WINCH is Apache's.
    let apache = ["--stop-signal", "WINCH"];
    for (number, options) in
        [(libc::SIGTERM, &[][..]), (libc::SIGINT, &[]), (libc::SIGQUIT, &[]), (37, &[]), (libc::SIGWINCH, &apache)]
    {
        let mut instance = launch(&[&["--wait-for", &check], options].concat()).start(&["{app}"]);
        std::thread::sleep(secs(0.2));
        instance.signal(number);
        let (code, took) = instance.wait();
        assert_eq!(code, 128 + number, "{}", instance.log());
        between(took, Duration::ZERO, secs(1.0));
        says(&instance, &format!("of waiting for {check}: the program is not started"));
        assert!(instance.record().is_empty(), "{:?}", instance.record());
    }
}

#[test]
fn a_signal_that_asks_for_nothing_does_not_end_it() {
    let launch = launch(&["--wait-for", "exec:test -e {dir}/volume", "--stop-on", "USR2"]);
    let mut instance = launch.start(&["{app}", "catch=TERM", "port=0"]);
    instance.wait_log("before the program is started");
    instance.signal(libc::SIGHUP);
    instance.signal(libc::SIGWINCH);
    std::thread::sleep(secs(0.3));
    assert!(instance.is_running(), "{}", instance.log());
    fs::write(instance.file("volume"), "").expect("room for it");
    instance.wait_record("app up");
    instance.signal(libc::SIGUSR2);
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
}

#[test]
fn the_subcommands_are_answered_meanwhile() {
    let check = format!("tcp://{}", free_address());
    for (words, code) in [("prestop", 143), ("stop", 143), ("stop --now", 143)] {
        let mut instance = launch(&["--wait-for", &check]).start(&["{app}"]);
        let ask = |words: &str| {
            let pid = instance.pid.to_string();
            common::run(Command::new(SUNDOWN).args(words.split(' ')).args(["--pid", &pid]))
        };
        until("it answers", || ask("status").code == Some(0));
        assert!(ask("status").stdout.contains(&format!("starting (waiting for {check})")), "{}", ask("status").stdout);
        assert!(ask("status --json").stdout.contains("\"child\":null"));
        assert_eq!(ask("ready").code, Some(1));
        let asked = ask(words);
        assert_eq!(asked.code, Some(0), "{words}: {}", asked.stderr);
        assert!(asked.stdout.contains("is not any more"), "{words}: {}", asked.stdout);
        assert_eq!(instance.wait().0, code, "{}", instance.log());
    }
}

#[test]
fn a_hook_is_answered_before_pid_1_ends_and_kills_it() {
    if !common::is_root("a PID namespace") {
        return;
    }
    let check = format!("tcp://{}", free_address());
    let mut instance = launch(&["--wait-for", &check]).pid1().start(&["{app}"]);
    until("it answers", || instance.run(&[SUNDOWN, "status"]).code == Some(0));
    let asked = instance.run(&[SUNDOWN, "prestop"]);
    assert_eq!(asked.code, Some(0), "{}", asked.stderr);
    assert_eq!(instance.wait().0, 143, "{}", instance.log());
}

#[test]
fn a_check_that_hangs_is_killed_and_leaves_nothing_behind() {
    let check = "exec:sh -c 'echo $$ >{dir}/pid; test -e {dir}/volume || exec sleep 1000'";
    let options = ["--wait-for", check, "--check-timeout", "300ms"];
    let mut instance = launch(&options).start(&["{app}"]);
    instance.wait_log("a command (sh took longer than 300ms)");
    fs::write(instance.file("volume"), "").expect("room for it");
    instance.wait_record("app up");
    assert!(is_gone(&instance.file("pid")));
    // And one that hangs when the waiting is ended.
    drop(instance);
    let options = ["--wait-for", check, "--check-timeout", "60s"];
    instance = launch(&options).start(&["{app}"]);
    until("it hangs", || fs::read_to_string(instance.file("pid")).is_ok_and(|pid| pid.ends_with('\n')));
    instance.signal(libc::SIGTERM);
    instance.wait();
    until("it is gone", || is_gone(&instance.file("pid")));
}

#[test]
fn what_cannot_be_waited_for_is_refused_with_the_way_out() {
    for (check, way_out) in [
        ("running", "ask http://, tcp:// or exec:"),
        ("listening", "ask http://, tcp:// or exec:"),
        ("tcp://db:5432", "exec:nc -z db"),
    ] {
        let mut command = Command::new(SUNDOWN);
        common::fails(command.args(["--wait-for", check, "--", "true"]), 2, &["--wait-for", way_out]);
    }
}

// Ending in order.

#[test]
fn a_job_whose_proxy_would_run_for_ever_ends_with_its_code_and_the_proxy_with_it() {
    let proxy = Proxy::start();
    let mut instance = launch(&["--on-exit", &proxy.quit()]).start(&["sh", "-c", "sleep 0.3; exit 3"]);
    std::thread::sleep(secs(0.1));
    assert!(proxy.runs(), "it was told before the end");
    let (code, took) = instance.wait();
    assert_eq!(code, 3, "{}", instance.log());
    between(took, Duration::ZERO, secs(1.3));
    assert_eq!(proxy.asked(), ["POST /quitquitquit HTTP/1.1"]);
}

#[test]
fn it_is_told_after_a_stop_too_and_the_timeline_shows_it() {
    let proxy = Proxy::start();
    let mut instance = launch(&["--on-exit", &proxy.quit()]).start(&["{app}", "catch=TERM", "exit=5"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 5, "{}", instance.log());
    proxy.asked();
    says(&instance, "quitquitquit was done");
}

#[test]
fn all_are_done_in_order_after_everything_has_ended_and_a_failure_stops_none() {
    let proxy = Proxy::start();
    let wrong = format!("GET http://{}/no-such-page", proxy.address);
    let options = [
        &["--on-exit", "exec:cp {dir}/record {dir}/seen"][..],
        &["--on-exit", &wrong, "--on-exit", &proxy.quit(), "--on-exit", "exec:sh -c 'echo more >>{dir}/seen; exit 9'"],
        &["--on-exit", "exec:/no/such/command"],
    ];
    let mut instance = launch(&options.concat()).start(&["{app}", "catch=TERM", "cleanup=0.4", "fork=setsid"]);
    let child = instance.wait_record("app up");
    instance.wait_record("app2 up");
    // The child ends by itself; what it leaves behind is told and cleans up.
    // SAFETY: kill takes two numbers.
    unsafe { libc::kill(child.parse().expect("a pid"), libc::SIGTERM) };
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    let seen = fs::read_to_string(instance.file("seen")).expect("it was done");
    assert!(seen.contains("app2 clean\n") && seen.ends_with("more\n"), "{seen}");
    assert_eq!(proxy.asked(), ["GET /no-such-page HTTP/1.1", "POST /quitquitquit HTTP/1.1"]);
    says(&instance, "/no-such-page: 127.0.0.1:");
    says(&instance, " answered 404");
    says(&instance, "--on-exit: sh: sh exited with 9");
    says(&instance, "--on-exit: /no/such/command");
}

#[test]
fn one_that_does_not_answer_is_bounded_and_told() {
    // The kernel takes the connection, and nobody the request.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let quit = format!("POST http://{}/quitquitquit", listener.local_addr().expect("bound"));
    for (action, told) in [(quit.as_str(), "no answer within 600ms"), ("exec:sleep 1000", "took longer than 600ms")] {
        let began = Instant::now();
        let mut instance = launch(&["--on-exit", action, "--on-exit-timeout", "600ms"]).start(&["sh", "-c", "exit 3"]);
        assert_eq!(instance.wait().0, 3, "{}", instance.log());
        between(began.elapsed(), secs(0.6), secs(0.6) + SLACK);
        says(&instance, told);
        says(&instance, "the exit goes on without it");
    }
}

#[test]
fn a_job_that_is_quicker_than_its_proxy_waits_for_it() {
    let address = free_address();
    let quit = format!("POST http://{address}/quitquitquit");
    let mut instance = launch(&["--on-exit", &quit]).start(&["sh", "-c", "exit 3"]);
    std::thread::sleep(secs(0.5));
    assert!(instance.is_running(), "{}", instance.log());
    let proxy = Proxy::start_at(TcpListener::bind(address).expect("it is free"));
    assert_eq!(instance.wait().0, 3, "{}", instance.log());
    proxy.asked();
}

#[test]
fn nobody_waits_for_a_proxy_that_a_stop_has_ended_before() {
    let quit = format!("POST http://{}/quitquitquit", free_address());
    let mut instance = launch(&["--on-exit", &quit]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!(code, 0, "{}", instance.log());
    between(took, Duration::ZERO, SLACK);
    says(&instance, "connection refused");
}

#[test]
fn it_is_told_of_a_program_that_was_never_started() {
    let needed = format!("tcp://{}", free_address());
    let wait = ["--wait-for", &needed, "--wait-timeout", "300ms"];
    let for_ever = ["--wait-for", &needed, "--wait-timeout", "0"];
    for (options, program, code) in
        [(&[][..], "/no/such/program", 127), (&[], "/etc", 126), (&wait, "true", 124), (&for_ever, "true", 143)]
    {
        let proxy = Proxy::start();
        let quit = proxy.quit();
        let mut instance = launch(&[&["--on-exit", &quit], options].concat()).start(&[program]);
        if code == 143 {
            std::thread::sleep(secs(0.2));
            instance.signal(libc::SIGTERM);
        }
        assert_eq!(instance.wait().0, code, "{}", instance.log());
        assert_eq!(proxy.asked().len(), 1);
        let log = instance.log();
        assert_eq!(log.matches("no such file").count(), usize::from(code == 127), "{log}");
    }
}

#[test]
fn a_stop_request_meanwhile_does_not_lose_it() {
    let action = "exec:sh -c 'echo begun >>{dir}/done; sleep 0.8; echo ended >>{dir}/done'";
    let mut instance = launch(&["--on-exit", action]).start(&["sh", "-c", "exit 3"]);
    until("it has begun", || instance.file("done").exists());
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 3, "{}", instance.log());
    assert_eq!(fs::read_to_string(instance.file("done")).expect("it was done"), "begun\nended\n");
    says(&instance, "while --on-exit is under way: it is finished first");
}

#[test]
fn none_goes_past_a_stated_deadline() {
    let action = "exec:sh -c 'echo $$ >{dir}/pid; exec sleep 1000'";
    let limit = ["--on-exit-timeout", "60s", "--grace-period", "2s", "--kill-margin", "500ms", "--drain-delay", "0"];
    let options = [&["--on-exit", action, "--on-exit", "exec:touch {dir}/late"], &limit[..]].concat();
    let mut instance = launch(&options).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!(code, 0, "{}", instance.log());
    between(took, secs(1.45), secs(1.5) + SLACK);
    says(&instance, "the grace period is over but for the margin");
    says(&instance, "no time is left for it");
    assert!(!instance.file("late").exists());
    until("it is gone", || is_gone(&instance.file("pid")));
    // The clock may start as late as here.
    let mut instance = launch(&options).start(&["true"]);
    until("it has begun", || fs::read_to_string(instance.file("pid")).is_ok_and(|pid| pid.ends_with('\n')));
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!(code, 0, "{}", instance.log());
    between(took, secs(1.45), secs(1.5) + SLACK);
}

// Outliving.

fn port() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let check = format!("tcp://{}", listener.local_addr().expect("bound"));
    (listener, check)
}

#[test]
fn a_helper_is_told_when_whom_it_serves_has_gone() {
    let (served, check) = port();
    let endpoint = free_address();
    // It listens on nothing and was never ready: no drain would be. On Kubernetes there is one of 5 s by default.
    let options = ["--http", &endpoint.to_string(), "--outlive", &check, "--grace-period", "20s"];
    let instance = launch(&options).env("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    let mut instance = instance.start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    assert!(http::get(endpoint, "/readyz").1.starts_with("starting"));
    instance.signal(libc::SIGTERM);
    instance.wait_log(&format!("--outlive: the app is told when {check} fails, in 10.8s at most"));
    assert!(http::get(endpoint, "/readyz").1.starts_with("draining: stop asked for"));
    std::thread::sleep(secs(1.2));
    assert_eq!(instance.count("app heard SIGTERM"), 0, "{}", instance.log());
    drop(served);
    let (code, took) = instance.wait();
    assert_eq!(code, 0, "{}", instance.log());
    between(took, Duration::ZERO, SLACK);
    says(&instance, "(what it was to outlive had gone)");
    assert_eq!(instance.count("app heard SIGTERM"), 1);
}

#[test]
fn its_own_traffic_does_not_keep_a_helper_from_going() {
    let (served, check) = port();
    let mut instance =
        launch(&["--outlive", &check, "--grace-period", "20s"]).start(&["{app}", "catch=TERM", "port=0"]);
    let port: u16 = instance.wait_record("app port").parse().expect("a port");
    let connection = http::connect(SocketAddr::from(([127, 0, 0, 1], port))).expect("it listens");
    std::io::Write::write_all(&mut &connection, b"GET /half HTTP/1.1\r\n").expect("it is connected");
    instance.signal(libc::SIGTERM);
    instance.wait_log("--outlive");
    drop(served);
    between(instance.wait().1, Duration::ZERO, SLACK);
}

#[test]
fn it_is_held_no_longer_than_the_grace_period_can_spare() {
    let (_served, check) = port();
    // 60 % of what is left of 5 s less a margin of 1 s.
    let options = ["--outlive", &check, "--grace-period", "5s", "--kill-margin", "1s"];
    let mut instance = launch(&options).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    between(instance.wait().1, secs(2.4), secs(2.4) + SLACK);
    says(&instance, "the --outlive check still passes as the app is told");
}

#[test]
fn who_is_in_a_hurry_does_not_wait_for_it() {
    let (_served, check) = port();
    let mut instance = launch(&["--outlive", &check, "--grace-period", "20s"]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    let stop = common::run(Command::new(SUNDOWN).args(["stop", "--now", "--pid", &instance.pid.to_string()]));
    assert_eq!(stop.code, Some(0), "{}", stop.stderr);
    between(instance.wait().1, Duration::ZERO, SLACK);
}

/// Answers each request after a tenth of a second, and dies of TERM with all that it has in hand.
const BACKEND: &str = "import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.1)
        self.send_response(200)
        self.send_header('Content-Length', '2')
        self.end_headers()
        self.wfile.write(b'ok')
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";

#[test]
fn an_app_that_outlives_the_nginx_in_front_of_it_loses_nothing() {
    if !common::has_tools(&["nginx"]) {
        return;
    }
    let (front, back) = (free_address(), free_address());
    let check = format!("tcp://{front}");
    let conf = format!(
        "daemon off; master_process on; user root; pid {{dir}}/pid; error_log stderr; events {{}}
        http {{ access_log off; client_body_temp_path {{dir}}/1; proxy_temp_path {{dir}}/2; fastcgi_temp_path {{dir}}/3;
          uwsgi_temp_path {{dir}}/4; scgi_temp_path {{dir}}/5;
          server {{ listen {front}; location / {{ proxy_pass http://{back}; }} }} }}"
    );
    let mut app = launch(&["--outlive", &check, "--grace-period", "15s"]).file("backend.py", BACKEND).start(&[
        common::instance::python(),
        "{dir}/backend.py",
        &back.port().to_string(),
    ]);
    let nginx = launch(&["--drain-delay", "1s", "--wait-for", &format!("tcp://{back}")]).file("nginx.conf", &conf);
    let mut nginx = nginx.env("PATH", common::path()).start(&["nginx", "-c", "{dir}/nginx.conf"]);
    http::wait_for_status(front, "/", 200);
    // A pod's containers are told at the same time.
    app.signal(libc::SIGTERM);
    nginx.signal(libc::SIGTERM);
    let until = Instant::now() + secs(0.9);
    let clients: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let mut count = 0;
                while Instant::now() < until {
                    let (status, body) = http::get(front, "/");
                    assert_eq!(status, 200, "after {count}: {body}");
                    count += 1;
                }
                count
            })
        })
        .collect();
    let answered: u32 = clients.into_iter().map(|client| client.join().expect("nothing is lost")).sum();
    assert!(answered > 8, "{answered}");
    nginx.wait();
    app.wait();
    says(&app, "(what it was to outlive had gone)");
}

//! The control socket from outside: the preStop hook and the other subcommands against a real instance.

mod common;
#[path = "common/http.rs"]
mod http;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::instance::{Instance, Launch, until};
use common::{Output, SUNDOWN};

const LATE: Duration = Duration::from_secs(1);

fn no_root() -> bool {
    !common::is_root("a PID namespace")
}

/// A subcommand inside the container of an instance that is PID 1.
fn inside(instance: &Instance, words: &[&str]) -> Output {
    instance.run(&[&[SUNDOWN], words].concat())
}

/// A subcommand for an instance that is any other PID.
fn client(instance: &Instance, words: &[&str]) -> Command {
    let mut command = Command::new(SUNDOWN);
    command.args(words).args(["--pid", &instance.pid.to_string()]);
    command
}

#[track_caller]
fn succeeds(output: &Output, part: &str) {
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{}", output.stdout);
    assert!(output.stdout.contains(part), "{part:?} is not in {:?}", output.stdout);
}

#[track_caller]
fn is_refused(output: &Output, part: &str) {
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    assert!(output.stderr.contains(part), "{part:?} is not in {:?}", output.stderr);
}

// The preStop hook.

#[test]
fn a_hook_that_comes_at_the_very_end_is_answered_and_not_killed() {
    if no_root() {
        return;
    }
    let mut instance = Launch::sundown(&[]).pid1().env("APP", "1").start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    // What an exec session has left behind keeps sundown for a moment when the app is gone.
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/app.py");
    let record = instance.file("record").display().to_string();
    let stray = format!("({} {fixture} {record} name=stray catch=TERM cleanup=0.9 &)", common::instance::python());
    assert_eq!(common::wait(&mut common::spawn(instance.exec(&["sh", "-c", &stray]).env("APP", "1"))), Some(0));
    instance.wait_record("stray up");
    instance.signal(libc::SIGTERM);
    instance.wait_record("stray heard SIGTERM");
    succeeds(&inside(&instance, &["prestop"]), "going down");
    is_refused(&inside(&instance, &["ready"]), "going down");
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
}

#[test]
fn a_hook_and_a_term_are_one_stop_and_one_drain() {
    if no_root() {
        return;
    }
    let mut instance =
        Launch::sundown(&["--drain-delay", "1500ms"]).pid1().start(&["{app}", "catch=TERM", "cleanup=0.5"]);
    instance.wait_record("app up");
    let asked = Instant::now();
    let mut hook = common::spawn(instance.exec(&[SUNDOWN, "prestop"]).stdout(Stdio::null()));
    instance.wait_log("draining");
    instance.signal(libc::SIGTERM);
    instance.wait_log("asked again, by SIGTERM from outside the container, which changes nothing: the drain goes on");
    assert_eq!(instance.count("app heard SIGTERM"), 0);
    assert_eq!(common::wait(&mut hook), Some(0));
    let drained = asked.elapsed();
    assert!(drained >= Duration::from_millis(1500), "{drained:?}");
    instance.wait_record("app heard SIGTERM");
    let heard = asked.elapsed();
    assert!(heard >= Duration::from_millis(1500) && heard < Duration::from_millis(1500) + LATE, "{heard:?}");
    instance.signal(libc::SIGTERM);
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    assert_eq!((instance.count("app heard SIGTERM"), instance.count("app clean")), (1, 1));
    assert!(instance.log().lines().last().is_some_and(|line| line.contains("asked by the preStop hook")));
}

#[test]
fn a_hook_drains_and_tells_the_app_although_no_term_comes() {
    let mut instance = Launch::sundown(&["--drain-delay", "300ms"]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    succeeds(&common::run(&mut client(&instance, &["prestop"])), "drained for 3");
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    assert_eq!(instance.count("app heard SIGTERM"), 1);
}

#[test]
fn the_exit_of_pid_1_does_not_kill_the_hook() {
    if no_root() {
        return;
    }
    let hook = |_| {
        // The app dies at once on being told.
        let mut instance = Launch::sundown(&["--drain-delay", "100ms"]).pid1().start(&["sleep", "1000"]);
        until("the control socket is open", || inside(&instance, &["ready"]).code == Some(0));
        let output = inside(&instance, &["prestop"]);
        succeeds(&output, "drained for");
        assert_eq!(instance.wait().0, 143, "{}", instance.log());
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(hook));
        }
    });
}

#[test]
fn pid_1_stays_until_a_slow_hook_has_taken_its_answer() {
    if no_root() {
        return;
    }
    let mut instance = Launch::sundown(&["--drain-delay", "500ms"]).pid1().start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    let mut hook = common::spawn(instance.exec(&[SUNDOWN, "prestop"]).stdout(Stdio::null()));
    instance.wait_log("draining");
    let client = common::instance::children(hook.id() as i32)[0];
    send(client, libc::SIGSTOP);
    instance.wait_record("app clean");
    // A third of the time that a connection is given to close.
    std::thread::sleep(Duration::from_millis(100));
    // nsenter(1) stops as its child does, and passes on that it goes on.
    send(hook.id() as i32, libc::SIGCONT);
    assert_eq!(common::wait(&mut hook), Some(0));
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
}

/// Sends a signal to a process of ours, whose pid is one here.
fn send(pid: i32, number: i32) {
    // SAFETY: kill takes two numbers.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0, "kill -{number} {pid}");
}

#[test]
fn two_hooks_wait_for_the_same_drain() {
    if no_root() {
        return;
    }
    let mut instance = Launch::sundown(&["--drain-delay", "800ms"]).pid1().start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    let mut hooks = [0, 1].map(|_| common::spawn(instance.exec(&[SUNDOWN, "prestop"]).stdout(Stdio::null())));
    assert_eq!([Some(0), Some(0)], [common::wait(&mut hooks[0]), common::wait(&mut hooks[1])]);
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    assert_eq!(instance.log().matches("stop asked for by the preStop hook: ").count(), 1, "{}", instance.log());
    assert_eq!(instance.count("app heard SIGTERM"), 1);
}

#[test]
fn a_hook_that_comes_when_the_container_is_already_going_down_succeeds() {
    if no_root() {
        return;
    }
    let mut instance = Launch::sundown(&[]).pid1().start(&["{app}", "catch=TERM", "cleanup=1"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    instance.wait_record("app heard SIGTERM");
    let began = Instant::now();
    succeeds(&inside(&instance, &["prestop"]), "nothing to wait for");
    assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
    assert_eq!(instance.count("app heard SIGTERM"), 1);
}

#[test]
fn a_hook_whose_instance_is_killed_succeeds() {
    let mut instance = Launch::sundown(&["--drain-delay", "15s"]).start(&["sleep", "1000"]);
    until("it answers", || common::run(&mut client(&instance, &["ready"])).code == Some(0));
    let child = common::instance::children(instance.pid);
    let mut hook = common::spawn(client(&instance, &["prestop"]).stdout(Stdio::null()));
    instance.wait_log("draining");
    instance.signal(libc::SIGKILL);
    assert_eq!(common::wait(&mut hook), Some(0));
    assert_eq!(instance.wait().0, 137);
    for pid in child {
        // SAFETY: kill takes two numbers; it is the child that our own instance has left behind.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

// Who may, and who meets whom.

#[test]
fn without_an_instance_there_is_a_clear_error() {
    if no_root() {
        return;
    }
    let empty = Launch::other(&["sleep", "1000"]).pid1();
    let instance = empty_container(empty);
    for command in ["prestop", "stop", "ready", "serve", "live", "status"] {
        is_refused(&inside(&instance, &[command]), "no instance of sundown with pid 1 runs in this container");
    }
}

/// A container in which something else is PID 1.
fn empty_container(launch: Launch) -> Instance {
    let instance = launch.start(&[]);
    until("its PID 1 runs", || {
        std::fs::read_to_string(format!("/proc/{}/comm", instance.pid)).is_ok_and(|comm| comm.trim() != "unshare")
    });
    instance
}

#[test]
fn another_user_is_refused() {
    if no_root() {
        return;
    }
    let instance = Launch::sundown(&["--drain-delay", "15s"]).pid1().start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    let output = instance.run(&["setpriv", "--reuid", "65534", "--clear-groups", SUNDOWN, "prestop"]);
    is_refused(&output, "permission denied: uid 65534 asked");
    assert!(!instance.log().contains("stop asked for"), "{}", instance.log());
}

#[test]
fn an_instance_of_a_plain_user_obeys_that_user_and_root_and_nobody_else() {
    if no_root() {
        return;
    }
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let mut instance =
        Launch::sundown(&["--drain-delay", "300ms"]).through(&user).pid1().start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    succeeds(&inside(&instance, &["status"]), "running");
    succeeds(&instance.run(&[&user[..], &[SUNDOWN, "ready"]].concat()), "running");
    let other = instance.run(&["setpriv", "--reuid", "1234", "--clear-groups", SUNDOWN, "prestop"]);
    is_refused(&other, "permission denied");
    succeeds(&inside(&instance, &["prestop"]), "drained for");
    assert_eq!(instance.wait().0, 0, "{}", instance.log());
}

#[test]
fn containers_that_share_the_network_do_not_meet() {
    if no_root() {
        return;
    }
    let instance = Launch::sundown(&["--drain-delay", "15s"]).pid1().start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    let neighbour = empty_container(Launch::other(&["sleep", "1000"]).pid1());
    is_refused(&inside(&neighbour, &["prestop"]), "no instance of sundown");
    // Its own PID namespace, but the instance's mounts and /proc: the name would be found, the pid means nothing there.
    let output =
        common::run(Command::new("nsenter").args(["--target", &instance.pid.to_string(), "--mount", "--"]).args([
            "unshare",
            "--fork",
            "--pid",
            "sh",
            "-c",
            "\"$0\" prestop; exit $?",
            SUNDOWN,
        ]));
    assert_eq!(output.code, Some(1), "{} {}", output.stdout, output.stderr);
    assert!(!instance.log().contains("stop asked for"), "{}", instance.log());
}

#[test]
fn several_instances_ask_for_a_choice_and_pid_1_is_the_first() {
    if no_root() {
        return;
    }
    let two =
        Launch::other(&["sh", "-c", "\"$0\" -- sleep 1000 & \"$0\" -- sleep 1000 & wait; exit 3", SUNDOWN]).pid1();
    let mut instance = empty_container(two);
    let mut output = inside(&instance, &["status"]);
    until("both run", || {
        output = inside(&instance, &["status"]);
        output.stderr.contains("several instances")
    });
    is_refused(&output, "choose one by --pid: ");
    let pids = output.stderr.trim_end().rsplit(": ").next().expect("a list");
    assert_eq!(pids.split(", ").count(), 2, "{pids}");
    for pid in pids.split(", ") {
        succeeds(&inside(&instance, &["stop", "--pid", pid]), "");
    }
    assert_eq!(instance.wait().0, 3, "{} {}", instance.log(), instance.out());

    let nested = Launch::sundown(&[]).pid1().start(&[SUNDOWN, "--", "{app}", "catch=TERM"]);
    nested.wait_record("app up");
    succeeds(&inside(&nested, &["status", "--json"]), "\"pid\":1,");
}

#[test]
fn without_a_control_socket_the_client_says_so() {
    let instance = Launch::sundown(&["--control", "off"]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    is_refused(&common::run(&mut client(&instance, &["prestop"])), "--control off");
}

// The other subcommands.

#[test]
fn stop_drains_and_stop_now_does_not() {
    let mut instance = Launch::sundown(&["--drain-delay", "500ms"]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    succeeds(&common::run(&mut client(&instance, &["stop"])), "draining: stop asked for by `sundown stop`");
    let (code, took) = instance.wait();
    assert_eq!(code, 0, "{}", instance.log());
    assert!(took >= Duration::from_millis(300), "{took:?}");

    let mut instance = Launch::sundown(&["--drain-delay", "15s"]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    succeeds(&common::run(&mut client(&instance, &["stop"])), "draining");
    assert_eq!(instance.count("app heard SIGTERM"), 0);
    succeeds(&common::run(&mut client(&instance, &["stop", "--now"])), "stopping");
    let (code, took) = instance.wait();
    assert_eq!(code, 0, "{}", instance.log());
    assert!(took < LATE, "{took:?}");
}

#[test]
fn ready_serve_and_live_say_what_the_endpoint_says() {
    let address = http::free_address();
    let options = ["--http", &address.to_string(), "--drain-delay", "15s", "--live-check", "running"];
    let instance = Launch::sundown(&options).start(&["{app}", "catch=TERM", "port=0"]);
    instance.wait_record("app up");
    http::wait_for_status(address, "/readyz", 200);
    let codes = || ["ready", "serve", "live"].map(|name| common::run(&mut client(&instance, &[name])).code);
    assert_eq!(codes(), [Some(0), Some(0), Some(0)]);
    instance.signal(libc::SIGTERM);
    instance.wait_log("draining");
    assert_eq!(codes(), [Some(1), Some(0), Some(0)]);
    let refused = common::run(&mut client(&instance, &["ready"]));
    assert_eq!(refused.stderr.trim_end(), http::get(address, "/readyz").1.trim_end());
}

#[test]
fn live_without_a_check_says_that_there_is_none() {
    let instance = Launch::sundown(&[]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    is_refused(&common::run(&mut client(&instance, &["live"])), "no --live-check");
}

#[test]
fn status_tells_people_and_machines_where_we_are() {
    let options = ["--drain-delay", "2s", "--grace-period", "30s"];
    let instance = Launch::sundown(&options).start(&["{app}", "catch=TERM", "cleanup=60"]);
    let pid = instance.wait_record("app up");
    let status = common::run(&mut client(&instance, &["status"]));
    for line in [
        "phase    running (ready)",
        "ready    yes",
        "drain    2s",
        "grace    30s",
        &format!("child    pid {pid}, running"),
    ] {
        succeeds(&status, line);
    }
    succeeds(&common::run(&mut client(&instance, &["stop", "--now"])), "stopping");
    let json = common::run(&mut client(&instance, &["status", "--json"]));
    succeeds(&json, "");
    let file = instance.file("json");
    std::fs::write(&file, &json.stdout).expect("room for it");
    let check = "import json, sys; s = json.load(open(sys.argv[1])); print(s['phase'], s['pid'], s['told'][0]['signal'], s['told'][0]['pid'], s['ready'], s['kill_in_seconds'] > 20)";
    let read = common::run(Command::new(common::instance::python()).args(["-c", check, common::text(&file)]));
    assert_eq!(
        read.stdout.trim_end(),
        format!("stopping {} SIGTERM {pid} False True", instance.pid),
        "{}",
        json.stdout
    );
}

#[test]
fn bad_words_are_bad_usage() {
    for words in
        [&["prestop", "--now"][..], &["stop", "now"], &["status", "--pid", "x"], &["sleep"], &["sleep", "soon"]]
    {
        let output = common::run(Command::new(SUNDOWN).args(words));
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{words:?}: {}", output.stderr);
    }
}

#[test]
fn sleep_is_for_images_that_have_none() {
    let began = Instant::now();
    assert_eq!(common::run(Command::new(SUNDOWN).args(["sleep", "0.2"])).code, Some(0));
    assert!(began.elapsed() >= Duration::from_millis(200) && began.elapsed() < Duration::from_millis(200) + LATE);
}

#[test]
fn a_subcommands_name_as_pid_1_is_refused_with_the_way_out() {
    if no_root() {
        return;
    }
    let pid_1 = ["--fork", "--pid", "--mount-proc", "--kill-child", SUNDOWN, "sleep", "infinity"];
    let output = common::run(Command::new("unshare").args(pid_1));
    assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""));
    assert!(output.stderr.contains("sundown -- sleep"), "{}", output.stderr);
}

#[test]
fn subcommands_take_no_notice_of_the_instances_options() {
    let instance = Launch::sundown(&[]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    let mut ready = client(&instance, &["ready"]);
    ready.env("SUNDOWN_HTTP", "nonsense").env("SUNDOWN_GRACE_PERIOD", "soon").env("SUNDOWN_X", "y");
    succeeds(&common::run(&mut ready), "running");
}

#[test]
fn status_is_in_colour_on_a_terminal_only() {
    let instance = Launch::sundown(&[]).start(&["{app}", "catch=TERM"]);
    instance.wait_record("app up");
    let script = format!("'{SUNDOWN}' status --pid {}; echo end:.", instance.pid);
    let on_a_terminal = |variables: &[(&str, &str)]| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script]).env("TERM", "xterm").env_remove("NO_COLOR").envs(variables.iter().copied());
        let mut session = common::session::Session::start(&mut shell);
        session.expect("end:");
        session.seen.contains("\x1b[2mphase\x1b[0m")
    };
    assert!(on_a_terminal(&[]));
    assert!(!on_a_terminal(&[("NO_COLOR", "1")]));
    assert!(!on_a_terminal(&[("TERM", "dumb")]));
    assert!(!common::run(&mut client(&instance, &["status"])).stdout.contains('\x1b'));
}

//! The app behind real wrappers: it hears once, and finishes its clean-up; also when it is told too early.

mod chains;
mod common;

use std::sync::Mutex;
use std::time::Duration;

use chains::{CHAINS, CLEAN_UP, Chain};
use common::instance::{Instance, Launch, comes_true, until};

/// More at once would only wait for each other's interpreters to start.
const AT_ONCE: usize = 3;

/// What became of a chain.
struct Result {
    chain: &'static Chain,
    /// For each app, the signals that it heard and how often it finished its clean-up.
    apps: Vec<(&'static str, Vec<String>, usize)>,
    code: i32,
    took: Duration,
    log: String,
}

impl Result {
    /// How many of the apps that ran have finished their clean-up.
    fn clean_ups(&self) -> usize {
        self.apps.iter().filter(|(app, _, clean)| self.chain.apps.contains(app) && *clean > 0).count()
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (app, heard, clean) in &self.apps {
            if *heard != ["SIGTERM"] {
                faults.push(format!("{app} heard {heard:?}"));
            }
            if *clean != 1 {
                faults.push(format!("{app} finished {clean} clean-ups"));
            }
        }
        let told = self.log.matches(": the app is told;").count();
        if !self.chain.trapped && told != self.chain.apps.len() {
            faults.push(format!("{told} were told as apps"));
        }
        if self.code != self.chain.code {
            faults.push(format!("exit code {} instead of {}", self.code, self.chain.code));
        }
        if self.took > CLEAN_UP + self.chain.grace {
            faults.push(format!("it took {:?}", self.took));
        }
        faults
    }
}

fn start(launch: Launch, chain: &Chain) -> Instance {
    // A network of its own: what others listen on and talk to here is nothing to the app.
    let mut launch = launch.pid1().namespace("--net").env("PATH", common::path()).env("HOME", "{dir}");
    launch = launch.env("YARN_ENABLE_TELEMETRY", "0").env("npm_config_update_notifier", "false").file("script.js", "");
    for (name, content) in chain.files {
        launch = launch.file(name, content);
    }
    launch.start(chain.program)
}

fn stop(launch: Launch, chain: &'static Chain) -> Result {
    let mut instance = start(launch, chain);
    let is_up = |instance: &Instance| chain.apps.iter().all(|app| instance.has_record(&format!("{app} up")));
    // A chain that cannot be started or stopped must not hide what the others do.
    if comes_true(|| is_up(&instance) || !instance.is_running()) && is_up(&instance) {
        instance.signal(libc::SIGTERM);
    }
    let (code, took) = instance.wait_or_kill();
    let record = instance.record();
    let of = |app: &'static str| {
        let heard = record.iter().filter_map(|line| line.strip_prefix(&format!("{app} heard "))).map(String::from);
        (app, heard.collect(), instance.count(&format!("{app} clean")))
    };
    let log = instance.log() + &instance.out();
    let apps = chain.apps.iter().chain(chain.restarted).map(|app| of(app)).collect();
    Result { chain, apps, code, took, log }
}

/// Stops every chain whose tools are there; `SUNDOWN_TEST_CHAIN` picks those whose name holds it.
fn stop_all(launch: fn() -> Launch) -> Vec<Result> {
    let wanted = std::env::var("SUNDOWN_TEST_CHAIN").unwrap_or_default();
    let todo = Mutex::new(CHAINS.iter().filter(|chain| chain.name.contains(&wanted)));
    let done = Mutex::new(Vec::new());
    let next = || todo.lock().expect("no panic while it is held").next();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(chain) = next() {
                    if common::has_tools(chain.needs) {
                        let result = stop(launch(), chain);
                        done.lock().expect("no panic while it is held").push(result);
                    }
                }
            });
        }
    });
    done.into_inner().expect("all threads have ended well")
}

#[test]
fn every_app_behind_wrappers_hears_once_and_finishes_its_clean_up() {
    if !common::is_root("a PID namespace") {
        return;
    }
    let mut faults = Vec::new();
    for result in stop_all(|| Launch::sundown(&[])) {
        let own = result.faults();
        println!("{:28} code {:3} in {:.2?} {}", result.chain.name, result.code, result.took, own.join("; "));
        if !own.is_empty() {
            faults.push(format!("{}: {}\n{}", result.chain.name, own.join("; "), result.log));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn under_tini_fewer_finish_their_clean_up() {
    if !common::is_root("a PID namespace") || !common::has_tools(&["tini"]) {
        return;
    }
    let results = stop_all(|| Launch::other(&["tini"]));
    let mut clean_ups = 0;
    for result in &results {
        clean_ups += result.clean_ups();
        println!("{:28} {} of {} under tini", result.chain.name, result.clean_ups(), result.chain.apps.len());
    }
    let apps: usize = results.iter().map(|result| result.chain.apps.len()).sum();
    println!("{clean_ups} of {apps} apps finish their clean-up under tini");
    assert!(clean_ups < apps);
}

/// Delays that differ from run to run.
fn random_delays(count: usize, below: Duration) -> Vec<Duration> {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new();
    (0..count).map(|turn| below.mul_f64(random.hash_one(turn) as f64 / u64::MAX as f64)).collect()
}

const TOO_EARLY: Chain = Chain { name: "too early", grace: Duration::ZERO, ..CHAINS[0] };

/// Stops a chain at random moments of its start. An app that came to life must have heard and cleaned up; and most must
/// come to life, though a program that the start itself needs may be hit in its first moments.
fn stop_too_early(chain: &Chain) {
    const TIMES: usize = 6;
    let (mut early, mut lost) = (0, 0);
    for delay in random_delays(TIMES, Duration::from_millis(600)) {
        let mut instance = start(Launch::sundown(&[]), chain);
        std::thread::sleep(delay);
        early += usize::from(!instance.has_record("app up"));
        instance.signal(libc::SIGTERM);
        let (code, _) = instance.wait();
        let record = instance.record();
        if instance.has_record("app up") || instance.has_record("app heard") {
            let heard = record.iter().filter(|line| line.starts_with("app heard")).count();
            let end = (heard, instance.count("app clean"), code);
            assert_eq!(end, (1, 1, 0), "told after {delay:?}: {record:?}; {}", instance.log());
        } else {
            lost += 1;
            println!("told after {delay:?}: never came to life; {}", instance.log());
        }
    }
    println!("told {early} times before it was up, {lost} never came to life");
    assert!(early > 0, "the app is up sooner than it is told: the test shows nothing");
    assert!(lost <= TIMES / 3, "{lost} of {TIMES} never came to life");
}

#[test]
fn a_stop_that_comes_too_early_reaches_node_behind_yarn() {
    if common::is_root("a PID namespace") && common::has_tools(&["yarn"]) {
        let program = &["yarn", "start"];
        stop_too_early(&Chain { program, files: EARLY_PACKAGE, ..TOO_EARLY });
    }
}

const EARLY_PACKAGE: &[(&str, &str)] = &[("package.json", r#"{"scripts": {"start": "{node} cleanup=0.3 pause=100"}}"#)];

/// npm writes its title over its command line while it starts, in three steps.
#[test]
fn a_stop_that_comes_too_early_reaches_node_behind_npm() {
    if common::is_root("a PID namespace") && common::has_tools(&["npm"]) {
        let program = &["npm", "start"];
        stop_too_early(&Chain { program, files: EARLY_PACKAGE, ..TOO_EARLY });
    }
}

#[test]
fn a_stop_that_comes_too_early_reaches_python() {
    if common::is_root("a PID namespace") {
        let program = &["sh", "-c", "{app} catch=TERM cleanup=0.3 pause=0.3; exit $?"];
        stop_too_early(&Chain { program, ..TOO_EARLY });
    }
}

/// bash runs a trap when the program in its foreground has ended, and not before.
#[test]
fn an_app_whose_shell_defers_its_trap_hears_at_half_time() {
    if !common::is_root("a PID namespace") {
        return;
    }
    let chain = Chain { program: &["bash", "-c", "trap 'exit 0' TERM; {node}; exit 1"], ..TOO_EARLY };
    let mut instance = start(Launch::sundown(&["--grace-period", "6s"]), &chain);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!(
        (code, instance.count("app heard SIGTERM"), instance.count("app clean")),
        (0, 1, 1),
        "{}",
        instance.log()
    );
    // The limit is 4 s, 2 s before the orchestrator's.
    let half = Duration::from_secs(2);
    assert!(took >= half + CLEAN_UP && took < half + CLEAN_UP + Duration::from_secs(1), "{took:?}");
}

const SIGWAIT: &str = r#"
import os, signal, sys, threading, time
def write(text):
    with open(os.environ["RECORD"], "a") as record:
        record.write(f"{text}\n")
def hear(*_):
    write("worker heard SIGTERM")
if os.fork() == 0:
    signal.signal(signal.SIGTERM, hear)
    write("worker up")
    while True:
        time.sleep(1)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
if "threads" in sys.argv:
    threading.Thread(target=time.sleep, args=[100], daemon=True).start()
write("app up")
write("app heard " + signal.Signals(signal.sigwait([signal.SIGTERM, signal.SIGINT])).name)
os._exit(0)
"#;

/// sigwait(3) needs no handler, and while it waits the mask does not show what it waits for.
#[test]
fn a_master_that_waits_for_its_signals_hears_in_place_of_its_workers() {
    if !common::is_root("a PID namespace") {
        return;
    }
    let alone: &[&str] = &["python3", "master.py"];
    for program in [alone, &["python3", "master.py", "threads"]] {
        let launch = Launch::sundown(&["--grace-period", "8s"]).pid1().env("RECORD", "{dir}/record");
        let instance = launch.file("master.py", SIGWAIT).start(program);
        instance.wait_record("app up");
        instance.wait_record("worker up");
        instance.signal(libc::SIGTERM);
        until("somebody has heard", || instance.record().iter().any(|line| line.contains("heard")));
        assert_eq!((instance.count("app heard SIGTERM"), instance.count("worker heard SIGTERM")), (1, 0));
    }
}

#[test]
fn a_display_that_stands_beside_the_app_outlives_its_clean_up() {
    if !common::is_root("a PID namespace") || !common::has_tools(&["bash"]) {
        return;
    }
    // As xvfb-run does it.
    const SCRIPT: &str = "(exec -a Xvfb {node} name=display cleanup=0) & {node}; code=$?; kill $!; wait; exit $code";
    let chain = Chain { program: &["bash", "-c", SCRIPT], ..TOO_EARLY };
    let mut instance = start(Launch::sundown(&[]), &chain);
    instance.wait_record("display up");
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    let story: Vec<String> = instance.record().into_iter().filter(|line| !line.contains(" up ")).collect();
    let wanted = ["app heard SIGTERM", "app clean", "display heard SIGTERM", "display clean"];
    assert_eq!(story, wanted, "{}", instance.log());
    assert_eq!(code, 0, "{}", instance.log());
    assert!(took < CLEAN_UP + Duration::from_secs(1), "{took:?}");
}

const FLASK: &str = r#"
import atexit, os, time
from flask import Flask
app = Flask(__name__)
def write(text):
    with open(os.environ["RECORD"], "a") as record:
        record.write(f"app {text}\n")
def clean():
    time.sleep(1)
    write("clean")
if os.environ.get("WERKZEUG_RUN_MAIN"):
    atexit.register(clean)
    write(f"up {os.getpid()}")
"#;

#[test]
fn a_server_that_reloads_hears_in_place_of_its_reloader() {
    if !common::is_root("a PID namespace") || !common::has_tools(&["flask"]) {
        return;
    }
    let chain = Chain {
        program: &["flask", "--app", "wsgi", "run", "--reload", "--debugger", "--host", "0.0.0.0", "--port", "0"],
        files: &[("wsgi.py", FLASK)],
        ..TOO_EARLY
    };
    let mut instance = start(Launch::sundown(&[]).env("RECORD", "{dir}/record"), &chain);
    instance.wait_record("app up");
    until("the server has set its handlers", || instance.log().contains("Debugger PIN"));
    instance.signal(libc::SIGTERM);
    let (code, _) = instance.wait();
    assert_eq!((code, instance.count("app clean")), (0, 1), "{}", instance.log());
}

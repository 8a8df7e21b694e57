//! A rolling deploy as Kubernetes does it, under load: a new pod is started and put into rotation, the oldest one is asked
//! to stop, and the balancer hears of that 3 s late. What the clients lose meanwhile is the result.

use std::collections::VecDeque;
use std::io;
use std::thread;
use std::time::Duration;

use super::haproxy::{Checks, Haproxy};
use super::load::{Load, SLOWEST, Tally};
use super::pod::{self, Init, Pod, Stopped, Stopping};

/// Pods that serve at any time.
pub const PODS: usize = 3;
/// Requests per second.
pub const RATE: u32 = 150;
/// From the stop request until the balancer's controller has taken the target out.
pub const DEREGISTRATION: Duration = Duration::from_secs(3);
/// The drain that follows from the two: the last request to arrive gets the time of the slowest, and 0.5 s to spare.
pub const DRAIN: Duration = DEREGISTRATION.saturating_add(SLOWEST).saturating_add(Duration::from_millis(500));
/// The exit code of yarn 1 when its program ended by SIGTERM and yarn itself was left alone.
pub const YARN_SAW_TERM: i32 = 143;
/// What an init that does not drain loses at least for each pod, or the set-up proves nothing: a third of what the balancer
/// sends to one of [`PODS`] and one in [`DEREGISTRATION`].
pub const LEAST_LOST: u64 = RATE as u64 * DEREGISTRATION.as_secs() / (PODS as u64 + 1) / 3;
/// A stop that takes longer hangs.
const STOP_BOUND: Duration = Duration::from_secs(30);

/// What is rolled, behind what, and how fast.
#[derive(Clone, Copy)]
pub struct Rollout {
    pub name: &'static str,
    pub init: Init,
    pub checks: Checks,
    /// How long the first pods serve undisturbed.
    pub steady: Duration,
    pub replacements: usize,
    /// From one stop request to the start of the next new pod.
    pub pace: Duration,
}

/// What came of a rollout.
pub struct Outcome {
    pub name: &'static str,
    pub tally: Tally,
    pub stopped: Vec<Stopped>,
}

impl Rollout {
    /// Pods under sundown, in rotation as long as the app answers.
    pub const SUNDOWN: Rollout = Rollout {
        name: "sundown, app's port checked",
        init: Init::Sundown { drain: DRAIN, endpoint: false },
        checks: Checks::App,
        steady: Duration::from_secs(1),
        replacements: 10,
        pace: Duration::from_secs(4),
    };
    /// Pods under sundown, in rotation as long as its `/readyz` says so.
    pub const SUNDOWN_READYZ: Rollout = Rollout {
        name: "sundown, /readyz checked",
        init: Init::Sundown { drain: DRAIN, endpoint: true },
        checks: Checks::Readyz,
        ..Rollout::SUNDOWN
    };
    /// The same pods under tini.
    pub const TINI: Rollout = Rollout { name: "tini", init: Init::Other("tini"), ..Rollout::SUNDOWN };
    /// Nothing is replaced, so nothing may be lost: what this loses is the fault of the set-up.
    pub const CONTROL: Rollout = Rollout {
        name: "nothing replaced",
        steady: Duration::from_secs(30),
        replacements: 0,
        ..Rollout::SUNDOWN_READYZ
    };

    /// The same in less time: three replacements that overlap, as they do where a deploy is quick.
    #[must_use]
    pub fn short(self) -> Rollout {
        Rollout {
            steady: self.steady.min(Duration::from_secs(5)),
            replacements: self.replacements.min(PODS),
            pace: Duration::from_millis(500),
            ..self
        }
    }

    /// Runs it, telling of each replaced pod on stderr.
    ///
    /// # Errors
    ///
    /// Where a part of the set-up fails, or a pod does not get ready or does not end. What was lost is no error here.
    pub fn run(&self) -> io::Result<Outcome> {
        let scratch = tempfile::tempdir()?;
        let haproxy = Haproxy::start(scratch.path(), PODS + self.replacements, self.checks)?;
        let mut serving = VecDeque::new();
        for number in 1..=PODS {
            serving.push_back(Pod::start(self.init, number, scratch.path())?);
        }
        for pod in &mut serving {
            pod.wait_ready()?;
            haproxy.add(pod)?;
        }

        let load = Load::start(haproxy.address, RATE);
        thread::sleep(self.steady);
        let stopped: io::Result<_> = thread::scope(|scope| {
            let mut retiring = Vec::new();
            for number in PODS + 1..=PODS + self.replacements {
                let mut new = Pod::start(self.init, number, scratch.path())?;
                new.wait_ready()?;
                haproxy.add(&new)?;
                serving.push_back(new);
                let old = serving.pop_front().expect("there are always some").stop()?;
                retiring.push(scope.spawn(|| retire(old, &haproxy, &load)));
                thread::sleep(self.pace);
            }
            retiring.into_iter().map(|thread| thread.join().expect("retiring does not panic")).collect()
        });
        Ok(Outcome { name: self.name, stopped: stopped?, tally: load.finish() })
    }

    /// Why it cannot run on this machine, if so.
    pub fn obstacle(&self) -> Option<String> {
        match self.init {
            Init::Sundown { .. } | Init::Alone { .. } | Init::Rest => pod::missing(&["haproxy", "yarn"]),
            Init::Other(program) => pod::missing(&["haproxy", "yarn", program]),
        }
    }
}

/// What happens to a pod from its stop request on.
fn retire(old: Stopping, haproxy: &Haproxy, load: &Load) -> io::Result<Stopped> {
    let number = old.number();
    let (removed, stopped) = thread::scope(|scope| {
        let removed = scope.spawn(move || {
            thread::sleep(DEREGISTRATION);
            haproxy.remove(number)
        });
        let stopped = old.wait_gone(STOP_BOUND);
        (removed.join().expect("removing does not panic"), stopped)
    });
    removed?;
    let stopped = stopped?;
    let Stopped { took, code, .. } = &stopped;
    let tally = load.so_far();
    eprintln!(
        "    pod {number:>2} gone {:.1} s after the request, exit {code}; {} requests so far, {} lost",
        took.as_secs_f64(),
        tally.sent,
        tally.lost(),
    );
    Ok(stopped)
}

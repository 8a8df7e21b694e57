//! A rolling deploy of pods whose image knows nothing of sundown: the app is alone in its container, and a sidecar stands
//! beside it.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::haproxy::{Checks, Haproxy};
use super::load::{Load, SLOWEST, Tally};
use super::podrig::{self, Cluster, Container, Ended, Hook, Pod};

pub const SUNDOWN: &str = env!("CARGO_BIN_EXE_sundown");
/// The service, which has never heard of SIGTERM.
pub const SERVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/node-service");
pub const PORT: u16 = 3000;
pub const SIDECARS: u16 = 9180;
pub const TOKEN: &str = "a-word-that-only-the-manifest-knows";
/// Requests per second.
pub const RATE: u32 = 100;
/// Pods that serve at any time.
pub const PODS: usize = 3;
/// How long a hook has to hold the app for the last request to be answered, when the balancer learns within that time.
const fn drain(learns: Duration) -> Duration {
    learns.saturating_add(SLOWEST).saturating_add(Duration::from_millis(500))
}

/// What the app's container starts. Neither has a handler for TERM.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum App {
    /// node as its own PID 1, which TERM does not end: the kernel keeps a signal without a handler from PID 1, and node's own
    /// one only raises it anew. Every stop takes the whole grace period.
    Node,
    /// node behind tini, as its authors advise: TERM ends it on the spot.
    Tini,
}

/// How the balancer learns that a pod is to go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Learns {
    /// By its own check of the sidecar's /readyz each second, and by nothing else.
    Readyz,
    /// From a controller, 3 s after the deletion.
    Controller,
}

/// What is rolled.
#[derive(Clone, Copy)]
pub struct Rollout {
    pub name: &'static str,
    pub app: App,
    pub learns: Learns,
    pub hook: bool,
    pub grace: Duration,
    pub replacements: usize,
    pub pace: Duration,
}

/// What came of it.
pub struct Outcome {
    pub name: &'static str,
    pub tally: Tally,
    /// Of each pod that was replaced, how its containers ended, and what they said.
    pub pods: Vec<(Vec<Ended>, String)>,
}

const SECOND: Duration = Duration::from_secs(1);
const DEREGISTRATION: Duration = Duration::from_secs(3);

impl Rollout {
    /// node is PID 1, and the hook is the sidecar's.
    pub const NODE: Rollout = Rollout {
        name: "node as PID 1, the sidecar as its hook",
        app: App::Node,
        learns: Learns::Readyz,
        hook: true,
        grace: Duration::from_secs(9),
        replacements: 10,
        pace: Duration::from_secs(3),
    };
    /// The same without the hook: nobody hears of the end before it comes.
    pub const NODE_WITHOUT: Rollout = Rollout { name: "node as PID 1, without the hook", hook: false, ..Rollout::NODE };
    /// tini and node, and a balancer that is told 3 s late.
    pub const TINI: Rollout = Rollout {
        name: "node behind tini, the sidecar as its hook",
        app: App::Tini,
        learns: Learns::Controller,
        grace: Duration::from_secs(15),
        ..Rollout::NODE
    };
    /// The same without the hook.
    pub const TINI_WITHOUT: Rollout =
        Rollout { name: "node behind tini, without the hook", hook: false, ..Rollout::TINI };

    /// The same in less time.
    #[must_use]
    pub fn short(self) -> Rollout {
        Rollout { replacements: 3, pace: Duration::from_millis(500), ..self }
    }

    /// Why it cannot run on this machine, if so.
    pub fn obstacle(&self) -> Option<String> {
        podrig::missing(if self.app == App::Tini { &["haproxy", "tini"] } else { &["haproxy"] })
    }

    /// How long a hook holds the app.
    pub fn drain(&self) -> Duration {
        drain(if self.learns == Learns::Readyz { SECOND } else { DEREGISTRATION })
    }

    /// Runs it. The calling thread is in a network of its own afterwards.
    ///
    /// # Errors
    /// Where a part of the set-up fails. What was lost is no error here.
    pub fn run(&self) -> io::Result<Outcome> {
        let scratch = tempfile::tempdir()?;
        let cluster = Cluster::enter()?;
        let checks = if self.learns == Learns::Readyz { Checks::Readyz } else { Checks::App };
        let haproxy = Haproxy::start(scratch.path(), PODS + self.replacements, checks)?;
        let mut serving = VecDeque::new();
        for number in 1..=PODS {
            serving.push_back(self.start(&cluster, number, scratch.path())?);
        }
        for pod in &serving {
            wait_ready(pod)?;
            self.add(&haproxy, pod)?;
        }
        let load = Load::start(haproxy.address, RATE);
        thread::sleep(SECOND);
        let pods: io::Result<_> = thread::scope(|scope| {
            let mut retiring = Vec::new();
            for number in PODS + 1..=PODS + self.replacements {
                let new = self.start(&cluster, number, scratch.path())?;
                wait_ready(&new)?;
                self.add(&haproxy, &new)?;
                serving.push_back(new);
                let old = serving.pop_front().expect("there are always some");
                retiring.push(scope.spawn(|| self.retire(old, &haproxy)));
                thread::sleep(self.pace);
            }
            retiring.into_iter().map(|thread| thread.join().expect("retiring does not panic")).collect()
        });
        Ok(Outcome { name: self.name, tally: load.finish(), pods: pods? })
    }

    fn start(&self, cluster: &Cluster, number: usize, scratch: &Path) -> io::Result<Pod> {
        let argv: &[&str] = match self.app {
            App::Node => &["node", "server.js"],
            App::Tini => &["tini", "--", "node", "server.js"],
        };
        let app = Container::new("app", argv).within(SERVICE).env("PORT", &PORT.to_string());
        let hook = Hook::http(SIDECARS, "/prestop", Some(TOKEN));
        let app = if self.hook { app.hook(hook) } else { app };
        let drain = format!("{}ms", self.drain().as_millis());
        let sidecar = sidecar(&["--drain-delay", &drain, "--grace-period", &self.grace.as_secs().to_string()]).native();
        Pod::start(cluster, number, self.grace, vec![app, sidecar], scratch)
    }

    fn add(&self, haproxy: &Haproxy, pod: &Pod) -> io::Result<()> {
        let readyz = (self.learns == Learns::Readyz).then(|| pod.at(SIDECARS));
        haproxy.add_target(pod.number, pod.at(PORT), readyz)
    }

    fn retire(&self, mut old: Pod, haproxy: &Haproxy) -> io::Result<(Vec<Ended>, String)> {
        let number = old.number;
        let (removed, ended) = thread::scope(|scope| {
            let removed = (self.learns == Learns::Controller).then(|| {
                scope.spawn(move || {
                    thread::sleep(DEREGISTRATION);
                    haproxy.remove(number)
                })
            });
            let ended = old.delete();
            (removed.map(|thread| thread.join().expect("removing does not panic")), ended)
        });
        removed.transpose()?;
        Ok((ended?, podrig::last_words(&old)))
    }
}

/// A sidecar for the service, with its token.
pub fn sidecar(options: &[&str]) -> Container {
    let port = PORT.to_string();
    let own = [SUNDOWN, "sidecar", "--ports", &port, "--prestop-token", TOKEN, "--log-format", "text"];
    Container::new("sidecar", &[&own[..], options].concat())
}

/// Waits until the sidecar says that the app is ready.
///
/// # Errors
/// Where that does not come; what the pod said is in the error.
pub fn wait_ready(pod: &Pod) -> io::Result<()> {
    let is_ready = || podrig::get(pod.at(SIDECARS), "/readyz", &[], SECOND).is_ok();
    super::pod::wait_until(Duration::from_secs(60), is_ready)
        .map_err(|_| io::Error::other(format!("pod {} does not get ready\n{}", pod.number, podrig::last_words(pod))))
}

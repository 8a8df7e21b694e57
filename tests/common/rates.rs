//! Pods replaced one by one behind a balancer that never looks at sundown's endpoint: it goes on routing to a pod for a
//! random while after the stop request, as one does that hears of it by way of others. How long that is must be stated where
//! there is little traffic, since silence means nothing there. What a drain loses, and how long it takes, is the result.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io;
use std::thread;
use std::time::Duration;

use super::load::{Dice, Load, Tally, Traffic};
use super::pod::{Init, Pod, Stopped};

/// From the stop request until the balancer routes nothing more to the pod, at least and at most; in seconds.
pub const ROUTES_ON: (f64, f64) = (1.0, 8.0);
/// What one request in [`ONE_IN`] takes.
pub const SLOW: Duration = Duration::from_secs(6);
/// See [`SLOW`].
pub const ONE_IN: f64 = 50.0;
/// What the others take at most.
pub const QUICK: Duration = Duration::from_millis(100);
/// `--drain-quiet`, by default.
pub const QUIET: Duration = Duration::from_secs(1);
/// What a stop may take beyond what it must: the look at the traffic, node's end and ours, on a busy machine.
pub const SLACK: Duration = Duration::from_secs(1);
/// From the start of a pod to that of the next: on few cores, all at once would be slow for all.
const STAGGER: Duration = Duration::from_millis(100);
/// A stop that takes longer hangs.
const STOP_BOUND: Duration = Duration::from_secs(60);

/// How pods drain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    /// The options that say so.
    pub name: &'static str,
    options: &'static [&'static str],
    least: Duration,
}

impl Drain {
    /// The balancer's time is stated.
    pub const STATED: Drain = Drain {
        name: "`--drain-delay 8s`",
        options: &["--grace-period", "40s", "--drain-delay", "8s"],
        least: Duration::from_secs(8),
    };
    /// It is not: only the traffic tells.
    pub const UNSTATED: Drain = Drain {
        name: "`--drain-delay 1s`",
        options: &["--grace-period", "40s", "--drain-delay", "1s"],
        least: Duration::from_secs(1),
    };
    /// The shortest without a look at the traffic that loses nothing: the balancer's time and the slowest request's.
    pub const FIXED: Drain = Drain {
        name: "`--drain-delay 14s --drain-until delay`",
        options: &["--grace-period", "40s", "--drain-delay", "14s", "--drain-until", "delay"],
        least: Duration::from_secs(14),
    };
}

/// Pods of one kind, which are all replaced.
#[derive(Clone, Copy)]
pub struct Group {
    pub drain: Drain,
    /// Requests per second and pod; the gaps are random.
    pub rate: f64,
    pub pods: usize,
    /// How long a pod serves before its stop request, at most; a second at least.
    pub serves: Duration,
}

/// What came of a group.
pub struct Outcome {
    pub group: Group,
    pub pods: Vec<Replaced>,
}

/// What came of one pod.
pub struct Replaced {
    pub tally: Tally,
    pub stopped: Stopped,
    /// How long the balancer went on routing to it.
    pub routed_on: Duration,
    least: Duration,
}

impl Replaced {
    /// How much longer the stop took than it must: its least length, or the last answer and the quiet window.
    pub fn needless(&self) -> Duration {
        let must = self.last_answer().map_or(Duration::ZERO, |last| last + QUIET).max(self.least);
        self.stopped.took.saturating_sub(must)
    }

    /// From the last answer to the end, if one came after the stop request.
    pub fn after_last_answer(&self) -> Option<Duration> {
        self.last_answer().map(|last| self.stopped.took.saturating_sub(last))
    }

    /// From the stop request to the last answer.
    fn last_answer(&self) -> Option<Duration> {
        self.tally.last_answer?.checked_duration_since(self.stopped.asked)
    }
}

impl Outcome {
    /// Requests that were lost, of all pods.
    pub fn lost(&self) -> u64 {
        self.pods.iter().map(|pod| pod.tally.lost()).sum()
    }

    /// Pods that lost one.
    pub fn losers(&self) -> usize {
        self.pods.iter().filter(|pod| pod.tally.lost() > 0).count()
    }

    /// Requests that were sent.
    pub fn sent(&self) -> u64 {
        self.pods.iter().map(|pod| pod.tally.sent).sum()
    }

    /// The stop that half of the pods did not exceed, and the longest.
    pub fn stops(&self) -> (Duration, Duration) {
        let mut took: Vec<_> = self.pods.iter().map(|pod| pod.stopped.took).collect();
        took.sort_unstable();
        (took[took.len() / 2], took[took.len() - 1])
    }

    /// What speaks against a drain that was to lose nothing and to take no longer than it must.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for Replaced { tally, stopped, routed_on, .. } in self.pods.iter().filter(|pod| pod.tally.lost() > 0) {
            let (number, took, kinds) = (stopped.number, stopped.took, tally.kinds());
            let (drain, words) = (self.group.drain.name, &stopped.last_words);
            faults.push(format!(
                "pod {number} ({drain}) lost {kinds}, gone after {took:.1?}, routed to for {routed_on:.1?}:\n{words}"
            ));
        }
        for pod in self.pods.iter().filter(|pod| pod.needless() > SLACK) {
            let (number, took, words) = (pod.stopped.number, pod.stopped.took, &pod.stopped.last_words);
            let (drain, needless) = (self.group.drain.name, pod.needless());
            faults.push(format!("pod {number} ({drain}) took {took:.1?}, {needless:.1?} more than it must:\n{words}"));
        }
        faults
    }
}

/// Runs the groups side by side. The same seed gives the same traffic and the same moments.
///
/// # Errors
///
/// Where a pod does not get ready or does not end. What was lost is no error here.
pub fn run(groups: &[Group], seed: u64) -> io::Result<Vec<Outcome>> {
    let scratch = tempfile::tempdir()?;
    thread::scope(|scope| {
        let mut number = 0;
        let mut start = |group: Group| {
            number += 1;
            let scratch = scratch.path();
            scope.spawn(move || {
                thread::sleep(STAGGER * number);
                group.replace_one(Pod::start(group.init(), number as usize, scratch)?, seed)
            })
        };
        let running: Vec<_> =
            groups.iter().map(|group| (group, (0..group.pods).map(|_| start(*group)).collect::<Vec<_>>())).collect();
        let outcome = |(group, pods): (&Group, Vec<thread::ScopedJoinHandle<_>>)| {
            let pods = pods.into_iter().map(|pod| pod.join().expect("replacing does not panic"));
            Ok(Outcome { group: *group, pods: pods.collect::<io::Result<_>>()? })
        };
        running.into_iter().map(outcome).collect()
    })
}

impl Group {
    fn init(&self) -> Init {
        Init::Alone { options: self.drain.options, endpoint: false }
    }

    /// Lets the pod serve, and stops it at some moment.
    fn replace_one(&self, mut pod: Pod, seed: u64) -> io::Result<Replaced> {
        let mut dice = Dice::new(seed ^ (pod.number as u64) << 32);
        pod.wait_ready()?;
        let traffic = Traffic { per_second: self.rate, random: true, answer_after, seed: dice.seed() };
        let load = Load::of(pod.app, traffic);
        thread::sleep(dice.seconds(1.0, self.serves.as_secs_f64()));
        let routed_on = dice.seconds(ROUTES_ON.0, ROUTES_ON.1);
        let stopping = pod.stop()?;
        let stopped = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(routed_on);
                load.let_go();
            });
            stopping.wait_gone(STOP_BOUND)
        })?;
        Ok(Replaced { tally: load.finish(), stopped, routed_on, least: self.drain.least })
    }
}

/// One in fifty is slow; of the others, half are quick to an instant.
pub fn answer_after(dice: f64) -> Duration {
    match dice * ONE_IN {
        slow if slow < 1.0 => SLOW,
        _ => QUICK.mul_f64(dice * dice),
    }
}

//! The story of a stop: a line at each step, and one at the end that says it all.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::lifecycle::{DrainEnd, From, Hold, KillReason, Moment, NoDrain, Outcome, Request};
use crate::plan::{Limit, human};
use crate::report::ending::Ending;
use crate::signals::{Sender, Signal};
use crate::tree::process::{Comm, Key};

/// What has been seen of the stop so far.
#[derive(Default)]
pub struct Story {
    asked: Option<(Request, Option<Sender>)>,
    drain: Option<Drained>,
    told: Vec<(Comm, Key, Signal)>,
    /// From the telling to the end.
    stop: Option<Duration>,
    killed: Vec<(Comm, Key)>,
    denied: Vec<(Comm, Key)>,
    /// What happened when, from the stop request on.
    timeline: Vec<(Moment, String)>,
}

/// More lines than this are no timeline any more.
const MOMENTS: usize = 24;

enum Drained {
    For(Duration, DrainEnd, String),
    Not(NoDrain),
}

impl Story {
    /// Something has happened.
    pub fn note(&mut self, now: Moment, what: impl Into<String>) {
        if self.timeline.len() < MOMENTS {
            self.timeline.push((now, what.into()));
        }
    }

    /// What happened since the stop request at `start`, in order, each with its time; nothing if none was asked for.
    pub fn timeline(&mut self, start: Moment) -> Vec<String> {
        self.timeline.sort_by_key(|(at, _)| *at);
        let since = |at: Moment| at.saturating_sub(start).as_secs_f64();
        self.timeline.iter().map(|(at, what)| format!("+{:.3}s {what}", since(*at))).collect()
    }

    /// Who asked.
    pub fn asked(&mut self, request: Request, sender: Option<Sender>) {
        self.asked = Some((request, sender));
    }

    /// There is no drain.
    pub fn no_drain(&mut self, why: NoDrain) {
        self.drain = Some(Drained::Not(why));
    }

    /// The drain is over; `seen` is what was seen of the traffic, or empty.
    pub fn drained(&mut self, time: Duration, why: DrainEnd, seen: String) {
        self.drain = Some(Drained::For(time, why, seen));
    }

    /// Somebody was told.
    pub fn told(&mut self, comm: Comm, key: Key, signal: Signal) {
        self.told.push((comm, key, signal));
    }

    /// Somebody could not be told or killed.
    pub fn denied(&mut self, comm: Comm, key: Key) {
        if !self.denied.iter().any(|(_, known)| *known == key) {
            self.denied.push((comm, key));
        }
    }

    /// Somebody was killed.
    pub fn killed(&mut self, comm: Comm, key: Key) {
        if !self.killed.iter().any(|(_, known)| *known == key) {
            self.killed.push((comm, key));
        }
    }

    /// How long the stop took from the telling on.
    pub fn stopped(&mut self, time: Duration) {
        self.stop = Some(time);
    }

    /// Whether anything is worth telling at the end: a clean exit says nothing.
    pub fn is_worth_telling(&self) -> bool {
        self.asked.is_some() || !self.killed.is_empty()
    }

    /// The one line at the end.
    pub fn end(&self, outcome: &Outcome, ending: Ending, code: u8, used: Option<Duration>, limit: Limit) -> String {
        let mut line = String::new();
        if let Some((request, sender)) = self.asked {
            let _ = write!(line, "stopped: asked by {}; ", Asked(request, sender));
        }
        match &self.drain {
            Some(Drained::For(time, why, seen)) => write!(line, "drained {} ({why}){seen}; ", human(*time)),
            Some(Drained::Not(why)) => write!(line, "no drain ({why}); "),
            None => Ok(()),
        }
        .ok();
        if !self.told.is_empty() {
            let _ = write!(line, "sent {}; ", Names(&self.told));
        }
        if let Some(time) = self.stop {
            let _ = write!(line, "the stop took {}; ", human(time));
        }
        match (outcome.killed, outcome.ended) {
            (None, _) | (Some(KillReason::Linger), Some(_)) => write!(line, "the app {ending}; "),
            // What was killed, and why, follows.
            (Some(_), Some(ended)) => write!(line, "the app {ended}; "),
            (Some(_), None) => write!(line, "the app is still there; "),
        }
        .ok();
        self.kills(&mut line, outcome);
        let _ = write!(line, "exit code {code}");
        match (used, limit) {
            (Some(used), Limit::Stated(limit)) => {
                write!(line, "; {} of the grace period of {} used", human(used), human(limit)).ok();
            }
            (Some(used), Limit::Assumed(limit, _)) => {
                write!(line, "; {} used of an assumed grace period of {}", human(used), human(limit)).ok();
            }
            (Some(used), Limit::Unknown) => {
                write!(line, "; {} used of an unstated grace period", human(used)).ok();
            }
            (None, _) => {}
        }
        line
    }

    fn kills(&self, line: &mut String, outcome: &Outcome) {
        if let Some(why) = outcome.killed {
            let _ = write!(line, "killed by sundown ({why}): {}; ", Plain(&self.killed));
        }
        if outcome.survivors {
            let _ = write!(line, "some outlived even SIGKILL; ");
        }
        if !self.denied.is_empty() {
            let _ = write!(line, "not permitted to signal: {}; ", Plain(&self.denied));
        }
    }
}

/// Who asked, for a person.
pub struct Asked(pub Request, pub Option<Sender>);

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Request::Signal(signal, _), Some(sender)) => write!(f, "{signal} from {sender}"),
            (Request::Signal(signal, From::Kernel), None) => write!(f, "{signal} from {}", Sender::Kernel),
            (Request::Signal(signal, _), None) => write!(f, "{signal}"),
            (Request::PreStop, _) => f.write_str("the preStop hook"),
            (Request::Command, _) => f.write_str("`sundown stop`"),
            (Request::CommandNow, _) => f.write_str("`sundown stop --now`"),
        }
    }
}

struct Names<'a>(&'a [(Comm, Key, Signal)]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, self.0, |f, (comm, key, signal)| write!(f, "{signal} to {} (pid {})", comm.as_str(), key.pid))
    }
}

struct Plain<'a>(&'a [(Comm, Key)]);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing was left");
        }
        list(f, self.0, |f, (comm, key)| write!(f, "{} (pid {})", comm.as_str(), key.pid))
    }
}

/// The first few, and how many more: a line, not a page.
fn list<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    each: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    const SHOWN: usize = 8;
    for (at, item) in items.iter().take(SHOWN).enumerate() {
        if at > 0 {
            f.write_str(", ")?;
        }
        each(f, item)?;
    }
    if items.len() > SHOWN { write!(f, " and {} more", items.len() - SHOWN) } else { Ok(()) }
}

/// What is to come, once a stop was asked for.
pub fn begin(request: Request, sender: Option<Sender>, hold: Hold, kill_in: Option<Duration>) -> String {
    let asked = Asked(request, sender);
    let limit = match kill_in {
        Some(time) => format!("what is left in {} is killed", human(time)),
        None => "no limit is stated, so nothing is killed by sundown".into(),
    };
    match hold {
        Hold::Drain { least, greatest } => {
            let length = match greatest > least {
                true => format!("at least {}, and {} at most while there is traffic", human(least), human(greatest)),
                false => human(least),
            };
            format!("stop asked for by {asked}: readiness fails, draining for {length}, then the app is told; {limit}")
        }
        Hold::None(why) => format!("stop asked for by {asked}: no drain ({why}), the app is told now; {limit}"),
    }
}

impl fmt::Display for NoDrain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeverReady => "the app was never ready",
            Self::NotReady => "its ready check fails",
            Self::ListensOnNothing => "it listens on nothing",
            Self::Database => "it is a database",
            Self::Zero => "none was asked for",
            Self::Hurry => "asked to be quick",
            Self::ChildEnded => "the child has ended",
        })
    }
}

impl fmt::Display for DrainEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimeUp => "its time was up",
            Self::Quiet => "its least time was over and the traffic quiet",
            Self::NoNew => "its least time was over and no new connection came",
            Self::Released => "every balancer had let go and the traffic was quiet",
            Self::Outlived => "what it was to outlive had gone",
            Self::Greatest => "its greatest length was over, and traffic went on",
            Self::ChildEnded => "the child ended",
            Self::Hurry => "cut short on request",
        })
    }
}

impl fmt::Display for KillReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadline => "the grace period was over but for the margin",
            Self::LadderEnd => "the stop signals' time was over",
            Self::Linger => "leftovers after the child's own end",
            Self::Interrupt => "interrupted twice more",
        })
    }
}

//! Tells: joins the process table, the walk, the book of who was told, and kill(2).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::lifecycle::Voice;
use crate::plan::{Ladder, SignalTo};
use crate::signals::{self, DefaultAction, Signal};
use crate::tree::Tree;
use crate::tree::ledger::Ledger;
use crate::tree::process::{Comm, Key, Node};
use crate::tree::program::Server;
use crate::tree::walk::{self, Found, Scene, Target, Wanted};

/// One signal that was sent, or not.
#[derive(Debug)]
pub struct Spoken {
    /// Its name.
    pub comm: Comm,
    /// Who.
    pub key: Key,
    /// Which.
    pub signal: Signal,
    /// A descriptor that becomes readable at its end, where the kernel has them; or why it could not be sent.
    pub sent: io::Result<Option<OwnedFd>>,
}

/// What became of a signal that was to be passed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passed {
    /// Somebody got it.
    On,
    /// Nobody catches it, and it would have killed or stopped them.
    Held,
    /// Nobody catches it, and its default is to do nothing.
    Idle,
}

/// What a signal means to the apps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// An app stops on it.
    Stop,
    /// An app catches it for something else.
    Caught,
    /// Nobody catches it.
    Nothing,
}

/// What a look in the stopping phase has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Nothing of the tree is left.
    pub empty: bool,
    /// All who were told are gone, and somebody is left who was not.
    pub all_gone: bool,
    /// Something has started, ended or used CPU since the last look.
    pub moved: bool,
}

/// The teller.
pub struct Teller {
    /// The process table.
    pub tree: Tree,
    /// Who was told.
    pub ledger: Ledger,
    ladder: Option<Ladder>,
    /// Where the ladder stands: who hears late hears what the others hear by now, and would hear nothing after it.
    rung: usize,
    to: SignalTo,
    voice: Voice,
    last: Vec<(Key, u64)>,
    patience_is_over: bool,
}

impl Teller {
    /// A teller for this tree.
    pub fn new(tree: Tree, ladder: Option<Ladder>, to: SignalTo) -> Self {
        Self {
            tree,
            ledger: Ledger::default(),
            ladder,
            rung: 0,
            to,
            voice: Voice::Own,
            last: Vec::new(),
            patience_is_over: false,
        }
    }

    /// Tells the apps, each once; called again while some are still too young to hear.
    pub fn tell(&mut self, voice: Voice, serves: &dyn Fn(&[Node]) -> bool) -> Vec<Spoken> {
        self.voice = voice;
        let first = self.ledger.told().is_empty() && self.ledger.early().is_empty();
        let found = match self.to {
            SignalTo::App => self.find(serves, !first),
            SignalTo::Child => self.all(|node, child| node.stat.key.pid == child),
            SignalTo::Group => self.all(|node, child| node.stat.group == child),
            SignalTo::Tree => self.all(|_, _| true),
        };
        self.ledger.set_early(found.early);
        let spoken = self.speak(&found.now);
        self.ledger.note_kin(self.tree.nodes());
        spoken
    }

    /// Sends the ladder's next signal to those who heard the first.
    pub fn climb(&mut self, rung: usize) -> Vec<Spoken> {
        let Some(step) = self.ladder.as_ref().and_then(|ladder| ladder.steps().get(rung)).copied() else {
            return Vec::new();
        };
        self.rung = rung;
        self.tree.look();
        self.ledger.climb(step.signal);
        let nodes = self.tree.nodes();
        let heard = nodes.iter().filter(|node| self.ledger.was_told(node.stat.key));
        heard.map(|node| speak(node, step.signal)).collect()
    }

    /// Tells those who have not heard, once all who were told are gone.
    pub fn tell_rest(&mut self) -> Vec<Spoken> {
        self.tree.look_closely();
        let patient = self.patience_is_over;
        let targets =
            self.targets(|teller, at, signal| teller.ledger.is_next(&teller.tree.nodes()[at], patient, signal));
        self.speak(&targets)
    }

    /// Half of the time is over: tells those too who had more of it.
    pub fn tell_patient(&mut self) -> Vec<Spoken> {
        self.patience_is_over = true;
        self.tree.look_closely();
        if self.ledger.all_gone(self.tree.nodes()) {
            return self.tell_rest();
        }
        let targets = self.targets(|teller, at, signal| teller.ledger.is_waited_for(teller.tree.nodes(), at, signal));
        self.speak(&targets)
    }

    /// Passes a signal on to the apps that catch it.
    pub fn pass_on(&mut self, signal: Signal) -> Passed {
        let nodes = self.tree.look_closely();
        if signal.default_action() == DefaultAction::Continue {
            for node in nodes.iter().filter(|node| node.stat.is_stopped()) {
                let _ = signals::send(node.stat.key.pid, signal);
            }
        }
        let catchers = walk::catchers(nodes, signal);
        for target in &catchers {
            if let Err(error) = send(target.key, signal) {
                tracing::warn!("{signal} could not be passed on to pid {}: {}", target.key.pid, reason(&error));
            }
        }
        match signal.default_action() {
            _ if !catchers.is_empty() => Passed::On,
            DefaultAction::Ignore | DefaultAction::Continue => Passed::Idle,
            DefaultAction::Terminate | DefaultAction::Stop => Passed::Held,
        }
    }

    /// What this signal means to the apps that run now.
    pub fn meaning(&mut self, signal: Signal) -> Meaning {
        let nodes = self.tree.look_closely();
        let stops = |target: &Target| {
            let node = &nodes[target.at];
            node.program.stop_signal == Some(signal) && node.mask.catches(signal)
        };
        if walk::own_apps(nodes).iter().any(stops) {
            Meaning::Stop
        } else if walk::catchers(nodes, signal).is_empty() {
            Meaning::Nothing
        } else {
            Meaning::Caught
        }
    }

    /// Looks at the tree with all that the questions below need to know.
    pub fn look(&mut self) {
        self.tree.look_closely();
    }

    /// Whether one of the apps seen at the last look is a database.
    pub fn is_database(&self) -> bool {
        let nodes = self.tree.nodes();
        walk::own_apps(nodes).iter().any(|target| nodes[target.at].program.database)
    }

    /// The server that the app is, if it is one whose settings are known.
    pub fn server(&self) -> Option<Server> {
        let nodes = self.tree.nodes();
        walk::own_apps(nodes).iter().find_map(|target| nodes[target.at].program.server)
    }

    /// Those seen at the last look whom we have no right to signal, with their user.
    pub fn out_of_reach(&self) -> Vec<(Comm, i32, Option<u32>)> {
        let nodes = self.tree.nodes();
        let denied = |node: &&Node| {
            let pid = nix::unistd::Pid::from_raw(node.stat.key.pid);
            nix::sys::signal::kill(pid, None) == Err(nix::errno::Errno::EPERM)
        };
        nodes.iter().filter(denied).map(|node| (node.stat.comm, node.stat.key.pid, node.mask.uid())).collect()
    }

    /// The signal by which this one would be told.
    pub fn stop_signal(&self, node: &Node) -> Signal {
        walk::choose(node, self.wanted(node))
    }

    /// Looks at what is left.
    pub fn watch(&mut self) -> Seen {
        self.tree.look_closely();
        let nodes = self.tree.nodes();
        self.ledger.note_kin(nodes);
        let now = nodes.iter().map(|node| (node.stat.key, node.stat.cpu));
        let moved = !now.clone().eq(self.last.iter().copied());
        self.last.clear();
        self.last.extend(now);
        let empty = nodes.is_empty() && !self.tree.is_blind();
        Seen { empty, all_gone: !empty && self.ledger.all_gone(nodes), moved }
    }

    /// Sends SIGKILL to all that is left, parents first, so that none starts another.
    pub fn kill(&mut self) -> Vec<Spoken> {
        self.tree.look().iter().map(|node| speak(node, Signal::KILL)).collect()
    }

    fn find(&mut self, serves: &dyn Fn(&[Node]) -> bool, again: bool) -> Found {
        self.tree.look_closely();
        let said = self.said();
        let (voice, uptime) = (self.voice, uptime());
        let scene = Scene {
            nodes: self.tree.nodes(),
            wanted: |node: &Node| walk::stop_signals(node, voice, said),
            age: &|node| age(node, uptime),
            serves,
        };
        let mut found = walk::apps(&scene, again.then_some(self.ledger.early()));
        if again && !self.ledger.told().is_empty() {
            // Where somebody has heard, one who still does not catch the signal is left to the rounds.
            found.now.retain(|target| scene.nodes[target.at].mask.catches(target.signal));
        }
        found
    }

    fn all(&mut self, wanted: impl Fn(&Node, i32) -> bool) -> Found {
        self.tree.look_closely();
        let child = self.tree.child();
        let now = self.targets(|teller, at, _| wanted(&teller.tree.nodes()[at], child));
        Found { now, early: Vec::new() }
    }

    fn targets(&self, wanted: impl Fn(&Self, usize, Signal) -> bool) -> Vec<Target> {
        let nodes = self.tree.nodes().iter().enumerate();
        let target = |(at, node): (usize, &Node)| Target { at, key: node.stat.key, signal: self.stop_signal(node) };
        nodes.map(target).filter(|target| wanted(self, target.at, target.signal)).collect()
    }

    fn wanted(&self, node: &Node) -> Wanted {
        walk::stop_signals(node, self.voice, self.said())
    }

    fn said(&self) -> Option<Signal> {
        self.ladder.as_ref().and_then(|ladder| ladder.steps().get(self.rung)).map(|step| step.signal)
    }

    fn speak(&mut self, targets: &[Target]) -> Vec<Spoken> {
        let mut spoken = Vec::new();
        for target in targets {
            let node = &self.tree.nodes()[target.at];
            if self.ledger.tell(node, target.signal) {
                spoken.push(speak(node, target.signal));
            }
        }
        spoken
    }
}

fn speak(node: &Node, signal: Signal) -> Spoken {
    let key = node.stat.key;
    let sent = send(key, signal);
    if node.stat.is_stopped() && signal != Signal::KILL {
        // It would never get to handle what it was sent.
        let _ = signals::send(key.pid, Signal::CONT);
    }
    Spoken { comm: node.stat.comm, key, signal, sent }
}

/// Sends a signal to this process and to no later one of the same pid (pidfd_send_signal(2)), and gives the descriptor by
/// which its end is seen: that of a grandchild raises no SIGCHLD with us.
fn send(key: Key, signal: Signal) -> io::Result<Option<OwnedFd>> {
    // SAFETY: takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, key.pid, 0) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ESRCH) => Err(error),
            // Linux before 5.3, gVisor, a seccomp filter, no descriptor left.
            _ => signals::send(key.pid, signal).map(|()| None),
        };
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    // Where it cannot be read (no descriptor is left, /proc is hidden), nothing says that it is another.
    if key.start != 0 && start_of(key.pid).is_some_and(|start| start != key.start) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    let null = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open; null asks for what kill(2) would send.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal.number(), null, 0) };
    if sent == 0 {
        return Ok(Some(fd));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ESRCH) => Err(error),
        // A seccomp filter may allow the one call and not the other; if it was no filter, kill(2) says the same.
        _ => signals::send(key.pid, signal).map(|()| Some(fd)),
    }
}

fn start_of(pid: i32) -> Option<u64> {
    let mut reader = crate::tree::process::Reader::default();
    crate::tree::process::Stat::parse(reader.read(pid, "stat").ok()?).map(|stat| stat.key.start)
}

/// Why a signal could not be sent, and the way out.
pub fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => "not permitted: it runs as another user and sundown lacks CAP_KILL (run both as one user, or add the capability KILL)".into(),
        _ => error.to_string(),
    }
}

/// The time since boot, which the start times of processes count from; suspended time included.
fn uptime() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    time.map_or(Duration::MAX, Duration::from)
}

fn age(node: &Node, uptime: Duration) -> Duration {
    // The kernel tells start times in hundredths of a second, whatever its own HZ (USER_HZ).
    uptime.saturating_sub(Duration::from_millis(node.stat.key.start * 10))
}

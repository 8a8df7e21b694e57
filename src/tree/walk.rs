//! The app behind the wrappers: who in the tree is to hear a signal. Pure.
//!
//! Walk down from our children: a process that catches the signal and is no wrapper is an app, and the walk goes no deeper
//! there, so a master hears and its workers do not. A wrapper, or a process that does not catch the signal, is passed by.
//! If nothing catches it, the leaves hear.

use std::time::Duration;

use crate::lifecycle::Voice;
use crate::signals::Signal;
use crate::tree::process::{Key, Node};
use crate::tree::program::Kind;

/// Somebody who is to hear, and what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Where it stands in the list of nodes.
    pub at: usize,
    /// Who.
    pub key: Key,
    /// What.
    pub signal: Signal,
}

/// The signals that a process may be sent, best first; the first that it catches is the one.
pub type Wanted = [Option<Signal>; 2];

/// Which signals a process stops on.
pub fn stop_signals(node: &Node, voice: Voice, said: Option<Signal>) -> Wanted {
    match (voice, said, node.program.stop_signal) {
        (Voice::Interrupt, ..) => [Some(Signal::INT), Some(Signal::TERM)],
        (_, Some(said), _) => [Some(said), None],
        (_, None, Some(own)) => [Some(own), Some(Signal::TERM)],
        (Voice::OwnElseInterrupt, None, None) => [Some(Signal::INT), Some(Signal::TERM)],
        (Voice::Own, None, None) => [Some(Signal::TERM), None],
    }
}

/// The signal that this process would be told by: one that it catches, or else one that it does not ignore.
pub fn choose(node: &Node, wanted: Wanted) -> Signal {
    let signals = wanted.into_iter().flatten();
    let caught = signals.clone().find(|signal| node.mask.catches(*signal));
    let not_ignored = |signal: &Signal| !node.mask.ignores(*signal);
    // A preset that is not caught gives way to TERM, the last of the two; but INT was asked for by name.
    let uncaught = || match wanted[0] {
        Some(Signal::INT) => signals.clone().find(not_ignored),
        _ => signals.clone().rev().find(not_ignored),
    };
    caught.or_else(uncaught).or_else(|| signals.clone().next()).unwrap_or(Signal::TERM)
}

fn catches(node: &Node, wanted: Wanted) -> Option<Signal> {
    wanted.into_iter().flatten().find(|signal| node.mask.catches(*signal))
}

/// The time after which a program has set up what it will ever set up.
pub const GROWN_UP: Duration = Duration::from_secs(3);
/// The time after which a shell catches what its script has trapped, and nothing else; and after which a program that a
/// start script has run is more than a step of it.
const JUST_FORKED: Duration = Duration::from_millis(100);

/// What the walk needs to know beside the nodes.
pub struct Scene<'a, W: Fn(&Node) -> Wanted> {
    /// The members of the tree, parents first.
    pub nodes: &'a [Node],
    /// The signals for each.
    pub wanted: W,
    /// How long ago a node was forked.
    pub age: &'a dyn Fn(&Node) -> Duration,
    /// Whether the app serves already: it listens, or its ready check passes. Asked only where it matters.
    pub serves: &'a dyn Fn(&[Node]) -> bool,
}

/// What the walk has found.
#[derive(Default, Debug)]
pub struct Found {
    /// They are to hear now.
    pub now: Vec<Target>,
    /// They are to hear later: a signal before their handler is set would be lost, or kill them.
    pub early: Vec<Key>,
}

impl Found {
    fn is_empty(&self) -> bool {
        self.now.is_empty() && self.early.is_empty()
    }
}

/// Finds the apps. With `below`, only among these processes and what descends from them.
pub fn apps<W: Fn(&Node) -> Wanted>(scene: &Scene<'_, W>, below: Option<&[Key]>) -> Found {
    let mut found = Found::default();
    let nodes = scene.nodes;
    // Parents stand in front of their children, so one pass hands both marks down.
    let mut covered = vec![false; nodes.len()];
    let mut inside = vec![below.is_none(); nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        inside[at] |=
            node.parent.is_some_and(|parent| inside[parent]) || below.is_some_and(|keys| keys.contains(&node.stat.key));
        covered[at] = node.parent.is_some_and(|parent| covered[parent]);
        let is_wrapper = node.program.wrapper && (node.has_children || is_young(scene, node));
        if covered[at] || !inside[at] || is_wrapper {
            continue;
        }
        if node.program.helper {
            covered[at] = true;
            continue;
        }
        let Some(signal) = catches(node, (scene.wanted)(node)) else { continue };
        covered[at] = true;
        if is_too_early(scene, node) {
            found.early.push(node.stat.key);
        } else {
            found.now.push(Target { at, key: node.stat.key, signal });
        }
    }
    let leaves = || (0..nodes.len()).filter(|at| inside[*at] && !covered[*at] && !nodes[*at].has_children);
    found.early.extend(leaves().filter(|at| may_yet_be_one(scene, *at)).map(|at| nodes[at].stat.key));
    if found.is_empty() {
        found.now.extend(leaves().map(|at| target(scene, at)));
    }
    found
}

fn target<W: Fn(&Node) -> Wanted>(scene: &Scene<'_, W>, at: usize) -> Target {
    let node = &scene.nodes[at];
    Target { at, key: node.stat.key, signal: choose(node, (scene.wanted)(node)) }
}

fn is_young<W: Fn(&Node) -> Wanted>(scene: &Scene<'_, W>, node: &Node) -> bool {
    (scene.age)(node) < GROWN_UP
}

/// Whether that it catches the signal does not say yet that it will act on it.
fn is_too_early<W: Fn(&Node) -> Wanted>(scene: &Scene<'_, W>, node: &Node) -> bool {
    // bash catches TERM for moments in what it has just forked, whatever its script traps.
    let forked = node.program.kind == Kind::Shell && (scene.age)(node) < JUST_FORKED;
    forked || is_young(scene, node) && proves_nothing(node) && !(scene.serves)(scene.nodes)
}

/// Runtimes catch nearly everything from their first moment on, whether the application has a handler or not.
fn proves_nothing(node: &Node) -> bool {
    const GO_CATCHES_AT_LEAST: u32 = 40;
    let everything =
        matches!(node.mask, crate::tree::process::Mask::Known { caught, .. } if caught.len() >= GO_CATCHES_AT_LEAST);
    node.program.kind == Kind::Runtime || everything
}

/// A process without children that may still become an app, start one, or make way for one.
fn may_yet_be_one<W: Fn(&Node) -> Wanted>(scene: &Scene<'_, W>, at: usize) -> bool {
    let node = &scene.nodes[at];
    let may_catch = node.program.wrapper || node.program.kind != Kind::Plain;
    // A step of a start script, such as `basename`: ended half-way, it would take the script with it.
    let is_in_start = |parent: &Node| parent.program.kind == Kind::Shell && is_young(scene, parent);
    let is_step = node.parent.is_some_and(|parent| is_in_start(&scene.nodes[parent]));
    may_catch && is_young(scene, node) || is_step && (scene.age)(node) < JUST_FORKED
}

/// The apps by their own stop signals, as if all were grown up.
pub fn own_apps(nodes: &[Node]) -> Vec<Target> {
    let wanted = |node: &Node| stop_signals(node, Voice::Own, None);
    apps(&Scene { nodes, wanted, age: &|_| Duration::MAX, serves: &|_| true }, None).now
}

/// Who catches a signal that is to be passed on; nobody if it would hit a process that does not.
pub fn catchers(nodes: &[Node], signal: Signal) -> Vec<Target> {
    let scene = Scene { nodes, wanted: |_: &Node| [Some(signal), None], age: &|_| Duration::MAX, serves: &|_| true };
    let mut found = apps(&scene, None).now;
    found.retain(|target| nodes[target.at].mask.surely_catches(signal));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::SigSet;
    use crate::tree::process::{Comm, Mask, Stat};
    use crate::tree::program::Program;

    /// A tree in words: `depth name flags`, a line each; `c` catches TERM, `w` is a wrapper, `y` is young, `f` just
    /// forked, `b` unreadable.
    fn tree(lines: &[(usize, &str, &str)]) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        let mut path: Vec<usize> = Vec::new();
        for (pid, (depth, name, flags)) in lines.iter().enumerate() {
            path.truncate(*depth);
            let parent = path.last().copied();
            if let Some(parent) = parent {
                nodes[parent].has_children = true;
            }
            path.push(pid);
            nodes.push(node(pid as i32, parent, name, flags));
        }
        nodes
    }

    fn node(pid: i32, parent: Option<usize>, name: &str, flags: &str) -> Node {
        let mut program = Program::of(name.as_bytes(), name, false, &[]);
        program.wrapper = flags.contains('w');
        let caught = if flags.contains('c') { SigSet::EMPTY.with(Signal::TERM) } else { SigSet::EMPTY };
        let mask = match flags.contains('b') {
            true => Mask::Unreadable,
            false => Mask::Known { caught, awaited: SigSet::EMPTY, ignored: SigSet::EMPTY, uid: 0 },
        };
        // The age in milliseconds.
        let cpu = if flags.contains('f') {
            50
        } else if flags.contains('y') {
            1000
        } else {
            10_000
        };
        let stat = Stat {
            key: Key { pid, start: 0 },
            parent: 0,
            group: 0,
            state: b'S',
            has_terminal: false,
            threads: 1,
            cpu,
            comm: Comm::new(name.as_bytes()),
        };
        Node { stat, parent, has_children: false, program, mask }
    }

    fn find(lines: &[(usize, &str, &str)], serves: bool) -> (Vec<String>, Vec<String>) {
        let nodes = tree(lines);
        let age = |node: &Node| Duration::from_millis(node.stat.cpu);
        let wanted = |node: &Node| stop_signals(node, Voice::Own, None);
        let found = apps(&Scene { nodes: &nodes, wanted, age: &age, serves: &|_| serves }, None);
        let name = |pid: i32| nodes[pid as usize].stat.comm.as_str().to_owned();
        (
            found.now.iter().map(|target| name(target.key.pid)).collect(),
            found.early.iter().map(|key| name(key.pid)).collect(),
        )
    }

    fn told(lines: &[(usize, &str, &str)]) -> Vec<String> {
        let (now, early) = find(lines, true);
        assert!(early.is_empty());
        now
    }

    #[test]
    fn the_app_behind_its_wrappers_hears_and_its_workers_do_not() {
        assert_eq!(told(&[(0, "npm", "wc"), (1, "sh", ""), (2, "node", "c"), (3, "worker", "c")]), ["node"]);
        assert_eq!(told(&[(0, "gunicorn", "c"), (1, "w1", "c"), (1, "w2", "c")]), ["gunicorn"]);
    }

    #[test]
    fn a_shell_with_a_trap_is_the_app() {
        assert_eq!(told(&[(0, "bash", "c"), (1, "node", "c")]), ["bash"]);
    }

    #[test]
    fn each_branch_has_its_app() {
        assert_eq!(told(&[(0, "sh", ""), (1, "a", "c"), (1, "b", "c"), (1, "tee", "")]), ["a", "b"]);
        assert_eq!(told(&[(0, "tail", ""), (0, "daemon", "c")]), ["daemon"]);
    }

    #[test]
    fn where_nothing_catches_the_leaves_hear() {
        assert_eq!(told(&[(0, "sh", ""), (1, "sleep", ""), (1, "x", ""), (2, "y", "")]), ["sleep", "y"]);
        assert_eq!(told(&[(0, "yarn", "wc")]), ["yarn"]);
    }

    #[test]
    fn what_cannot_be_read_counts_as_catching() {
        assert_eq!(told(&[(0, "sh", ""), (1, "x", "b"), (2, "y", "c")]), ["x"]);
    }

    #[test]
    fn a_signal_that_comes_too_early_is_kept() {
        let early = |lines: &[(usize, &str, &str)], serves| find(lines, serves).1;
        assert_eq!(early(&[(0, "yarn", "wcy")], true), ["yarn"]);
        assert_eq!(early(&[(0, "sh", "y")], true), ["sh"]);
        assert_eq!(early(&[(0, "python3", "y")], true), ["python3"]);
        assert_eq!(early(&[(0, "env", "y")], true), ["env"]);
        assert_eq!(early(&[(0, "node", "cy")], false), ["node"]);
        assert!(early(&[(0, "node", "cy")], true).is_empty());
        assert_eq!(early(&[(0, "bash", "y"), (1, "bash", "cf")], true), ["bash"]);
        assert_eq!(early(&[(0, "bash", "y"), (1, "basename", "f")], true), ["basename"]);
        assert!(early(&[(0, "bash", ""), (1, "basename", "f")], true).is_empty(), "no start script runs for ever");
        assert!(early(&[(0, "bash", "cy"), (1, "node", "c")], true).is_empty());
        assert!(early(&[(0, "python3", "cy")], false).is_empty());
        assert!(early(&[(0, "sleep", "y")], false).is_empty());
        assert_eq!(find(&[(0, "sh", "y"), (1, "sleep", "y")], false).0, ["sleep"]);
    }

    #[test]
    fn a_stop_signal_that_is_not_caught_gives_way_to_term() {
        let mut nodes = tree(&[(0, "nginx", "c")]);
        let wanted = stop_signals(&nodes[0], Voice::Own, None);
        assert_eq!(wanted, [Some(Signal::QUIT), Some(Signal::TERM)]);
        assert_eq!(choose(&nodes[0], wanted), Signal::TERM);
        nodes[0].mask = Mask::Known {
            caught: SigSet::EMPTY.with(Signal::QUIT),
            awaited: SigSet::EMPTY,
            ignored: SigSet::EMPTY,
            uid: 0,
        };
        assert_eq!(choose(&nodes[0], wanted), Signal::QUIT);
        nodes[0].mask = Mask::Known {
            caught: SigSet::EMPTY,
            awaited: SigSet::EMPTY,
            ignored: SigSet::EMPTY.with(Signal::TERM),
            uid: 0,
        };
        assert_eq!(choose(&nodes[0], wanted), Signal::QUIT, "what it ignores tells it nothing");
    }

    #[test]
    fn an_interrupt_stays_one_where_nothing_is_caught() {
        let nodes = tree(&[(0, "sleep", ""), (0, "app", "c")]);
        let wanted = |at: usize| stop_signals(&nodes[at], Voice::Interrupt, None);
        assert_eq!(choose(&nodes[0], wanted(0)), Signal::INT);
        assert_eq!(choose(&nodes[1], wanted(1)), Signal::TERM, "it catches TERM and not INT");
    }

    #[test]
    fn a_signal_is_passed_on_only_to_who_catches_it() {
        let nodes = tree(&[(0, "npm", "wc"), (1, "sh", ""), (2, "node", "c")]);
        assert_eq!(catchers(&nodes, Signal::TERM).len(), 1);
        assert!(catchers(&nodes, Signal::HUP).is_empty());
    }
}

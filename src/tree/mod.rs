//! The tree: all that descends from our child, what has come to us by adoption and carries our mark, and nobody else.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use nix::dir::Dir;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

pub mod helpers;
pub mod ledger;
pub mod process;
pub mod program;
pub mod teller;
pub mod walk;

use crate::signals::Signal;
use helpers::Helpers;
use process::{Key, Mask, Node, Reaction, Reader, Stat};
use program::{Kind, Program};

/// The variable that marks the child's tree, without `SUNDOWN_`.
pub const MARK_SUFFIX: &str = "TREE";
/// The variable that marks the child's tree: only what descends from the child inherits it, so that what comes to us by
/// adoption can be told from the strays of `docker exec` and of probes.
pub const MARK: &str = "SUNDOWN_TREE";

/// Variables that a reloader gives to the process that runs the app: werkzeug's and django's.
const RELOADED: &[&str] = &["WERKZEUG_RUN_MAIN=", "RUN_MAIN="];

/// Variables that a login or an init script sets anew: they say nothing of where an environment came from.
const COMMON_VARIABLES: &[&str] =
    &["PATH", "HOME", "TERM", "LANG", "SHELL", "USER", "LOGNAME", "PWD", "OLDPWD", "SHLVL", "_", "DEBUG", "container"];

/// The process table, seen from our child.
pub struct Tree {
    proc: Option<Dir>,
    reader: Reader,
    me: i32,
    child: i32,
    child_is_reaped: bool,
    mark: String,
    variables: Vec<Vec<u8>>,
    wrappers: Vec<String>,
    helpers: Rc<Helpers>,
    scan: Vec<Stat>,
    nodes: Vec<Node>,
    strays: Vec<Key>,
    verdicts: Vec<(Key, bool)>,
    blind: bool,
}

impl Tree {
    /// The tree of this child. `mark` is the value of [`MARK`] that it was started with, and `environment` names the
    /// variables that we were started with.
    pub fn new(
        child: i32,
        mark: String,
        environment: impl Iterator<Item = OsString>,
        wrappers: Vec<String>,
        helpers: Rc<Helpers>,
    ) -> Self {
        let is_telling = |name: &OsStr| {
            let name = name.to_str().unwrap_or_default();
            !COMMON_VARIABLES.contains(&name) && !name.starts_with("LC_") && !name.starts_with("SUNDOWN_")
        };
        Self {
            proc: open_proc(),
            reader: Reader::default(),
            me: std::process::id() as i32,
            child,
            child_is_reaped: false,
            mark,
            variables: environment
                .filter(|name| is_telling(name))
                .map(|name| [name.as_bytes(), b"="].concat())
                .collect(),
            wrappers,
            helpers,
            scan: Vec::new(),
            nodes: Vec::new(),
            strays: Vec::new(),
            verdicts: Vec::new(),
            blind: false,
        }
    }

    /// The child has been reaped: its pid is not ours any more.
    pub fn child_is_reaped(&mut self) {
        self.child_is_reaped = true;
    }

    /// The child's pid.
    pub fn child(&self) -> i32 {
        self.child
    }

    /// Looks at the process table and takes down who belongs to the tree, parents first, without their signals.
    pub fn look(&mut self) -> &[Node] {
        self.scan_proc();
        self.nodes.clear();
        self.strays.clear();
        self.add_roots();
        self.add_descendants();
        if self.nodes.is_empty() && self.blind && !self.child_is_reaped {
            self.add_unseen_child();
        }
        &self.nodes
    }

    /// Looks, and reads of each member what it is and what it does with signals.
    pub fn look_closely(&mut self) -> &[Node] {
        self.look();
        if self.proc.is_none() {
            self.nodes.iter_mut().for_each(|node| node.mask = Mask::Unreadable);
            return &self.nodes;
        }
        for at in 0..self.nodes.len() {
            let stat = self.nodes[at].stat;
            let line = self.reader.read(stat.key.pid, "cmdline").unwrap_or_default();
            let program = Program::of(line, stat.comm.as_str(), stat.has_terminal, &self.wrappers);
            self.nodes[at].program = program;
            self.nodes[at].mask = self.reader.mask(stat.key.pid, program.kind != Kind::Shell);
        }
        self.find_reloaders();
        &self.nodes
    }

    /// A development server that reloads (flask, django) is two processes with one command line, and the upper one kills the
    /// lower at once when told. Only the lower one's environment tells them apart; what that starts inherits it.
    fn find_reloaders(&mut self) {
        for at in 0..self.nodes.len() {
            let Some(parent) = self.nodes[at].parent else { continue };
            let is_script = |at: usize| self.nodes[at].program.kind == Kind::Interpreter;
            if is_script(at) && is_script(parent) && self.is_reloaded(at) && !self.is_reloaded(parent) {
                self.nodes[parent].program.wrapper = true;
            }
        }
    }

    fn is_reloaded(&mut self, at: usize) -> bool {
        let environment = self.reader.read(self.nodes[at].stat.key.pid, "environ").unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|entry| RELOADED.iter().any(|variable| entry.starts_with(variable.as_bytes())))
    }

    /// The members at the last look.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The strays at the last look: they came to us by adoption and are not of the tree.
    pub fn strays(&self) -> &[Key] {
        &self.strays
    }

    /// What a member is called: `node`, or `yarn` for a script of that name that node runs.
    pub fn name(&self, node: &Node) -> String {
        match std::fs::read(format!("/proc/{}/cmdline", node.stat.key.pid)) {
            Ok(line) if !line.is_empty() => program::name(&line, node.program.wrapper),
            _ => node.stat.comm.as_str().to_owned(),
        }
    }

    /// A member's command in the exec form of a Dockerfile, without the arguments behind its script, which may be secret.
    pub fn exec_form(&self, node: &Node) -> String {
        let line = std::fs::read(format!("/proc/{}/cmdline", node.stat.key.pid)).unwrap_or_default();
        program::exec_form(&line)
    }

    /// What a process does with a signal; none where that cannot be seen.
    pub fn reaction(&mut self, pid: i32, signal: Signal) -> Option<Reaction> {
        self.reader.reaction(pid, signal)
    }

    /// Where in the kernel a process waits.
    pub fn waits_in(&mut self, pid: i32) -> Option<String> {
        self.reader.waits_in(pid)
    }

    /// The members that have dead children which they have not reaped, as of the last look, and how many each.
    pub fn zombies(&self) -> impl Iterator<Item = (&Node, usize)> {
        self.nodes.iter().filter_map(|node| {
            let dead = |stat: &&Stat| stat.parent == node.stat.key.pid && stat.is_gone();
            let count = self.scan.iter().filter(dead).count();
            (count > 0).then_some((node, count))
        })
    }

    /// Whether /proc does not show us our own child: then only wait(2) knows whether anything is left.
    pub fn is_blind(&self) -> bool {
        self.blind
    }

    fn scan_proc(&mut self) {
        self.scan.clear();
        if let Some(proc) = &mut self.proc {
            for entry in proc.iter().flatten() {
                let Some(pid) = entry.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok()) else {
                    continue;
                };
                if let Ok(text) = self.reader.read(pid, "stat")
                    && let Some(stat) = Stat::parse(text)
                {
                    self.scan.push(stat);
                }
            }
        }
        let sees_child = self.scan.iter().any(|stat| stat.key.pid == self.child);
        // Who was hidden once may have left others that are hidden too.
        self.blind |= self.scan.is_empty() || !(sees_child || self.child_is_reaped);
    }

    fn add_roots(&mut self) {
        for at in 0..self.scan.len() {
            let stat = self.scan[at];
            if stat.parent != self.me || stat.is_gone() || self.helpers.has(stat.key.pid) {
                continue;
            }
            if stat.key.pid == self.child && !self.child_is_reaped || self.is_ours_by_adoption(stat.key) {
                self.nodes.push(root(stat));
            } else {
                self.strays.push(stat.key);
            }
        }
        let strays = &self.strays;
        self.verdicts.retain(|(key, ours)| *ours || strays.contains(key));
    }

    /// Breadth first, so that parents stand in front of their children.
    fn add_descendants(&mut self) {
        let mut parent = 0;
        while parent < self.nodes.len() {
            let pid = self.nodes[parent].stat.key.pid;
            for stat in &self.scan {
                if stat.parent == pid && !stat.is_gone() {
                    self.nodes.push(Node { parent: Some(parent), ..root(*stat) });
                    self.nodes[parent].has_children = true;
                }
            }
            parent += 1;
        }
    }

    /// /proc hides it (hidepid, another user's): it is there all the same, and counts as an app of its own.
    fn add_unseen_child(&mut self) {
        let stat = Stat {
            key: Key { pid: self.child, start: 0 },
            parent: self.me,
            group: self.child,
            state: b'?',
            has_terminal: false,
            threads: 1,
            cpu: 0,
            comm: process::Comm::new(b"child"),
        };
        self.nodes.push(root(stat));
    }

    /// Whether a process that was not our child belongs to the tree. Asked once of each: its environment may change later.
    fn is_ours_by_adoption(&mut self, key: Key) -> bool {
        if let Some((_, ours)) = self.verdicts.iter().find(|(known, _)| *known == key) {
            return *ours;
        }
        let ours = match self.reader.read(key.pid, "environ") {
            Ok(environment) => is_ours(environment, &self.mark, &self.variables),
            // Unreadable counts as ours.
            Err(_) => true,
        };
        self.verdicts.push((key, ours));
        ours
    }
}

/// /proc, if it is of our own PID namespace. Another's, as `unshare --pid` leaves it, has strangers under our pids.
fn open_proc() -> Option<Dir> {
    let me = std::fs::read_link("/proc/self").ok()?;
    let is_ours = me.to_str() == Some(std::process::id().to_string().as_str());
    let open = || Dir::open("/proc", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).ok();
    is_ours.then(open).flatten()
}

/// Whether this environment is one of our tree's: it has the mark, or has been swept clean (`env -i`, `su -`, `service`,
/// a process title written over it). The strays of `docker exec` and of probes have the container's variables and no mark.
fn is_ours(environment: &[u8], mark: &str, variables: &[Vec<u8>]) -> bool {
    let entries = environment.split(|byte| *byte == 0);
    let marked = entries.clone().any(|entry| {
        entry
            .strip_prefix(MARK.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="))
            .is_some_and(|value| value.split(|byte| *byte == b'/').any(|part| part == mark.as_bytes()))
    });
    let has = |name: &Vec<u8>| entries.clone().any(|entry| entry.starts_with(name));
    marked || variables.is_empty() || !variables.iter().all(has)
}

fn root(stat: Stat) -> Node {
    Node { stat, parent: None, has_children: false, program: Program::default(), mask: Mask::Unsaid }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_tells_our_tree_from_the_strays() {
        let variables = vec![b"HOSTNAME=".to_vec(), b"APP=".to_vec()];
        let ours = |environment: &str| is_ours(environment.replace(' ', "\0").as_bytes(), "1-7", &variables);
        assert!(ours("APP=1 SUNDOWN_TREE=1-7 HOSTNAME=x"));
        assert!(ours("APP=1 SUNDOWN_TREE=0-3/1-7 HOSTNAME=x"));
        assert!(!ours("APP=1 HOSTNAME=x"), "docker exec has all but the mark");
        assert!(!ours("APP=1 HOSTNAME=x SUNDOWN_TREE=1-70"));
        assert!(ours("PATH=/bin LANG=C TERM=x"), "service(8) sweeps the environment clean");
        assert!(ours(""));
    }
}

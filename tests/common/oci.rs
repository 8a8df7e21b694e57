//! Containers by runc, each from a root file system that holds the binary and, if asked for, a shell.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::common::instance::{BOUND, comes_true};
use crate::common::{self, Output, SUNDOWN};

/// A container's image, user and command.
pub struct Container {
    uid: u32,
    has_shell: bool,
    capabilities: &'static [&'static str],
    seccomp: Option<String>,
    files: Vec<(&'static str, &'static str)>,
    limits: Option<Limits>,
}

/// A control group with limits, seen inside as Docker shows it: read-only.
#[derive(Clone, Copy)]
pub struct Limits {
    /// As the runtime's configuration writes them.
    pub resources: &'static str,
    /// Whether a namespace hides the host's path.
    pub namespace: bool,
}

/// What Docker leaves to root.
const DOCKERS: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

impl Container {
    /// Of root, with Docker's capabilities, and with busybox's shell. The root file system is read-only, and there is no
    /// /dev/termination-log.
    pub fn of_root() -> Self {
        Self { uid: 0, has_shell: true, capabilities: DOCKERS, seccomp: None, files: Vec::new(), limits: None }
    }

    /// The same of nobody, with no capability and no way to one.
    pub fn of_nobody() -> Self {
        Self { uid: common::NOBODY, capabilities: &[], ..Self::of_root() }
    }

    /// With nothing in it but the binary.
    pub fn without_shell(mut self) -> Self {
        self.has_shell = false;
        self
    }

    /// With these capabilities instead.
    pub fn capabilities(mut self, names: &'static [&'static str]) -> Self {
        self.capabilities = names;
        self
    }

    /// Behind this seccomp filter, as the runtime's configuration writes it.
    pub fn seccomp(mut self, filter: String) -> Self {
        self.seccomp = Some(filter);
        self
    }

    /// With one more file in its root, which may be executed.
    pub fn file(mut self, path: &'static str, content: &'static str) -> Self {
        self.files.push((path, content));
        self
    }

    /// In a control group of its own with these limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Runs this command and returns as soon as it is started, when `docker run --detach` would. None, loudly, where there
    /// is no root, no runc or no static busybox.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> Option<Running> {
        let mut container = self.prepare(words)?;
        let mut command = container.command(&["run", "--pid-file", "pid", &container.id]);
        container.runtime = Some(common::spawn(&mut command));
        let is_there = || container.folder.path().join("pid").exists() || container.has_ended();
        assert!(comes_true(is_there), "waited {BOUND:?} for the start");
        assert!(container.folder.path().join("pid").exists(), "{}", container.stderr());
        Some(container)
    }

    /// Makes the container of this command, without starting it.
    #[track_caller]
    pub fn create(&self, words: &[&str]) -> Option<Running> {
        let container = self.prepare(words)?;
        let mut command = container.command(&["create", &container.id]);
        assert_eq!(common::wait(&mut common::spawn(&mut command)), Some(0), "{}", container.stderr());
        Some(container)
    }

    #[track_caller]
    fn prepare(&self, words: &[&str]) -> Option<Running> {
        if !common::is_root("runc") || !common::has_tools(&["runc", "busybox"]) {
            return None;
        }
        let folder = common::directory();
        let root = folder.path().join("rootfs");
        for name in ["bin", "proc", "dev", "sys/fs/cgroup"] {
            fs::create_dir_all(root.join(name)).expect("room for it");
        }
        fs::copy(SUNDOWN, root.join("sundown")).expect("room for it");
        if self.has_shell {
            install_shell(&root);
            if common::run(Command::new("chroot").arg(&root).args(["/bin/busybox", "true"])).code != Some(0) {
                common::skip("busybox is not static (Debian's busybox-static is)");
                return None;
            }
        }
        for (path, content) in &self.files {
            let (parent, name) = path.rsplit_once('/').expect("a folder and a name");
            let parent = root.join(parent);
            fs::create_dir_all(&parent).expect("room for it");
            common::write_to(&parent, name, content, 0o755);
        }
        // The folder's name is nobody else's.
        let unique = folder.path().file_name().and_then(|name| name.to_str()).expect("UTF-8").trim_start_matches('.');
        let id = format!("sundown-test-{unique}");
        fs::write(folder.path().join("config.json"), self.config(&id, words)).expect("room for it");
        Some(Running { id, folder, runtime: None })
    }

    /// The smallest configuration that is worth the name.
    fn config(&self, id: &str, words: &[&str]) -> String {
        let Self { uid, capabilities, .. } = self;
        let seccomp = self.seccomp.as_ref().map_or(String::new(), |filter| format!(r#","seccomp":{filter}"#));
        let (args, capabilities) = (list(words), list(capabilities));
        let (mut groups, mut resources) = ("", String::new());
        let mut kinds = vec!["pid", "mount", "ipc", "uts", "network"];
        if let Some(limits) = self.limits {
            groups = r#",{"destination":"/sys/fs/cgroup","type":"cgroup","source":"cgroup","options":["nosuid","noexec","nodev","ro"]}"#;
            resources = format!(r#","resources":{}"#, limits.resources);
            kinds.extend(limits.namespace.then_some("cgroup"));
        }
        let namespaces: Vec<_> = kinds.iter().map(|kind| format!(r#"{{"type":"{kind}"}}"#)).collect();
        let namespaces = namespaces.join(",");
        let no_new_privileges = *uid != 0;
        format!(
            r#"{{"ociVersion":"1.0.2","root":{{"path":"rootfs","readonly":true}},
            "process":{{"cwd":"/","args":{args},"env":["PATH=/bin","HOSTNAME=x"],"user":{{"uid":{uid},"gid":{uid}}},
            "noNewPrivileges":{no_new_privileges},
            "capabilities":{{"bounding":{capabilities},"permitted":{capabilities},"effective":{capabilities}}}}},
            "mounts":[{{"destination":"/proc","type":"proc","source":"proc"}},
            {{"destination":"/dev","type":"tmpfs","source":"tmpfs"}}{groups}],
            "linux":{{"cgroupsPath":"/{id}","namespaces":[{namespaces}]{resources}{seccomp}}}}}"#
        )
    }
}

/// A list in JSON. The words are ASCII without control characters, of which Rust's notation is JSON's.
fn list(words: &[&str]) -> String {
    format!("{words:?}")
}

fn install_shell(root: &Path) {
    let path = common::path();
    let busybox = path.split(':').map(|folder| Path::new(folder).join("busybox")).find(|file| file.exists());
    fs::copy(busybox.expect("it was looked for"), root.join("bin/busybox")).expect("room for it");
    for name in ["sh", "sleep", "umount", "setsid", "httpd", "dd"] {
        symlink("busybox", root.join("bin").join(name)).expect("room for it");
    }
}

/// A container; dropped, it is deleted.
pub struct Running {
    id: String,
    folder: TempDir,
    /// The runtime, which stays until the container's end and gives its exit code.
    runtime: Option<Child>,
}

impl Running {
    /// Starts one that was only made.
    #[track_caller]
    pub fn start(&self) {
        self.succeeds(&["start", &self.id]);
    }

    /// Limits the number of its threads.
    #[track_caller]
    pub fn limit_pids(&self, most: u32) {
        self.succeeds(&["update", "--pids-limit", &most.to_string(), &self.id]);
    }

    /// Asks it to stop, as `docker stop` does.
    #[track_caller]
    pub fn stop(&self) {
        self.succeeds(&["kill", &self.id, "TERM"]);
    }

    /// Runs a command in it, as its own user, to the end.
    pub fn exec(&self, words: &[&str]) -> Output {
        common::run(&mut self.exec_command(words))
    }

    /// A command that runs in it, as its own user.
    pub fn exec_command(&self, words: &[&str]) -> Command {
        self.runc(&[&["exec", &self.id], words].concat())
    }

    /// Waits until it is over and gives its exit code.
    #[track_caller]
    pub fn code(&mut self) -> Option<i32> {
        assert!(comes_true(|| self.has_ended()), "waited {BOUND:?} for the end; it said {}", self.stderr());
        self.runtime.as_mut().and_then(|runtime| runtime.wait().expect("it is our child").code())
    }

    /// Whether it is over, for one that was made first and started then.
    pub fn is_stopped(&self) -> bool {
        common::run(&mut self.runc(&["state", &self.id])).stdout.contains(r#""status": "stopped""#)
    }

    /// Its PID 1, by the number that it has here.
    pub fn pid(&self) -> i32 {
        common::read(&self.folder.path().join("pid")).parse().expect("a number")
    }

    /// What its PID 1 has of a thing in /proc/PID/status, as it is seen from outside.
    pub fn status(&self, name: &str) -> String {
        let status = common::read(Path::new(&format!("/proc/{}/status", self.pid())));
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.expect("the kernel names it").trim().to_owned()
    }

    /// Waits until it has written this on stderr.
    #[track_caller]
    pub fn wait_stderr(&self, text: &str) {
        assert!(comes_true(|| self.stderr().contains(text)), "waited {BOUND:?} for {text:?}: {}", self.stderr());
    }

    /// Waits until it has written this on stdout.
    #[track_caller]
    pub fn wait_stdout(&self, text: &str) {
        let is_so = || self.stdout().contains(text);
        assert!(comes_true(is_so), "waited {BOUND:?} for {text:?}: {}{}", self.stdout(), self.stderr());
    }

    pub fn stdout(&self) -> String {
        common::read(&self.folder.path().join("stdout"))
    }

    pub fn stderr(&self) -> String {
        common::read(&self.folder.path().join("stderr"))
    }

    fn has_ended(&mut self) -> bool {
        self.runtime.as_mut().is_none_or(|runtime| runtime.try_wait().expect("it is our child").is_some())
    }

    #[track_caller]
    fn succeeds(&self, words: &[&str]) {
        let output = common::run(&mut self.runc(words));
        assert_eq!(output.code, Some(0), "runc {words:?}: {}; the container said {}", output.stderr, self.stderr());
    }

    /// runc, with what the container says going to files.
    fn command(&self, words: &[&str]) -> Command {
        let file = |name: &str| File::create(self.folder.path().join(name)).expect("a file");
        let mut command = self.runc(words);
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        command
    }

    /// runc, which keeps its state in a folder of ours: nobody else's containers can be meant.
    fn runc(&self, words: &[&str]) -> Command {
        let mut command = Command::new("runc");
        command.env("PATH", common::path()).current_dir(self.folder.path());
        command.args(["--root", "state"]).args(words);
        command
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut delete = self.runc(&["delete", "--force", &self.id]);
        // It fails for one that is gone already.
        let _ = delete.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if let Some(runtime) = &mut self.runtime {
            let _ = runtime.kill();
            let _ = runtime.wait();
        }
    }
}

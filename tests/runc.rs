//! Real containers by runc: as root and as nobody without any right, on a read-only root, with a shell and without.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::instance::until;
use tempfile::TempDir;

/// A container's folder and its runtime's process. Dropped, it is deleted.
struct Container {
    id: String,
    folder: TempDir,
    run: Child,
}

impl Container {
    /// Runs `/sundown WORDS` as this user; none where there is no runc, no root or no busybox.
    fn run(name: &str, uid: u32, has_shell: bool, words: &[&str]) -> Option<Self> {
        if !common::is_root("runc") || !common::has_tools(&["runc", "busybox"]) {
            return None;
        }
        let folder = common::directory();
        let root = folder.path().join("rootfs");
        for name in ["bin", "proc", "dev"] {
            fs::create_dir_all(root.join(name)).expect("room for it");
        }
        fs::copy(common::SUNDOWN, root.join("sundown")).expect("the binary");
        if has_shell {
            install_shell(&root.join("bin"));
        }
        let id = format!("sundown-test-{name}-{}", std::process::id());
        fs::write(folder.path().join("config.json"), config(&id, uid, words)).expect("room for it");
        let file = |name: &str| File::create(folder.path().join(name)).expect("a file");
        let mut command = Command::new("runc");
        command.args(["run", &id]).current_dir(folder.path()).stdin(Stdio::null());
        command.stdout(file("stdout")).stderr(file("stderr"));
        let run = common::spawn(&mut command);
        Some(Self { id, folder, run })
    }

    fn runc(&self, words: &[&str]) -> bool {
        let mut command = Command::new("runc");
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        common::wait(&mut common::spawn(&mut command)) == Some(0)
    }

    /// What the container has written.
    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    fn wait_said(&self, text: &str) {
        until(text, || self.said("stdout").contains(text));
    }

    /// Asks it to stop, as the engine does, as soon as there is somebody to ask: before that it is runc's own process that
    /// would hear.
    fn stop(&self) {
        let mut pid = 0;
        until("the container runs", || {
            let mut command = Command::new("runc");
            command.args(["state", &self.id]).stderr(Stdio::null());
            let state = String::from_utf8(command.output().expect("runc").stdout).expect("JSON");
            let number = |text: &str| text.trim_start_matches([':', ' ']).split(',').next()?.trim().parse().ok();
            pid = state.split_once("\"pid\"").and_then(|(_, rest)| number(rest)).unwrap_or(0);
            pid != 0
        });
        common::instance::until_it_can_hear(pid);
        assert!(self.runc(&["kill", &self.id, "TERM"]), "{}", self.said("stderr"));
    }

    fn code(&mut self) -> Option<i32> {
        common::wait(&mut self.run)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.runc(&["delete", "--force", &self.id]);
        let _ = self.run.wait();
    }
}

fn install_shell(bin: &Path) {
    let path = common::path();
    let busybox = path.split(':').map(|folder| Path::new(folder).join("busybox")).find(|file| file.exists());
    fs::copy(busybox.expect("it was looked for"), bin.join("busybox")).expect("room for it");
    for name in ["sh", "sleep"] {
        symlink("busybox", bin.join(name)).expect("room for it");
    }
}

/// The smallest container that is worth the name: no capability, no new privileges, a read-only root.
fn config(id: &str, uid: u32, words: &[&str]) -> String {
    let args: Vec<String> = ["/sundown"].iter().chain(words).map(|word| format!("{word:?}")).collect();
    let namespaces = ["pid", "mount", "ipc", "uts", "network"].map(|kind| format!(r#"{{"type":"{kind}"}}"#)).join(",");
    format!(
        r#"{{"ociVersion":"1.0.2","root":{{"path":"rootfs","readonly":true}},
        "process":{{"cwd":"/","args":[{}],"env":["PATH=/bin","HOSTNAME=x"],"user":{{"uid":{uid},"gid":{uid}}},"noNewPrivileges":true}},
        "mounts":[{{"destination":"/proc","type":"proc","source":"proc"}},{{"destination":"/dev","type":"tmpfs","source":"tmpfs"}}],
        "linux":{{"cgroupsPath":"/{id}","namespaces":[{namespaces}]}}}}"#,
        args.join(",")
    )
}

const APP: &str = "trap 'echo heard; sleep 0.3; echo clean; exit 5' TERM; echo up; while :; do sleep 0.05; done";

#[test]
fn the_app_hears_once_and_cleans_up_as_root_and_as_nobody() {
    for uid in [0, common::NOBODY] {
        let words = ["--log-format", "text", "--", "sh", "-c", APP];
        let Some(mut container) = Container::run(&format!("app{uid}"), uid, true, &words) else { return };
        container.wait_said("up");
        container.stop();
        assert_eq!(container.code(), Some(5), "{}", container.said("stderr"));
        assert_eq!(container.said("stdout"), "up\nheard\nclean\n");
        let log = container.said("stderr");
        assert!(log.lines().all(|line| line.starts_with("sundown: ") && !line.contains("warning")), "{log}");
    }
}

#[test]
fn a_stop_right_after_the_start_is_a_stop() {
    for round in 0..5 {
        let Some(mut container) = Container::run(&format!("early{round}"), 0, true, &["--", "sh", "-c", APP]) else {
            return;
        };
        container.stop();
        let began = Instant::now();
        // 143 where it came before the program was started, 5 where the script had set its trap.
        assert!(matches!(container.code(), Some(143 | 5)), "{}", container.said("stderr"));
        assert!(began.elapsed() < Duration::from_secs(5), "{}", container.said("stderr"));
    }
}

#[test]
fn a_hook_drains_in_an_image_that_has_nothing_else() {
    let words = ["--drain-delay", "1s", "--", "/sundown", "sleep", "100"];
    let Some(mut container) = Container::run("bare", common::NOBODY, false, &words) else { return };
    let user = format!("{0}:{0}", common::NOBODY);
    let exec =
        |words: &[&str]| container.runc(&[&["exec", "--user", &user, &container.id, "/sundown"], words].concat());
    until("it is ready", || exec(&["ready"]));
    let began = Instant::now();
    assert!(exec(&["prestop"]), "{}", container.said("stderr"));
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(container.code(), Some(143), "{}", container.said("stderr"));
}

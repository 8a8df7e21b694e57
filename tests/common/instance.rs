//! A running init with a program behind it, as PID 1 of a namespace of its own or as any other PID.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{SUNDOWN, spawn};

/// How long a condition may take on a busy machine before it counts as never.
pub const BOUND: Duration = Duration::from_secs(20);

/// Something more that is done to the command before it starts.
type Prepare = Box<dyn FnOnce(&mut Command)>;

/// What is to be started, and how.
pub struct Launch {
    init: Vec<String>,
    options: Vec<String>,
    env: Vec<(String, String)>,
    pid1: bool,
    prefix: Vec<String>,
    namespaces: Vec<&'static str>,
    files: Vec<(String, String)>,
    prepare: Vec<Prepare>,
}

impl Default for Launch {
    fn default() -> Self {
        Self {
            init: vec![SUNDOWN.into()],
            options: vec![],
            env: vec![],
            pid1: false,
            prefix: vec![],
            namespaces: vec![],
            files: vec![],
            prepare: vec![],
        }
    }
}

impl Launch {
    /// sundown with these options.
    pub fn sundown(options: &[&str]) -> Self {
        Self { options: options.iter().map(|&option| option.into()).collect(), ..Self::default() }
    }

    /// Another init, for comparison.
    pub fn other(init: &[&str]) -> Self {
        Self { init: init.iter().map(|&word| word.into()).collect(), ..Self::default() }
    }

    /// As PID 1 of a PID namespace. Needs root.
    pub fn pid1(mut self) -> Self {
        self.pid1 = true;
        self
    }

    /// With one more option of unshare(1), such as `--net`.
    pub fn namespace(mut self, option: &'static str) -> Self {
        self.namespaces.push(option);
        self
    }

    /// Through a program that replaces itself by the init, such as `setpriv --reuid 65534`.
    pub fn through(mut self, prefix: &[&str]) -> Self {
        self.prefix = prefix.iter().map(|&word| word.into()).collect();
        self
    }

    /// With something more done to the command, such as a pre_exec.
    pub fn prepared(mut self, prepare: impl FnOnce(&mut Command) + 'static) -> Self {
        self.prepare.push(Box::new(prepare));
        self
    }

    /// With a variable.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// With a file in the instance's folder, which is then where the program starts. It may be executed.
    pub fn file(mut self, name: &str, content: &str) -> Self {
        self.files.push((name.into(), content.into()));
        self
    }

    /// Starts it with this program. In words, options, files and variables, `{dir}` is the instance's folder, and `{app}` and `{node}`
    /// are the fixtures with their record; a word that is nothing else becomes the words of it.
    pub fn start(self, program: &[&str]) -> Instance {
        let folder = super::directory();
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is ours");
        let dir = folder.path().display().to_string();
        let record = format!("{dir}/record");
        fs::write(&record, "").expect("room for it");
        fs::set_permissions(&record, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("it is ours");
        let app = [python(), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/app.py"), &record];
        let node = ["node", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/app.js"), &record];
        let fill = |text: &str| {
            text.replace("{app}", &app.join(" ")).replace("{node}", &node.join(" ")).replace("{dir}", &dir)
        };
        let expand = |word: &&str| match *word {
            "{app}" => app.map(String::from).to_vec(),
            "{node}" => node.map(String::from).to_vec(),
            word => vec![fill(word)],
        };
        for (name, content) in &self.files {
            super::write(&folder, name, fill(content), 0o755);
        }
        let (log, out) = (folder.path().join("stderr"), folder.path().join("stdout"));
        let is_sundown = self.init[0] == SUNDOWN;
        let mut words: Vec<String> = Vec::new();
        if self.pid1 || !self.namespaces.is_empty() {
            words.push("unshare".into());
            words.extend(self.namespaces.iter().map(|&option| option.into()));
            if self.pid1 {
                words.extend(["--fork", "--pid", "--mount-proc", "--kill-child"].map(String::from));
            }
            words.push("--".into());
        }
        words.extend(self.prefix);
        words.extend(self.init);
        words.extend(self.options.iter().map(|option| fill(option)));
        words.push("--".into());
        words.extend(program.iter().flat_map(expand));
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .envs(self.env.iter().map(|(name, value)| (name, fill(value))))
            .env_remove("RUST_BACKTRACE");
        // Where the tests run must not be taken for a platform with limits of its own.
        for platform in ["KUBERNETES_SERVICE_HOST", "ECS_CONTAINER_METADATA_URI_V4", "K_SERVICE", "NOMAD_ALLOC_ID"] {
            if !self.env.iter().any(|(name, _)| name == platform) {
                command.env_remove(platform);
            }
        }
        if !self.files.is_empty() {
            command.current_dir(folder.path());
        }
        command.stdin(Stdio::null());
        command.stdout(File::create(&out).expect("a file")).stderr(File::create(&log).expect("a file"));
        self.prepare.into_iter().for_each(|prepare| prepare(&mut command));
        let process = spawn(&mut command);
        let pid = if self.pid1 { pid_1_below(process.id()) } else { process.id() as i32 };
        if is_sundown {
            until_it_can_hear(pid);
        }
        Instance { process, pid, folder, code: None }
    }
}

/// The interpreter itself: a version manager's shim of that name is a script that starts it a while later.
pub fn python() -> &'static str {
    if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" }
}

/// The namespace's PID 1, by the number that it has here. What ends at once may be gone before it is seen: then a number that
/// no process has.
fn pid_1_below(unshare: u32) -> i32 {
    let mut pid = None;
    until("the namespace has its PID 1", || {
        let status = fs::read_to_string(format!("/proc/{unshare}/status")).unwrap_or_default();
        pid = children(unshare as i32).first().copied();
        pid.is_some() || status.contains("State:\tZ")
    });
    pid.unwrap_or(i32::MAX)
}

/// Waits until the process is sundown, which blocks all signals first of all, and not what goes before it: to `unshare` as
/// PID 1, a signal is nothing, and to `setpriv` it is the end.
pub fn until_it_can_hear(pid: i32) {
    until("sundown can hear", || {
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
        let line = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
        // All but KILL and STOP, which cannot be blocked. One that could not start is gone already.
        line("SigBlk:") == "fffffffffffbfeff" || line("State:").starts_with('Z')
    });
}

/// Fails unless `took` lies between the two.
#[track_caller]
pub fn between(took: Duration, least: Duration, most: Duration) {
    assert!((least..=most).contains(&took), "{took:?} is not between {least:?} and {most:?}");
}

/// Seconds, for short.
pub fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Waits for a condition, [`BOUND`] at most.
#[track_caller]
pub fn until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(comes_true(is_so), "waited {BOUND:?} for: {what}");
}

/// Whether a condition comes true, [`BOUND`] at most.
pub fn comes_true(mut is_so: impl FnMut() -> bool) -> bool {
    let limit = Instant::now() + BOUND;
    while !is_so() {
        if Instant::now() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// It runs; dropped, it is killed with all that is in its namespace, or all that descends from it.
pub struct Instance {
    process: Child,
    /// The init's pid as it is seen from here.
    pub pid: i32,
    folder: TempDir,
    code: Option<i32>,
}

impl Instance {
    /// A file of the instance's folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the init and its program have written on stderr.
    pub fn log(&self) -> String {
        text(&self.file("stderr"))
    }

    /// What they have written on stdout.
    pub fn out(&self) -> String {
        text(&self.file("stdout"))
    }

    /// The lines of the fixtures' record.
    pub fn record(&self) -> Vec<String> {
        text(&self.file("record")).lines().map(str::to_owned).collect()
    }

    /// How often the record says this.
    pub fn count(&self, line: &str) -> usize {
        self.record().iter().filter(|known| *known == line).count()
    }

    /// Whether the record has a line that starts so.
    pub fn has_record(&self, start: &str) -> bool {
        self.record().iter().any(|line| line.starts_with(start))
    }

    /// Waits until the record has a line that starts so, and gives the rest of it.
    #[track_caller]
    pub fn wait_record(&self, start: &str) -> String {
        let mut found = None;
        let wait = || {
            found = self.record().iter().find_map(|line| line.strip_prefix(start).map(|rest| rest.trim().to_owned()));
            found.is_some()
        };
        assert!(comes_true(wait), "waited {BOUND:?} for {start:?} in the record; the log is {}", self.log());
        found.expect("it was waited for")
    }

    /// Waits until the log says this.
    #[track_caller]
    pub fn wait_log(&self, part: &str) {
        assert!(comes_true(|| self.log().contains(part)), "waited {BOUND:?} for {part:?} in the log: {}", self.log());
    }

    /// Sends a signal to the init, from outside of its namespace if it is PID 1 of one.
    pub fn signal(&self, number: i32) {
        // SAFETY: kill takes two numbers; the process is ours and not reaped yet.
        assert_eq!(unsafe { libc::kill(self.pid, number) }, 0, "kill -{number} {}", self.pid);
    }

    /// Whether it runs still.
    pub fn is_running(&mut self) -> bool {
        self.code.is_none() && self.process.try_wait().expect("it is our child").is_none()
    }

    /// Waits for its end and gives the exit code (128 and the number for a signal) and the time from now.
    #[track_caller]
    pub fn wait(&mut self) -> (i32, Duration) {
        let began = Instant::now();
        assert!(comes_true(|| !self.is_running()), "waited {BOUND:?} for the end; the log is {}", self.log());
        (self.end(), began.elapsed())
    }

    /// As [`Self::wait`], but one that does not end is killed.
    pub fn wait_or_kill(&mut self) -> (i32, Duration) {
        let began = Instant::now();
        if !comes_true(|| !self.is_running()) {
            let _ = self.process.kill();
        }
        (self.end(), began.elapsed())
    }

    fn end(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let status = self.process.wait().expect("it is our child");
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        self.code = Some(code);
        code
    }

    /// Runs a command in the instance's namespaces to its end.
    pub fn run(&self, words: &[&str]) -> super::Output {
        super::run(&mut self.exec(words))
    }

    /// A signal to PID 1 from inside of its namespace. How the sender ends says nothing: PID 1's exit may be quicker.
    pub fn signal_from_inside(&self, name: &str) {
        self.run(&["sh", "-c", &format!("kill -{name} 1")]);
    }

    /// A command that enters the instance's namespaces, as `docker exec` does.
    pub fn exec(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid.to_string(), "--mount", "--pid", "--"]).args(words);
        command
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let below = if self.code.is_none() { descendants(self.process.id() as i32) } else { Vec::new() };
        let _ = self.process.kill();
        let _ = self.process.wait();
        for pid in below {
            // SAFETY: kill takes two numbers; a moment ago they were of the tree that we started.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// All that descends from a process, parents first, by the numbers that they have here.
pub fn descendants(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        all.extend(children(*pid));
        next += 1;
    }
    all.split_off(1)
}

/// The children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

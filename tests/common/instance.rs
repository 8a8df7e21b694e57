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

    /// Starts it with this program; `{dir}` in a word is the instance's folder, `{app}` is the fixture with its record.
    pub fn start(self, program: &[&str]) -> Instance {
        let folder = super::directory();
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is ours");
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/app.py");
        let record = folder.path().join("record");
        let app = ["python3".to_owned(), fixture.to_owned(), record.display().to_string()];
        let expand = |word: &&str| match *word {
            "{app}" => app.to_vec(),
            word => vec![word.replace("{app}", &app.join(" ")).replace("{dir}", &folder.path().display().to_string())],
        };
        let (log, out) = (folder.path().join("stderr"), folder.path().join("stdout"));
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
        words.extend(self.options);
        words.push("--".into());
        words.extend(program.iter().flat_map(expand));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(self.env).env_remove("RUST_BACKTRACE");
        command.stdin(Stdio::null());
        command.stdout(File::create(&out).expect("a file")).stderr(File::create(&log).expect("a file"));
        self.prepare.into_iter().for_each(|prepare| prepare(&mut command));
        let process = spawn(&mut command);
        let pid = if self.pid1 { pid_1_below(process.id()) } else { process.id() as i32 };
        Instance { process, pid, folder, code: None }
    }
}

/// The namespace's PID 1, by the number that it has here.
fn pid_1_below(unshare: u32) -> i32 {
    let mut pid = None;
    until("the namespace has its PID 1", || {
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap_or_default();
        pid = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
        pid.is_some()
    });
    pid.expect("it was waited for")
}

/// Waits for a condition, [`BOUND`] at most.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < limit, "waited {BOUND:?} for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// It runs; dropped, it is killed with all that is in its namespace.
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

    /// Waits until the record has a line that starts so, and gives the rest of it.
    #[track_caller]
    pub fn wait_record(&self, start: &str) -> String {
        let mut found = None;
        let wait = || {
            found = self.record().iter().find_map(|line| line.strip_prefix(start).map(|rest| rest.trim().to_owned()));
            found.is_some()
        };
        until(&format!("{start:?} in the record; the log is {}", self.log()), wait);
        found.expect("it was waited for")
    }

    /// Waits until the log says this.
    #[track_caller]
    pub fn wait_log(&self, part: &str) {
        until(&format!("{part:?} in the log, which is {}", self.log()), || self.log().contains(part));
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
        let mut status = None;
        until(&format!("the end; the log is {}", self.log()), || {
            status = self.process.try_wait().expect("it is our child");
            status.is_some()
        });
        use std::os::unix::process::ExitStatusExt;
        let status = status.expect("it was waited for");
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        self.code = Some(code);
        (code, began.elapsed())
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
        // A namespace ends with its PID 1; elsewhere the program would outlive us.
        for pid in descendants(self.process.id() as i32) {
            // SAFETY: takes two numbers.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Those below a process, by their pids.
pub fn descendants(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children: Vec<i32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    children.iter().flat_map(|&child| [vec![child], descendants(child)].concat()).collect()
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

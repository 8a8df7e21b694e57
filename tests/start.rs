//! The start of the program, seen from outside: what it is given, and what is said when it cannot be started.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use tempfile::TempDir;

const SUNDOWN: &str = env!("CARGO_BIN_EXE_sundown");
/// How long anything here may take before it counts as hung.
const BOUND: Duration = Duration::from_secs(20);
const NOBODY: u32 = 65534;

/// Held while a file is written and while a process is forked: a child that is forked meanwhile holds the file open
/// until its exec, and running it would be ETXTBSY.
fn writing_or_forking() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Output {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn spawn(command: &mut Command) -> Child {
    let _lock = writing_or_forking();
    command.spawn().expect("the test's command starts")
}

fn run(command: &mut Command) -> Output {
    let out = tempfile::tempdir().expect("a temporary directory");
    let (stdout, stderr) = (out.path().join("1"), out.path().join("2"));
    command.stdin(Stdio::null());
    command
        .stdout(File::create(&stdout).expect("a file"))
        .stderr(File::create(&stderr).expect("a file"));
    let code = wait(&mut spawn(command));
    Output {
        code,
        stdout: read(&stdout),
        stderr: read(&stderr),
    }
}

fn read(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).expect("the file is there")).into_owned()
}

fn wait(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + BOUND;
    loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            return status.code();
        }
        if Instant::now() > until {
            let _ = child.kill();
            panic!("still running after {BOUND:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn sundown<'a>(argv: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(SUNDOWN);
    command.arg("--").args(argv);
    command
}

/// A directory that any user may read.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    directory
}

fn write(directory: &TempDir, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
    let file = directory.path().join(name);
    let _lock = writing_or_forking();
    fs::write(&file, content).expect("room for it");
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
    file
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Runs `command`, which must fail with that code, no output, and a line that has all these parts.
#[track_caller]
fn fails(command: &mut Command, code: i32, parts: &[&str]) {
    let output = run(command);
    assert_eq!(output.code, Some(code), "{}", output.stderr);
    assert_eq!(output.stdout, "");
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    for part in parts {
        assert!(output.stderr.contains(part), "{part:?} is not in {:?}", output.stderr);
    }
}

fn is_root(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: {what} needs root");
    }
    root
}

/// A 64-bit little-endian ELF file with one program header, for a loader if one is named.
fn elf(machine: u16, loader: &str) -> Vec<u8> {
    let mut bytes = vec![0u8; 120];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &2u16.to_le_bytes());
    put(18, &machine.to_le_bytes());
    put(20, &1u32.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(52, &[64, 0, 56, 0, 1, 0]);
    put(64, &3u32.to_le_bytes());
    put(72, &120u64.to_le_bytes());
    put(96, &(loader.len() as u64 + 1).to_le_bytes());
    [bytes, loader.as_bytes().to_vec(), vec![0]].concat()
}

const THIS_MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
const OTHER_MACHINE: u16 = if cfg!(target_arch = "aarch64") { 62 } else { 183 };

#[test]
fn what_is_not_there_is_127() {
    fails(&mut sundown(["/no/such/file"]), 127, &["/no/such/file: no such file"]);
    fails(
        sundown(["./no-such"]).current_dir("/usr"),
        127,
        &["./no-such: no such file", "working directory is /usr)"],
    );
    fails(
        sundown(["no-such"]).env("PATH", "/a:/b"),
        127,
        &["no-such: no such file in PATH (/a:/b)"],
    );
    fails(
        sundown(["no-such"]).env_remove("PATH"),
        127,
        &["no-such", "/usr/local/sbin:", "PATH is not set"],
    );
    fails(&mut sundown(["sleep 1"]), 127, &["sleep 1", "one word with a space"]);
    fails(&mut sundown(["/bin/sh/x"]), 127, &["/bin/sh/x: no such file"]);
    let directory = directory();
    symlink("gone", directory.path().join("link")).expect("a link");
    fails(
        &mut sundown([text(&directory.path().join("link"))]),
        127,
        &["link: ", "symbolic link to gone"],
    );
}

#[test]
fn what_cannot_be_executed_is_126() {
    let directory = directory();
    let cases: [(&str, Vec<u8>, u32, &[&str]); 6] = [
        (
            "no-x",
            b"#!/bin/sh\n".to_vec(),
            0o644,
            &["no exec permission", "0644", "chmod +x", "COPY --chmod"],
        ),
        ("garbage", b"PK\0\x03".to_vec(), 0o755, &["neither a program nor text"]),
        ("empty", Vec::new(), 0o755, &["is empty"]),
        (
            "cut-off",
            elf(THIS_MACHINE, "/lib/ld.so")[..100].to_vec(),
            0o755,
            &["ELF file but no whole program"],
        ),
        ("no-name", b"#!\necho".to_vec(), 0o755, &["#! without a program"]),
        (
            "library",
            [&elf(THIS_MACHINE, "")[..16], &[1, 0], &elf(THIS_MACHINE, "")[18..]].concat(),
            0o755,
            &["ELF"],
        ),
    ];
    for (name, content, mode, parts) in cases {
        let file = write(&directory, name, content, mode);
        fails(&mut sundown([text(&file)]), 126, &[&[text(&file)], parts].concat());
    }
    fails(&mut sundown(["/usr"]), 126, &["/usr: is a directory"]);
    symlink("ring", directory.path().join("ring")).expect("a link");
    fails(
        &mut sundown([text(&directory.path().join("ring"))]),
        126,
        &["ring: too many symbolic links"],
    );
}

#[test]
fn a_program_for_another_machine_is_told_with_both_names() {
    let directory = directory();
    let file = write(&directory, "jq", elf(OTHER_MACHINE, "/lib/ld.so"), 0o755);
    let (is, this) = if cfg!(target_arch = "aarch64") {
        ("is x86-64", "machine is aarch64")
    } else {
        ("is aarch64", "machine is x86-64")
    };
    fails(&mut sundown([text(&file)]), 126, &["jq: ", is, this]);
}

#[test]
fn a_missing_loader_is_named() {
    let directory = directory();
    let file = write(&directory, "app", elf(THIS_MACHINE, "/lib/ld-musl-none.so.1"), 0o755);
    fails(
        &mut sundown([text(&file)]),
        127,
        &["app: needs /lib/ld-musl-none.so.1, which is not there"],
    );
}

#[test]
fn a_missing_or_broken_interpreter_is_named() {
    let directory = directory();
    let missing = write(&directory, "missing", "#!/no/such/bash -e\n", 0o755);
    fails(
        &mut sundown([text(&missing)]),
        127,
        &["missing: ", "/no/such/bash, which is not there"],
    );
    let windows = write(&directory, "windows", "#!/bin/sh\r\necho\r\n", 0o755);
    fails(
        &mut sundown([text(&windows)]),
        127,
        &["windows: ", "#!/bin/sh, ends as on Windows", "sed -i"],
    );
    let closed = write(&directory, "closed", "#!/bin/sh\n", 0o644);
    let script = write(&directory, "script", format!("#!{}\n", text(&closed)), 0o755);
    fails(
        &mut sundown([text(&script)]),
        126,
        &["script: ", text(&closed), "no exec permission"],
    );
    let text_only = write(&directory, "text", "exit 0\n", 0o755);
    let script = write(&directory, "by-text", format!("#!{}\n", text(&text_only)), 0o755);
    fails(
        &mut sundown([text(&script)]),
        126,
        &["by-text: ", text(&text_only), "is text without #!"],
    );
}

#[test]
fn a_file_that_is_open_for_writing_is_told() {
    let directory = directory();
    let file = write(&directory, "busy", "#!/bin/sh\n", 0o755);
    let _open = File::options().append(true).open(&file).expect("it is ours");
    fails(&mut sundown([text(&file)]), 126, &["busy: is open for writing"]);
}

#[test]
fn another_users_file_is_told_with_both_users() {
    if !is_root("another user") {
        return;
    }
    let directory = directory();
    let copy = write(&directory, "sundown", fs::read(SUNDOWN).expect("our binary"), 0o755);
    let file = write(&directory, "private", "#!/bin/sh\n", 0o700);
    let mut command = Command::new(&copy);
    command.arg("--").arg(&file).uid(NOBODY).gid(NOBODY).current_dir("/");
    fails(
        &mut command,
        126,
        &[
            "private: no exec permission",
            "mode 0700 of user 0",
            "we are user 65534",
        ],
    );
    fs::create_dir(directory.path().join("d")).expect("room for it");
    fs::set_permissions(directory.path().join("d"), fs::Permissions::from_mode(0o700)).expect("it is ours");
    let mut command = Command::new(&copy);
    command
        .arg("--")
        .arg(directory.path().join("d/app"))
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/");
    fails(&mut command, 126, &["d/app: a directory on the way"]);
    let path = format!("{}/d:/no/such", text(directory.path()));
    let mut command = Command::new(&copy);
    command
        .args(["--", "no-such"])
        .env("PATH", path)
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/");
    fails(&mut command, 127, &["no-such: no such file in PATH"]);
}

#[test]
fn a_full_pids_limit_is_told_with_the_way_out() {
    if !is_root("a process limit of another user") {
        return;
    }
    let directory = directory();
    let copy = write(&directory, "sundown", fs::read(SUNDOWN).expect("our binary"), 0o755);
    let mut command = Command::new(copy);
    // A user of its own, so that no other test's processes count.
    command
        .args(["--", "true"])
        .uid(NOBODY - 7)
        .gid(NOBODY)
        .current_dir("/");
    let one = || {
        let limit = libc::rlimit {
            rlim_cur: 1,
            rlim_max: 1,
        };
        // SAFETY: the pointer is to a limit of ours; the kernel only reads it.
        Errno::result(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &limit) })
            .map(drop)
            .map_err(io::Error::from)
    };
    // SAFETY: one system call, async-signal-safe.
    unsafe { command.pre_exec(one) };
    fails(&mut command, 1, &["no further process can be started", "pids limit"]);
}

#[test]
fn a_noexec_mount_is_told() {
    use nix::mount::{MsFlags, mount};
    if !is_root("a mount") {
        return;
    }
    let directory = directory();
    let file = write(&directory, "app", "#!/bin/sh\n", 0o755);
    let here = directory.path().to_owned();
    let none = None::<&str>;
    let mut command = sundown([text(&file)]);
    let noexec = move || {
        // SAFETY: takes flags.
        Errno::result(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some(&here), &here, none, MsFlags::MS_BIND, none)?;
        Ok(mount(
            none,
            &here,
            none,
            MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOEXEC,
            none,
        )?)
    };
    // SAFETY: system calls on paths that fit nix's buffer on the stack: nothing is allocated.
    unsafe { command.pre_exec(noexec) };
    fails(&mut command, 126, &["app: its file system is mounted noexec"]);
}

#[test]
fn text_without_an_interpreter_runs_through_sh() {
    let directory = directory();
    write(&directory, "script", "echo \"$0 $1 $#\"\nexit 3\n", 0o755);
    let path = format!("/no/such:{}:/usr/bin:/bin", text(directory.path()));
    let output = run(sundown(["script", "a b", "c"]).env("PATH", path));
    assert_eq!((output.code, output.stderr.as_str()), (Some(3), ""));
    assert_eq!(output.stdout, format!("{}/script a b 2\n", text(directory.path())));
}

#[test]
fn path_is_searched_past_what_cannot_be_executed() {
    let (first, second) = (directory(), directory());
    write(&first, "tool", "not executable", 0o644);
    write(&second, "tool", "#!/bin/sh\necho second\n", 0o755);
    let path = format!("{}:{}", text(first.path()), text(second.path()));
    let output = run(sundown(["tool"]).env("PATH", &path));
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (Some(0), "second\n"),
        "{}",
        output.stderr
    );
    fs::remove_file(second.path().join("tool")).expect("it is ours");
    fails(
        sundown(["tool"]).env("PATH", &path),
        126,
        &[text(first.path()), "tool: no exec permission"],
    );
}

#[test]
fn arguments_arrive_as_they_were_given() {
    let output = run(&mut sundown(["cat", "/proc/self/cmdline"]));
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (Some(0), "cat\0/proc/self/cmdline\0")
    );
}

#[test]
fn the_child_leads_a_group_of_its_own() {
    let output = run(&mut sundown(["cat", "/proc/self/stat"]));
    let fields: Vec<&str> = output.stdout.split(' ').collect();
    assert_eq!(fields[0], fields[4], "pid and group of {}", output.stdout);
    let own = run(Command::new("cat").arg("/proc/self/stat"));
    let own: Vec<&str> = own.stdout.split(' ').collect();
    assert_eq!(fields[5], own[5], "the session stays");
}

/// The signals that a process is started with: its mask, and whether it ignores SIGPIPE and SIGCHLD.
#[derive(Clone, Copy, Debug)]
struct Signals {
    mask: u64,
    pipe: libc::sighandler_t,
    chld: libc::sighandler_t,
}

fn with_signals(command: &mut Command, signals: Signals) -> &mut Command {
    let set = move || {
        // SAFETY: sets a disposition, and no handler.
        unsafe { libc::signal(libc::SIGPIPE, signals.pipe) };
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGCHLD, signals.chld) };
        let (mask, none) = (&raw const signals.mask, std::ptr::null_mut::<u64>());
        // SAFETY: the mask is eight bytes, the size that is named.
        let done = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, mask, none, 8usize) };
        Errno::result(done).map(drop).map_err(io::Error::from)
    };
    // SAFETY: system calls only, async-signal-safe.
    unsafe { command.pre_exec(set) };
    command
}

#[test]
fn the_child_has_the_mask_and_the_dispositions_that_we_were_given() {
    // USR1, the two that libc hides, RTMIN and RTMAX.
    let some = 1 << 9 | 0b111 << 31 | 1 << 63;
    for mask in [0, some] {
        for (pipe, chld) in [
            (libc::SIG_DFL, libc::SIG_DFL),
            (libc::SIG_IGN, libc::SIG_DFL),
            (libc::SIG_DFL, libc::SIG_IGN),
            (libc::SIG_IGN, libc::SIG_IGN),
        ] {
            let signals = Signals { mask, pipe, chld };
            let argv = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"];
            let mut plain = Command::new(argv[0]);
            let plain = run(with_signals(plain.args(&argv[1..]), signals));
            let ours = run(with_signals(&mut sundown(argv), signals));
            assert_eq!((ours.code, &ours.stdout), (Some(0), &plain.stdout), "{signals:?}");
            assert!(
                ours.stdout.contains(&format!("SigBlk:\t{mask:016x}")),
                "{}",
                ours.stdout
            );
        }
    }
}

/// Closes some of 0 to 2 before the exec.
fn with_closed(command: &mut Command, closed: &'static [i32]) {
    let close = move || {
        for fd in closed {
            // SAFETY: takes a number; nothing of ours uses these descriptors any more.
            unsafe { libc::close(*fd) };
        }
        Ok(())
    };
    // SAFETY: one system call, async-signal-safe.
    unsafe { command.pre_exec(close) };
}

#[test]
fn the_child_has_the_descriptors_that_we_were_given_and_no_other() {
    let directory = directory();
    let list = "open=; for fd in /proc/$$/fd/?; do open=\"$open ${fd##*/}\"; done; echo \"$open\" > \"$0\"";
    let sets: [&[i32]; 6] = [&[], &[0], &[1], &[2], &[0, 2], &[0, 1, 2]];
    for closed in sets {
        let open_in = |name: &str, mut command: Command| {
            let file = directory.path().join(name);
            with_closed(command.args(["-c", list]).arg(&file), closed);
            assert_eq!(run(&mut command).code, Some(0), "{name} without {closed:?}");
            read(&file)
        };
        let plain = open_in("plain", Command::new("/bin/sh"));
        assert_eq!(open_in("ours", sundown(["/bin/sh"])), plain, "without {closed:?}");
    }
}

#[test]
fn a_failure_without_stderr_still_has_its_code() {
    let mut command = sundown(["/no/such/file"]);
    with_closed(&mut command, &[0, 1, 2]);
    assert_eq!(run(&mut command).code, Some(127));
}

#[test]
fn an_image_without_sh_is_told() {
    if !is_root("chroot") {
        return;
    }
    let root = directory();
    write(&root, "sundown", fs::read(SUNDOWN).expect("our binary"), 0o755);
    write(&root, "script", "echo hi\n", 0o755);
    let inside = root.path().to_owned();
    let mut command = Command::new("/sundown");
    command.args(["--", "/script"]);
    let enter = move || {
        nix::unistd::chroot(&inside)?;
        Ok(nix::unistd::chdir("/")?)
    };
    // SAFETY: system calls on short paths: nothing is allocated.
    unsafe { command.pre_exec(enter) };
    fails(
        &mut command,
        127,
        &["/script: is text without #!, and /bin/sh", "no such file"],
    );
    assert_eq!(root.path().metadata().expect("it is there").mode() & 0o777, 0o755);
}

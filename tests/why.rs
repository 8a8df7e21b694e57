//! What is said, and with which code we end, when the program cannot be started: each case with a real file.

mod common;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::*;
use nix::errno::Errno;

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
    fails(sundown(["./no-such"]).current_dir("/usr"), 127, &["./no-such: no such file", "working directory is /usr)"]);
    fails(sundown(["no-such"]).env("PATH", "/a:/b"), 127, &["no-such: no such file in PATH (/a:/b)"]);
    fails(sundown(["no-such"]).env_remove("PATH"), 127, &["no-such", "/usr/local/sbin:", "PATH is not set"]);
    fails(&mut sundown(["sleep 1"]), 127, &["sleep 1", "one word with a space"]);
    fails(&mut sundown(["/bin/sh/x"]), 127, &["/bin/sh/x: no such file"]);
    let directory = directory();
    symlink("gone", directory.path().join("link")).expect("a link");
    fails(&mut sundown([text(&directory.path().join("link"))]), 127, &["link: ", "symbolic link to gone"]);
}

#[test]
fn what_cannot_be_executed_is_126() {
    let directory = directory();
    let cases: [(&str, Vec<u8>, u32, &[&str]); 6] = [
        ("no-x", b"#!/bin/sh\n".to_vec(), 0o644, &["no exec permission", "0644", "chmod +x", "COPY --chmod"]),
        ("garbage", b"PK\0\x03".to_vec(), 0o755, &["neither a program nor text"]),
        ("empty", Vec::new(), 0o755, &["is empty"]),
        ("cut-off", elf(THIS_MACHINE, "/lib/ld.so")[..100].to_vec(), 0o755, &["ELF file but no whole program"]),
        ("no-name", b"#!\necho".to_vec(), 0o755, &["#! without a program"]),
        ("library", [&elf(THIS_MACHINE, "")[..16], &[1, 0], &elf(THIS_MACHINE, "")[18..]].concat(), 0o755, &["ELF"]),
    ];
    for (name, content, mode, parts) in cases {
        let file = write(&directory, name, content, mode);
        fails(&mut sundown([text(&file)]), 126, &[&[text(&file)], parts].concat());
    }
    fails(&mut sundown(["/usr"]), 126, &["/usr: is a directory"]);
    symlink("ring", directory.path().join("ring")).expect("a link");
    fails(&mut sundown([text(&directory.path().join("ring"))]), 126, &["ring: too many symbolic links"]);
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
    fails(&mut sundown([text(&file)]), 127, &["app: needs /lib/ld-musl-none.so.1, which is not there"]);
}

#[test]
fn a_missing_or_broken_interpreter_is_named() {
    let directory = directory();
    let missing = write(&directory, "missing", "#!/no/such/bash -e\n", 0o755);
    fails(&mut sundown([text(&missing)]), 127, &["missing: ", "/no/such/bash, which is not there"]);
    let windows = write(&directory, "windows", "#!/bin/sh\r\necho\r\n", 0o755);
    fails(&mut sundown([text(&windows)]), 127, &["windows: ", "#!/bin/sh, ends as on Windows", "sed -i"]);
    let closed = write(&directory, "closed", "#!/bin/sh\n", 0o644);
    let script = write(&directory, "script", format!("#!{}\n", text(&closed)), 0o755);
    fails(&mut sundown([text(&script)]), 126, &["script: ", text(&closed), "no exec permission"]);
    let text_only = write(&directory, "text", "exit 0\n", 0o755);
    let script = write(&directory, "by-text", format!("#!{}\n", text(&text_only)), 0o755);
    fails(&mut sundown([text(&script)]), 126, &["by-text: ", text(&text_only), "is text without #!"]);
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
    fails(&mut command, 126, &["private: no exec permission", "mode 0700 of user 0", "we are user 65534"]);
    fs::create_dir(directory.path().join("d")).expect("room for it");
    fs::set_permissions(directory.path().join("d"), fs::Permissions::from_mode(0o700)).expect("it is ours");
    let mut command = Command::new(&copy);
    command.arg("--").arg(directory.path().join("d/app")).uid(NOBODY).gid(NOBODY).current_dir("/");
    fails(&mut command, 126, &["d/app: a directory on the way"]);
    let path = format!("{}/d:/no/such", text(directory.path()));
    let mut command = Command::new(&copy);
    command.args(["--", "no-such"]).env("PATH", path).uid(NOBODY).gid(NOBODY).current_dir("/");
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
    command.args(["--", "true"]).uid(NOBODY - 7).gid(NOBODY).current_dir("/");
    let one = || {
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        // SAFETY: the pointer is to a limit of ours; the kernel only reads it.
        Errno::result(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &limit) }).map(drop).map_err(io::Error::from)
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
        Ok(mount(none, &here, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOEXEC, none)?)
    };
    // SAFETY: system calls on paths that fit nix's buffer on the stack: nothing is allocated.
    unsafe { command.pre_exec(noexec) };
    fails(&mut command, 126, &["app: its file system is mounted noexec"]);
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
    fails(&mut command, 127, &["/script: is text without #!, and /bin/sh", "no such file"]);
}

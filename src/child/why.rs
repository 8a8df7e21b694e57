//! Why a program could not be started: each reason with its exit code and a text that names the thing, the cause and
//! the way out.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::elf::Machine;
use super::program::{DEFAULT_PATH, Searched};

/// A start that failed, as it is told and ended with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartError {
    /// The exit code: 127 not found, 126 cannot be executed, 1 our own failure.
    pub code: u8,
    /// One line for the person who has to mend it.
    pub text: String,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for StartError {}

impl From<Reason> for StartError {
    fn from(reason: Reason) -> Self {
        Self { code: reason.code(), text: reason.to_string() }
    }
}

/// Why nothing was started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The command is empty.
    NoName,
    /// An argument or a variable contains a NUL byte, which execve(2) cannot pass on.
    Nul(OsString),
    /// fork(2) failed.
    Fork(Errno),
    /// There was no pipe to hear from the child.
    Pipe(Errno),
    /// /dev/null, which a check is given for its output, cannot be opened or used.
    Null(Errno),
    /// No directory of PATH has a file of that name.
    NotInPath {
        /// The command.
        name: OsString,
        /// Where it was looked for.
        searched: Searched,
    },
    /// There is a file, or a path to one, but it cannot be run.
    File(PathBuf, Fault),
}

/// What is wrong with a file that was to be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It does not exist. For a relative path: the working directory.
    Missing(Option<PathBuf>),
    /// It is a symbolic link to what does not exist.
    Dangling(PathBuf),
    /// It is a directory.
    Directory,
    /// A directory on the way to it may not be entered.
    Closed,
    /// We have no exec permission.
    NotExecutable {
        /// Its permission bits.
        mode: u32,
        /// Its owner.
        owner: u32,
        /// Our effective user.
        user: u32,
    },
    /// It lies on a file system that is mounted noexec.
    NoExecMount,
    /// EACCES though its permissions allow it.
    Denied,
    /// EPERM.
    NotPermitted,
    /// An ELF file for another machine.
    OtherMachine(Machine),
    /// An ELF file that is cut off, or no program.
    BrokenElf,
    /// Its dynamic loader cannot be run.
    Loader {
        /// PT_INTERP.
        loader: PathBuf,
        /// Which loader the image has in its place.
        present: Libc,
        /// What is wrong with it.
        fault: Box<Fault>,
    },
    /// What its `#!` line names cannot be run.
    Interpreter(PathBuf, Box<Fault>),
    /// Its `#!` line ends in CR LF.
    Cr(PathBuf),
    /// Its `#!` line names nothing, or more than the kernel reads.
    NoInterpreter,
    /// It is text without `#!`, and /bin/sh, which would read it, cannot be run.
    Shell(Box<Fault>),
    /// It is text without `#!` where the kernel takes a program only.
    Text,
    /// It has no content.
    Empty,
    /// It is neither a program nor text.
    Binary,
    /// ELOOP.
    Loop,
    /// ETXTBSY.
    Busy,
    /// E2BIG.
    TooBig,
    /// ENOMEM.
    NoMemory,
    /// Any other error of execve(2).
    Other(Errno),
}

/// A family of C libraries, told by the name of its dynamic loader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Libc {
    /// glibc: Debian, Ubuntu, Fedora and most others.
    Glibc,
    /// musl: Alpine.
    Musl,
    /// None that is known.
    Neither,
}

impl Libc {
    /// That of a loader.
    pub fn of_loader(loader: &Path) -> Self {
        match loader.file_name().and_then(|name| name.to_str()) {
            Some(name) if name.starts_with("ld-linux") || name.starts_with("ld64.so") => Self::Glibc,
            Some(name) if name.starts_with("ld-musl-") => Self::Musl,
            _ => Self::Neither,
        }
    }
}

impl Reason {
    /// The exit code that says it, as shells have it.
    pub fn code(&self) -> u8 {
        match self {
            Self::NoName | Self::NotInPath { .. } => 127,
            Self::Nul(_) => 126,
            Self::Fork(_) | Self::Pipe(_) | Self::Null(_) => 1,
            Self::File(_, fault) => fault.code(),
        }
    }
}

impl Fault {
    fn code(&self) -> u8 {
        match self {
            Self::Missing(_) | Self::Dangling(_) | Self::Cr(_) => 127,
            Self::Loader { fault, .. } | Self::Interpreter(_, fault) | Self::Shell(fault) => fault.code(),
            _ => 126,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoName => f.write_str("the command is empty (name a program after --)"),
            Self::Nul(text) => write!(f, "{}: contains a NUL byte, which no program can be given", text.display()),
            Self::Fork(errno @ (Errno::EAGAIN | Errno::ENOMEM)) => {
                write!(f, "no further process can be started: {} ", errno.desc())?;
                f.write_str("(raise the container's pids limit, RLIMIT_NPROC or memory limit)")
            }
            Self::Fork(errno) => write!(f, "no further process can be started: {}", errno.desc()),
            Self::Pipe(errno) => write!(f, "no pipe to the child: {} (raise the limit of open files)", errno.desc()),
            Self::Null(errno) => write!(f, "/dev/null: {} (a check's output goes there)", errno.desc()),
            Self::NotInPath { name, searched } => not_in_path(f, name, searched),
            Self::File(file, fault) => write!(f, "{}: {fault}", file.display()),
        }
    }
}

fn not_in_path(f: &mut fmt::Formatter<'_>, name: &OsString, searched: &Searched) -> fmt::Result {
    let name = name.display();
    match searched {
        Searched::Path(path) => write!(f, "{name}: no such file in PATH ({})", path.display())?,
        Searched::Default => write!(f, "{name}: no such file in {DEFAULT_PATH}, and PATH is not set")?,
    }
    if name.to_string().contains(' ') {
        return f.write_str(
            "; it is one word with a space in it (write [\"node\", \"server.js\"], not [\"node server.js\"])",
        );
    }
    f.write_str("; install it in the image, or give its full path")
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(Some(cwd)) => write!(f, "no such file (the working directory is {})", cwd.display()),
            Self::Dangling(target) => {
                write!(f, "is a symbolic link to {}, which is not there (copy that too)", target.display())
            }
            Self::NotExecutable { mode, owner, user } => {
                write!(f, "no exec permission (mode {mode:04o} of user {owner}, and we are user {user}; ")?;
                f.write_str("chmod +x it, or COPY --chmod=755)")
            }
            Self::OtherMachine(machine) => {
                write!(f, "is {machine}, this machine is {} ", Machine::THIS)?;
                f.write_str("(use an image for this machine: docker build --platform)")
            }
            Self::Loader { loader, present, fault } => loader_fault(f, loader, *present, fault),
            Self::Interpreter(interpreter, fault) => interpreter_fault(f, interpreter, fault),
            Self::Cr(interpreter) => {
                write!(f, "its first line, #!{}, ends as on Windows, in CR LF ", interpreter.display())?;
                f.write_str("(sed -i 's/\\r$//' it, or *.sh text eol=lf in .gitattributes)")
            }
            Self::Shell(fault) => {
                write!(f, "is text without #!, and /bin/sh, which would read it, cannot be run: {fault} ")?;
                f.write_str("(name its interpreter: #!/usr/bin/node)")
            }
            Self::Other(errno) => write!(f, "cannot be run: {} ({errno:?})", errno.desc()),
            fixed => f.write_str(fixed.fixed_text()),
        }
    }
}

impl Fault {
    /// The text of those that have nothing more to tell.
    fn fixed_text(&self) -> &'static str {
        match self {
            Self::Missing(_) => "no such file (is it copied into this image, and not hidden by a volume?)",
            Self::Directory => "is a directory (name the program in it)",
            Self::Closed => "a directory on the way to it may not be entered (give it the permission x)",
            Self::NoExecMount => "its file system is mounted noexec (keep programs elsewhere, or mount it exec)",
            Self::Denied => "permission denied though its mode allows it (see the host's SELinux or AppArmor log)",
            Self::NotPermitted => {
                "operation not permitted (it has file capabilities that the container lacks: add them, or setcap -r \
                 it; or seccomp forbids it)"
            }
            Self::BrokenElf => {
                "is an ELF file but no whole program (cut off, or an object file; build or copy it again)"
            }
            Self::NoInterpreter => "its first line is #! without a program, or too long (write #!/bin/sh)",
            Self::Text => "is text without #!, which cannot interpret others (write #! and its interpreter)",
            Self::Empty => "is empty (build or copy it again)",
            Self::Binary => "is neither a program nor text (an archive, or a download that went wrong?)",
            Self::Loop => "too many symbolic links, or scripts that interpret each other (ls -l the path)",
            Self::Busy => "is open for writing (let it be closed first: write elsewhere, then rename)",
            Self::TooBig => "arguments and environment are too long together (128 KiB each, 2 MiB in all)",
            Self::NoMemory => "not enough memory to start it (raise the container's memory limit)",
            _ => "cannot be run",
        }
    }
}

fn interpreter_fault(f: &mut fmt::Formatter<'_>, interpreter: &Path, fault: &Fault) -> fmt::Result {
    let shown = interpreter.display();
    write!(f, "its first line asks for {shown}, ")?;
    match fault {
        Fault::Missing(_) => write!(f, "which is not there (install it, or change the line #!{shown})"),
        fault => write!(f, "which cannot be run: {fault}"),
    }
}

fn loader_fault(f: &mut fmt::Formatter<'_>, loader: &Path, present: Libc, fault: &Fault) -> fmt::Result {
    let shown = loader.display();
    if !matches!(fault, Fault::Missing(_) | Fault::Dangling(_)) {
        return write!(f, "needs the loader {shown}, which cannot be run: {fault}");
    }
    write!(f, "needs {shown}, which is not there: ")?;
    f.write_str(match (Libc::of_loader(loader), present) {
        (Libc::Glibc, Libc::Musl) => {
            "a glibc binary in a musl image such as Alpine (use a Debian image, or build for musl)"
        }
        (Libc::Musl, Libc::Glibc) => "a musl binary in a glibc image (use an Alpine image, or link it statically)",
        (_, Libc::Neither) => {
            "an image without a dynamic loader (link it statically, CGO_ENABLED=0 for Go, or take an image with a libc)"
        }
        _ => "a binary for another distribution or architecture (use the image that it was built for)",
    })
}

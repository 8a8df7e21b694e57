//! Finds out, from the file itself, what an errno of execve(2) leaves open: ENOENT alone has six meanings.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, faccessat, geteuid};

use super::elf::{Elf, Machine};
use super::exec::{Failure, Stage};
use super::head::{self, Head, Interpreter};
use super::program::Program;
use super::why::{Fault, Libc, Reason};

/// How many interpreters of interpreters the kernel follows (execve(2), ELOOP).
const DEEPEST: u8 = 5;

/// Tells why the child could not become the program. Looks at the files once more, so it can only be as right as they
/// are unchanged.
pub(super) fn diagnose(program: &Program, failure: Failure) -> Reason {
    if failure.stage == Stage::Redirect {
        return Reason::Null(failure.errno);
    }
    let failed = program.files.get(failure.file).map_or(Path::new(""), path);
    match (failure.stage, failure.errno) {
        (Stage::Shell, errno) => {
            let fault = fault_of_file(Path::new("/bin/sh"), errno, 0);
            Reason::File(failed.into(), Fault::Shell(Box::new(fault)))
        }
        // All files were tried in vain: the first that is there at all is the one that was meant.
        (_, errno @ (Errno::ENOENT | Errno::EACCES | Errno::ENOTDIR)) => match meant(program) {
            Some(file) => Reason::File(file.into(), fault_of_file(file, errno, 0)),
            None => not_found(program),
        },
        (_, errno) => Reason::File(failed.into(), fault_of_file(failed, errno, 0)),
    }
}

fn path(file: &CString) -> &Path {
    Path::new(OsStr::from_bytes(file.as_bytes()))
}

/// The first file that is no directory, else the first that is anything but absent or out of sight.
fn meant(program: &Program) -> Option<&Path> {
    let files = || program.files.iter().map(path);
    let is_nowhere = |file: &&Path| match fault_of_path(file) {
        Some(Fault::Missing(_)) => true,
        // A command that is in no other directory of PATH need not be in this one.
        Some(Fault::Closed) => program.searched.is_some(),
        _ => false,
    };
    files().find(|file| fs::metadata(file).is_ok_and(|it| !it.is_dir())).or_else(|| files().find(|it| !is_nowhere(it)))
}

fn not_found(program: &Program) -> Reason {
    match &program.searched {
        Some(searched) => Reason::NotInPath { name: program.name().into(), searched: searched.clone() },
        None => Reason::File(program.name().into(), missing(program.name().as_ref())),
    }
}

fn missing(file: &Path) -> Fault {
    Fault::Missing(if file.is_relative() { std::env::current_dir().ok() } else { None })
}

/// What is wrong on the way to the file, if something is.
fn fault_of_path(file: &Path) -> Option<Fault> {
    let error = match fs::metadata(file) {
        Ok(metadata) if metadata.is_dir() => return Some(Fault::Directory),
        Ok(_) => return None,
        Err(error) => error,
    };
    Some(match (errno_of(&error), fs::read_link(file)) {
        (Errno::ENOENT, Ok(target)) => Fault::Dangling(target),
        (Errno::ENOENT | Errno::ENOTDIR, _) => missing(file),
        (Errno::EACCES, _) => Fault::Closed,
        (Errno::ELOOP, _) => Fault::Loop,
        (errno, _) => Fault::Other(errno),
    })
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

/// What is wrong with a file of which execve said `errno`, as a program or, `depth` levels down, as what runs one.
fn fault_of_file(file: &Path, errno: Errno, depth: u8) -> Fault {
    match errno {
        Errno::E2BIG => return Fault::TooBig,
        Errno::ENOMEM => return Fault::NoMemory,
        Errno::ETXTBSY => return Fault::Busy,
        _ if depth > DEEPEST => return Fault::Loop,
        _ => {}
    }
    let on_the_way = fault_of_path(file).or_else(|| fault_of_permission(file, &fs::metadata(file).ok()?));
    on_the_way.unwrap_or_else(|| fault_of_content(file, errno, depth))
}

fn fault_of_permission(file: &Path, metadata: &Metadata) -> Option<Fault> {
    let (mode, owner, user) = (metadata.mode() & 0o7777, metadata.uid(), geteuid().as_raw());
    let not_executable = Fault::NotExecutable { mode, owner, user };
    if mode & 0o111 == 0 {
        return Some(not_executable);
    }
    // The mount first: access(2) refuses for its sake as well.
    if statvfs(file).is_ok_and(|mount| mount.flags().contains(FsFlags::ST_NOEXEC)) {
        return Some(Fault::NoExecMount);
    }
    let allowed = faccessat(AT_FDCWD, file, AccessFlags::X_OK, AtFlags::AT_EACCESS);
    (allowed == Err(Errno::EACCES)).then_some(not_executable)
}

fn fault_of_content(file: &Path, errno: Errno, depth: u8) -> Fault {
    let Ok((opened, start)) = open(file) else {
        return plain(errno);
    };
    match Head::of(&start) {
        // The remaining errors say what they mean, and the content may be sound.
        _ if !may_be_the_content(errno) => plain(errno),
        Head::Empty => Fault::Empty,
        Head::Elf => fault_of_elf(&opened, errno, depth),
        Head::Script(Interpreter::WithCr(interpreter)) => Fault::Cr(interpreter),
        Head::Script(Interpreter::None) => Fault::NoInterpreter,
        Head::Script(Interpreter::File(interpreter)) => {
            let fault = fault_of_file(&interpreter, errno, depth + 1);
            // Where nothing is wrong with the interpreter to be seen, it is not to be blamed.
            if fault == plain(errno) { fault } else { Fault::Interpreter(interpreter, Box::new(fault)) }
        }
        Head::Text => Fault::Text,
        Head::Binary => Fault::Binary,
    }
}

fn may_be_the_content(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENOENT | Errno::EACCES | Errno::ENOTDIR | Errno::ENOEXEC | Errno::ELIBBAD | Errno::EINVAL | Errno::ELOOP
    )
}

fn plain(errno: Errno) -> Fault {
    match errno {
        Errno::EACCES => Fault::Denied,
        Errno::EPERM => Fault::NotPermitted,
        Errno::ELOOP => Fault::Loop,
        errno => Fault::Other(errno),
    }
}

/// Opens a regular file (a FIFO would make us wait for its writer) and reads as much of it as the kernel looks at.
fn open(file: &Path) -> io::Result<(File, Vec<u8>)> {
    if !fs::metadata(file)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let opened = File::open(file)?;
    let mut start = Vec::with_capacity(head::LEN);
    (&opened).take(head::LEN as u64).read_to_end(&mut start)?;
    Ok((opened, start))
}

fn fault_of_elf(file: &File, errno: Errno, depth: u8) -> Fault {
    let Some(elf) = Elf::read(file) else {
        return Fault::BrokenElf;
    };
    // Only if the kernel refused it: binfmt_misc may run programs of other machines, and a 64-bit kernel 32-bit ones.
    let refused = matches!(errno, Errno::ENOEXEC | Errno::ELIBBAD);
    if refused && elf.machine != Machine::THIS {
        return Fault::OtherMachine(elf.machine);
    }
    let in_loader = elf.loader.filter(|_| elf.is_program).and_then(|loader| loader_fault(loader, errno, depth));
    match in_loader {
        Some(fault) => fault,
        None if refused => Fault::BrokenElf,
        None => plain(errno),
    }
}

/// What is wrong with a program's loader, if something is to be seen there.
fn loader_fault(loader: PathBuf, errno: Errno, depth: u8) -> Option<Fault> {
    let fault = fault_of_file(&loader, errno, depth + 1);
    // A loader in which nothing is found either is not to be blamed.
    let found = fault != plain(errno) && fault != Fault::BrokenElf;
    found.then(|| Fault::Loader { loader, present: libc_of_image(), fault: Box::new(fault) })
}

/// Which libc's loader lies where loaders lie.
fn libc_of_image() -> Libc {
    let directories = ["/lib", "/lib64", "/usr/lib"].into_iter().flat_map(fs::read_dir);
    let found = directories.flatten().flatten().map(|entry| Libc::of_loader(Path::new(&entry.file_name())));
    found.into_iter().find(|libc| *libc != Libc::Neither).unwrap_or(Libc::Neither)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::elf::sample;
    use super::*;

    /// A directory with one file, `it`, of that content and mode.
    fn file(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("it");
        fs::write(&file, content).expect("room for it");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
        (directory, file)
    }

    fn fault(content: &[u8], errno: Errno) -> Fault {
        let (_directory, file) = file(content, 0o755);
        fault_of_file(&file, errno, 0)
    }

    #[test]
    fn content_tells_what_the_errno_leaves_open() {
        let foreign = if cfg!(target_arch = "aarch64") { sample::X86_64 } else { sample::AARCH64 };
        let foreign = sample::elf64(foreign, Some("/lib/ld.so"));
        assert!(matches!(fault(&foreign, Errno::ENOEXEC), Fault::OtherMachine(_)));
        assert!(matches!(fault(&sample::elf32_arm(), Errno::ENOEXEC), Fault::OtherMachine(_)));
        assert_eq!(fault(&foreign[..70], Errno::ENOEXEC), Fault::BrokenElf);
        assert_eq!(fault(b"", Errno::ENOEXEC), Fault::Empty);
        assert_eq!(fault(b"PK\0\x03", Errno::ENOEXEC), Fault::Binary);
        assert_eq!(fault(b"#!/bin/sh\r\n", Errno::ENOENT), Fault::Cr("/bin/sh".into()));
        assert_eq!(fault(b"#!\n", Errno::ENOEXEC), Fault::NoInterpreter);
    }

    #[test]
    fn a_missing_loader_is_named_with_the_image_it_belongs_to() {
        let here = if cfg!(target_arch = "aarch64") { sample::AARCH64 } else { sample::X86_64 };
        let fault = fault(&sample::elf64(here, Some("/lib/ld-musl-none.so.1")), Errno::ENOENT);
        let Fault::Loader { loader, fault, .. } = &fault else { panic!("{fault:?}") };
        assert_eq!((loader.as_path(), &**fault), (Path::new("/lib/ld-musl-none.so.1"), &Fault::Missing(None)));
        let text = |loader: &str, present| {
            Fault::Loader { loader: loader.into(), present, fault: Box::new(Fault::Missing(None)) }.to_string()
        };
        assert!(
            text("/lib64/ld-linux-x86-64.so.2", Libc::Musl).contains("a glibc binary in a musl image such as Alpine")
        );
        assert!(text("/lib/ld-musl-x86_64.so.1", Libc::Glibc).contains("a musl binary in a glibc image"));
        assert!(text("/lib64/ld-linux-x86-64.so.2", Libc::Neither).contains("without a dynamic loader"));
    }

    #[test]
    fn an_interpreter_is_looked_into_like_a_program() {
        let (_directory, closed) = file(b"#!/bin/sh\n", 0o644);
        let script = format!("#!{}\n", closed.display());
        let Fault::Interpreter(named, why) = fault(script.as_bytes(), Errno::EACCES) else { panic!("a script") };
        assert!(named == closed && matches!(*why, Fault::NotExecutable { mode: 0o644, .. }), "{why}");
        let missing = fault(b"#!/no/such/bash\n", Errno::ENOENT);
        assert_eq!(
            missing.to_string(),
            "its first line asks for /no/such/bash, which is not there (install it, or change the line #!/no/such/bash)"
        );
    }

    #[test]
    fn scripts_that_interpret_each_other_come_to_an_end() {
        let (_directory, it) = file(b"", 0o755);
        fs::write(&it, format!("#!{}\n", it.display())).expect("room for it");
        assert_eq!(fault_of_file(&it, Errno::ELOOP, 0), Fault::Loop);
    }

    #[test]
    fn a_sound_file_is_not_blamed_for_what_the_kernel_says() {
        for (errno, expected) in [
            (Errno::EPERM, Fault::NotPermitted),
            (Errno::EACCES, Fault::Denied),
            (Errno::ENOMEM, Fault::NoMemory),
            (Errno::E2BIG, Fault::TooBig),
            (Errno::EIO, Fault::Other(Errno::EIO)),
        ] {
            let sh = fault_of_file(Path::new("/bin/sh"), errno, 0);
            assert_eq!(sh, expected, "a program");
            assert_eq!(fault(b"#!/bin/sh\n", errno), expected, "a script");
        }
    }

    #[test]
    fn the_way_to_a_file_is_looked_at_first() {
        let (directory, it) = file(b"x", 0o755);
        let link = directory.path().join("link");
        symlink("gone", &link).expect("a symbolic link");
        assert_eq!(fault_of_path(&link), Some(Fault::Dangling("gone".into())));
        assert_eq!(fault_of_path(directory.path()), Some(Fault::Directory));
        assert_eq!(fault_of_path(&it.join("below")), Some(Fault::Missing(None)));
        assert_eq!(fault_of_path(&it), None);
        assert!(matches!(fault_of_path(Path::new("no/such")), Some(Fault::Missing(Some(_)))));
    }

    #[test]
    fn a_fifo_is_not_waited_for() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        assert_eq!(fault_of_file(&fifo, Errno::EACCES, 0), Fault::Denied);
    }
}

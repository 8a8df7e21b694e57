//! The first bytes of a file, by which the kernel tells what it is (binfmt_elf, binfmt_script, execve(2)).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// How much the kernel looks at (BINPRM_BUF_SIZE).
pub(super) const LEN: usize = 256;

/// What a file is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Head {
    Empty,
    Elf,
    Script(Interpreter),
    /// Text without `#!`.
    Text,
    Binary,
}

/// What a `#!` line names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Interpreter {
    /// A program.
    File(PathBuf),
    /// A program, but the line ends as on Windows, and the kernel takes the CR for a part of its name.
    WithCr(PathBuf),
    /// Nothing, or a path that is longer than the kernel reads.
    None,
}

impl Head {
    /// Tells it from the first [`LEN`] bytes, or fewer where the file is shorter.
    pub(super) fn of(start: &[u8]) -> Self {
        match start {
            [] => Self::Empty,
            [0x7f, b'E', b'L', b'F', ..] => Self::Elf,
            [b'#', b'!', line @ ..] => Self::Script(interpreter(line, start.len() < LEN)),
            _ if start.contains(&0) => Self::Binary,
            _ => Self::Text,
        }
    }
}

/// Whether /bin/sh is to run it: [`Head::Text`], told without allocation.
pub(super) fn is_shell_script(start: &[u8]) -> bool {
    !start.is_empty() && !start.starts_with(b"#!") && !start.starts_with(b"\x7fELF") && !start.contains(&0)
}

/// Reads the rest of a `#!` line as the kernel does: blanks, the path, then perhaps one argument.
fn interpreter(line: &[u8], whole_file: bool) -> Interpreter {
    let end = line.iter().position(|byte| matches!(byte, b'\n' | 0));
    let line = &line[..end.unwrap_or(line.len())];
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let from = line.iter().position(|byte| !blank(byte)).unwrap_or(line.len());
    let len = line[from..].iter().position(blank);
    let path = &line[from..from + len.unwrap_or(line.len() - from)];
    let cut_off = end.is_none() && len.is_none() && !whole_file;
    match path {
        _ if cut_off => Interpreter::None,
        [] | [b'\r'] => Interpreter::None,
        [path @ .., b'\r'] => Interpreter::WithCr(OsStr::from_bytes(path).into()),
        path => Interpreter::File(OsStr::from_bytes(path).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(line: &str) -> Interpreter {
        match Head::of(line.as_bytes()) {
            Head::Script(interpreter) => interpreter,
            other => panic!("{line:?} is {other:?}"),
        }
    }

    #[test]
    fn an_interpreter_line_is_read_as_the_kernel_reads_it() {
        let sh = Interpreter::File("/bin/sh".into());
        for line in ["#!/bin/sh", "#!/bin/sh\n", "#! \t/bin/sh -e\necho", "#!/bin/sh -e\r\n", "#!/bin/sh\t\r\n"] {
            assert_eq!(script(line), sh, "{line:?}");
        }
        assert_eq!(script("#!/bin/sh\r\necho\r\n"), Interpreter::WithCr("/bin/sh".into()));
        assert_eq!(script("#!/bin/sh\r"), Interpreter::WithCr("/bin/sh".into()));
        for line in ["#!", "#!\n/bin/sh", "#!   ", "#!\r\n"] {
            assert_eq!(script(line), Interpreter::None, "{line:?}");
        }
    }

    #[test]
    fn a_path_that_is_cut_off_names_nothing() {
        let long = format!("#!/{}", "x".repeat(300));
        assert_eq!(script(&long[..LEN]), Interpreter::None);
        let with_argument = format!("#!/bin/sh {}", "x".repeat(300));
        assert_eq!(script(&with_argument[..LEN]), Interpreter::File("/bin/sh".into()));
    }

    #[test]
    fn only_text_goes_to_the_shell() {
        for (start, expected) in [
            (&b""[..], Head::Empty),
            (b"\x7fELF", Head::Elf),
            (b"echo hi", Head::Text),
            (b"#", Head::Text),
            (b"e\0c", Head::Binary),
        ] {
            assert_eq!(Head::of(start), expected);
            assert_eq!(is_shell_script(start), expected == Head::Text);
        }
        assert!(!is_shell_script(b"#!/bin/sh"));
    }
}

//! What is to be run, with all the memory that it takes: after fork(2) nothing may be allocated.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::why::{Reason, StartError};

/// Where a command is looked for if its environment has no PATH, as runc and the shells of Debian and Alpine do.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variable that says whom a service manager's sockets are for (sd_listen_fds(3)).
pub(super) const LISTEN_PID: &[u8] = b"LISTEN_PID=";

/// A command that is ready to be started, any number of times.
#[derive(Debug)]
pub struct Program {
    pub(super) argv: Vec<CString>,
    pub(super) env: Vec<CString>,
    /// The files to try, in this order.
    pub(super) files: Vec<CString>,
    /// The directories that were searched; none if the command names a file by itself.
    pub(super) searched: Option<Searched>,
    /// Which of the variables is to name the child's pid.
    pub(super) listen_pid: Option<usize>,
}

/// Where a command without a slash was looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Searched {
    /// In the PATH of its environment.
    Path(OsString),
    /// In [`DEFAULT_PATH`], as its environment has none.
    Default,
}

impl Program {
    /// Prepares a command with its arguments (the first is its name) and its whole environment.
    ///
    /// The name is looked up as execvp(3) does, in the PATH of that environment.
    ///
    /// # Errors
    /// There is no name, or something contains a NUL byte.
    pub fn new(argv: Vec<OsString>, env: Vec<(OsString, OsString)>) -> Result<Self, StartError> {
        let name = argv.first().filter(|name| !name.is_empty()).ok_or(Reason::NoName)?;
        let searched = searched(name, &env);
        let files = files(name, searched.as_ref()).into_iter().map(c_string).collect::<Result<_, _>>()?;
        Ok(Self {
            files,
            searched,
            listen_pid: None,
            env: env.into_iter().map(assignment).map(c_string).collect::<Result<_, _>>()?,
            argv: argv.into_iter().map(c_string).collect::<Result<_, _>>()?,
        })
    }

    /// Hands the sockets that were meant for process `ours` on to the child: its LISTEN_PID will name the child.
    pub fn hand_listeners_on(&mut self, ours: u32) {
        let names_us = |text: &CString| {
            let value = text.as_bytes().strip_prefix(LISTEN_PID);
            value.and_then(|value| std::str::from_utf8(value).ok()?.trim().parse().ok()) == Some(ours)
        };
        self.listen_pid = self.env.iter().position(names_us);
    }

    /// The command's name as it was given.
    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.argv.first().map_or(b"", |name| name.as_bytes()))
    }
}

fn searched(name: &OsStr, env: &[(OsString, OsString)]) -> Option<Searched> {
    if name.as_bytes().contains(&b'/') {
        return None;
    }
    let path = env.iter().find(|(key, _)| key == "PATH");
    Some(path.map_or(Searched::Default, |(_, path)| Searched::Path(path.clone())))
}

fn files(name: &OsStr, searched: Option<&Searched>) -> Vec<OsString> {
    let directories = match searched {
        None => return vec![name.to_owned()],
        Some(Searched::Path(path)) => path.as_bytes(),
        Some(Searched::Default) => DEFAULT_PATH.as_bytes(),
    };
    directories.split(|byte| *byte == b':').map(|directory| file_in(directory, name)).collect()
}

/// The file of that name in a directory of PATH. The working directory, which an empty element stands for, is spelled
/// out: /bin/sh would take a bare name that begins with `-` for an option.
fn file_in(directory: &[u8], name: &OsStr) -> OsString {
    let directory = if directory.is_empty() { b"." } else { directory };
    OsString::from_vec([directory, b"/", name.as_bytes()].concat())
}

fn assignment((key, value): (OsString, OsString)) -> OsString {
    OsString::from_vec([key.as_bytes(), b"=", value.as_bytes()].concat())
}

fn c_string(text: OsString) -> Result<CString, Reason> {
    CString::new(text.into_vec()).map_err(|error| Reason::Nul(OsString::from_vec(error.into_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files_for(name: &str, path: Option<&str>) -> Vec<String> {
        let env = path.map(|path| ("PATH".into(), path.into())).into_iter().collect();
        let program = Program::new(vec![name.into()], env).expect("no NUL byte");
        program.files.into_iter().map(|file| file.into_string().expect("UTF-8")).collect()
    }

    #[test]
    fn a_name_is_looked_up_in_path_as_execvp_does() {
        assert_eq!(files_for("jq", Some("/a:/b")), ["/a/jq", "/b/jq"]);
        assert_eq!(files_for("jq", Some("/a::/b")), ["/a/jq", "./jq", "/b/jq"]);
        assert_eq!(files_for("jq", Some("")), ["./jq"]);
        assert_eq!(files_for("jq", None)[0], "/usr/local/sbin/jq");
        assert_eq!(files_for("jq", None).len(), 6);
    }

    #[test]
    fn a_name_with_a_slash_is_that_file_only() {
        for name in ["/bin/jq", "./jq", "bin/jq"] {
            assert_eq!(files_for(name, Some("/a:/b")), [name]);
        }
    }

    #[test]
    fn what_cannot_be_a_command_is_refused() {
        let refused = |argv: &[&str]| Program::new(argv.iter().map(OsString::from).collect(), Vec::new());
        assert_eq!(refused(&[]).expect_err("no name").code, 127);
        assert_eq!(refused(&["", "a"]).expect_err("an empty name").code, 127);
        assert!(refused(&["a", "b\0c"]).expect_err("a NUL byte").text.contains("NUL"));
    }
}

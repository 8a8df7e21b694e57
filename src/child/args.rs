//! `${NAME}` in arguments, for `--expand-env`: what people keep a shell in front of their program for.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Why an argument cannot be expanded. The text names the argument and the way out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExpandError {
    /// The variable is not set and no default is given.
    Unset {
        /// The variable.
        name: String,
        /// The argument as it was given.
        arg: OsString,
    },
    /// `${` without its `}`.
    Open {
        /// The argument as it was given.
        arg: OsString,
    },
    /// Between the braces is no name that a variable can have, or a form that only a shell knows.
    Name {
        /// What is between the braces.
        text: String,
        /// The argument as it was given.
        arg: OsString,
    },
}

impl fmt::Display for ExpandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset { name, arg } => {
                write!(f, "{}: {name} is not set (set it, or write ${{{name}:-default}})", arg.display())
            }
            Self::Open { arg } => write!(f, "{}: `${{` without `}}` (close it; --expand-env reads it)", arg.display()),
            Self::Name { text, arg } => write!(
                f,
                "{}: ${{{text}}} cannot be expanded (--expand-env knows ${{NAME}} and ${{NAME:-default}}; \
                 the rest needs a shell)",
                arg.display()
            ),
        }
    }
}

impl std::error::Error for ExpandError {}

/// Replaces each `${NAME}` by the value that `lookup` gives, and `${NAME:-default}` by the default where the value is
/// unset or empty (as in a shell; a default is taken literally and ends at the first `}`). `$NAME`, `$$` and every
/// other `$` stay as they are, and what a value contains is not read again.
///
/// # Errors
/// A variable without value or default, a brace that is left open, a name that is none.
pub fn expand_env(arg: &OsStr, lookup: impl Fn(&OsStr) -> Option<OsString>) -> Result<OsString, ExpandError> {
    let mut rest = arg.as_bytes();
    let mut out = Vec::with_capacity(rest.len());
    while let Some(at) = next_opening(rest) {
        out.extend_from_slice(&rest[..at]);
        let inner = &rest[at + 2..];
        let Some(end) = inner.iter().position(|byte| *byte == b'}') else {
            return Err(ExpandError::Open { arg: arg.to_owned() });
        };
        out.extend_from_slice(value(&inner[..end], arg, &lookup)?.as_bytes());
        rest = &inner[end + 1..];
    }
    out.extend_from_slice(rest);
    Ok(OsString::from_vec(out))
}

/// Where the next `${` begins. The two bytes of a `$$` belong together, so that the brace of `$${` opens nothing.
fn next_opening(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == b'$')?;
        match bytes.get(at + 1) {
            Some(b'{') => return Some(at),
            Some(b'$') => at += 2,
            _ => at += 1,
        }
    }
}

fn value(inner: &[u8], arg: &OsStr, lookup: impl Fn(&OsStr) -> Option<OsString>) -> Result<OsString, ExpandError> {
    let (name, default) = match inner.windows(2).position(|pair| pair == b":-") {
        Some(at) => (&inner[..at], Some(&inner[at + 2..])),
        None => (inner, None),
    };
    if !is_name(name) {
        return Err(ExpandError::Name { text: String::from_utf8_lossy(inner).into_owned(), arg: arg.to_owned() });
    }
    match (lookup(OsStr::from_bytes(name)), default) {
        (Some(value), Some(default)) if value.is_empty() => Ok(OsString::from_vec(default.to_vec())),
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(OsString::from_vec(default.to_vec())),
        (None, None) => {
            Err(ExpandError::Unset { name: String::from_utf8_lossy(name).into_owned(), arg: arg.to_owned() })
        }
    }
}

/// A name as POSIX has it for variables: letters, digits and `_`, no digit first.
fn is_name(name: &[u8]) -> bool {
    name.first().is_some_and(|first| !first.is_ascii_digit())
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(arg: &str) -> Result<String, ExpandError> {
        let lookup = |name: &OsStr| match name.to_str() {
            Some("PORT") => Some("8080".into()),
            Some("EMPTY") => Some("".into()),
            Some("MONEY") => Some("${PORT}".into()),
            _ => None,
        };
        expand_env(OsStr::new(arg), lookup).map(|text| text.into_string().expect("UTF-8"))
    }

    #[test]
    fn a_braced_name_becomes_its_value() {
        for (arg, expected) in [
            ("${PORT}", "8080"),
            ("--bind=0.0.0.0:${PORT}/${PORT}", "--bind=0.0.0.0:8080/8080"),
            ("${NONE:-3000}", "3000"),
            ("${EMPTY:-a:-b}", "a:-b"),
            ("${NONE:-}", ""),
            ("[${EMPTY}]", "[]"),
            ("${PORT:-1}", "8080"),
            ("${MONEY}", "${PORT}"),
        ] {
            assert_eq!(expand(arg).as_deref(), Ok(expected), "{arg}");
        }
    }

    #[test]
    fn every_other_dollar_stays() {
        for arg in ["", "$", "$$", "$PORT", "$$PORT", "$${PORT}", "a$", "$(x)", "}", "$ {PORT}"] {
            assert_eq!(expand(arg).as_deref(), Ok(arg));
        }
        assert_eq!(expand("$$${PORT}").as_deref(), Ok("$$8080"));
    }

    #[test]
    fn an_unset_variable_is_named() {
        let text = expand("--port=${NONE}").expect_err("NONE is not set").to_string();
        assert_eq!(text, "--port=${NONE}: NONE is not set (set it, or write ${NONE:-default})");
    }

    #[test]
    fn what_only_a_shell_knows_is_refused() {
        for arg in ["${}", "${1}", "${A-b}", "${#A}", "${a b}", "${:-x}"] {
            assert!(matches!(expand(arg), Err(ExpandError::Name { .. })), "{arg}");
        }
        assert!(matches!(expand("a${PORT"), Err(ExpandError::Open { .. })));
    }

    #[test]
    fn bytes_that_are_no_utf8_pass() {
        let arg = OsStr::from_bytes(b"\xff${A}\xfe");
        let out = expand_env(arg, |_| Some(OsString::from_vec(vec![0x80])));
        assert_eq!(out.expect("A is set").as_bytes(), b"\xff\x80\xfe");
    }
}

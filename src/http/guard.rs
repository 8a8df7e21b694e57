//! Who may call /prestop, a GET that changes something on a port that others reach.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;

use hyper::header::HeaderValue;

/// What was set of it.
#[derive(Clone, PartialEq, Eq)]
pub enum Key {
    /// Anybody may (`--prestop-open`).
    Open,
    /// Who knows this word.
    Token(String),
    /// Who knows the word in this file.
    File(PathBuf),
}

/// A word that opens doors has no place in a log.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// Lets in who may call.
pub enum Guard {
    /// Everybody.
    Open,
    /// Who brings this word.
    Token(Vec<u8>),
}

impl Guard {
    /// Takes the post. A file is read now and never again.
    ///
    /// # Errors
    /// The file cannot be read, or the word could never be sent: in words for the user, without the word itself.
    pub fn new(key: &Key) -> Result<Self, String> {
        let (name, token) = match key {
            Key::Open => return Ok(Self::Open),
            Key::Token(token) => ("--prestop-token".to_owned(), token.clone()),
            Key::File(path) => {
                let name = format!("--prestop-token-file {}", path.display());
                let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
                (name, text)
            }
        };
        let token = token.trim();
        if token.is_empty() {
            return Err(format!("{name}: there is no token in it"));
        }
        // RFC 9110, section 5.5: what a header's value can hold; a space would end the word.
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{name}: a token is one word of ASCII letters, digits and signs"));
        }
        Ok(Self::Token(token.as_bytes().to_vec()))
    }

    /// Whether a request with this `Authorization` header may: `Bearer TOKEN` (RFC 6750, section 2.1).
    pub fn admits(&self, authorization: Option<&HeaderValue>) -> bool {
        match (self, authorization) {
            (Self::Open, _) => true,
            (Self::Token(token), Some(said)) => bearer(said.as_bytes()).is_some_and(|said| are_equal(said, token)),
            (Self::Token(_), None) => false,
        }
    }
}

fn bearer(said: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = said.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| rest.trim_ascii())
}

/// Compares in a time that depends on the length of what was said alone: one that stopped at the first difference would
/// tell how much of a guess is right.
fn are_equal(said: &[u8], token: &[u8]) -> bool {
    let same_length = said.len() == token.len();
    let differs =
        said.iter().zip(token.iter().cycle()).fold(0, |differs, (one, other)| black_box(differs | one ^ other));
    same_length & (differs == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(guard: &Guard, header: &str) -> bool {
        guard.admits(Some(&HeaderValue::from_str(header).expect("a header's value")))
    }

    #[test]
    fn only_the_whole_word_is_let_in() {
        let guard = Guard::new(&Key::Token("s3cret".into())).expect("a token");
        for right in ["Bearer s3cret", "bearer s3cret", "Bearer  s3cret "] {
            assert!(admits(&guard, right), "{right:?}");
        }
        for wrong in [
            "",
            "s3cret",
            "Bearer",
            "Bearer ",
            "Bearer s3cre",
            "Bearer s3crets",
            "Bearer s3creT",
            "Basic s3cret",
            "Bearers3cret",
        ] {
            assert!(!admits(&guard, wrong), "{wrong:?}");
        }
        assert!(!guard.admits(None));
        assert!(Guard::new(&Key::Open).expect("open").admits(None));
    }

    #[test]
    fn a_word_that_cannot_be_sent_is_refused_and_not_shown() {
        for token in ["two words", "s\u{fc}ndown", " "] {
            let error = Guard::new(&Key::Token(token.into())).err().expect("refused");
            assert!(error.starts_with("--prestop-token: ") && !error.contains("words"), "{error}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        assert!(Guard::new(&Key::File(file.clone())).err().expect("no file").contains("No such file"));
        fs::write(&file, "s3cret\n").expect("room");
        assert!(admits(&Guard::new(&Key::File(file.clone())).expect("a token"), "Bearer s3cret"));
        fs::write(&file, "\n").expect("room");
        assert!(Guard::new(&Key::File(file)).err().expect("empty").contains("no token"));
    }

    #[test]
    fn what_is_set_is_never_shown() {
        assert_eq!(format!("{:?}", Key::Token("s3cret".into())), "Key");
    }
}

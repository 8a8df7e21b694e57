//! The little of JSON that is written by hand (RFC 8259): the rest is numbers and words of ours.

use std::fmt::Write;
use std::time::Duration;

/// A string, quoted.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\0'..='\x1f' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(character));
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// A list of what is JSON already.
pub fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// Seconds to the millisecond, or null.
pub fn seconds(time: Option<Duration>) -> String {
    time.map_or("null".into(), |time| format!("{:.3}", time.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_break_out_is_quoted() {
        assert_eq!(quote("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
        assert_eq!(list(["1".to_owned(), quote("x")].into_iter()), "[1,\"x\"]");
        assert_eq!((seconds(None), seconds(Some(Duration::from_millis(1500)))), ("null".into(), "1.500".into()));
    }
}

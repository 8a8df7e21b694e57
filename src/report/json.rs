//! JSON by hand: what is written is little, and nothing is read.

use std::fmt::Write;
use std::time::Duration;

/// Seconds, to the millisecond.
pub fn seconds(time: Option<Duration>) -> String {
    time.map_or("null".into(), |time| format!("{:.3}", time.as_secs_f64()))
}

/// A list.
pub fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// A string (RFC 8259, section 7).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_quoted() {
        assert_eq!(quote("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}

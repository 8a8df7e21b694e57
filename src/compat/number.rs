//! Numbers as C's library reads them.

/// Reads a decimal integer as strtol(3) does, blanks and sign first, and gives what follows it; none if there is no digit.
/// One that is too large becomes the largest.
pub(super) fn leading(text: &[u8]) -> Option<(i64, &[u8])> {
    let start = text.iter().position(|byte| !is_space(*byte)).unwrap_or(text.len());
    let (negative, digits) = match &text[start..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    let value = digits.iter().fold(0i64, |sum, digit| sum.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
    (!digits.is_empty()).then_some((if negative { -value } else { value }, rest))
}

/// As isspace(3).
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_up_to_where_it_ends() {
        for (text, expected) in [
            ("12", Some((12, ""))),
            (" \t-3:4", Some((-3, ":4"))),
            ("+0x", Some((0, "x"))),
            ("99999999999999999999", Some((i64::MAX, ""))),
            ("", None),
            ("-", None),
            ("x1", None),
            ("- 1", None),
        ] {
            assert_eq!(leading(text.as_bytes()), expected.map(|(value, rest)| (value, rest.as_bytes())), "{text}");
        }
    }
}

//! The words of `exec:COMMAND`, in the little of a shell's quoting that people expect.

use std::iter::Peekable;
use std::str::Chars;

/// Splits at white space that is not quoted. Errors: no word at all, or a quote without its end.
pub fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = text.chars().peekable();
    loop {
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        if rest.peek().is_none() {
            break;
        }
        words.push(word(&mut rest)?);
    }
    if words.is_empty() {
        return Err("names no command, as in exec:/bin/check --fast".to_owned());
    }
    Ok(words)
}

fn word(rest: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let mut word = String::new();
    while let Some(c) = rest.next_if(|c| !c.is_whitespace()) {
        match c {
            '\'' | '"' => quoted(c, rest, &mut word)?,
            '\\' => word.push(rest.next().ok_or("ends in a backslash")?),
            _ => word.push(c),
        }
    }
    Ok(word)
}

fn quoted(quote: char, rest: &mut Peekable<Chars<'_>>, word: &mut String) -> Result<(), String> {
    while let Some(c) = rest.next() {
        let escapes = quote == '"' && c == '\\';
        match rest.peek() {
            _ if c == quote => return Ok(()),
            Some(&next @ ('"' | '\\')) if escapes => {
                rest.next();
                word.push(next);
            }
            _ => word.push(c),
        }
    }
    Err(format!("a {quote} has no end"))
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn words_are_split_as_people_expect() {
        for (text, words) in [
            ("  a  b\tc ", &["a", "b", "c"][..]),
            ("sh -c 'test -f \"/tmp/a b\"'", &["sh", "-c", "test -f \"/tmp/a b\""]),
            (r#"a "b \"c\" \\ \n" d"#, &["a", r#"b "c" \ \n"#, "d"]),
            (r"a\ b --x='1 2'3", &["a b", "--x=1 23"]),
            ("a ''", &["a", ""]),
            ("a $HOME | *", &["a", "$HOME", "|", "*"]),
        ] {
            assert_eq!(split(text).unwrap(), words, "{text}");
        }
    }

    #[test]
    fn what_has_no_end_is_refused() {
        for text in ["", "  ", "'a", "\"a", "\"a\\\"", "a\\"] {
            assert!(split(text).is_err(), "{text}");
        }
    }
}

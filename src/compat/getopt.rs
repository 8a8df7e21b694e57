//! getopt(3) as glibc has it, with its texts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What an init's options are.
pub struct Grammar {
    /// The letters; those that take a value are followed by `:`.
    pub short: &'static str,
    /// The long names, where there are any: the letter that each stands for.
    pub long: &'static [(&'static str, u8)],
    /// Whether the first word that is no option ends the options (a leading `+`).
    pub stops_at_first: bool,
}

/// One option, by its letter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opt {
    /// The letter.
    pub letter: u8,
    /// Its value, empty for one that takes none.
    pub value: OsString,
}

/// Goes through the words of a command line.
pub struct Getopt<'a> {
    grammar: &'a Grammar,
    program: &'a OsStr,
    words: &'a [OsString],
    /// The letters of a word that are still to be read.
    letters: &'a [u8],
    /// The words that are no options.
    rest: Vec<OsString>,
    stops_at_first: bool,
}

impl<'a> Getopt<'a> {
    /// Of all words, the program's name first. `is_posix` is whether POSIXLY_CORRECT is set: options end at the first word
    /// that is none, then. Else they are found behind it too, up to a `--`.
    pub fn new(grammar: &'a Grammar, args: &'a [OsString], is_posix: bool) -> Self {
        let (program, words) = args.split_first().map_or((OsStr::new(""), &[][..]), |(name, rest)| (name, rest));
        let stops_at_first = grammar.stops_at_first || is_posix;
        Self { grammar, program, words, letters: &[], rest: Vec::new(), stops_at_first }
    }

    /// The next option.
    ///
    /// # Errors
    /// The line that glibc would write.
    pub fn next(&mut self) -> Option<Result<Opt, String>> {
        if let Some((&letter, rest)) = self.letters.split_first() {
            self.letters = rest;
            return Some(self.short(letter));
        }
        let (word, words) = self.words.split_first()?;
        let bytes = word.as_bytes();
        if bytes.first() != Some(&b'-') || bytes.len() == 1 {
            if self.stops_at_first {
                return None;
            }
            self.words = words;
            self.rest.push(word.clone());
            return self.next();
        }
        self.words = words;
        match bytes.strip_prefix(b"--") {
            Some([]) => {
                self.stops_at_first = true;
                self.rest.append(&mut std::mem::take(&mut self.words).to_vec());
                None
            }
            Some(name) if !self.grammar.long.is_empty() => Some(self.long(name)),
            _ => {
                self.letters = &bytes[1..];
                self.next()
            }
        }
    }

    /// The words that are no options, once all options have been read.
    pub fn operands(mut self) -> Vec<OsString> {
        self.rest.extend_from_slice(self.words);
        self.rest
    }

    fn short(&mut self, letter: u8) -> Result<Opt, String> {
        let shown = char::from(letter);
        let Some(takes_value) = self.grammar.takes_value(letter) else {
            return Err(self.error(format_args!("invalid option -- '{shown}'")));
        };
        if !takes_value {
            return Ok(Opt { letter, value: OsString::new() });
        }
        let value = match std::mem::take(&mut self.letters) {
            [] => self.next_word(),
            rest => Some(OsString::from_vec(rest.to_vec())),
        };
        match value {
            Some(value) => Ok(Opt { letter, value }),
            None => Err(self.error(format_args!("option requires an argument -- '{shown}'"))),
        }
    }

    /// A long option, which may be cut short as long as one name alone begins so.
    fn long(&mut self, text: &[u8]) -> Result<Opt, String> {
        let (name, value) = match text.iter().position(|byte| *byte == b'=') {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        let shown = String::from_utf8_lossy(text);
        let (full, letter) = match self.grammar.named(name).as_slice() {
            [] => return Err(self.error(format_args!("unrecognized option '--{shown}'"))),
            [one] => *one,
            several => {
                let names: String = several.iter().map(|(name, _)| format!(" '--{name}'")).collect();
                return Err(self.error(format_args!("option '--{shown}' is ambiguous; possibilities:{names}")));
            }
        };
        let value = match (self.grammar.takes_value(letter).unwrap_or(false), value) {
            (false, None) => OsString::new(),
            (false, Some(_)) => return Err(self.error(format_args!("option '--{full}' doesn't allow an argument"))),
            (true, Some(value)) => OsString::from_vec(value.to_vec()),
            (true, None) => {
                self.next_word().ok_or_else(|| self.error(format_args!("option '--{full}' requires an argument")))?
            }
        };
        Ok(Opt { letter, value })
    }

    /// Whatever it is: `--` too may be a value.
    fn next_word(&mut self) -> Option<OsString> {
        let (word, words) = self.words.split_first()?;
        self.words = words;
        Some(word.clone())
    }

    fn error(&self, what: std::fmt::Arguments) -> String {
        format!("{}: {what}\n", self.program.display())
    }
}

impl Grammar {
    /// Whether that option takes a value; none if it does not exist.
    fn takes_value(&self, letter: u8) -> Option<bool> {
        let letters = self.short.as_bytes();
        let at = letters.iter().position(|known| *known == letter && letter != b':')?;
        Some(letters.get(at + 1) == Some(&b':'))
    }

    /// The long option of that name, else all whose names begin so.
    fn named(&self, start: &[u8]) -> Vec<(&'static str, u8)> {
        match self.long.iter().find(|(name, _)| name.as_bytes() == start) {
            Some(exact) => vec![*exact],
            None => self.long.iter().filter(|(name, _)| name.as_bytes().starts_with(start)).copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERMUTES: Grammar = Grammar { short: "p:hv", long: &[], stops_at_first: false };
    const STOPS: Grammar = Grammar {
        short: "hvr:",
        long: &[("help", b'h'), ("rewrite", b'r'), ("verbose", b'v'), ("version", b'V')],
        stops_at_first: true,
    };

    /// Its options, each as its letter and value, the operands behind `|`, or the error.
    fn read(grammar: &Grammar, line: &str, is_posix: bool) -> String {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let mut getopt = Getopt::new(grammar, &args, is_posix);
        let mut words = Vec::new();
        while let Some(opt) = getopt.next() {
            match opt {
                Ok(Opt { letter, value }) => words.push(format!("{}{}", char::from(letter), value.display())),
                Err(text) => return text.trim_end().to_owned(),
            }
        }
        words.push("|".into());
        words.extend(getopt.operands().iter().map(|word| word.display().to_string()));
        words.join(" ")
    }

    #[test]
    fn options_are_found_behind_operands_up_to_a_double_dash() {
        for (line, expected) in [
            ("t -v a -h b", "v h | a b"),
            ("t a -vv -- -h", "v v | a -h"),
            ("t a -- -- b", "| a -- b"),
            ("t -pX a", "pX | a"),
            ("t a -p -- b", "p-- | a b"),
            ("t -vpX -", "v pX | -"),
            ("t sh -c", "t: invalid option -- 'c'"),
            ("t --foo", "t: invalid option -- '-'"),
            ("t -:", "t: invalid option -- ':'"),
            ("/x/t -vp", "/x/t: option requires an argument -- 'p'"),
        ] {
            assert_eq!(read(&PERMUTES, line, false), expected, "{line}");
        }
        assert_eq!(read(&PERMUTES, "t -v sh -c -h", true), "v | sh -c -h");
    }

    #[test]
    fn long_names_may_be_cut_short() {
        for (line, expected) in [
            ("d --help -v sh -v", "h v | sh -v"),
            ("d --rew 1:2 --r=3:4 x", "r1:2 r3:4 | x"),
            ("d --verb -- -v", "v | -v"),
            ("d --ver x", "d: option '--ver' is ambiguous; possibilities: '--verbose' '--version'"),
            ("d --ver=2", "d: option '--ver=2' is ambiguous; possibilities: '--verbose' '--version'"),
            ("d --yolo=1 x", "d: unrecognized option '--yolo=1'"),
            ("d --he=3", "d: option '--help' doesn't allow an argument"),
            ("d --rew", "d: option '--rewrite' requires an argument"),
        ] {
            assert_eq!(read(&STOPS, line, false), expected, "{line}");
        }
    }
}

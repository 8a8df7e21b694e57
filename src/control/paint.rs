//! The status for a person at a terminal, in colour (ECMA-48; <https://no-color.org> switches it off).

use std::io::{self, IsTerminal};

const DIM: &str = "\x1b[2m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// Whether stdout wants colour.
pub fn is_wanted() -> bool {
    let is_off = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !is_off && !is_dumb
}

/// Paints lines of a name and a value.
pub fn paint(text: &str) -> String {
    let line = |line: &str| {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        format!("{DIM}{name}{PLAIN} {}", painted(value))
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The value, in the colour of its first word if that says how things stand.
fn painted(value: &str) -> String {
    let colour = match value.trim_start().split([' ', ',']).next().unwrap_or_default() {
        "running" | "yes" => GREEN,
        "starting" | "draining" | "no" => YELLOW,
        "stopping" | "killing" => RED,
        _ => return value.to_owned(),
    };
    format!("{colour}{value}{PLAIN}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dim_and_states_have_their_colour() {
        assert_eq!(
            paint("phase    draining (x)\ngrace    30s\n"),
            "\x1b[2mphase\x1b[0m \x1b[33m   draining (x)\x1b[0m\n\x1b[2mgrace\x1b[0m    30s"
        );
        assert_eq!(paint("ready    yes"), "\x1b[2mready\x1b[0m \x1b[32m   yes\x1b[0m");
    }
}

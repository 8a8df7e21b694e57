//! The values of options, from text. Each error is the reason alone, to stand behind the option and its value.

use std::time::Duration;

use super::{DrainUntil, LogFormat, Notify, SignalTo};
use crate::check::Check;
use crate::signals::{SigSet, Signal};

/// Longer than this a duration is a typing error.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

pub(super) const SIGNAL_TO: &[(&str, SignalTo)] =
    &[("app", SignalTo::App), ("child", SignalTo::Child), ("group", SignalTo::Group), ("tree", SignalTo::Tree)];

pub(super) const DRAIN_UNTIL: &[(&str, DrainUntil)] = &[
    ("delay", DrainUntil::Delay),
    ("quiet", DrainUntil::Quiet),
    ("no-new", DrainUntil::NoNew),
    ("released", DrainUntil::Released),
];

pub(super) const NOTIFY: &[(&str, Notify)] = &[("child", Notify::Child), ("self", Notify::Own), ("off", Notify::Off)];

/// The value that goes by this word.
pub(super) fn one_of<T: Copy>(table: &[(&str, T)], text: &str) -> Result<T, String> {
    table.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = table.iter().map(|(word, _)| *word).collect();
        format!("not one of {}", words.join(", "))
    })
}

/// The word that this value goes by.
pub(super) fn word_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, known)| known == value).map_or("", |(word, _)| word)
}

/// `on` or `off`, and what people write for it.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "1" | "true" | "yes" => Ok(true),
        "off" | "0" | "false" | "no" => Ok(false),
        _ => Err("not on or off".into()),
    }
}

pub(super) fn signal_to(text: &str) -> Result<SignalTo, String> {
    one_of(SIGNAL_TO, text)
}

pub(super) fn drain_until(text: &str) -> Result<DrainUntil, String> {
    one_of(DRAIN_UNTIL, text)
}

/// What holds a drain has to be asked for: that the app runs or listens is no sign that it is busy.
pub(super) fn drain_check(text: &str) -> Result<Check, String> {
    match Check::parse(text)? {
        Check::Running | Check::Listening => Err(format!(
            "`{text}` holds all through the drain; ask http://, tcp:// or exec: what tells that it is busy"
        )),
        check => Ok(check),
    }
}

/// What is waited for has to be somebody else's: nothing of the program's is there yet.
pub(super) fn wait_check(text: &str) -> Result<Check, String> {
    match Check::parse(text)? {
        Check::Running | Check::Listening => Err(format!(
            "`{text}` would wait for the program that it holds back; ask http://, tcp:// or exec: what it needs"
        )),
        check => Ok(check),
    }
}

pub(super) fn notify(text: &str) -> Result<Notify, String> {
    one_of(NOTIFY, text)
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("not text or json".into()),
    }
}

pub(super) fn count(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "a whole number from 1 is wanted".into())
}

pub(super) fn ports(text: &str) -> Result<Vec<u16>, String> {
    let port = |word: &str| {
        word.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("`{word}` is no port from 1 to 65535"))
    };
    text.split([',', ' ']).filter(|word| !word.is_empty()).map(port).collect()
}

pub(super) fn signal_list(text: &str) -> Result<SigSet, String> {
    let signal = |word: &str| match Signal::parse(word) {
        Some(Signal::KILL | Signal::STOP) => Err(format!("{word} cannot be caught, and so never asks for anything")),
        Some(signal) => Ok(signal),
        None => Err(no_such_signal(word)),
    };
    text.split([',', ' ']).filter(|word| !word.is_empty()).map(signal).collect()
}

pub(super) fn no_such_signal(word: &str) -> String {
    format!("`{word}` is no signal (TERM, SIGTERM, 15, RTMIN+3)")
}

pub(super) fn auto_or_duration(text: &str) -> Result<Option<Duration>, String> {
    if text == "auto" { Ok(None) } else { duration(text).map(Some) }
}

pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time.is_zero() { Err("longer than 0 is wanted".into()) } else { Ok(time) })
}

/// Reads `15s`, `500ms`, `1m30s`, `1.5s`, `2h`; a bare number is seconds.
///
/// # Errors
/// What is wrong with the text, in words for the user.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration (15s, 500ms, 1m30s; a bare number is seconds)");
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let amount: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => 0.001,
            "s" => 1.0,
            "" if digits == text.len() => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        rest = &rest[letters..];
        let part = Duration::try_from_secs_f64(amount * unit).map_err(|_| wrong())?;
        total = total
            .checked_add(part)
            .filter(|total| *total <= LONGEST)
            .ok_or_else(|| format!("`{text}` is longer than a year"))?;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// A duration as people write it: `1m30s`, `2.5s`, `40ms`; from a second on, to the nearest tenth.
pub fn human(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        return match time.as_millis() {
            0 => "0s".into(),
            millis => format!("{millis}ms"),
        };
    }
    let tenths = (time.as_millis() + 50) / 100;
    match (tenths / 600, tenths / 10 % 60, tenths % 10) {
        (0, seconds, 0) => format!("{seconds}s"),
        (0, seconds, tenth) => format!("{seconds}.{tenth}s"),
        (minutes, 0, 0) => format!("{minutes}m"),
        (minutes, seconds, 0) => format!("{minutes}m{seconds}s"),
        (minutes, seconds, tenth) => format!("{minutes}m{seconds}.{tenth}s"),
    }
}

//! A line of the log, as text for a person or as JSON for a collector.
//!
//! They are written as `tracing-subscriber` writes them, by hand: with its registry of spans and with serde_json it is 50 kB
//! of program, for the sake of a few lines.

use std::fmt::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// `sundown: text`; the level is named where it is not the usual one. The fields are left to JSON.
pub fn text(event: &Event<'_>) -> String {
    let mut line = String::from(match *event.metadata().level() {
        Level::ERROR => "sundown: error: ",
        Level::WARN => "sundown: warning: ",
        Level::INFO => "sundown: ",
        Level::DEBUG => "sundown: debug: ",
        Level::TRACE => "sundown: trace: ",
    });
    event.record(&mut Message(&mut line));
    line.push('\n');
    line
}

/// An object: the time, the level, the message and the fields.
pub fn json(event: &Event<'_>, time: SystemTime) -> String {
    let time = Utc(time.duration_since(UNIX_EPOCH).unwrap_or_default());
    let mut line = format!("{{\"timestamp\":\"{time}\",\"level\":\"{}\"", event.metadata().level());
    event.record(&mut Fields(&mut line));
    line.push_str("}\n");
    line
}

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

struct Fields<'a>(&'a mut String);

impl Fields<'_> {
    fn bare(&mut self, field: &Field, value: impl fmt::Display) {
        let _ = write!(self.0, ",\"{}\":{value}", field.name());
    }

    fn quoted(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let _ = write!(self.0, ",\"{}\":\"", field.name());
        let _ = Quoting(self.0).write_fmt(value);
        self.0.push('"');
    }
}

impl Visit for Fields<'_> {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.bare(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.bare(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.bare(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.quoted(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.quoted(field, format_args!("{value:?}"));
    }
}

/// What is written between the quotes of a JSON string, with the short escapes where there are some (RFC 8259).
struct Quoting<'a>(&'a mut String);

impl Write for Quoting<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '"' | '\\' => self.0.extend(['\\', character]),
                '\n' => self.0.push_str("\\n"),
                '\r' => self.0.push_str("\\r"),
                '\t' => self.0.push_str("\\t"),
                '\x08' => self.0.push_str("\\b"),
                '\x0c' => self.0.push_str("\\f"),
                '\0'..='\x1f' => write!(self.0, "\\u{:04x}", u32::from(character))?,
                _ => self.0.push(character),
            }
        }
        Ok(())
    }
}

/// A time since 1970, as RFC 3339 writes it, to the microsecond.
struct Utc(Duration);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (year, month, day) = date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let micros = self.0.subsec_micros();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

/// Year, month and day of a day since 1970. The years are counted from March on, so that a leap day is a year's last, in
/// eras of 400 years, since these are all of one length (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn date(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 400 * 365 + 97;
    let days = days + 719_468; // from 1 March of the year 0 to 1970
    let (era, of_era) = (days / ERA, days % ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_in_utc() {
        let told = |seconds, micros: u32| Utc(Duration::new(seconds, micros * 1000)).to_string();
        assert_eq!(told(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(told(951_782_399, 999_999), "2000-02-28T23:59:59.999999Z");
        assert_eq!(told(951_782_400, 1), "2000-02-29T00:00:00.000001Z");
        assert_eq!(told(1_709_251_199, 0), "2024-02-29T23:59:59.000000Z");
        assert_eq!(told(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
        assert_eq!(told(1_796_092_993, 0), "2026-12-01T02:43:13.000000Z");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let is_leap = |year| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let mut expected = (1970, 1, 1);
        for days in 0..200_000 {
            assert_eq!(date(days), expected);
            let (year, month, day) = expected;
            let last = match month {
                2 if is_leap(year) => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            expected = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                _ if day == last => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
        }
    }

    #[test]
    fn what_could_break_out_of_a_string_is_quoted() {
        let mut line = String::new();
        Quoting(&mut line).write_str("a\"b\\c\n\r\t\u{8}\u{c}\u{1b}\u{7f}é").expect("a string takes all");
        assert_eq!(line, "a\\\"b\\\\c\\n\\r\\t\\b\\f\\u001b\u{7f}é");
    }
}

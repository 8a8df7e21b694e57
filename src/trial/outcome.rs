//! What came of the stop, from its exit status and the instance's own log.

use std::fmt::Write;
use std::process::ExitStatus;
use std::time::Duration;

use crate::plan::human;
use crate::report::json;

/// What the instance said.
pub(super) struct Log {
    /// The advice that was given, each with its id.
    pub(super) advice: Vec<String>,
    /// Who was left at the kill.
    pub(super) left: Vec<String>,
    /// The line at the end.
    pub(super) last: String,
    /// All of it, the app's own words too.
    pub(super) all: String,
}

impl Log {
    /// Reads a log of the text format.
    pub(super) fn of(all: &str) -> Self {
        let mut log = Self { advice: Vec::new(), left: Vec::new(), last: String::new(), all: all.to_owned() };
        let ours = all.lines().filter_map(|line| line.strip_prefix("sundown: "));
        for line in ours.map(|line| line.trim_start_matches("warning: ")) {
            if is_advice(line) {
                log.advice.push(line.to_owned());
            } else if let Some(left) = line.strip_prefix("left: ") {
                log.left.push(left.to_owned());
            } else if let Some(last) = line.strip_prefix("stopped: ") {
                last.clone_into(&mut log.last);
            }
        }
        log
    }
}

fn is_advice(line: &str) -> bool {
    let code = line.split_once(": ").map_or("", |(code, _)| code);
    code.strip_prefix("SD").is_some_and(|number| number.len() == 3 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The ports in a status.
pub(super) fn ports(status: &str) -> Vec<u16> {
    let line = status.lines().find_map(|line| line.strip_prefix("ports "));
    line.into_iter().flat_map(|line| line.split(',')).filter_map(|port| port.trim().parse().ok()).collect()
}

/// What came of the stop.
pub(super) struct Outcome {
    /// None if it had not ended long after its time.
    pub(super) status: Option<ExitStatus>,
    pub(super) took: Duration,
    pub(super) limit: Duration,
    pub(super) log: Log,
}

impl Outcome {
    /// Whether it stopped by itself within its time.
    pub(super) fn is_well(&self) -> bool {
        self.status.is_some() && self.log.left.is_empty() && !self.log.last.is_empty() && self.took <= self.limit
    }

    fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        let code = self.code().map_or("none".into(), |code| code.to_string());
        let (took, limit) = (human(self.took), human(self.limit));
        let _ = writeln!(text, "stop       {took} of {limit}, exit code {code}");
        if !self.log.last.is_empty() {
            let _ = writeln!(text, "           {}", self.log.last);
        }
        for left in &self.log.left {
            let _ = writeln!(text, "left       {left}");
        }
        for advice in &self.log.advice {
            let _ = writeln!(text, "advice     {advice}");
        }
        let verdict = match (self.is_well(), self.status) {
            (true, _) => "ok: it stopped by itself within its time",
            (false, None) => "FAILED: it had not ended long after its time",
            (false, Some(_)) if !self.log.left.is_empty() => "FAILED: it had to be killed",
            (false, Some(_)) if self.log.last.is_empty() => "FAILED: sundown itself ended before its last words",
            (false, Some(_)) => "FAILED: it took longer than its time",
        };
        let _ = writeln!(text, "result     {verdict}");
        if !self.is_well() {
            let _ = write!(text, "\nthe whole log:\n{}", self.log.all);
        }
        text
    }

    /// The members of an object, without its braces.
    pub(super) fn to_json(&self) -> String {
        let strings = |items: &[String]| json::list(items.iter().map(|item| json::quote(item)));
        format!(
            concat!(
                "\"stop\":{{\"seconds\":{},\"grace_period_seconds\":{},\"exit_code\":{},\"last_words\":{},\"left\":{}}},",
                "\"advice\":{},\"ok\":{}"
            ),
            json::seconds(Some(self.took)),
            json::seconds(Some(self.limit)),
            self.code().map_or("null".into(), |code| code.to_string()),
            json::quote(&self.log.last),
            strings(&self.log.left),
            strings(&self.log.advice),
            self.is_well(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const LOG: &str = "listening\nsundown: warning: SD404: slow: so; do\nsundown: SD101: a: b; c\nsundown: warning: left: node (pid 7): asleep\nsundown: stopped: asked by x; exit code 137\nSD999: not ours\n";

    fn outcome(log: &str, took: u64) -> Outcome {
        let status = Some(ExitStatus::from_raw(0));
        Outcome { status, took: Duration::from_secs(took), limit: Duration::from_secs(30), log: Log::of(log) }
    }

    #[test]
    fn the_log_is_taken_apart() {
        let log = Log::of(LOG);
        assert_eq!(log.advice, ["SD404: slow: so; do", "SD101: a: b; c"]);
        assert_eq!(log.left, ["node (pid 7): asleep"]);
        assert_eq!(log.last, "asked by x; exit code 137");
    }

    #[test]
    fn only_what_stops_by_itself_and_in_time_is_well() {
        let well = "sundown: stopped: asked by x; exit code 0\n";
        assert!(outcome(well, 3).is_well());
        assert!(!outcome(well, 31).is_well());
        assert!(!outcome(LOG, 3).is_well(), "it was killed");
        assert!(!outcome("", 3).is_well(), "no last words");
        assert!(!Outcome { status: None, ..outcome(well, 3) }.is_well());
    }

    #[test]
    fn ports_are_read_from_a_status() {
        assert_eq!(ports("phase    running\nports    3000, 9229\n"), [3000, 9229]);
        assert_eq!(ports("phase    running\n"), [0; 0]);
    }
}

//! The stop signals in their order, and the time between them.

use std::time::Duration;

use super::words::{duration, no_such_signal};
use crate::signals::Signal;

/// Two signals closer together than this may arrive in any order.
const LEAST_STEP: Duration = Duration::from_millis(100);

/// One rung: a signal, and how long until the next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// The signal.
    pub signal: Signal,
    /// The time until the next rung, or until KILL after the last.
    pub wait: Option<Duration>,
}

/// The stop signals in their order. Never empty.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ladder(Vec<Step>);

impl Ladder {
    /// The rungs.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// A ladder of these rungs, for tests.
    #[cfg(test)]
    pub fn of(steps: Vec<Step>) -> Self {
        Self(steps)
    }

    /// What all rungs take together.
    pub(super) fn sum(&self) -> Duration {
        self.0.iter().filter_map(|step| step.wait).sum()
    }

    /// Reads `TERM`, or `TSTP 10s TERM 15s`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut steps: Vec<Step> = Vec::new();
        for word in text.split_whitespace() {
            // A bare number between two signals is a wait in seconds; the first word is always a signal.
            let expects_signal = steps.last().is_none_or(|step| step.wait.is_some());
            if !expects_signal && Signal::parse(word).is_none_or(|_| word.starts_with(|c: char| c.is_ascii_digit())) {
                let wait = duration(word)?;
                if wait < LEAST_STEP {
                    return Err(format!(
                        "a step of {word} is under 100ms, and two signals so close arrive in any order"
                    ));
                }
                if let Some(step) = steps.last_mut() {
                    step.wait = Some(wait);
                }
                continue;
            }
            let signal = Signal::parse(word).ok_or_else(|| no_such_signal(word))?;
            if let Some(step) = steps.last()
                && step.wait.is_none()
            {
                return Err(format!(
                    "{} and {signal} need a time between them, such as \"{} 10s {word}\"",
                    step.signal, step.signal
                ));
            }
            steps.push(Step { signal, wait: None });
        }
        if steps.is_empty() { Err("no signal in it".into()) } else { Ok(Self(steps)) }
    }
}

//! What the limits of memory and CPU time do to the app, from the group's figures whenever they are looked at. Pure.

use std::time::Duration;

use crate::cgroup::{Snapshot, bytes};
use crate::lifecycle::Moment;
use crate::plan::human;
use crate::report::advice::{Advice, Id};

/// From this share of the limit on, in percent, a little more is a kill.
const MEMORY: u128 = 90;
/// From this share of its periods on, in percent, an app that is held back answers late.
const THROTTLED: u64 = 25;
/// The share is that of about the last minute,
const MINUTE: Duration = Duration::from_secs(60);
/// and says nothing over less than this,
const LEAST: Duration = Duration::from_secs(10);
/// or over fewer periods: 5 s of the usual ones.
const PERIODS: u64 = 50;

/// The counters of the CPU quota at two earlier looks, the older about a minute ago.
#[derive(Default, Debug)]
pub struct Pressure {
    older: Option<Mark>,
    newer: Option<Mark>,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Moment,
    periods: u64,
    throttled: u64,
}

impl Pressure {
    /// What is to be said of these figures.
    pub fn look(&mut self, now: Moment, figures: &Snapshot) -> impl Iterator<Item = Advice> {
        [memory(figures), group(figures), self.throttling(now, figures)].into_iter().flatten()
    }

    fn throttling(&mut self, now: Moment, figures: &Snapshot) -> Option<Advice> {
        let mark = Mark { at: now, periods: figures.cpu_periods?, throttled: figures.cpu_throttled_periods? };
        if self.newer.is_none_or(|newer| now.saturating_sub(newer.at) >= MINUTE) {
            self.older = self.newer.replace(mark);
        }
        let older = self.older.or(self.newer).unwrap_or(mark);
        let (time, periods) = (now.saturating_sub(older.at), mark.periods.saturating_sub(older.periods));
        let throttled = mark.throttled.saturating_sub(older.throttled);
        if time < LEAST || periods < PERIODS || throttled * 100 < periods * THROTTLED {
            return None;
        }
        let quota = figures.cpu_quota.map_or(String::new(), |(quota, period)| {
            format!(" to {} % of a CPU", quota.as_micros() * 100 / period.as_micros().max(1))
        });
        Some(Advice::new(
            Id::Throttled,
            format!(
                "the CPU limit held the container back{quota} in {} % of its periods over the last {}",
                throttled * 100 / periods,
                human(time)
            ),
            "requests and probes are answered late, and a liveness probe that fails for it restarts the app",
            "raise or remove limits.cpu; for the live check --throttle-patience counts no failure of that kind",
        ))
    }
}

fn memory(figures: &Snapshot) -> Option<Advice> {
    let (used, limit) = figures.memory_used.zip(figures.memory_limit)?;
    (u128::from(used) * 100 >= u128::from(limit) * MEMORY).then(|| {
        Advice::new(
            Id::MemoryNearLimit,
            format!("{} of {} of memory are in use", bytes(used), bytes(limit)),
            "with a little more the kernel kills the process that uses most, and its requests with it",
            "raise limits.memory, or lower what the app uses",
        )
    })
}

fn group(figures: &Snapshot) -> Option<Advice> {
    let limit = figures.memory_limit.filter(|_| figures.oom_group == Some(true))?;
    Some(Advice::new(
        Id::OomGroup,
        format!("memory.oom.group is set, and the limit is {}", bytes(limit)),
        "one worker that outgrows it takes the whole container along, sundown too, without a drain and without last words",
        "give the worker that grows a limit of its own, or keep well below the container's",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn cpu(periods: u64, throttled: u64) -> Snapshot {
        Snapshot { cpu_periods: Some(periods), cpu_throttled_periods: Some(throttled), ..Snapshot::default() }
    }

    fn told(pressure: &mut Pressure, second: u32, figures: &Snapshot) -> Vec<String> {
        pressure.look(SECOND * second, figures).map(|advice| advice.to_string()).collect()
    }

    #[test]
    fn throttling_is_that_of_the_last_minute() {
        let mut pressure = Pressure::default();
        assert!(told(&mut pressure, 100, &cpu(5000, 5000)).is_empty(), "what was before counts for nothing");
        assert!(told(&mut pressure, 105, &cpu(5050, 5050)).is_empty(), "too soon to say");
        let text = told(&mut pressure, 160, &cpu(5600, 5300)).join("");
        assert!(text.contains("in 50 % of its periods over the last 1m"), "{text}");
        assert!(told(&mut pressure, 220, &cpu(6200, 5310)).is_empty(), "the minute before counts no more");
    }

    #[test]
    fn a_little_throttling_and_none_are_not_told() {
        let mut pressure = Pressure::default();
        for (second, periods, throttled) in [(0, 0, 0), (30, 300, 74), (60, 600, 149)] {
            assert!(told(&mut pressure, second, &cpu(periods, throttled)).is_empty(), "at {second}");
        }
        assert!(told(&mut pressure, 90, &Snapshot::default()).is_empty(), "no quota");
    }

    #[test]
    fn memory_near_its_limit_is_told_and_whom_it_would_take_along() {
        let memory = |used, oom_group| Snapshot {
            memory_used: Some(used),
            memory_limit: Some(100 << 20),
            oom_group,
            ..Snapshot::default()
        };
        let told = |figures| told(&mut Pressure::default(), 0, &figures);
        assert!(told(memory(89 << 20, None)).is_empty());
        assert!(told(memory(90 << 20, None))[0].starts_with("SD502: 90 MiB of 100 MiB of memory are in use: "));
        assert!(told(memory(1, Some(true)))[0].starts_with("SD503: memory.oom.group is set, and the limit is 100 MiB"));
        assert!(told(Snapshot { memory_limit: None, ..memory(1, Some(true)) }).is_empty());
    }
}

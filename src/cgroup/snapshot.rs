//! The group's figures at one moment.

use std::time::Duration;

use super::Cgroup;
use super::place::{Place, Version};

/// What stands for "no limit" on v1 is the largest multiple of the page size that fits, which differs; nobody has as much.
const NO_LIMIT: u64 = 1 << 62;

/// The figures; None where the kernel does not tell, or there is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Snapshot {
    /// Processes killed for want of memory since the group was made.
    pub oom_kills: Option<u64>,
    /// The working set in bytes, by which the kubelet goes: what is used without the file cache that can go at once.
    pub memory_used: Option<u64>,
    /// The limit in bytes: the group's, and on v1 that of those above it if it is lower.
    pub memory_limit: Option<u64>,
    /// Whether one process that is killed for want of memory takes all of the group with it, us too (v2).
    pub oom_group: Option<bool>,
    /// Periods of the CPU quota in which something ran.
    pub cpu_periods: Option<u64>,
    /// Those of them in which the quota was used up.
    pub cpu_throttled_periods: Option<u64>,
    /// How long its CPUs' share of the group was held back for that.
    pub throttled_time: Option<Duration>,
    /// The CPU time that all may use together in a period, and the period.
    pub cpu_quota: Option<(Duration, Duration)>,
    /// Processes and threads.
    pub pids_current: Option<u64>,
    /// The most that there may be.
    pub pids_limit: Option<u64>,
    /// How often one more was refused.
    pub pids_max_events: Option<u64>,
}

impl Snapshot {
    pub(super) fn take(cgroup: &Cgroup) -> Self {
        let mut snapshot = Self { oom_kills: cgroup.oom_kills(), ..Self::default() };
        if let Some(place) = &cgroup.memory {
            snapshot.take_memory(place);
        }
        if let Some(place) = &cgroup.cpu {
            snapshot.take_cpu(place);
        }
        if let Some(place) = &cgroup.pids {
            let read = |name| place.read(name);
            set(&mut snapshot.pids_current, read("pids.current"), number);
            set(&mut snapshot.pids_limit, read("pids.max"), limit);
            set(&mut snapshot.pids_max_events, read("pids.events"), |text| field(text, "max"));
        }
        snapshot
    }

    fn take_memory(&mut self, place: &Place) {
        let (usage, most, inactive) = match place.version {
            // The figures of the groups below are counted in, as on v2.
            Version::V1 => ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"),
            Version::V2 => ("memory.current", "memory.max", "inactive_file"),
        };
        let stat = place.read("memory.stat").unwrap_or_default();
        let usage = place.read(usage).and_then(|text| number(&text));
        self.memory_used = usage.map(|usage| usage.saturating_sub(field(&stat, inactive).unwrap_or(0)));
        let own = place.read(most).and_then(|text| limit(&text));
        let above = field(&stat, "hierarchical_memory_limit").filter(|limit| *limit < NO_LIMIT);
        self.memory_limit = [own, above].into_iter().flatten().min();
        self.oom_group = place.read("memory.oom.group").and_then(|text| number(&text)).map(|flag| flag != 0);
    }

    fn take_cpu(&mut self, place: &Place) {
        let stat = place.read("cpu.stat").unwrap_or_default();
        self.cpu_periods = field(&stat, "nr_periods");
        self.cpu_throttled_periods = field(&stat, "nr_throttled");
        match place.version {
            Version::V1 => {
                self.throttled_time = field(&stat, "throttled_time").map(Duration::from_nanos);
                let read = |name| place.read(name).and_then(|text| number(&text)).map(Duration::from_micros);
                // The quota is -1 where there is none.
                self.cpu_quota = read("cpu.cfs_quota_us").zip(read("cpu.cfs_period_us"));
            }
            Version::V2 => {
                self.throttled_time = field(&stat, "throttled_usec").map(Duration::from_micros);
                self.cpu_quota = place.read("cpu.max").and_then(|text| quota(&text));
            }
        }
    }
}

fn set(figure: &mut Option<u64>, text: Option<String>, read: impl Fn(&str) -> Option<u64>) {
    *figure = text.and_then(|text| read(&text));
}

/// The number behind a name, in a file of lines such as `oom_kill 2`.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    number(value)
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// A limit: a number, or `max` or nearly the greatest of all for none.
fn limit(text: &str) -> Option<u64> {
    number(text).filter(|limit| *limit < NO_LIMIT)
}

/// `20000 100000`, in microseconds; `max 100000` for none.
fn quota(text: &str) -> Option<(Duration, Duration)> {
    let (quota, period) = text.trim().split_once(' ')?;
    Some((Duration::from_micros(number(quota)?), Duration::from_micros(number(period)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_its_whole_name_and_a_number() {
        let events = "low 0\nhigh 0\nmax 812\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(
            (field(events, "oom_kill"), field(events, "oom"), field(events, "max")),
            (Some(2), Some(3), Some(812))
        );
        assert_eq!(field(events, "oom_group"), None);
        for garbage in
            ["", "oom_kill", "oom_kill ", "oom_kill x", "oom_kill -1", "oom_kill 99999999999999999999", "\0\n\n"]
        {
            assert_eq!(field(garbage, "oom_kill"), None, "{garbage:?}");
        }
    }

    #[test]
    fn a_limit_that_nobody_can_reach_is_none() {
        assert_eq!(limit("67108864\n"), Some(67_108_864));
        for none in ["max\n", "9223372036854771712\n", "9223372036854710272\n", "18446744073709551615", "-1", "", "64M"]
        {
            assert_eq!(limit(none), None, "{none}");
        }
    }

    #[test]
    fn a_quota_has_its_period() {
        let micros = Duration::from_micros;
        assert_eq!(quota("20000 100000\n"), Some((micros(20_000), micros(100_000))));
        for none in ["max 100000\n", "20000", "20000 ", "", " ", "a b"] {
            assert_eq!(quota(none), None, "{none:?}");
        }
    }
}

//! The figures in words.

use std::fmt;

use super::Snapshot;
use crate::plan::human;

/// A number of bytes for a person: `61.5 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    // Rounded down, so that what is below a limit never looks as if it were at it.
    let mut tenths = u128::from(count) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, UNITS[unit]),
        tenth => format!("{}.{tenth} {}", tenths / 10, UNITS[unit]),
    }
}

impl Snapshot {
    /// How much memory is in use, and of how much.
    pub fn memory(&self) -> Option<String> {
        let used = bytes(self.memory_used?);
        Some(match self.memory_limit {
            Some(limit) => format!("{used} of {} of memory in use", bytes(limit)),
            None => format!("{used} of memory in use, without a limit"),
        })
    }

    fn throttling(&self) -> Option<String> {
        let (throttled, periods) = self.cpu_throttled_periods.zip(self.cpu_periods)?;
        // Without a quota there are no periods.
        let (quota, period) = self.cpu_quota?;
        let share = quota.as_micros() * 100 / period.as_micros().max(1);
        let time = self.throttled_time.map_or(String::new(), |time| format!(", {} in all", human(time)));
        Some(format!("held to {share} % of a CPU in {throttled} of {periods} periods{time}"))
    }
}

impl fmt::Display for Snapshot {
    /// On one line; empty where nothing is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kills = self.oom_kills.filter(|kills| *kills > 0);
        let kills = kills.map(|kills| format!("{kills} killed for want of memory"));
        let parts: Vec<String> = [self.memory(), kills, self.throttling()].into_iter().flatten().collect();
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn bytes_are_rounded_down() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (67_108_864, "64 MiB"),
            (67_108_863, "63.9 MiB"),
            (1_600_000_000, "1.4 GiB"),
            (1 << 60, "1024 PiB"),
        ] {
            assert_eq!(bytes(count), text, "{count}");
        }
    }

    #[test]
    fn the_line_holds_what_is_known() {
        assert_eq!(Snapshot::default().to_string(), "");
        let known = Snapshot {
            oom_kills: Some(2),
            memory_used: Some(63 << 20),
            memory_limit: Some(64 << 20),
            cpu_periods: Some(50),
            cpu_throttled_periods: Some(40),
            throttled_time: Some(Duration::from_millis(2100)),
            cpu_quota: Some((Duration::from_millis(20), Duration::from_millis(100))),
            ..Snapshot::default()
        };
        assert_eq!(
            known.to_string(),
            "63 MiB of 64 MiB of memory in use; 2 killed for want of memory; held to 20 % of a CPU in 40 of 50 periods, 2.1s in all"
        );
        let without = Snapshot { oom_kills: Some(0), memory_limit: None, cpu_quota: None, ..known };
        assert_eq!(without.to_string(), "63 MiB of memory in use, without a limit");
    }
}

//! The figures in Prometheus' text format 0.0.4. Pure: values in, text out.

use std::fmt::{Display, Write};
use std::time::Duration;

use crate::cgroup::Snapshot;

/// What a scrape is answered with.
#[derive(Default)]
pub struct Metrics(String);

impl Metrics {
    /// The whole text.
    pub fn into_text(self) -> String {
        self.0
    }

    /// A value that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "gauge");
        let _ = writeln!(self.0, "sundown_{name} {value}");
    }

    /// A value that only grows.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "counter");
        let _ = writeln!(self.0, "sundown_{name} {value}");
    }

    /// One value for each of a label's; the kind is `gauge` or `counter`.
    pub fn each<V: Display>(
        &mut self,
        (name, kind): (&str, &str),
        help: &str,
        label: &str,
        values: impl Iterator<Item = (&'static str, V)>,
    ) {
        self.head(name, help, kind);
        for (of, value) in values {
            let _ = writeln!(self.0, "sundown_{name}{{{label}=\"{of}\"}} {value}");
        }
    }

    /// What the kernel tells of our control group.
    pub fn cgroup(&mut self, figures: &Snapshot) {
        if let Some(used) = figures.memory_used {
            self.gauge("memory_used_bytes", "The working set of the control group, by which the kubelet goes.", used);
        }
        if let Some(limit) = figures.memory_limit {
            self.gauge("memory_limit_bytes", "Its limit of memory.", limit);
        }
        if let Some(kills) = figures.oom_kills {
            self.counter("oom_kills_total", "Processes killed for want of memory.", kills);
        }
        if let Some((periods, throttled)) = figures.cpu_periods.zip(figures.cpu_throttled_periods) {
            self.counter("cpu_periods_total", "Periods of the CPU quota in which something ran.", periods);
            self.counter("cpu_throttled_periods_total", "Those of them in which the quota was used up.", throttled);
        }
        if let Some(time) = figures.throttled_time {
            self.counter("cpu_throttled_seconds_total", "How long its CPUs were held back for that.", seconds(time));
        }
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = write!(self.0, "# HELP sundown_{name} {help}\n# TYPE sundown_{name} {kind}\n");
    }
}

/// Seconds, as Prometheus wants them.
pub fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_its_help_its_type_and_its_value() {
        let mut metrics = Metrics::default();
        metrics.gauge("ready", "Whether.", 1);
        metrics.each(("stops_total", "counter"), "How often.", "source", [("signal", 2), ("prestop", 0)].into_iter());
        assert_eq!(
            metrics.into_text(),
            "# HELP sundown_ready Whether.\n# TYPE sundown_ready gauge\nsundown_ready 1\n\
             # HELP sundown_stops_total How often.\n# TYPE sundown_stops_total counter\n\
             sundown_stops_total{source=\"signal\"} 2\nsundown_stops_total{source=\"prestop\"} 0\n"
        );
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_no_figure() {
        let text = |figures: Snapshot| {
            let mut metrics = Metrics::default();
            metrics.cgroup(&figures);
            metrics.into_text()
        };
        assert_eq!(text(Snapshot::default()), "");
        let known = Snapshot {
            oom_kills: Some(2),
            memory_used: Some(5000),
            memory_limit: Some(6000),
            cpu_periods: Some(50),
            cpu_throttled_periods: Some(40),
            throttled_time: Some(Duration::from_millis(2100)),
            ..Snapshot::default()
        };
        for line in [
            "sundown_oom_kills_total 2",
            "sundown_memory_used_bytes 5000",
            "sundown_memory_limit_bytes 6000",
            "sundown_cpu_periods_total 50",
            "sundown_cpu_throttled_periods_total 40",
            "sundown_cpu_throttled_seconds_total 2.1",
        ] {
            assert!(text(known).lines().any(|known| known == line), "{line} is not in {}", text(known));
        }
    }
}

//! The figures in Prometheus' text format 0.0.4. Pure: values in, text out.

use std::fmt::{Display, Write};
use std::time::Duration;

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
}

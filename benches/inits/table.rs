//! The figures as a table, with what each is of the best C init's, and the goals that are missed.

use std::fmt::Write;

use crate::contestant::{Contestant, Kind};
use crate::measure::Idle;

/// A line of the table.
pub struct Measure {
    pub what: &'static str,
    pub unit: &'static str,
    pub of: fn(&Contestant) -> Option<f64>,
    pub better: Better,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Less,
    More,
    /// Not compared by a ratio.
    Plain,
}

pub const START: Measure = Measure {
    what: "exec to the child's start",
    unit: "µs",
    of: |one| quantile(&one.figures.starts, 0.5),
    better: Better::Plain,
};
pub const ABOVE: Measure = Measure { what: "of that above no init", unit: "µs", of: |_| None, better: Better::Less };
pub const WAY_50: Measure = Measure {
    what: "a signal's way, p50",
    unit: "µs",
    of: |one| quantile(&one.figures.ways, 0.5),
    better: Better::Less,
};
pub const WAY_90: Measure = Measure {
    what: "a signal's way, p90",
    unit: "µs",
    of: |one| quantile(&one.figures.ways, 0.9),
    better: Better::Less,
};
pub const WAY_99: Measure = Measure {
    what: "a signal's way, p99",
    unit: "µs",
    of: |one| quantile(&one.figures.ways, 0.99),
    better: Better::Less,
};
pub const STOP: Measure = Measure {
    what: "TERM to the end, nothing to wait for",
    unit: "µs",
    of: |one| quantile(&one.figures.stops, 0.5),
    better: Better::Less,
};
pub const REAPED: Measure = Measure {
    what: "orphans that end at once, reaped a second",
    unit: "",
    of: |one| quantile(&one.figures.orphans.iter().map(|orphans| orphans.a_second).collect::<Vec<_>>(), 0.5),
    better: Better::More,
};
pub const PEAK: Measure = Measure {
    what: "peak of zombies, orphans one after another",
    unit: "",
    of: |one| quantile(&one.figures.orphans.iter().map(|orphans| orphans.peak).collect::<Vec<_>>(), 0.5),
    better: Better::Plain,
};
pub const SWITCHES: Measure = Measure {
    what: "idle: context switches",
    unit: "",
    of: |one| Some(one.figures.idle.as_ref()?.switches as f64),
    better: Better::Plain,
};
pub const CPU: Measure = Measure {
    what: "idle: CPU time",
    unit: "µs",
    of: |one| Some(one.figures.idle.as_ref()?.cpu.as_nanos() as f64 / 1e3),
    better: Better::Plain,
};
pub const RESIDENT: Measure = Measure {
    what: "resident",
    unit: "kB",
    of: |one| Some(one.figures.idle.as_ref()?.resident as f64 / 1024.0),
    better: Better::Less,
};
pub const DIRTY: Measure = Measure {
    what: "private dirty",
    unit: "kB",
    of: |one| Some(one.figures.idle.as_ref()?.private_dirty as f64 / 1024.0),
    better: Better::Less,
};
pub const FILE: Measure =
    Measure { what: "file", unit: "kB", of: |one| Some(one.file_size() as f64 / 1e3), better: Better::Less };

const ALL: [&Measure; 13] =
    [&START, &ABOVE, &WAY_50, &WAY_90, &WAY_99, &STOP, &REAPED, &PEAK, &SWITCHES, &CPU, &RESIDENT, &DIRTY, &FILE];

impl Measure {
    /// The figure of one.
    pub fn figure(&self, one: &Contestant, all: &[Contestant]) -> Option<f64> {
        if self.what != ABOVE.what {
            return (self.of)(one);
        }
        let bare = all.iter().find(|one| one.kind == Kind::Bare)?;
        if one.is_init() { Some((START.of)(one)? - (START.of)(bare)?) } else { None }
    }

    /// The best of the C inits.
    pub fn best(&self, all: &[Contestant]) -> Option<f64> {
        let figures = all.iter().filter(|one| one.kind == Kind::Theirs).filter_map(|one| self.figure(one, all));
        figures.reduce(if self.better == Better::More { f64::max } else { f64::min })
    }

    fn cell(&self, one: &Contestant, all: &[Contestant]) -> String {
        let Some(figure) = self.figure(one, all) else { return "-".into() };
        let number = if figure < 10.0 && figure.fract() > 0.0 { format!("{figure:.1}") } else { grouped(figure) };
        match self.best(all) {
            Some(best) if self.better != Better::Plain && one.is_init() => format!("{number} ({:.2})", figure / best),
            _ => number,
        }
    }
}

/// With a comma between the thousands.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub fn table(all: &[Contestant]) -> String {
    let mut table = String::from("|");
    for one in all {
        let _ = write!(table, " | {}", one.name);
    }
    let _ = writeln!(table, " |\n|---{}|", "|---:".repeat(all.len()));
    for measure in ALL {
        let unit = if measure.unit.is_empty() { String::new() } else { format!(", {}", measure.unit) };
        let cells: Vec<String> = all.iter().map(|one| measure.cell(one, all)).collect();
        let _ = writeln!(table, "| {}{unit} | {} |", measure.what, cells.join(" | "));
    }
    table
}

/// What was aimed at and is not so.
pub fn missed(all: &[Contestant], probed: &Idle) -> Vec<String> {
    let mut missed = Vec::new();
    for one in all.iter().filter(|one| one.is_ours()) {
        let mut want = |measure: &Measure, limit: Option<f64>, word: &str| {
            let (Some(figure), Some(limit)) = (measure.figure(one, all), limit) else { return };
            let is_kept = if measure.better == Better::More { figure >= limit } else { figure <= limit };
            if !is_kept {
                let (name, what, unit) = (&one.name, measure.what, measure.unit);
                missed.push(format!("{name}: {what}: {figure:.1} {unit}, and not {limit:.1} ({word})"));
            }
        };
        let scaled = |measure: &Measure, by: f64| measure.best(all).map(|best| best * by);
        want(&ABOVE, ABOVE.best(all), "the best C init's");
        want(&WAY_50, scaled(&WAY_50, 1.1), "1.1 times the best C init's");
        want(&WAY_90, scaled(&WAY_90, 1.1), "1.1 times the best C init's");
        want(&REAPED, REAPED.best(all), "the best C init's");
        want(&SWITCHES, Some(0.0), "the goal");
        want(&CPU, Some(0.0), "the goal");
        want(&RESIDENT, Some(700.0), "the goal");
        want(&DIRTY, Some(100.0), "the goal");
        want(&FILE, Some(708.08), "tini-static's of Debian 12");
    }
    for (what, figure, limit) in
        [("resident", probed.resident / 1024, 1_000), ("private dirty", probed.private_dirty / 1024, 200)]
    {
        if figure > limit {
            missed.push(format!("sundown, glibc, with --http: {what}: {figure} kB, and not {limit} kB (the goal)"));
        }
    }
    missed
}

fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied()
}

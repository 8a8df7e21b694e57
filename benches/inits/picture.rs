//! The figures as bars. Written by hand: a plotting crate would bring as many packages into the lock file as sundown has.

use std::fmt::Write;

use crate::contestant::{Contestant, Kind};
use crate::table::{ABOVE, Better, DIRTY, FILE, Measure, REAPED, RESIDENT, STOP, WAY_50, WAY_90, grouped};

const CHARTS: [&Measure; 8] = [&ABOVE, &WAY_50, &WAY_90, &STOP, &REAPED, &RESIDENT, &DIRTY, &FILE];
const COLUMNS: usize = 2;

/// In pixels.
const WIDTH: usize = 470;
const NAMES: usize = 150;
const BARS: usize = 230;
const LINE: usize = 20;
const HEAD: usize = 34;

pub fn draw(all: &[Contestant]) -> String {
    let height = HEAD + all.len() * LINE + 16;
    let rows = CHARTS.len().div_ceil(COLUMNS);
    let (across, down) = (COLUMNS * WIDTH, rows * height);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {across} {down}\" width=\"{across}\" height=\"{down}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (at, measure) in CHARTS.iter().enumerate() {
        let (x, y) = (at % COLUMNS * WIDTH, at / COLUMNS * height);
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">\n{}</g>", chart(measure, all));
    }
    svg + "</svg>\n"
}

fn chart(measure: &Measure, all: &[Contestant]) -> String {
    let (what, unit) = (
        if measure.what == ABOVE.what { "exec to the child's start, above no init" } else { measure.what },
        measure.unit,
    );
    let hint = if measure.better == Better::More { "more is better" } else { "less is better" };
    let title = if unit.is_empty() { what.into() } else { format!("{what}, {unit}") };
    let mut text = format!(
        "<text x=\"10\" y=\"22\" font-weight=\"bold\">{title}<tspan dx=\"8\" fill=\"#777\" font-weight=\"normal\">{hint}</tspan></text>\n"
    );
    let bars: Vec<_> = all.iter().filter_map(|one| Some((one, measure.figure(one, all)?))).collect();
    let longest = bars.iter().map(|(_, figure)| *figure).fold(f64::MIN_POSITIVE, f64::max);
    for (at, (one, figure)) in bars.iter().enumerate() {
        let (y, length) = (HEAD + at * LINE, figure.max(0.0) / longest * BARS as f64);
        let (base, end) = (y + 12, NAMES as f64 + length + 5.0);
        let colour = match one.kind {
            Kind::Bare => "#bbb",
            Kind::Ours => "#d9822b",
            Kind::DropIn => "#f0b26b",
            Kind::Theirs => "#4a7aa8",
        };
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{base}\" text-anchor=\"end\">{}</text><rect x=\"{NAMES}\" y=\"{y}\" width=\"{length:.1}\" \
             height=\"15\" fill=\"{colour}\"/><text x=\"{end:.1}\" y=\"{base}\">{}</text>",
            NAMES - 6,
            one.name,
            grouped(*figure)
        );
    }
    text
}

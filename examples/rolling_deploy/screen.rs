//! A live table on a terminal; a line for each thing that happens, and the table once at the end, elsewhere.

use std::env;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::board::{Board, Counts, Row, State};
use crate::common::load::Tally;

/// How often the table is drawn, or looked at for changes.
const FRAME: Duration = Duration::from_millis(100);

/// Shows a board until dropped, and then once more.
pub struct Screen {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Screen {
    /// Starts to show the board under a title.
    pub fn start(title: &str, board: Board) -> Screen {
        let done = Arc::new(AtomicBool::new(false));
        println!("  {}", Style::BOLD.paint(title));
        let thread = thread::spawn({
            let done = Arc::clone(&done);
            move || if is_live() { draw(&board, &done) } else { tell(&board, &done) }
        });
        Screen { done, thread: Some(thread) }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join).expect("it was started").expect("showing does not panic");
        println!();
    }
}

/// The two runs side by side, as their clients saw them.
pub fn summary(runs: &[(&str, &Tally)]) {
    println!("  {}", Style::BOLD.paint(&format!("{:<12}{:>10}{:>8}{:>9}", "in all", "requests", "lost", "share")));
    for (name, tally) in runs {
        let share = 100.0 * tally.lost() as f64 / tally.sent.max(1) as f64;
        let how = if tally.lost() == 0 { String::new() } else { format!("   {}", tally.kinds()) };
        let lost = lost_style(tally.lost()).paint(&format!("{:>8}", tally.lost()));
        println!("  {name:<12}{:>10}{lost}{share:>7.1} %{how}", tally.sent);
    }
    println!("\n  503: the balancer got no connection. 502: the connection ended before the answer.\n");
}

/// Draws the table in place, again and again.
fn draw(board: &Board, done: &AtomicBool) {
    let start = Instant::now();
    let mut height = 0;
    loop {
        let last = done.load(Ordering::Relaxed);
        let table = table(&board.rows(), start.elapsed());
        let up = if height > 0 { format!("\x1b[{height}A") } else { String::new() };
        print!("{up}{}", table.replace('\n', "\x1b[K\n"));
        // A terminal that went away is no reason to end the deploy.
        let _ = io::stdout().flush();
        height = table.lines().count();
        if last {
            return;
        }
        thread::sleep(FRAME);
    }
}

/// Tells what changes, and draws the table once.
fn tell(board: &Board, done: &AtomicBool) {
    let start = Instant::now();
    let mut known: Vec<Row> = Vec::new();
    loop {
        let last = done.load(Ordering::Relaxed);
        let rows = board.rows();
        for (number, row) in rows.iter().enumerate() {
            let before = known.get(number);
            let at = format!("  {:>5.1} s  app {}", start.elapsed().as_secs_f64(), number + 1);
            if before.is_none_or(|before| before.state != row.state) && row.state != State::Starting {
                println!("{at} {}", news(before.map(|before| before.state), row.state));
            }
            if before.is_some_and(|before| before.routed && !row.routed) {
                println!("{at} is taken out of rotation; {} of its requests were lost", row.counts.lost);
            }
        }
        if last {
            print!("{}", table(&rows, start.elapsed()));
            return;
        }
        known = rows;
        thread::sleep(FRAME);
    }
}

fn table(rows: &[Row], elapsed: Duration) -> String {
    let mut table = String::new();
    let head = format!(
        "  {:<10}{:<26}{:<13}{:>9}{:>9}{:>7}",
        format!("{:.1} s", elapsed.as_secs_f64()),
        "",
        "in rotation",
        "requests",
        "ok",
        "lost"
    );
    let _ = writeln!(table, "{}", Style::DIM.paint(&head));
    for (number, row) in rows.iter().enumerate() {
        let name = format!("app {}", number + 1);
        let state = state_style(row).paint(&format!("{:<26}", state(row)));
        let routed = if row.routed { "yes" } else { "" };
        let _ = writeln!(table, "  {name:<10}{state}{routed:<13}{}", counts(row.counts));
    }
    let mut all = Counts::default();
    for row in rows {
        all.sent += row.counts.sent;
        all.ok += row.counts.ok;
        all.lost += row.counts.lost;
    }
    let _ = writeln!(table, "  {:<49}{}", "all", counts(all));
    table
}

fn counts(counts: Counts) -> String {
    let lost = lost_style(counts.lost).paint(&format!("{:>7}", counts.lost));
    format!("{:>9}{:>9}{lost}", counts.sent, counts.ok)
}

fn news(before: Option<State>, now: State) -> &'static str {
    match (before, now) {
        (_, State::Starting) => "starts",
        (_, State::Serving) => "serves",
        (_, State::Asked) => "gets SIGTERM",
        (Some(State::Asked), State::Gone) => "is gone",
        (_, State::Gone) => "gets SIGTERM and is gone at once, and still asked",
    }
}

fn state(row: &Row) -> String {
    match row.state {
        State::Starting => "starting".to_owned(),
        State::Serving => "serving".to_owned(),
        State::Asked => format!("SIGTERM {:.1} s ago", row.since.elapsed().as_secs_f64()),
        State::Gone if row.routed => "gone, and still asked".to_owned(),
        State::Gone => "gone".to_owned(),
    }
}

fn state_style(row: &Row) -> Style {
    match row.state {
        State::Starting => Style::DIM,
        State::Serving => Style::GREEN,
        State::Asked => Style::YELLOW,
        State::Gone if row.routed => Style::RED,
        State::Gone => Style::DIM,
    }
}

fn lost_style(lost: u64) -> Style {
    if lost > 0 { Style::RED } else { Style::GREEN }
}

/// A terminal's rendition (ECMA-48, SGR).
#[derive(Clone, Copy)]
struct Style(&'static str);

impl Style {
    const BOLD: Style = Style("1");
    const DIM: Style = Style("2");
    const RED: Style = Style("1;31");
    const GREEN: Style = Style("32");
    const YELLOW: Style = Style("33");

    fn paint(self, text: &str) -> String {
        if is_live() && env::var_os("NO_COLOR").is_none() {
            format!("\x1b[{}m{text}\x1b[0m", self.0)
        } else {
            text.to_owned()
        }
    }
}

fn is_live() -> bool {
    io::stdout().is_terminal() && env::var_os("TERM").is_some_and(|term| term != "dumb")
}

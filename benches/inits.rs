//! sundown beside tini, dumb-init and catatonit, by turns, each as PID 1 of fresh namespaces: the start, a signal's way,
//! orphans, the stop, idling, memory. One table, and a picture.
//!
//!     cargo bench --bench inits                                # about seven minutes: 300 rounds, a minute of idling
//!     cargo bench --bench inits -- --short                     # twenty seconds: 30 rounds, no picture
//!     cargo bench --bench inits -- --picture docs/inits.svg    # the picture somewhere else than target/inits.svg
//!
//! Needs root, x86_64 and rustc. What is not installed is named as SKIPPED. The musl build is what lies in
//! target/x86_64-unknown-linux-musl/release; without `--short` it is built anew.
//!
//! In a round each init is started once, gets SIGNALS signals that its child catches, and a TERM at which the child ends at
//! once. The child tells the times itself, by CLOCK_MONOTONIC: `inits/child.rs`. Nothing fails by a figure: they depend on the
//! machine. Goals that are missed are named.

#[path = "../tests/common/bare.rs"]
mod bare;
#[path = "inits/contestant.rs"]
mod contestant;
#[path = "inits/measure.rs"]
mod measure;
#[path = "inits/picture.rs"]
mod picture;
#[path = "inits/table.rs"]
mod table;

use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs, io};

struct Size {
    rounds: usize,
    orphan_rounds: usize,
    orphans: usize,
    idle: Duration,
}

const FULL: Size = Size { rounds: 300, orphan_rounds: 15, orphans: 10_000, idle: Duration::from_secs(60) };
const SHORT: Size = Size { rounds: 30, orphan_rounds: 2, orphans: 1_000, idle: Duration::from_secs(5) };
const SIGNALS: usize = 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("inits takes minutes: run it with `cargo bench --bench inits`");
        return ExitCode::SUCCESS;
    }
    if !nix::unistd::geteuid().is_root() || !cfg!(target_arch = "x86_64") {
        eprintln!("SKIPPED: inits: needs root, for PID namespaces, and x86_64");
        return ExitCode::SUCCESS;
    }
    let short = arguments.iter().any(|argument| argument == "--short");
    let told = arguments.iter().skip_while(|argument| *argument != "--picture").nth(1);
    match run(if short { SHORT } else { FULL }, short, told.map(String::as_str)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(size: Size, short: bool, picture: Option<&str>) -> io::Result<()> {
    let child = compile_child()?;
    if !short {
        build_musl();
    }
    let mut all = contestant::all(&child);
    eprintln!("{} rounds of {} inits and the bare program, {SIGNALS} signals in each", size.rounds, all.len() - 1);
    // The first one is not counted: the files come from the disk.
    for round in 0..=size.rounds {
        for contestant in &mut all {
            let passage = measure::passage(&contestant.command("wait", &[]), SIGNALS)?;
            if round > 0 {
                contestant.figures.add(passage);
            }
        }
    }
    eprintln!("{} times {} orphans", size.orphan_rounds, size.orphans);
    for _ in 0..size.orphan_rounds {
        for contestant in all.iter_mut().filter(|contestant| contestant.is_init()) {
            let reaping = measure::orphans(&contestant.command("orphans", &[&size.orphans.to_string()]), size.orphans)?;
            contestant.figures.orphans.push(reaping);
        }
    }
    eprintln!("{:?} of idling", size.idle);
    let mut commands: Vec<_> = all.iter().map(|contestant| contestant.command("wait", &[])).collect();
    commands.push(contestant::with_endpoint(&child)?);
    let mut idle = measure::idle(&commands, size.idle)?;
    let probed = idle.pop().ok_or_else(|| io::Error::other("nothing was watched"))?;
    for (contestant, idle) in all.iter_mut().zip(idle) {
        contestant.figures.idle = Some(idle);
    }

    let Size { rounds, orphan_rounds, orphans, idle } = size;
    println!(
        "\nMedians of {rounds} rounds, {} signals, {orphan_rounds} times {orphans} orphans and {idle:?} of idling; in brackets \
         what that is of the best of {}.\n",
        rounds * SIGNALS,
        contestant::names(&all)
    );
    print!("{}", table::table(&all));
    println!("\nsundown with --http: {probed}");
    for missed in table::missed(&all, &probed) {
        println!("MISSED: {missed}");
    }
    if short && picture.is_none() {
        return Ok(());
    }
    let file = picture.unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/target/inits.svg"));
    fs::write(file, picture::draw(&all))?;
    println!("\npicture: {file}");
    Ok(())
}

/// The program behind each init, small enough not to be what is measured.
fn compile_child() -> io::Result<String> {
    let child = format!("{}/inits-child", env!("CARGO_TARGET_TMPDIR"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/inits/child.rs");
    let options = ["opt-level=s", "panic=abort", "relocation-model=static", "strip=symbols"];
    let links = ["link-arg=-nostartfiles", "link-arg=-static"];
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", source, "-o", &child]);
    let status = rustc.args(options.iter().chain(&links).flat_map(|option| ["-C", option])).status()?;
    if status.success() { Ok(child) } else { Err(io::Error::other(format!("{source} does not compile"))) }
}

/// A build that is there may be of another day.
fn build_musl() {
    eprintln!("building for {}", contestant::MUSL);
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    let status = cargo.args(["build", "--quiet", "--release", "--locked", "--target", contestant::MUSL]).status();
    if !status.is_ok_and(|status| status.success()) {
        let _ = fs::remove_file(contestant::MUSL_BUILD);
        eprintln!("SKIPPED: it cannot be built; `rustup target add {}`", contestant::MUSL);
    }
}

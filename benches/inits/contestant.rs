//! Who takes part, and what was measured of each.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::Path;

use crate::measure::{Idle, Orphans, Passage};

pub const MUSL: &str = "x86_64-unknown-linux-musl";
pub const MUSL_BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/x86_64-unknown-linux-musl/release/sundown");

const GLIBC_BUILD: &str = env!("CARGO_BIN_EXE_sundown");
const THEIRS: [&str; 4] = ["tini", "tini-static", "dumb-init", "catatonit"];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The program without an init: the limit.
    Bare,
    /// sundown by its own name, and under another's.
    Ours,
    DropIn,
    Theirs,
}

pub struct Contestant {
    pub name: String,
    pub kind: Kind,
    file: String,
    /// What comes before the child: nothing for the bare program.
    words: Vec<String>,
    child: String,
    pub figures: Figures,
}

/// Times in microseconds.
#[derive(Default)]
pub struct Figures {
    pub starts: Vec<f64>,
    pub ways: Vec<f64>,
    pub stops: Vec<f64>,
    pub orphans: Vec<Orphans>,
    pub idle: Option<Idle>,
}

/// Everyone that is there.
pub fn all(child: &str) -> Vec<Contestant> {
    let mut all = vec![Contestant::new("no init", Kind::Bare, child, child)];
    for (libc, build) in [("glibc", GLIBC_BUILD), ("musl", MUSL_BUILD)] {
        if !Path::new(build).exists() {
            eprintln!("SKIPPED: sundown for {libc}: `cargo build --release --target {MUSL}` makes it");
            continue;
        }
        // A binary that was only just linked is not on the disk yet, and its own pages would count as dirty.
        fs::File::open(build).and_then(|file| file.sync_all()).expect("it was built");
        let as_tini = as_tini(build, libc);
        all.push(Contestant::new(&format!("sundown, {libc}"), Kind::Ours, build, child));
        all.push(Contestant::new(&format!("sundown as tini, {libc}"), Kind::DropIn, &as_tini, child));
    }
    for name in THEIRS {
        let file = format!("/usr/bin/{name}");
        if Path::new(&file).exists() {
            all.push(Contestant::new(name, Kind::Theirs, &file, child));
        } else {
            eprintln!("SKIPPED: {file} is not installed");
        }
    }
    all
}

/// sundown with its endpoint open, which nobody asks.
pub fn with_endpoint(child: &str) -> io::Result<Vec<String>> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    Ok([GLIBC_BUILD, "--http", &address, "--ready-check", "running", "--", child, "wait"].map(String::from).to_vec())
}

/// A hard link: the same file under that name.
fn as_tini(build: &str, libc: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("inits-{libc}"));
    fs::create_dir_all(&folder).expect("room for it");
    let link = folder.join("tini");
    let _ = fs::remove_file(&link);
    fs::hard_link(build, &link).expect("a file system that has hard links");
    link.display().to_string()
}

pub fn names(all: &[Contestant]) -> String {
    let names: Vec<&str> = all.iter().filter(|one| one.kind == Kind::Theirs).map(|one| one.name.as_str()).collect();
    names.join(", ")
}

impl Contestant {
    fn new(name: &str, kind: Kind, file: &str, child: &str) -> Self {
        let words = if kind == Kind::Bare { vec![] } else { vec![file.into(), "--".into()] };
        let (name, file, child) = (name.into(), file.into(), child.into());
        Self { name, kind, file, words, child, figures: Figures::default() }
    }

    pub fn is_init(&self) -> bool {
        self.kind != Kind::Bare
    }

    pub fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Ours | Kind::DropIn)
    }

    /// With the child in this role behind it.
    pub fn command(&self, role: &str, arguments: &[&str]) -> Vec<String> {
        let child = [self.child.as_str(), role].into_iter().chain(arguments.iter().copied());
        self.words.iter().cloned().chain(child.map(String::from)).collect()
    }

    /// In bytes.
    pub fn file_size(&self) -> u64 {
        fs::metadata(&self.file).map_or(0, |file| file.len())
    }
}

impl Figures {
    pub fn add(&mut self, passage: Passage) {
        self.starts.push(passage.start);
        self.ways.extend(passage.ways);
        self.stops.push(passage.stop);
    }
}

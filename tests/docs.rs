//! What the README says of the command line is what the command line says of itself.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn readme() -> String {
    fs::read_to_string(format!("{ROOT}/README.md")).expect("README.md")
}

fn help() -> String {
    common::run(Command::new(common::SUNDOWN).arg("--help")).stdout
}

/// The words that start with `start` up to the first character that is no part of a name, one a line.
fn names<'a>(lines: impl Iterator<Item = &'a str>, start: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let rest = line.strip_prefix(start)?;
        Some(rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect())
    };
    lines.filter_map(name).collect()
}

#[test]
fn the_table_of_options_holds_each_option_of_the_help_and_no_other() {
    let (readme, help) = (readme(), help());
    let told = names(help.lines(), "      --");
    assert!(told.len() > 20, "{told:?}");
    assert_eq!(names(readme.lines(), "| `--"), told);
}

#[test]
fn the_table_of_subcommands_holds_each_subcommand_of_the_help_and_no_other() {
    let (readme, help) = (readme(), help());
    let listed = help.lines().skip_while(|line| !line.starts_with("Subcommands")).skip(1);
    let told = names(listed.take_while(|line| !line.is_empty()), "  ");
    assert!(told.len() > 5, "{told:?}");
    assert_eq!(names(readme.lines(), "| `sundown "), told);
}

#[test]
fn the_oldest_rust_is_the_manifests() {
    let oldest = concat!("(", env!("CARGO_PKG_RUST_VERSION"), " or later)");
    assert!(readme().contains(oldest), "README.md does not say {oldest}");
}

#[test]
fn the_pages_link_to_files_that_are_there() {
    let is_page = |path: &Path| path.extension().is_some_and(|end| end == "md");
    let pages: Vec<_> = [ROOT.to_owned(), format!("{ROOT}/docs"), format!("{ROOT}/docs/advice")]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()))
        .filter(|path| is_page(path))
        .collect();
    assert!(pages.len() > 20, "{pages:?}");
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
            assert!(page.with_file_name(link).exists(), "{} links to {link}", page.display());
        }
    }
}

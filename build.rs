//! Makes the stub of `src/entry.rs` the first instruction of the process.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // As two words, which compiler drivers and bare linkers (rust-lld, for a build without a cross compiler) both take.
    println!("cargo::rustc-link-arg-bins=-e");
    println!("cargo::rustc-link-arg-bins=sundown_entry");
}

//! Makes the stub of `src/entry.rs` the first instruction of the process.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,-e,sundown_entry");
}

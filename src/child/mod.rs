//! The child: how it is started, why it could not be, and how it ended.

pub mod args;
mod diagnose;
mod elf;
pub mod end;
mod exec;
mod head;
pub mod job;
pub mod program;
pub mod start;
pub mod std_fds;
pub mod terminal;
pub mod why;

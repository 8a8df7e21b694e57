//! What we say: log lines, the termination message, the figures, and the board that others read.

pub mod board;
pub mod drained;
pub mod log;
pub mod story;
pub mod termination;

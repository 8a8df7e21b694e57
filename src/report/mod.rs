//! What we say: log lines, the termination message, the figures, and the board that others read.

pub mod advice;
pub mod autopsy;
pub mod board;
pub mod drained;
pub mod ending;
pub mod json;
pub mod line;
pub mod log;
pub mod metrics;
pub mod pressure;
pub mod story;
pub mod termination;

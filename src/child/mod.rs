//! The child: how it is started and how it ended.

pub mod end;

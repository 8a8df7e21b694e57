//! The app's traffic, seen from outside. For now: whether the app listens on anything at all.

pub mod listeners;

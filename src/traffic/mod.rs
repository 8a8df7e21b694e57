//! The app's traffic, seen from outside: what listens, which connections there are, and whether a request is in flight
//! on them. Nothing here speaks to the app, or opens, shuts or alters a socket of its.
//!
//! ```text
//! diag (sock_diag) ----+
//! proc_net (/proc) ----+--> sampler --> inflight --> Seen
//! ours (whose?) -------+
//! ```

pub mod listeners;

#[allow(dead_code, reason = "wired in by the drain")]
pub mod ack_mode;
#[allow(dead_code, reason = "wired in by the drain")]
pub mod closed;
#[allow(dead_code, reason = "wired in by the drain")]
pub mod diag;
#[allow(dead_code, reason = "wired in by the drain")]
pub mod inflight;
#[allow(dead_code, reason = "wired in by the drain")]
pub mod ours;
#[allow(dead_code, reason = "wired in by the drain")]
pub mod proc_net;
#[allow(dead_code, reason = "wired in by the drain")]
pub mod sampler;

#[cfg(test)]
mod live;

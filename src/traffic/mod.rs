//! The app's traffic, seen from outside: what listens, which connections there are, and whether a request is in flight
//! on them. Nothing here speaks to the app, or opens, shuts or alters a socket of its.
//!
//! ```text
//! diag (sock_diag) ----+
//! proc_net (/proc) ----+--> sampler --> inflight --> Seen
//! ours (whose?) -------+
//! ```

pub mod listeners;

pub mod ack_mode;
pub mod closed;
pub mod closers;
pub mod diag;
pub mod inflight;
pub mod keepalive;
pub mod ours;
pub mod probers;
pub mod proc_net;
pub mod sampler;

#[cfg(test)]
mod live;

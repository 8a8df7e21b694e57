//! The endpoint: readiness, serving, liveness and metrics over HTTP/1, for load balancers, the kubelet and Prometheus.
//!
//! It changes nothing (but for a sidecar's /prestop) and shows no command line, no environment and no process name, since argv holds passwords. It is
//! bound before the child is started, so that a port in use is an error and not a surprise, and it answers until the
//! process exits. No client, be it slow, silent, huge or one of thousands, delays the supervisor or grows its memory.

use std::pin::Pin;

use hyper::header::HeaderValue;

mod address;
mod answer;
mod guard;
mod guests;
mod server;
mod visitor;

pub use address::Address;
pub use guard::{Guard, Key};
pub use server::serve;
pub use visitor::Visitor;

/// What the endpoint asks of the supervisor. Each is called once for each request for it and must not block.
pub trait Answers {
    /// Whether a load balancer may send new requests here, as this one is told.
    fn readyz(&self, visitor: &Visitor) -> Verdict;

    /// Whether the app still serves, through the drain too.
    fn servez(&self) -> Verdict;

    /// Whether the app is alive; none where nothing was set to tell (no `--live-check`).
    fn livez(&self) -> Option<Verdict>;

    /// The figures in Prometheus' text format 0.0.4, each line ended by a newline. They may have to be looked up.
    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + '_>>;

    /// A call of /prestop, from one who brings this `Authorization` header.
    fn prestop(&self, _authorization: Option<&HeaderValue>) -> Prestop<'_> {
        Prestop::Nowhere
    }

    /// Hears of each request before it is answered. The hidden switch that tests a panic of ours panics here.
    fn request(&self) {}
}

/// What becomes of a call of /prestop.
pub enum Prestop<'a> {
    /// There is no such path here.
    Nowhere,
    /// Nobody was said who may call it.
    Unset,
    /// Who asks may not.
    Denied,
    /// It is answered with this line when the drain is over.
    Wait(Pin<Box<dyn Future<Output = String> + 'a>>),
}

/// The answer to a probe: 200 or 503, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// 200, else 503.
    pub ok: bool,
    /// One line without its newline: the phase and the reason. It is public to whoever reaches the port.
    pub text: String,
}

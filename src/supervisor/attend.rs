//! Minding the signals where the supervisor's own loop does not run: before the program is started, and after its end.

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::LocalSet;

use crate::child::end::Ended;
use crate::plan::Plan;
use crate::signals::{Arrival, Arrivals, Sender, SigSet, Signal};
use crate::tree::helpers::Helpers;
use crate::tree::program::usual_stop_signal;

/// Runs what needs an event loop, and nothing else. The same loop serves the supervisor.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> T {
    match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
        Ok(runtime) => LocalSet::new().block_on(&runtime, work),
        // The minimal loop can do without.
        Err(error) => panic!("no event loop: {error}"),
    }
}

pub(super) fn listen(arrivals: Arrivals) -> AsyncFd<Arrivals> {
    // SAFETY: the descriptor is owned, and closed only after the reactor has let go of it.
    match unsafe { AsyncFd::register_with_interest(arrivals, Interest::READABLE) } {
        Ok(arrivals) => arrivals,
        Err(error) => panic!("signals cannot be waited for: {error}"),
    }
}

/// Reaps for the helpers until `heard` makes something of another signal. May be dropped and called again.
pub(super) async fn attend<T>(
    arrivals: &AsyncFd<Arrivals>,
    helpers: &Helpers,
    mut heard: impl FnMut(Arrival) -> Option<T>,
) -> T {
    loop {
        match arrivals.readable().await {
            Ok(mut ready) => ready.clear_ready(),
            Err(error) => panic!("signals cannot be waited for: {error}"),
        }
        let (mut children, mut made) = (false, None);
        let drained = arrivals.get_ref().drain(|arrival| match arrival.signal {
            Signal::CHLD => children = true,
            _ if made.is_none() => made = heard(arrival),
            _ => {}
        });
        if let Err(error) = drained {
            panic!("signals cannot be read: {error}");
        }
        if children {
            reap(helpers);
        }
        if let Some(made) = made {
            return made;
        }
    }
}

fn reap(helpers: &Helpers) {
    loop {
        let mut status = 0;
        // SAFETY: the pointer is to a number of ours.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            pid @ 1.. => {
                let _ = Ended::from_status(status).map(|ended| helpers.ended(pid, ended));
            }
            _ => return,
        }
    }
}

/// What ends the waiting for the program's start: the signals that are stop requests whatever the program does with them,
/// those that are because there is no program yet to catch them, and those that this one would stop on.
pub(super) fn stop_signals(plan: &Plan) -> SigSet {
    if let Some(said) = plan.stop_on {
        return said;
    }
    let own = usual_stop_signal(&plan.command);
    let ladder = plan.ladder.iter().flat_map(|ladder| ladder.steps()).map(|step| step.signal);
    let said = ladder.filter(|signal| *signal != Signal::TSTP);
    [Signal::TERM, Signal::INT, Signal::HALT, Signal::QUIT].into_iter().chain(own).chain(said).collect()
}

/// A terminal that is resized asks for nothing, even where the program would stop on it.
pub(super) fn asks(arrival: &Arrival) -> bool {
    arrival.signal != Signal::WINCH || arrival.sender != Sender::Kernel
}

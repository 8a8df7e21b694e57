//! Signals that arrive: whose they are, and what they ask for.

use super::Supervisor;
use crate::lifecycle::{Event, Request};
use crate::report::board::count;
use crate::signals::{Arrival, Arrivals, Sender, Signal};
use crate::tree::teller::Meaning;

impl Supervisor {
    /// Takes all signals that have come. SIGCHLD last: what was asked before a child's end was asked before it.
    pub(super) async fn take_arrivals(&mut self, arrivals: &Arrivals) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        if let Err(error) = arrivals.drain(|arrival| batch.push(arrival)) {
            panic!("signals cannot be read: {error}");
        }
        let mut children = false;
        for arrival in &batch {
            match arrival.signal {
                Signal::CHLD => children = true,
                _ => self.take(*arrival).await,
            }
        }
        self.batch = batch;
        if children {
            self.reap().await;
        }
    }

    async fn take(&mut self, arrival: Arrival) {
        if is_our_own(&arrival) {
            return;
        }
        tracing::debug!("{} from {}", arrival.signal, arrival.sender);
        if arrival.sender == Sender::Kernel && self.is_childs_stop(arrival.signal) {
            return;
        }
        match self.asks(arrival) {
            Asks::Stop => {
                count(&self.board.figures.stops_by_signal);
                let worth = self.worth().await;
                self.sender = Some(arrival.sender);
                self.handle(Event::Stop(Request::Signal(arrival.signal, arrival.sender.into()), worth)).await;
            }
            Asks::Nothing => {}
            Asks::TheApp => {
                if let Some(signal) = self.plan.rewritten(arrival.signal) {
                    self.handle(Event::Signal(signal)).await;
                }
            }
        }
    }

    fn asks(&mut self, arrival: Arrival) -> Asks {
        let signal = arrival.signal;
        if let Some(set) = self.plan.stop_on {
            return if set.contains(signal) { Asks::Stop } else { Asks::TheApp };
        }
        if matches!(signal, Signal::TERM | Signal::INT | Signal::HALT) {
            return Asks::Stop;
        }
        // Of a ladder, TSTP alone means something else to the app when it comes from outside: be quiet.
        let said =
            self.plan.ladder.as_ref().is_some_and(|ladder| ladder.steps().iter().any(|step| step.signal == signal));
        let stops = said && signal != Signal::TSTP;
        match signal {
            Signal::WINCH if arrival.sender == Sender::Kernel => {
                // A terminal was resized, and to this app that would mean "stop".
                if stops || self.teller.meaning(signal) == Meaning::Stop { Asks::Nothing } else { Asks::TheApp }
            }
            _ if stops => Asks::Stop,
            Signal::QUIT | Signal::WINCH | Signal::USR1 | Signal::HUP => match (self.teller.meaning(signal), signal) {
                (Meaning::Stop, _) => Asks::Stop,
                // Images inherit STOPSIGNAL QUIT from their base.
                (Meaning::Nothing, Signal::QUIT) => Asks::Stop,
                // The terminal is gone, and nobody will ever look at what is left there.
                (Meaning::Nothing, Signal::HUP) if arrival.sender == Sender::Kernel => Asks::Stop,
                _ => Asks::TheApp,
            },
            _ => Asks::TheApp,
        }
    }
}

/// A pipe of ours has lost its reader, our log's mostly: the kernel sends that in our own name, and it is nothing to the app.
fn is_our_own(arrival: &Arrival) -> bool {
    let me = std::process::id() as i32;
    arrival.signal == Signal::PIPE && matches!(arrival.sender, Sender::Inside { pid, .. } if pid == me)
}

/// What a signal asks for.
enum Asks {
    Stop,
    TheApp,
    Nothing,
}

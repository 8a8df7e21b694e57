//! What holds a drain besides the traffic: the checks of `--drain-while` and `--outlive`, and the command of `--on-drain`.

use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::checks::{self, Surroundings, Which};
use super::{Order, Supervisor};
use crate::check::Check;
use crate::child::start::Role;
use crate::lifecycle::Hold;
use crate::plan::{Plan, human};

/// What holds the drain, as far as is known.
#[derive(Default)]
pub(crate) struct Holders {
    drain_while: Holder,
    outlive: Holder,
    command_runs: bool,
}

/// A check that holds it.
#[derive(Default)]
struct Holder {
    check: Option<AbortHandle>,
    passes: bool,
}

impl Holders {
    /// Whether one of them does.
    pub(crate) fn hold(&self) -> bool {
        self.drain_while.passes || self.outlive.passes || self.command_runs
    }

    /// Starts all at the stop request. The command runs without a drain too: it may have to tell somebody that we go.
    pub(crate) fn start(&mut self, plan: &Plan, hold: Hold, around: &Surroundings, orders: &UnboundedSender<Order>) {
        if let Some(command) = &plan.on_drain {
            self.command_runs = true;
            let (command, around, orders) = (command.clone(), around.clone(), orders.clone());
            tokio::task::spawn_local(async move {
                let began = Instant::now();
                match checks::run(&command, Role::Hook, None, &around.helpers, around.inherited).await {
                    Ok(()) => tracing::info!("--on-drain: {} took {}", command[0], human(began.elapsed())),
                    Err(reason) => tracing::warn!("--on-drain: {reason}; the stop goes on without it"),
                }
                let _ = orders.send(Order::HookEnded);
            });
        }
        let Hold::Drain { greatest, .. } = hold else { return };
        let start = |which, check: &Option<Check>| {
            let check = checks::start(which, check.as_ref()?, plan.pace, around, orders);
            Some(Holder { passes: check.is_some(), check })
        };
        self.drain_while = start(Which::DrainWhile, &plan.drain_while).unwrap_or_default();
        self.outlive = start(Which::Outlive, &plan.neighbours.outlive).unwrap_or_default();
        if let Some(check) = &plan.neighbours.outlive {
            tracing::info!("--outlive: the app is told when {check} fails, in {} at most", human(greatest));
        }
    }

    /// A check's verdict has changed.
    pub(crate) fn check_says(&mut self, which: Which, passes: bool) {
        let (holder, name) = match which {
            Which::Outlive => (&mut self.outlive, "--outlive"),
            _ => (&mut self.drain_while, "--drain-while"),
        };
        holder.passes = passes;
        tracing::info!("the {name} check {}", if passes { "passes again" } else { "fails: it holds no more" });
    }

    /// The command has ended.
    pub(crate) fn command_ended(&mut self) {
        self.command_runs = false;
    }

    /// The drain is over, whatever they say, and the app is told if it still `runs`.
    pub(crate) fn end(&mut self, runs: bool) {
        if self.outlive.passes && runs {
            tracing::warn!("the --outlive check still passes as the app is told");
        }
        for holder in [&mut self.drain_while, &mut self.outlive] {
            if let Some(check) = std::mem::take(holder).check {
                check.abort();
            }
        }
        if self.command_runs {
            tracing::warn!("--on-drain still runs as the app is told: it has until the app's end");
        }
    }
}

impl Supervisor {
    /// A check's verdict has changed.
    pub(super) async fn hold_by_check(&mut self, which: Which, passes: bool) {
        self.holders.check_says(which, passes);
        self.look_at_traffic().await;
    }

    /// The command has ended.
    pub(super) async fn hook_ended(&mut self) {
        self.holders.command_ended();
        self.look_at_traffic().await;
    }
}

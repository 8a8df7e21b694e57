//! What holds a drain besides the traffic: the checks of `--drain-while` and `--outlive`, and the command of `--on-drain`.

use std::time::Instant;

use tokio::task::AbortHandle;

use super::checks::{self, Which};
use super::{Order, Supervisor};
use crate::check::Check;
use crate::child::start::Role;
use crate::lifecycle::Hold;
use crate::plan::human;

/// What holds the drain, as far as is known.
#[derive(Default)]
pub(super) struct Holders {
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
    pub(super) fn hold(&self) -> bool {
        self.drain_while.passes || self.outlive.passes || self.command_runs
    }
}

impl Supervisor {
    /// Starts both at the stop request. The command runs without a drain too: it may have to tell somebody that we go.
    pub(super) fn start_holders(&mut self, hold: Hold) {
        if let Some(command) = &self.plan.on_drain {
            self.holders.command_runs = true;
            let (command, around, orders) = (command.clone(), self.around.clone(), self.orders.clone());
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
            let check = check.as_ref()?;
            checks::start(which, check, self.plan.pace, &self.around, &self.orders)
        };
        let drain_while = start(Which::DrainWhile, &self.plan.drain_while);
        let outlive = start(Which::Outlive, &self.plan.neighbours.outlive);
        self.holders.drain_while = Holder { passes: drain_while.is_some(), check: drain_while };
        self.holders.outlive = Holder { passes: outlive.is_some(), check: outlive };
        if let Some(check) = &self.plan.neighbours.outlive {
            tracing::info!("--outlive: the app is told when {check} fails, in {} at most", human(greatest));
        }
    }

    /// A check's verdict has changed.
    pub(super) async fn hold_by_check(&mut self, which: Which, passes: bool) {
        let (holder, name) = match which {
            Which::Outlive => (&mut self.holders.outlive, "--outlive"),
            _ => (&mut self.holders.drain_while, "--drain-while"),
        };
        holder.passes = passes;
        tracing::info!("the {name} check {}", if passes { "passes again" } else { "fails: it holds no more" });
        self.look_at_traffic().await;
    }

    /// The command has ended.
    pub(super) async fn hook_ended(&mut self) {
        self.holders.command_runs = false;
        self.look_at_traffic().await;
    }

    /// The drain is over, whatever they say.
    pub(super) fn end_of_holding(&mut self) {
        if self.holders.outlive.passes && self.child.ended.is_none() {
            tracing::warn!("the --outlive check still passes as the app is told");
        }
        for holder in [&mut self.holders.drain_while, &mut self.holders.outlive] {
            if let Some(check) = std::mem::take(holder).check {
                check.abort();
            }
        }
        if self.holders.command_runs {
            tracing::warn!("--on-drain still runs as the app is told: it has until the app's end");
        }
    }
}

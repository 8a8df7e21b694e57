//! What holds a drain besides the traffic: the check of `--drain-while`, and the command of `--on-drain`.

use std::time::Instant;

use tokio::task::AbortHandle;

use super::checks::{self, Which};
use super::{Order, Supervisor};
use crate::child::start::Role;
use crate::lifecycle::Hold;
use crate::plan::human;

/// What holds the drain, as far as is known.
#[derive(Default)]
pub(super) struct Holders {
    check: Option<AbortHandle>,
    check_passes: bool,
    command_runs: bool,
}

impl Holders {
    /// Whether one of them does.
    pub(super) fn hold(&self) -> bool {
        self.check_passes || self.command_runs
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
                match checks::run(&command, Role::Hook, None, &around).await {
                    Ok(()) => tracing::info!("--on-drain: {} took {}", command[0], human(began.elapsed())),
                    Err(reason) => tracing::warn!("--on-drain: {reason}; the stop goes on without it"),
                }
                let _ = orders.send(Order::HookEnded);
            });
        }
        if let (Some(check), Hold::Drain { .. }) = (&self.plan.drain_while, hold) {
            self.holders.check_passes = true;
            self.holders.check = checks::start(Which::DrainWhile, check, self.plan.pace, &self.around, &self.orders);
        }
    }

    /// The check's verdict has changed.
    pub(super) async fn hold_by_check(&mut self, passes: bool) {
        self.holders.check_passes = passes;
        tracing::info!("the --drain-while check {}", if passes { "passes again" } else { "fails: it holds no more" });
        self.look_at_traffic().await;
    }

    /// The command has ended.
    pub(super) async fn hook_ended(&mut self) {
        self.holders.command_runs = false;
        self.look_at_traffic().await;
    }

    /// The drain is over, whatever they say.
    pub(super) fn end_of_holding(&mut self) {
        if let Some(check) = self.holders.check.take() {
            check.abort();
        }
        self.holders.check_passes = false;
        if self.holders.command_runs {
            tracing::warn!("--on-drain still runs as the app is told: it has until the app's end");
        }
    }
}

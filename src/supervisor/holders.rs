//! What holds a drain besides the traffic: the check of `--drain-while`, and the command of `--on-drain`.

use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::checks::{self, Surroundings, Which};
use super::{Order, Supervisor};
use crate::child::start::Role;
use crate::lifecycle::Hold;
use crate::plan::{Plan, human};

/// What holds the drain, as far as is known.
#[derive(Default)]
pub(crate) struct Holders {
    check: Option<AbortHandle>,
    check_passes: bool,
    command_runs: bool,
}

impl Holders {
    /// Whether one of them does.
    pub(crate) fn hold(&self) -> bool {
        self.check_passes || self.command_runs
    }

    /// Starts both at the stop request. The command runs without a drain too: it may have to tell somebody that we go.
    pub(crate) fn start(&mut self, plan: &Plan, hold: Hold, around: &Surroundings, orders: &UnboundedSender<Order>) {
        if let Some(command) = &plan.on_drain {
            self.command_runs = true;
            let (command, around, orders) = (command.clone(), around.clone(), orders.clone());
            tokio::task::spawn_local(async move {
                let began = Instant::now();
                match checks::run(&command, Role::Hook, None, &around).await {
                    Ok(()) => tracing::info!("--on-drain: {} took {}", command[0], human(began.elapsed())),
                    Err(reason) => tracing::warn!("--on-drain: {reason}; the stop goes on without it"),
                }
                let _ = orders.send(Order::HookEnded);
            });
        }
        if let (Some(check), Hold::Drain { .. }) = (&plan.drain_while, hold) {
            self.check_passes = true;
            self.check = checks::start(Which::DrainWhile, check, plan.pace, around, orders);
        }
    }

    /// The check's verdict has changed.
    pub(crate) fn check_says(&mut self, passes: bool) {
        self.check_passes = passes;
        tracing::info!("the --drain-while check {}", if passes { "passes again" } else { "fails: it holds no more" });
    }

    /// The command has ended.
    pub(crate) fn command_ended(&mut self) {
        self.command_runs = false;
    }

    /// The drain is over, whatever they say.
    pub(crate) fn end(&mut self) {
        if let Some(check) = self.check.take() {
            check.abort();
        }
        self.check_passes = false;
        if self.command_runs {
            tracing::warn!("--on-drain still runs as the app is told: it has until the app's end");
        }
    }
}

impl Supervisor {
    /// The check's verdict has changed.
    pub(super) async fn hold_by_check(&mut self, passes: bool) {
        self.holders.check_says(passes);
        self.look_at_traffic().await;
    }

    /// The command has ended.
    pub(super) async fn hook_ended(&mut self) {
        self.holders.command_ended();
        self.look_at_traffic().await;
    }
}

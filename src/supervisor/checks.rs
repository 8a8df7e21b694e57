//! Running the checks beside the loop.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::Order;
use crate::check::{self, Check, Judge};
use crate::child::end::Ended;
use crate::child::program::Program;
use crate::child::start::{How, Place, Role, start as start_child};
use crate::lifecycle::PHASES;
use crate::plan::Pace;
use crate::report::board::Board;
use crate::signals::{self, Inherited, Signal};
use crate::tree::helpers::Helpers;

/// How soon a check is repeated while somebody waits for it: the app starts, or it holds the drain.
const EAGER: Duration = Duration::from_millis(200);
/// From one look at the listeners to the next while the app starts: quick at first.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_secs(1);
/// After this long the listeners are looked at only when somebody asks: a worker without ports must not keep us awake.
const LOOKS_FOR: Duration = Duration::from_secs(60);

/// Which check a verdict is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The ready check.
    Ready,
    /// The live check.
    Live,
    /// The one that holds the drain.
    DrainWhile,
}

/// What checks need of the supervisor.
#[derive(Clone)]
pub struct Surroundings {
    /// Where processes that are no part of the tree are taken down.
    pub helpers: Rc<Helpers>,
    /// Where the phase stands.
    pub board: Rc<Board>,
    /// The mask and dispositions for them.
    pub inherited: Inherited,
    /// Their connections to the app.
    pub own: Rc<check::OwnConnections>,
}

/// Starts a check; it runs until it is aborted. `running` needs none: the phases say it. `listening` runs until the app is
/// up, then only when asked.
pub fn start(
    which: Which,
    check: &Check,
    pace: Pace,
    around: &Surroundings,
    orders: &UnboundedSender<Order>,
) -> Option<AbortHandle> {
    let (around, orders) = (around.clone(), orders.clone());
    let task = match check {
        Check::Running => return None,
        Check::Listening => tokio::task::spawn_local(look_until_up(around, orders)),
        check => tokio::task::spawn_local(repeat(which, check.clone(), pace, around, orders)),
    };
    Some(task.abort_handle())
}

async fn look_until_up(around: Surroundings, orders: UnboundedSender<Order>) {
    let mut pause = FIRST_LOOK;
    let until = Instant::now() + LOOKS_FOR;
    while around.board.phase() == PHASES[0] && Instant::now() < until && orders.send(Order::LookAtListeners).is_ok() {
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(LAST_LOOK);
    }
}

async fn repeat(which: Which, check: Check, pace: Pace, around: Surroundings, orders: UnboundedSender<Order>) {
    let mut judge = Judge::new(pace.failures, pace.successes);
    if which != Which::Ready {
        // Alive, or busy, until the contrary is proven; not ready until it is.
        judge.hear(true);
    }
    loop {
        let passed = match &check {
            Check::Http(check) => check::http(check, pace.timeout, &around.own).await,
            Check::Tcp(check) => check::tcp(check, pace.timeout, &around.own).await,
            Check::Exec(command) => run(command, Role::Check, Some(pace.timeout), &around).await,
            Check::Running | Check::Listening => return,
        };
        if let Err(reason) = &passed {
            tracing::debug!("the {which:?} check fails: {reason}");
        }
        if let Some(verdict) = judge.hear(passed.is_ok())
            && orders.send(Order::Checked(which, verdict)).is_err()
        {
            return;
        }
        let is_eager = which == Which::DrainWhile || around.board.phase() == PHASES[0];
        tokio::time::sleep(if is_eager { pace.period.min(EAGER) } else { pace.period }).await;
    }
}

/// Runs a command; it passes if it exits with 0, and in time where that is limited. It gets no terminal.
pub async fn run(command: &[String], role: Role, limit: Option<Duration>, around: &Surroundings) -> Result<(), String> {
    let argv = command.iter().map(Into::into).collect();
    let environment =
        std::env::vars_os().filter(|(name, _)| !name.as_encoded_bytes().starts_with(b"SUNDOWN_")).collect();
    let program = Program::new(argv, environment).map_err(|error| error.to_string())?;
    let how = How { inherited: around.inherited, terminal: None, place: Place::OwnGroup, role };
    let pid = start_child(&program, how).map_err(|error| error.to_string())?;
    let end = around.helpers.add(pid);
    let ended = match limit {
        Some(limit) => tokio::time::timeout(limit, end).await,
        None => Ok(end.await),
    };
    match ended {
        Ok(Ok(Ended::Exited(0))) => Ok(()),
        Ok(Ok(ended)) => Err(format!("{} {ended}", command[0])),
        Ok(Err(_)) => Err("its end was missed".into()),
        Err(_) => {
            let _ = signals::send(-pid, Signal::KILL);
            Err(format!("{} took longer than {}", command[0], limit.map_or_else(String::new, crate::plan::human)))
        }
    }
}

//! Running the checks beside the loop.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::Order;
use crate::cgroup::{Cgroup, Snapshot};
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
    /// The one whose passing the app outlives.
    Outlive,
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
    /// Whether a live check that fails while the CPU limit holds us back is not counted.
    pub is_patient: bool,
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
    let mut held_back = HeldBack::new(which == Which::Live && around.is_patient);
    loop {
        let passed = ask(&check, pace.timeout, &around).await;
        if let Err(reason) = &passed {
            tracing::debug!("the {which:?} check fails: {reason}");
        }
        let counts = passed.is_ok() || !held_back.was_meanwhile();
        if counts
            && let Some(verdict) = judge.hear(passed.is_ok())
            && orders.send(Order::Checked(which, verdict)).is_err()
        {
            return;
        }
        held_back.begin();
        let is_eager = matches!(which, Which::DrainWhile | Which::Outlive) || around.board.phase() == PHASES[0];
        tokio::time::sleep(if is_eager { pace.period.min(EAGER) } else { pace.period }).await;
    }
}

/// Whether the CPU limit held the container back in the period of a check, for those who want to know.
struct HeldBack {
    cgroup: Option<Cgroup>,
    before: Snapshot,
    is_told: bool,
}

impl HeldBack {
    fn new(wanted: bool) -> Self {
        let mut held_back = Self { cgroup: wanted.then(Cgroup::find), before: Snapshot::default(), is_told: false };
        held_back.begin();
        held_back
    }

    /// A period begins: from the end of one check to that of the next.
    fn begin(&mut self) {
        if let Some(cgroup) = &self.cgroup {
            self.before = cgroup.snapshot();
        }
    }

    /// Whether it was, in at least half of the periods since. Told when it begins to be so.
    fn was_meanwhile(&mut self) -> bool {
        let Some(cgroup) = &self.cgroup else { return false };
        let now = cgroup.snapshot();
        let grown = |figure: fn(&Snapshot) -> Option<u64>| Some(figure(&now)?.saturating_sub(figure(&self.before)?));
        let (throttled, periods) =
            (grown(|figures| figures.cpu_throttled_periods), grown(|figures| figures.cpu_periods));
        let was = throttled.zip(periods).is_some_and(|(throttled, periods)| throttled > 0 && throttled * 2 >= periods);
        if was && !std::mem::replace(&mut self.is_told, was) {
            tracing::warn!(
                "the live check fails while the CPU limit holds the container back: that is not counted (--throttle-patience)"
            );
        }
        self.is_told = was;
        was
    }
}

/// Asks once. Those that are looked up in the process table need no asking.
pub async fn ask(check: &Check, limit: Duration, around: &Surroundings) -> Result<(), String> {
    match check {
        Check::Http(check) => check::http(check, limit, &around.own).await,
        Check::Tcp(check) => check::tcp(check, limit, &around.own).await,
        Check::Exec(command) => run(command, Role::Check, Some(limit), &around.helpers, around.inherited).await,
        Check::Running | Check::Listening => Ok(()),
    }
}

/// Runs a command; it passes if it exits with 0, and in time where that is limited. It gets no terminal.
pub async fn run(
    command: &[String],
    role: Role,
    limit: Option<Duration>,
    helpers: &Helpers,
    inherited: Inherited,
) -> Result<(), String> {
    let argv = command.iter().map(Into::into).collect();
    let environment =
        std::env::vars_os().filter(|(name, _)| !name.as_encoded_bytes().starts_with(b"SUNDOWN_")).collect();
    let program = Program::new(argv, environment).map_err(|error| error.to_string())?;
    let how = How { inherited, terminal: None, place: Place::OwnGroup, role };
    let pid = start_child(&program, how).map_err(|error| error.to_string())?;
    let end = helpers.add(pid);
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

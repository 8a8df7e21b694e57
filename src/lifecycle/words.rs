//! The words of the lifecycle: what can happen, what can be done, and why.

use std::time::Duration;

use crate::child::end::Ended;
use crate::signals::{Sender, Signal};

/// Who asked for the stop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Request {
    /// A signal.
    Signal(Signal, From),
    /// A preStop hook (`sundown prestop`).
    PreStop,
    /// `sundown stop`.
    Command,
    /// `sundown stop --now`: without a drain.
    CommandNow,
}

/// Where a signal came from, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum From {
    /// A terminal or the kernel.
    Kernel,
    /// A process with this pid in our namespace.
    Inside(i32),
    /// Outside of our namespace.
    Outside,
}

impl std::convert::From<Sender> for From {
    fn from(sender: Sender) -> Self {
        match sender {
            Sender::Kernel => Self::Kernel,
            Sender::Inside { pid, .. } => Self::Inside(pid),
            Sender::Outside => Self::Outside,
        }
    }
}

impl Request {
    /// Ctrl-C, or INT from within: somebody sits there and is in a hurry.
    pub fn is_interrupt(self) -> bool {
        matches!(self, Self::Signal(Signal::INT, From::Kernel | From::Inside(_)))
    }
}

/// Whether the app has anything to drain, looked up when the stop request comes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Worth {
    /// It serves, or nobody can say.
    Serves,
    /// It listens on nothing.
    ListensOnNothing,
    /// It serves somebody whom it is to outlive (`--outlive`), whatever state it is in.
    Outlives,
    /// It is a database: its clients hold on to it until it says that it goes.
    Database,
}

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A stop was asked for.
    Stop(Request, Worth),
    /// A signal came that is none of our business: the app's.
    Signal(Signal),
    /// The ready check's verdict has changed.
    Ready(bool),
    /// Our child has ended.
    ChildEnded {
        /// How.
        ended: Ended,
        /// Whether we had sent it the signal that ended it.
        told: bool,
        /// Whether anything of its tree is left.
        alone: bool,
    },
    /// How the traffic stands, as seen from outside.
    Traffic(Lull),
    /// An app that had outlived the child and come to us has ended.
    AppEnded(Ended),
    /// All that were told are gone and the rest has been still for a while.
    ToldGone,
    /// Nothing of the tree is left.
    TreeEmpty,
    /// The moment that [`super::Lifecycle::due`] named has come.
    Tick,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A stop has begun: fail readiness, write ahead, say so.
    Begin(Request, Hold),
    /// The drain is over, for this reason: say so, and answer all who wait for its end.
    Release(DrainEnd),
    /// A preStop call that need not wait: answer it.
    Answer,
    /// Tell the apps: find them, each is told once.
    Tell(Voice),
    /// Climb the ladder: the rung of this index, to those who heard the first.
    Climb(usize),
    /// Tell those who have not heard yet, but for those who get more time.
    TellRest,
    /// Half of the time is over: tell those too who had got more.
    TellPatient,
    /// Pass the signal on to the app.
    PassOn(Signal),
    /// The request changes nothing: say so.
    SayAgain(Request),
    /// The next interrupt kills: say so.
    WarnOfKill,
    /// The child ended by itself and left something behind: say so, and let it be still before it is told.
    SayLeft(Duration),
    /// KILL everything of the tree, again until nothing is left.
    Kill(KillReason),
    /// It is over.
    Exit(Outcome),
}

/// How the traffic stands in a drain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lull {
    /// It goes on, or nobody has looked yet.
    Busy,
    /// As far as the traffic is concerned the drain may end once its least time is over, for this reason.
    Over(DrainEnd),
    /// Every balancer has let go and the traffic is quiet: the drain may end before its least time.
    Released,
}

/// How the stop starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Hold {
    /// A drain, of which this much is left: a foreign hook may have waited already.
    Drain {
        /// At the least.
        least: Duration,
        /// At the most, while traffic is still seen.
        greatest: Duration,
    },
    /// None, for this reason.
    None(NoDrain),
}

/// Why there is no drain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoDrain {
    /// The app was never ready.
    NeverReady,
    /// The ready check fails.
    NotReady,
    /// It listens on nothing.
    ListensOnNothing,
    /// It is a database.
    Database,
    /// The drain's length is zero.
    Zero,
    /// Whoever asked is in a hurry.
    Hurry,
    /// The child has ended already.
    ChildEnded,
}

/// Why the drain is over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DrainEnd {
    /// Its time is up, and nothing else was to be looked at.
    TimeUp,
    /// Its least time is over, and the traffic has been quiet for the window.
    Quiet,
    /// Its least time is over, and no new connection came for the window.
    NoNew,
    /// Every balancer has let go, by its own sign, and the traffic has been quiet for the window.
    Released,
    /// What it was to outlive has gone.
    Outlived,
    /// Its greatest length is over, and the traffic still goes on.
    Greatest,
    /// The child has ended.
    ChildEnded,
    /// Ctrl-C or `sundown stop --now`.
    Hurry,
}

/// Which signal the apps hear.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Voice {
    /// The ladder's first, or each app's own.
    Own,
    /// INT from outside asked: INT for apps without a stop signal of their own.
    OwnElseInterrupt,
    /// INT from inside asked: INT, in place of the ladder.
    Interrupt,
}

/// Why we kill.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KillReason {
    /// The stated limit, less the margin.
    Deadline,
    /// The time after the ladder's last rung.
    LadderEnd,
    /// The leftovers' time after the child's own end.
    Linger,
    /// The interrupt after the warning.
    Interrupt,
}

/// How it all ended, before the user's policy on exit codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outcome {
    /// The exit code.
    pub code: u8,
    /// How the process that gives the code ended; none if it has not.
    pub ended: Option<Ended>,
    /// Whether a stop was asked for.
    pub asked: bool,
    /// Why something was killed, if it was.
    pub killed: Option<KillReason>,
    /// Whether something outlived even that.
    pub survivors: bool,
}

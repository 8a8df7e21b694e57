//! The stand-in: starts the child, forwards, reaps, and exits when the child has ended, as every other init does.

use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::habits::{Habits, Home, Leader, News, STOPS, Subreaper, Voice, Whom};
use crate::child::end::Ended;
use crate::child::job::{self, Job};
use crate::child::program::Program;
use crate::child::start::{How, Place, Role, Stillborn, spawn};
use crate::child::terminal::Terminal;
use crate::child::why::Reason;
use crate::signals::{self, Arrival, Inherited, Sender, SigSet, Signal, replace_disposition};

const OWN_FAILURE: u8 = 1;

/// Runs the program to its end, or pauses, and gives the exit code.
pub(super) fn run(
    command: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    habits: Habits,
    inherited: Inherited,
) -> u8 {
    habits.voice.tell(News::Begun);
    if let Err(code) = bind_to_parent(&habits).and_then(|()| adopt(&habits)) {
        return code;
    }
    let inherited = if habits.clears_signals { clear(inherited) } else { inherited };
    let mut stand_in = StandIn { habits: &habits, child: None, job: None, hand_off: SigSet::EMPTY };
    if !habits.pauses
        && let Err(code) = stand_in.start(command, environment, inherited)
    {
        return code;
    }
    if habits.leaves_directory {
        let _ = nix::unistd::chdir("/");
    }
    if habits.closes_files {
        close_files();
    }
    stand_in.watch()
}

/// Has the kernel tell us of our parent's end, where that was asked for (PR_SET_PDEATHSIG(2const)).
///
/// # Errors
/// The exit code, once it was told.
pub(super) fn bind_to_parent(habits: &Habits) -> Result<(), u8> {
    match habits.parent_death.map(|signal| nix_prctl(libc::PR_SET_PDEATHSIG, signal.number())) {
        Some(Err(_)) => {
            habits.voice.tell(News::NoParentDeath);
            Err(OWN_FAILURE)
        }
        _ => Ok(()),
    }
}

/// Has orphans come to us, where that is the habit (PR_SET_CHILD_SUBREAPER(2const)), and says if they do not.
fn adopt(habits: &Habits) -> Result<(), u8> {
    let is_pid_1 = std::process::id() == 1;
    let wants = match habits.subreaper {
        Subreaper::No => false,
        Subreaper::Yes => true,
        Subreaper::UnlessPid1 => !is_pid_1,
    };
    if wants {
        if let Err(errno) = nix_prctl(libc::PR_SET_CHILD_SUBREAPER, 1) {
            habits.voice.tell(News::NoSubreaper(errno));
            return Err(OWN_FAILURE);
        }
        habits.voice.tell(News::Subreaper);
    } else if !is_pid_1 && !is_subreaper() {
        habits.voice.tell(News::NoReaper);
    }
    Ok(())
}

fn nix_prctl(what: i32, value: i32) -> nix::Result<()> {
    // SAFETY: takes numbers.
    Errno::result(unsafe { libc::prctl(what, value as libc::c_ulong, 0, 0, 0) }).map(drop)
}

/// It may have been made one before it became our program (PR_GET_CHILD_SUBREAPER(2const)).
fn is_subreaper() -> bool {
    let mut is = 0i32;
    // SAFETY: the kernel writes to a number of ours.
    let asked = unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut is, 0, 0, 0) };
    asked == 0 && is == 1
}

/// The child is to start with nothing blocked (but what libc keeps to itself) and nothing ignored.
fn clear(inherited: Inherited) -> Inherited {
    (1..=31).filter_map(Signal::new).filter(|signal| *signal != Signal::PIPE).for_each(|signal| {
        replace_disposition(signal, libc::SIG_DFL);
    });
    let of_libc = SigSet::from_bits(0b11 << 31);
    Inherited { mask: inherited.mask.intersection(of_libc), sigpipe_ignored: false, sigchld_ignored: false }
}

/// Lets go of the terminal on stdin, so that a session of the child's can have it (TIOCNOTTY(2const)). As its session's
/// leader we get HUP and CONT for it, like all in front there.
fn let_go_of_terminal() -> nix::Result<Leader> {
    // SAFETY: takes numbers.
    Errno::result(unsafe { libc::ioctl(libc::STDIN_FILENO, libc::TIOCNOTTY) })?;
    Ok(Leader(nix::unistd::getsid(None) == Ok(nix::unistd::getpid())))
}

/// Everything but 0, 1 and 2 (close_range(2), from Linux 5.9 on). We have opened nothing.
fn close_files() {
    // SAFETY: takes numbers; no descriptor of ours is among them.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

struct StandIn<'a> {
    habits: &'a Habits,
    /// None while we pause.
    child: Option<i32>,
    /// The child's share in the terminal.
    job: Option<Job>,
    /// The signals that the terminal's change of hands has made, each of which means nothing once.
    hand_off: SigSet,
}

impl StandIn<'_> {
    /// Starts the child.
    ///
    /// # Errors
    /// The exit code, once the reason was told.
    fn start(
        &mut self,
        command: Vec<OsString>,
        environment: Vec<(OsString, OsString)>,
        inherited: Inherited,
    ) -> Result<(), u8> {
        let name = command.first().cloned().unwrap_or_default();
        let place = self.place();
        let terminal = if self.habits.home == Home::Group { Terminal::of_stdin() } else { None };
        // Never stolen: started with `&`, we have it to hand over only after the shell's `fg`.
        let handed = terminal.filter(|terminal| terminal.is_foreground());
        let how = How { inherited, terminal: handed, place, role: Role::Program };
        let mut program = match Program::new(command, environment) {
            Ok(program) => program,
            // An empty name is that of no file.
            Err(_) => return Err(self.not_executed(std::process::id() as i32, &name, Errno::ENOENT)),
        };
        if self.habits.hands_listeners_on {
            program.hand_listeners_on(std::process::id());
        }
        match spawn(&program, how) {
            Ok(pid) => {
                self.child = Some(pid);
                self.job = terminal.map(|terminal| Job { child: pid, terminal });
                self.voice().tell(News::Spawned { pid, program: &name });
                Ok(())
            }
            Err(Stillborn::Unexecuted { pid, failure }) => Err(self.not_executed(pid, &name, failure.errno)),
            Err(Stillborn::Unforked(Reason::Fork(errno) | Reason::Pipe(errno) | Reason::Null(errno))) => {
                self.voice().tell(News::NoChild(errno));
                Err(OWN_FAILURE)
            }
            Err(Stillborn::Unforked(_)) => Err(OWN_FAILURE),
        }
    }

    fn place(&mut self) -> Place {
        match self.habits.home {
            Home::Ours => Place::Ours,
            Home::Group => Place::OwnGroup,
            Home::Session => {
                let detached = let_go_of_terminal();
                if let Ok(Leader(true)) = detached {
                    self.hand_off = [Signal::HUP, Signal::CONT].into_iter().collect();
                }
                self.voice().tell(News::Detached(detached));
                match self.voice() {
                    Voice::DumbInit(voice) => Place::OwnSession(voice.of_session()),
                    _ => Place::OwnSession(|_| {}),
                }
            }
        }
    }

    /// Says that the child could not become the program, and how it ended for that.
    fn not_executed(&mut self, pid: i32, program: &OsStr, errno: Errno) -> u8 {
        let code = match (self.voice(), errno) {
            (Voice::Tini(_), Errno::ENOENT) => 127,
            (Voice::Tini(_), Errno::EACCES) => 126,
            (Voice::DumbInit(_), _) => 2,
            _ => 1,
        };
        self.voice().tell(News::Spawned { pid, program });
        self.voice().tell(News::NotExecuted { pid, program, errno });
        self.voice().tell(News::Arrived(Signal::CHLD));
        self.voice().tell(News::Reaped { pid, ended: Ended::Exited(code), is_ours: true });
        self.voice().tell(News::NoneToReap { none_left: true });
        self.leave(Ended::Exited(code))
    }

    /// Takes signals until the child has ended, and gives the exit code.
    fn watch(mut self) -> u8 {
        let heard = SigSet::from_bits(!self.habits.left_alone.bits());
        let _ = signals::set_mask(heard);
        loop {
            if let Some(arrival) = signals::wait(heard, None)
                && let Some(code) = self.take(arrival)
            {
                return code;
            }
        }
    }

    fn take(&mut self, arrival: Arrival) -> Option<u8> {
        let signal = arrival.signal;
        self.voice().tell(News::Arrived(signal));
        if self.hand_off.contains(signal) {
            self.hand_off = self.hand_off.without(signal);
            self.voice().tell(News::HandOff(signal));
        } else if signal == Signal::CHLD {
            return self.reap();
        } else if self.child.is_none() {
            return matches!(signal, Signal::TERM | Signal::INT).then_some(0);
        } else if is_of_ours(arrival) || self.is_childs_stop(arrival) {
        } else if self.habits.unheard.contains(signal) {
            self.voice().tell(News::Unheard(signal));
        } else {
            self.pass_on(signal, self.whom(arrival));
            if self.habits.stops_too && STOPS.contains(&signal) {
                self.stop(arrival);
            }
        }
        None
    }

    /// The terminal means its whole front by Ctrl-C, and after the shell's `fg` that is us in the child's place.
    fn whom(&self, arrival: Arrival) -> Whom {
        if arrival.sender == Sender::Kernel && self.job.is_some() { Whom::Group } else { self.habits.whom }
    }

    /// Whether the terminal's Ctrl-Z was meant for the child, and has gone there.
    fn is_childs_stop(&self, arrival: Arrival) -> bool {
        arrival.sender == Sender::Kernel && self.job.is_some_and(|job| job.takes_stop(arrival.signal))
    }

    fn pass_on(&self, signal: Signal, whom: Whom) {
        let Some(to) = self.rewritten(signal) else { return };
        self.voice().tell(News::Passing(to));
        let sent = self.child.ok_or(Errno::ESRCH).and_then(|child| send(child, whom, to));
        self.voice().tell(News::Passed(to, sent));
    }

    fn rewritten(&self, signal: Signal) -> Option<Signal> {
        let to = self.habits.rewritten(signal);
        match to {
            None => self.voice().tell(News::Dropped(signal)),
            Some(to) if to != signal || self.habits.rewrites.get(signal).is_some() => {
                self.voice().tell(News::Rewritten(signal, to));
            }
            Some(_) => {}
        }
        to
    }

    /// Stops us, so that the shell sees its job stop. Where no shell could make us go on, a key of the terminal does not
    /// stop us for good: then the child goes on as well.
    fn stop(&self, arrival: Arrival) {
        self.voice().tell(News::Stopping);
        let me = std::process::id() as i32;
        match (arrival.sender, self.child) {
            (Sender::Kernel, Some(child)) => {
                until_stopped(child);
                if !job::stop(me, arrival.signal) {
                    let _ = send(child, self.habits.whom, Signal::CONT);
                }
            }
            _ => {
                let _ = signals::send(me, Signal::STOP);
            }
        }
    }

    /// Reaps all there is to reap, since SIGCHLD is announced once however many children have ended (signal(7)).
    fn reap(&mut self) -> Option<u8> {
        let mut end = None;
        loop {
            let mut status = 0;
            // SAFETY: the pointer is to a number of ours.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
            if pid <= 0 {
                self.voice().tell(News::NoneToReap { none_left: pid < 0 });
                return end.map(|ended| self.leave(ended));
            }
            let is_ours = self.child == Some(pid);
            match Ended::from_status(status) {
                Some(ended) => {
                    self.voice().tell(News::Reaped { pid, ended, is_ours });
                    end = if is_ours { Some(ended) } else { end };
                }
                None if is_ours && libc::WIFSTOPPED(status) => self.child_stopped(libc::WSTOPSIG(status)),
                None => {}
            }
        }
    }

    fn child_stopped(&self, number: i32) {
        if let (Some(job), Some(signal)) = (self.job, Signal::new(number)) {
            job.stopped(signal);
            let _ = signals::set_mask(SigSet::from_bits(!self.habits.left_alone.bits()));
        }
    }

    /// The last there is to do, and the exit code.
    fn leave(&self, ended: Ended) -> u8 {
        if let Some(signal) = self.habits.farewell {
            self.pass_on(signal, self.habits.whom);
        }
        if let Some(job) = self.job {
            job.terminal.take_back(job.child);
        }
        let code = ended.code();
        self.voice().tell(News::Leaving(code));
        if self.habits.forgiven.contains(&code) { 0 } else { code }
    }

    fn voice(&self) -> &Voice {
        &self.habits.voice
    }
}

/// How long a child may take to stop, and how often it is looked at.
const STOPPING: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(1);

/// Waits until the child has stopped, or ended. Until then it may still take what is typed for the shell.
fn until_stopped(child: i32) {
    let limit = Instant::now() + STOPPING;
    // SAFETY: plain numbers; all zeros is a valid value of each.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is to details of ours.
    while unsafe { libc::waitid(libc::P_PID, child as libc::id_t, &raw mut info, flags) } == 0
        && info.si_signo == 0
        && Instant::now() < limit
    {
        std::thread::sleep(LOOK);
    }
}

fn send(child: i32, whom: Whom, signal: Signal) -> nix::Result<()> {
    let target = if whom == Whom::Group { -child } else { child };
    signals::send(target, signal).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
}

/// A write of ours to a closed pipe: it says nothing about the child's.
fn is_of_ours(arrival: Arrival) -> bool {
    let me = std::process::id() as i32;
    arrival.signal == Signal::PIPE && matches!(arrival.sender, Sender::Inside { pid, .. } if pid == me)
}

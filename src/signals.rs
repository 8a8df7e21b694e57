//! Signals: their names and numbers, sets of them, and the stream in which they arrive with their senders.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A signal by its number, 1 to 64. The real-time ones have no name of their own: RTMIN+n counts from 34, as on every
/// libc (32 and 33 belong to the thread library).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(u8);

const RTMIN: u8 = 34;
const RTMAX: u8 = 64;

const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// Names that `kill -l` does not print but people write.
const ALIASES: [(&str, Signal); 4] =
    [("IOT", Signal::ABRT), ("CLD", Signal::CHLD), ("POLL", Signal::IO), ("INFO", Signal::PWR)];

/// What the kernel does with a signal that a process neither catches nor ignores (signal(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultAction {
    /// The process ends.
    Terminate,
    /// The process is stopped.
    Stop,
    /// The process goes on if it was stopped.
    Continue,
    /// Nothing.
    Ignore,
}

impl Signal {
    #![allow(missing_docs, reason = "the names are the kernel's")]
    pub const HUP: Self = Self(1);
    pub const INT: Self = Self(2);
    pub const QUIT: Self = Self(3);
    pub const ILL: Self = Self(4);
    pub const TRAP: Self = Self(5);
    pub const ABRT: Self = Self(6);
    pub const BUS: Self = Self(7);
    pub const FPE: Self = Self(8);
    pub const KILL: Self = Self(9);
    pub const USR1: Self = Self(10);
    pub const SEGV: Self = Self(11);
    pub const PIPE: Self = Self(13);
    pub const TERM: Self = Self(15);
    pub const STKFLT: Self = Self(16);
    pub const CHLD: Self = Self(17);
    pub const CONT: Self = Self(18);
    pub const STOP: Self = Self(19);
    pub const TSTP: Self = Self(20);
    pub const TTIN: Self = Self(21);
    pub const TTOU: Self = Self(22);
    pub const URG: Self = Self(23);
    pub const WINCH: Self = Self(28);
    pub const IO: Self = Self(29);
    pub const PWR: Self = Self(30);
    pub const SYS: Self = Self(31);
    /// RTMIN+3, which systemd takes as "halt" and images for it name as STOPSIGNAL.
    pub const HALT: Self = Self(RTMIN + 3);
}

impl Signal {
    /// The signal of that number, if there is one.
    pub const fn new(number: i32) -> Option<Self> {
        if number >= 1 && number <= RTMAX as i32 { Some(Self(number as u8)) } else { None }
    }

    /// Its number, as kill(2) takes it.
    pub const fn number(self) -> i32 {
        self.0 as i32
    }

    /// Reads `TERM`, `SIGTERM`, `sigterm`, `15`, `RTMIN+3`, `RTMAX-1`.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse::<i32>() {
            return Self::new(number);
        }
        let name = text.to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        if let Some(at) = NAMES.iter().position(|known| *known == name) {
            return Self::new(at as i32 + 1);
        }
        if let Some((_, signal)) = ALIASES.iter().find(|(alias, _)| *alias == name) {
            return Some(*signal);
        }
        let (base, offset) = match name.split_at_checked(5)? {
            ("RTMIN", rest) => (RTMIN, rest.strip_prefix('+').or(rest.is_empty().then_some("0"))?.parse::<u8>().ok()?),
            ("RTMAX", rest) => {
                let back: u8 = rest.strip_prefix('-').or(rest.is_empty().then_some("0"))?.parse().ok()?;
                return (back <= RTMAX - RTMIN).then(|| Self(RTMAX - back));
            }
            _ => return None,
        };
        (offset <= RTMAX - RTMIN).then_some(Self(base + offset))
    }

    /// What happens to a process that has set nothing for it.
    pub fn default_action(self) -> DefaultAction {
        match self {
            Self::CHLD | Self::URG | Self::WINCH => DefaultAction::Ignore,
            Self::CONT => DefaultAction::Continue,
            Self::STOP | Self::TSTP | Self::TTIN | Self::TTOU => DefaultAction::Stop,
            _ => DefaultAction::Terminate,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get(usize::from(self.0) - 1) {
            Some(name) => write!(f, "SIG{name}"),
            None if self.0 < RTMIN => write!(f, "signal {}", self.0),
            None if self.0 == RTMIN => f.write_str("SIGRTMIN"),
            None => write!(f, "SIGRTMIN+{}", self.0 - RTMIN),
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A set of signals in the kernel's own form: bit n-1 stands for signal n, as in `SigCgt` of /proc/PID/status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SigSet(u64);

impl SigSet {
    /// Every signal, those that libc keeps to itself included.
    pub const ALL: Self = Self(u64::MAX);
    /// None.
    pub const EMPTY: Self = Self(0);

    /// The set of these bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits of the set.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether the signal is in the set.
    pub fn contains(self, signal: Signal) -> bool {
        self.0 >> (signal.0 - 1) & 1 == 1
    }

    /// The set with the signal in it.
    #[must_use]
    pub fn with(self, signal: Signal) -> Self {
        Self(self.0 | 1 << (signal.0 - 1))
    }

    /// The set without the signal.
    #[must_use]
    pub fn without(self, signal: Signal) -> Self {
        Self(self.0 & !(1 << (signal.0 - 1)))
    }

    /// The set with all of the other in it.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// How many signals are in it.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The signals in it, lowest first.
    pub fn iter(self) -> impl Iterator<Item = Signal> {
        (1..=RTMAX).map(Signal).filter(move |signal| self.contains(*signal))
    }
}

impl FromIterator<Signal> for SigSet {
    fn from_iter<I: IntoIterator<Item = Signal>>(signals: I) -> Self {
        signals.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// Sets the mask of the calling thread (rt_sigprocmask(2)): the raw call, since libc's leaves two or three signals out.
/// Async-signal-safe.
///
/// # Errors
/// None that the kernel gives for a valid pointer and size; passed on all the same.
pub fn set_mask(mask: SigSet) -> io::Result<()> {
    // SAFETY: the pointer is to eight bytes, the size that is named; the kernel only reads them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &mask.0,
            std::ptr::null_mut::<u64>(),
            size_of::<u64>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The signals that have arrived and wait behind the mask (rt_sigpending(2)).
pub fn pending() -> SigSet {
    let mut set = 0u64;
    // SAFETY: the pointer is to eight bytes of ours, the size that is named.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut set, size_of::<u64>()) };
    SigSet(set)
}

/// What we were started with and the child is to be started with again (execve(2) keeps both).
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    /// The signal mask.
    pub mask: SigSet,
    /// Whether SIGPIPE was ignored.
    pub sigpipe_ignored: bool,
    /// Whether SIGCHLD was ignored. For ourselves it must not be: the kernel would reap our children unseen (wait(2)).
    pub sigchld_ignored: bool,
}

impl Inherited {
    /// Takes over from whatever started us: notes its dispositions, then ignores SIGPIPE and stops ignoring SIGCHLD.
    pub fn take_over(mask: SigSet) -> Self {
        Self {
            mask,
            sigpipe_ignored: replace_disposition(Signal::PIPE, libc::SIG_IGN),
            sigchld_ignored: replace_disposition(Signal::CHLD, libc::SIG_DFL),
        }
    }
}

/// Sets a disposition and tells whether the signal was ignored before. Async-signal-safe.
pub fn replace_disposition(signal: Signal, new: libc::sighandler_t) -> bool {
    // SAFETY: `new` is SIG_IGN or SIG_DFL everywhere in this program: no handler of ours can ever run.
    unsafe { libc::signal(signal.number(), new) == libc::SIG_IGN }
}

/// Who sent a signal, as far as the kernel says (sigaction(2), `si_code`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// The kernel itself: a terminal's Ctrl-C, an alarm, a closed pipe.
    Kernel,
    /// A process of our own PID namespace.
    Inside {
        /// Its pid here.
        pid: i32,
        /// Its real user.
        uid: u32,
    },
    /// A process that has no pid in our namespace: the container runtime, `kill` on the host.
    Outside,
}

impl Sender {
    /// SI_USER, SI_QUEUE and SI_TKILL are zero or below and carry a sender; what the kernel itself raises is above zero.
    fn of(code: i32, pid: i32, uid: u32) -> Self {
        match (code, pid) {
            (1.., _) => Self::Kernel,
            (_, 0) => Self::Outside,
            (_, pid) => Self::Inside { pid, uid },
        }
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str("the terminal or the kernel"),
            Self::Inside { pid, uid } => write!(f, "pid {pid} (uid {uid})"),
            Self::Outside => f.write_str("outside the container"),
        }
    }
}

/// A signal that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Which.
    pub signal: Signal,
    /// From whom.
    pub sender: Sender,
}

/// How many arrivals one read takes.
const BATCH: usize = 16;

/// The stream of arrivals (signalfd(2)): real-time signals in their order and number, the others once each.
pub struct Arrivals {
    fd: OwnedFd,
}

impl Arrivals {
    /// Opens the stream for every signal. They must be blocked already.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn open() -> io::Result<Self> {
        Self::of(SigSet::ALL)
    }

    /// The same for some signals: the others stay with the kernel, for a later stream.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn of(signals: SigSet) -> io::Result<Self> {
        // SAFETY: the raw call, for the size of the kernel's set; -1 asks for a new descriptor.
        let fd = unsafe {
            libc::syscall(libc::SYS_signalfd4, -1, &signals.0, size_of::<u64>(), libc::SFD_NONBLOCK | libc::SFD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd as i32) } })
    }

    /// Hands every arrival that waits to `each`, until none is left. Allocates nothing.
    ///
    /// # Errors
    /// Those of read(2) other than EAGAIN and EINTR.
    pub fn drain(&self, mut each: impl FnMut(Arrival)) -> io::Result<()> {
        // SAFETY: plain numbers; all zeros is a valid value of each.
        let mut batch: [libc::signalfd_siginfo; BATCH] = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: the buffer is ours and as long as said; the kernel writes whole records.
            let read = unsafe { libc::read(self.fd.as_raw_fd(), batch.as_mut_ptr().cast(), size_of_val(&batch)) };
            if read < 0 {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::WouldBlock => return Ok(()),
                    _ => return Err(error),
                }
            }
            let count = read as usize / size_of::<libc::signalfd_siginfo>();
            batch[..count].iter().filter_map(arrival).for_each(&mut each);
            if count < BATCH {
                return Ok(());
            }
        }
    }
}

impl AsFd for Arrivals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Arrivals {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

fn arrival(info: &libc::signalfd_siginfo) -> Option<Arrival> {
    let signal = Signal::new(info.ssi_signo as i32)?;
    Some(Arrival { signal, sender: Sender::of(info.ssi_code, info.ssi_pid as i32, info.ssi_uid) })
}

/// Waits for the next signal of the set, which must be blocked (rt_sigtimedwait(2)); none if it does not come in time. What
/// is meant for a stream of [`Arrivals`] is better read there.
pub fn wait(set: SigSet, patience: Option<Duration>) -> Option<Arrival> {
    let patience =
        patience.map(|time| libc::timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ });
    // SAFETY: plain numbers; all zeros is a valid value of each.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let patience = patience.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the raw call, for the size of the kernel's set; the pointers are to values of ours, or null for no limit.
    let number = unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &set.0, &raw mut info, patience, size_of::<u64>()) };
    let signal = Signal::new(number as i32)?;
    // SAFETY: the field lies within the bytes that the kernel has filled; what it means depends on the code.
    let pid = unsafe { info.si_pid() };
    // SAFETY: as above.
    let uid = unsafe { info.si_uid() };
    Some(Arrival { signal, sender: Sender::of(info.si_code, pid, uid) })
}

/// Sends a signal to one process (kill(2)), real-time ones included.
///
/// # Errors
/// ESRCH: it is gone. EPERM: it runs as another user and we lack CAP_KILL.
pub fn send(pid: i32, signal: Signal) -> io::Result<()> {
    // SAFETY: kill takes two numbers.
    if unsafe { libc::kill(pid, signal.number()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read_back_from_its_name() {
        for number in 1..=64 {
            let signal = Signal::new(number).expect("1 to 64 are signals");
            let text = signal.to_string();
            let read = Signal::parse(text.strip_prefix("signal ").unwrap_or(&text));
            assert_eq!(read, Some(signal), "{text}");
        }
        assert_eq!(Signal::new(0), None);
        assert_eq!(Signal::new(65), None);
    }

    #[test]
    fn names_are_read_as_people_write_them() {
        for (text, number) in [("TERM", 15), ("sigterm", 15), ("9", 9), ("RTMIN", 34), ("SIGRTMIN+3", 37)] {
            assert_eq!(Signal::parse(text).map(Signal::number), Some(number), "{text}");
        }
        assert_eq!(Signal::parse("RTMAX-1").map(Signal::number), Some(63));
        for wrong in ["", "SIG", "TERMINATE", "65", "-1", "RTMIN+31", "RTMAX-31", "RTMIN3", "SIGRTMIN+", "ü€"] {
            assert_eq!(Signal::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_signal_that_libc_hides_is_in_the_full_set() {
        for number in [32, 33, 34, 64] {
            assert!(SigSet::ALL.contains(Signal::new(number).expect("a signal")));
        }
        assert_eq!(SigSet::EMPTY.with(Signal::TERM).bits(), 0x4000);
    }
}

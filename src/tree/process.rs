//! One process as /proc shows it (proc_pid_stat(5), proc_pid_status(5), proc_pid_cmdline(5)). Nothing here allocates:
//! the tree is looked at for every signal that is passed on.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::signals::{SigSet, Signal};
use crate::tree::program::Program;

/// A process for as long as it lives: a pid alone may be given again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    /// Its pid.
    pub pid: i32,
    /// When it was forked, in ticks since boot.
    pub start: u64,
}

/// The fields of /proc/PID/stat that matter here.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// Who it is.
    pub key: Key,
    /// Its parent.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its state: `R`, `S`, `D`, `T`, `Z` and so on.
    pub state: u8,
    /// Whether it has a controlling terminal.
    pub has_terminal: bool,
    /// How many threads it has.
    pub threads: u32,
    /// The CPU time it has used, in ticks.
    pub cpu: u64,
    /// Its short name.
    pub comm: Comm,
}

/// The short name of a process: 15 bytes at most.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Comm {
    bytes: [u8; 15],
    length: u8,
}

impl Comm {
    /// Takes the first 15 bytes.
    pub fn new(text: &[u8]) -> Self {
        let length = text.len().min(15);
        let mut bytes = [0; 15];
        bytes[..length].copy_from_slice(&text[..length]);
        Self { bytes, length: length as u8 }
    }

    /// The name; what is not UTF-8 is left out.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or("?")
    }
}

impl Stat {
    /// Whether it has ended: a zombie, unless only its main thread has.
    pub fn is_gone(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }

    /// Whether it is stopped, by a signal or a tracer.
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// Reads the text of /proc/PID/stat.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let open = text.iter().position(|byte| *byte == b'(')?;
        // The name may hold brackets and spaces of its own.
        let close = text.iter().rposition(|byte| *byte == b')')?;
        let pid = number(text.get(..open)?.trim_ascii())? as i32;
        let rest = text.get(close + 1..)?;
        // The first field behind the name is the third of the manual page.
        let field =
            |at: usize| rest.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty()).nth(at - 3);
        Some(Self {
            key: Key { pid, start: number(field(22)?)? },
            parent: number(field(4)?)? as i32,
            group: signed(field(5)?)?,
            state: *field(3)?.first()?,
            has_terminal: field(7)? != b"0",
            threads: number(field(20)?)? as u32,
            cpu: number(field(14)?)? + number(field(15)?)?,
            comm: Comm::new(text.get(open + 1..close)?),
        })
    }
}

/// What a process does with signals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mask {
    /// As its status says.
    Known {
        /// Caught, or blocked by every thread: nobody blocks a signal for ever but to fetch it (signalfd(2), sigwait(3)). One
        /// thread is not enough, since every node has one that blocks nearly all.
        caught: SigSet,
        /// Perhaps fetched: the only thread waits for signals, and the kernel does not show for which.
        awaited: SigSet,
        /// Ignored.
        ignored: SigSet,
        /// Its real user.
        uid: u32,
    },
    /// The status cannot be read: it counts as catching.
    Unreadable,
    /// The kernel does not say (gVisor): "unknown" is not "does not catch".
    Unsaid,
}

impl Mask {
    /// Whether it catches a stop signal, as far as can be known.
    pub fn catches(&self, signal: Signal) -> bool {
        match self {
            Self::Known { caught, awaited, .. } => caught.union(*awaited).contains(signal),
            Self::Unreadable | Self::Unsaid => true,
        }
    }

    /// Whether it surely catches the signal, or nothing at all is known of it.
    pub fn surely_catches(&self, signal: Signal) -> bool {
        match self {
            Self::Known { caught, .. } => caught.contains(signal),
            Self::Unreadable | Self::Unsaid => true,
        }
    }

    /// Whether it surely ignores the signal.
    pub fn ignores(&self, signal: Signal) -> bool {
        matches!(self, Self::Known { ignored, .. } if ignored.contains(signal))
    }

    /// Its user, where that is known.
    pub fn uid(&self) -> Option<u32> {
        match self {
            Self::Known { uid, .. } => Some(*uid),
            Self::Unreadable | Self::Unsaid => None,
        }
    }

    /// Reads a status, but for what the threads block.
    fn parse(status: &[u8]) -> Self {
        let set = |name: &[u8]| line(status, name).and_then(hexadecimal).map(SigSet::from_bits);
        let uid = line(status, b"Uid:").and_then(|ids| number(ids.split(|byte| *byte == b'\t').next()?));
        match (set(b"SigCgt:"), set(b"SigIgn:"), uid) {
            (Some(caught), ignored, Some(uid)) => {
                Self::Known { caught, awaited: SigSet::EMPTY, ignored: ignored.unwrap_or_default(), uid: uid as u32 }
            }
            _ => Self::Unsaid,
        }
    }
}

/// What one signal means to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// It has a handler.
    Caught,
    /// Its main thread has it blocked.
    Blocked,
    /// It ignores it.
    Ignored,
    /// Its default action happens.
    Default,
}

impl fmt::Display for Reaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caught => "caught",
            Self::Blocked => "blocked",
            Self::Ignored => "ignored",
            Self::Default => "not handled",
        })
    }
}

/// A member of the tree with all that the walk asks of it.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Its stat.
    pub stat: Stat,
    /// Where its parent stands in the list, which is in front of it; none for our own children.
    pub parent: Option<usize>,
    /// Whether it has children.
    pub has_children: bool,
    /// What its command line says it is.
    pub program: Program,
    /// What it does with signals.
    pub mask: Mask,
}

/// Reads files of /proc into one buffer that is kept.
#[derive(Default)]
pub struct Reader {
    buffer: Vec<u8>,
}

/// No status, stat or command line that matters is longer; environments are read up to this.
const LONGEST: usize = 256 * 1024;

impl Reader {
    /// The file `/proc/PID/name`.
    ///
    /// # Errors
    /// ENOENT, ESRCH: the process is gone. EACCES, EPERM: it is not for us.
    pub fn read(&mut self, pid: i32, name: &str) -> io::Result<&[u8]> {
        self.read_path(format_args!("/proc/{pid}/{name}"))
    }

    /// Any file whose path is short.
    ///
    /// # Errors
    /// Those of open(2) and read(2).
    pub fn read_path(&mut self, path: std::fmt::Arguments<'_>) -> io::Result<&[u8]> {
        let mut name = [0u8; 96];
        let mut rest = &mut name[..];
        rest.write_fmt(path)?;
        let length = 96 - rest.len();
        let file = File::open(Path::new(OsStr::from_bytes(&name[..length])))?;
        self.buffer.clear();
        file.take(LONGEST as u64).read_to_end(&mut self.buffer)?;
        Ok(&self.buffer)
    }

    /// What the process does with signals. `fetches` is whether it may block one to fetch it: a shell never does, and blocks
    /// them all for moments while it forks.
    pub fn mask(&mut self, pid: i32, fetches: bool) -> Mask {
        let Ok(status) = self.read(pid, "status") else { return Mask::Unreadable };
        match Mask::parse(status) {
            // The threads are asked only where no handler has answered: a JVM has hundreds.
            Mask::Known { caught, ignored, uid, .. } if fetches && !caught.contains(Signal::TERM) => {
                let fetched = self.fetched_by_threads(pid);
                Mask::Known { caught: caught.union(fetched.surely), awaited: fetched.perhaps, ignored, uid }
            }
            mask => mask,
        }
    }

    /// What the process does with this signal; none where its status cannot be read or does not say.
    pub fn reaction(&mut self, pid: i32, signal: Signal) -> Option<Reaction> {
        let status = self.read(pid, "status").ok()?;
        let has = |name: &[u8]| {
            let set = line(status, name).and_then(hexadecimal).map(SigSet::from_bits)?;
            Some(set.contains(signal))
        };
        // A blocked signal is not delivered, whatever else is set.
        Some(match (has(b"SigBlk:")?, has(b"SigCgt:")?, has(b"SigIgn:")?) {
            (true, ..) => Reaction::Blocked,
            (_, true, _) => Reaction::Caught,
            (.., true) => Reaction::Ignored,
            _ => Reaction::Default,
        })
    }

    /// Where in the kernel the process waits; none where it does not, or we may not see it.
    pub fn waits_in(&mut self, pid: i32) -> Option<String> {
        let place = str::from_utf8(self.read(pid, "wchan").ok()?).ok()?;
        (!place.is_empty() && place != "0").then(|| place.to_owned())
    }

    /// What every thread blocks. A thread that waits for signals (sigwait(3)) does not show what it waits for: that is what
    /// all the others block; and where there is no other, it may be anything.
    fn fetched_by_threads(&mut self, pid: i32) -> Fetched {
        let mut name = [0u8; 32];
        let mut rest = &mut name[..];
        if write!(rest, "/proc/{pid}/task").is_err() {
            return Fetched::default();
        }
        let length = 32 - rest.len();
        let Ok(threads) = std::fs::read_dir(Path::new(OsStr::from_bytes(&name[..length]))) else {
            return Fetched::default();
        };
        let (mut waits, mut blocked) = (false, None);
        for thread in threads.flatten() {
            let Some(thread) = number(thread.file_name().as_bytes()) else { continue };
            let Ok(status) = self.read_path(format_args!("/proc/{pid}/task/{thread}/status")) else { continue };
            let own = line(status, b"SigBlk:").and_then(hexadecimal).map_or(SigSet::EMPTY, SigSet::from_bits);
            if self.waits_for_signals(pid, thread) {
                waits = true;
            } else {
                blocked = Some(blocked.map_or(own, |others: SigSet| others.intersection(own)));
            }
        }
        Fetched {
            surely: blocked.unwrap_or_default(),
            perhaps: if waits && blocked.is_none() { SigSet::ALL } else { SigSet::EMPTY },
        }
    }

    /// Whether the thread sits in rt_sigtimedwait(2) (proc_pid_syscall(5)).
    fn waits_for_signals(&mut self, pid: i32, thread: u64) -> bool {
        let Ok(call) = self.read_path(format_args!("/proc/{pid}/task/{thread}/syscall")) else { return false };
        call.split(|byte| *byte == b' ').next().and_then(number) == Some(libc::SYS_rt_sigtimedwait as u64)
    }
}

/// What the threads of a process fetch by themselves.
#[derive(Default)]
struct Fetched {
    /// Every thread blocks it, or waits.
    surely: SigSet,
    /// The only thread waits for something.
    perhaps: SigSet,
}

/// The rest of the line that starts with this name, without the white space around it.
fn line<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name)).map(<[u8]>::trim_ascii)
}

fn number(text: &[u8]) -> Option<u64> {
    str::from_utf8(text).ok()?.parse().ok()
}

fn signed(text: &[u8]) -> Option<i32> {
    str::from_utf8(text).ok()?.parse().ok()
}

fn hexadecimal(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(str::from_utf8(text).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let text = b"4711 (a) (b c) S 12 4711 4711 34816 4711 4194304 1 2 3 4 50 7 0 0 20 0 3 0 98765 1 2 3\n";
        let stat = Stat::parse(text).expect("a stat");
        assert_eq!(stat.key, Key { pid: 4711, start: 98765 });
        assert_eq!((stat.parent, stat.state, stat.threads, stat.cpu), (12, b'S', 3, 57));
        assert_eq!(stat.comm.as_str(), "a) (b c");
        assert!(stat.has_terminal);
    }

    #[test]
    fn what_is_no_stat_is_refused() {
        for text in [&b""[..], b"1 (x", b"1 (x)", b"1 (x) S", b") (", b"x (x) S 1 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 5"]
        {
            assert!(Stat::parse(text).is_none(), "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn our_own_status_is_read() {
        let mut reader = Reader::default();
        let me = std::process::id() as i32;
        let stat = Stat::parse(reader.read(me, "stat").expect("our stat")).expect("a stat");
        assert_eq!(stat.key.pid, me);
        // SAFETY: getuid has no preconditions.
        let uid = unsafe { libc::getuid() };
        assert_eq!(reader.mask(me, true).uid(), Some(uid));
    }

    #[test]
    fn a_status_without_signals_is_unsaid() {
        assert_eq!(Mask::parse(b"Name:\tx\nUid:\t0\t0\t0\t0\n"), Mask::Unsaid);
        assert!(Mask::Unsaid.catches(Signal::TERM));
    }
}

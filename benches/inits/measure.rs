//! One init, one measurement.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, PipeReader, Read};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::bare::{Bare, Process, now};

/// How long anything here may take before it counts as hung.
const BOUND: Duration = Duration::from_secs(30);
/// Between two signals: each is to find the init at rest, as in life.
const PACE: Duration = Duration::from_millis(1);

/// From the exec to the end. In microseconds.
pub struct Passage {
    /// From the init's exec to the child's first instruction.
    pub start: f64,
    /// From the kill(2) to the child's return from sigwaitinfo(2).
    pub ways: Vec<f64>,
    /// From the TERM, at which the child ends, to the end of the init.
    pub stop: f64,
}

pub struct Orphans {
    /// Reaped a second, where all end at once.
    pub a_second: f64,
    /// The most that were there, where they end one after another.
    pub peak: f64,
}

pub struct Idle {
    /// Context switches, voluntary or not.
    pub switches: u64,
    pub cpu: Duration,
    /// In bytes.
    pub resident: u64,
    pub private_dirty: u64,
}

/// An init as PID 1, and what its child tells.
struct Running {
    init: Process,
    told: PipeReader,
    exec: u64,
}

pub fn passage(argv: &[String], signals: usize) -> io::Result<Passage> {
    let mut running = Running::start(argv)?;
    let start = running.number()? - running.exec;
    let mut ways = Vec::with_capacity(signals);
    for _ in 0..signals {
        running.await_rest()?;
        std::thread::sleep(PACE);
        let sent = now();
        running.init.signal(libc::SIGUSR1);
        ways.push(micros(running.number()? - sent));
    }
    running.await_rest()?;
    std::thread::sleep(PACE);
    Ok(Passage { start: micros(start), ways, stop: micros(running.stop()?) })
}

pub fn orphans(argv: &[String], count: usize) -> io::Result<Orphans> {
    let mut running = Running::start(argv)?;
    let took = running.number()?;
    let peak = running.number()? as f64;
    Ok(Orphans { a_second: count as f64 * 1e9 / took as f64, peak })
}

/// All of them side by side.
pub fn idle(commands: &[Vec<String>], span: Duration) -> io::Result<Vec<Idle>> {
    let mut all = commands.iter().map(|argv| Running::start(argv)).collect::<io::Result<Vec<_>>>()?;
    for running in &mut all {
        running.number()?;
    }
    // Past what sundown looks at more often at first.
    std::thread::sleep(Duration::from_secs(2));
    let before: Vec<(u64, Duration)> = all.iter().map(|running| (running.switches(), running.cpu())).collect();
    std::thread::sleep(span);
    let figures = all.iter().zip(before).map(|(running, (switches, cpu))| Idle {
        switches: running.switches() - switches,
        cpu: running.cpu() - cpu,
        resident: running.memory("Rss:"),
        private_dirty: running.memory("Private_Dirty:"),
    });
    let figures = figures.collect();
    for running in all {
        running.stop()?;
    }
    Ok(figures)
}

impl Running {
    fn start(argv: &[String]) -> io::Result<Self> {
        let (told, tell) = io::pipe()?;
        let words: Vec<&str> = argv.iter().map(String::as_str).collect();
        let init = Bare::new(&words).pid1(true).telling(tell.as_raw_fd()).start();
        drop(tell);
        let mut running = Self { init, told, exec: 0 };
        running.exec = running.number().map_err(|error| io::Error::other(format!("{}: {error}", argv.join(" "))))?;
        Ok(running)
    }

    /// The next that the child tells.
    fn number(&mut self) -> io::Result<u64> {
        let mut number = [0; 8];
        let limit = PollTimeout::try_from(BOUND).unwrap_or(PollTimeout::MAX);
        if poll(&mut [PollFd::new(std::os::fd::AsFd::as_fd(&self.told), PollFlags::POLLIN)], limit)? == 0 {
            return Err(io::Error::other(format!("{} tells nothing", self.name())));
        }
        self.told.read_exact(&mut number)?;
        Ok(u64::from_ne_bytes(number))
    }

    fn await_rest(&self) -> io::Result<()> {
        let limit = Instant::now() + BOUND;
        while !self
            .proc("stat")
            .is_some_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')))
        {
            if Instant::now() > limit {
                return Err(io::Error::other(format!("{} does not come to rest", self.name())));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// In nanoseconds.
    fn stop(self) -> io::Result<u64> {
        let sent = now();
        self.init.signal(libc::SIGTERM);
        let limit = Instant::now() + BOUND;
        // Waited for, not looked for: that would take one of two cores from it.
        let end = pidfd(self.init.0.as_raw())?;
        let left = PollTimeout::try_from(limit - Instant::now()).unwrap_or(PollTimeout::MAX);
        let ended = poll(&mut [PollFd::new(std::os::fd::AsFd::as_fd(&end), PollFlags::POLLIN)], left)?;
        let took = now() - sent;
        if ended == 0 { Err(io::Error::other(format!("{} does not stop", self.name()))) } else { Ok(took) }
    }

    fn switches(&self) -> u64 {
        let status = self.proc("status").unwrap_or_default();
        field(&status, "voluntary_ctxt_switches:") + field(&status, "nonvoluntary_ctxt_switches:")
    }

    fn cpu(&self) -> Duration {
        let ran = self.proc("schedstat").and_then(|text| text.split(' ').next()?.parse().ok());
        Duration::from_nanos(ran.expect("a kernel with /proc/PID/schedstat"))
    }

    fn memory(&self, name: &str) -> u64 {
        field(&self.proc("smaps_rollup").unwrap_or_default(), name) * 1024
    }

    fn proc(&self, file: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.init.0)).ok()
    }

    fn name(&self) -> String {
        String::from_utf8_lossy(&self.init.command_line()).replace('\0', " ")
    }
}

fn pidfd(pid: i32) -> io::Result<File> {
    // SAFETY: takes numbers.
    let fd = nix::errno::Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd as i32) })
}

fn micros(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

fn field(text: &str, name: &str) -> u64 {
    let word = text.lines().find_map(|line| line.strip_prefix(name)).and_then(|rest| rest.split_whitespace().next());
    // Not 0 for what is not there: 0 is what is aimed at.
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{name} in what the kernel tells"))
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { switches, cpu, resident, private_dirty } = self;
        let (resident, dirty) = (resident / 1024, private_dirty / 1024);
        write!(
            f,
            "{switches} context switches and {cpu:?} of CPU at idle, {resident} kB resident, {dirty} kB private dirty"
        )
    }
}

//! Samples of the app's traffic, at the best level that the kernel grants, and how soon to take the next one.

use std::fmt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use crate::lifecycle::Moment;
use crate::traffic::ack_mode;
use crate::traffic::closed::Closed;
use crate::traffic::diag::{Client, Connection, Error, Family, State, States};
use crate::traffic::inflight::{InFlight, Totals, Verdict};
use crate::traffic::ours::{Found, Hints, Listener, Ours};
use crate::traffic::proc_net::{self, Reader};

#[cfg(test)]
mod tests;

/// From one sample to the next, at least.
const PACE: Duration = Duration::from_millis(50);
/// The same while there is a young tie that only a lone acknowledgement can decide: it goes out 40 ms after the request at
/// the earliest, and must not fall between the same two samples.
const TIE_PACE: Duration = Duration::from_millis(25);
/// A sample may use one part in so many of a core.
const SHARE: u32 = 40;
/// But none is put off for longer than this: the end of the traffic would be noticed later than anybody waits for it.
const SLOWEST: Duration = Duration::from_secs(1);

/// How well the traffic can be seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Not at all.
    Blind,
    /// From /proc/net: which connections there are, but not which are idle. All count as in flight.
    ProcNet,
    /// From sock_diag: whether a request is in flight.
    Diag,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blind => "traffic cannot be seen",
            Self::ProcNet => "connections are counted, whether they are idle cannot be seen",
            Self::Diag => "requests in flight are seen",
        })
    }
}

/// What one sample saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// At which level it was seen.
    pub level: Level,
    /// How many listeners of ours there are. With none, and no stated port, there is nothing to see.
    pub listeners: usize,
    /// The connections.
    pub totals: Totals,
    /// Whether other listeners have come or gone since [`Sampler::find`], so that it ought to be called again.
    pub listeners_changed: bool,
    /// Whether `totals.new` may be too low: the kernel does not tell of the connections that come and go between two
    /// samples, or had to drop some.
    pub new_is_a_floor: bool,
    /// Connections that the whole network namespace has accepted since the first sample, our own endpoint's and those of a
    /// pod's other containers among them; none where the counter cannot be read.
    pub accepted_by_all: Option<u64>,
    /// The CPU time that the sample used.
    pub cost: Duration,
    /// How long to wait for the next one.
    pub next: Duration,
}

/// Takes the samples. It holds a socket of sock_diag and one buffer for each of its sources, which do not grow; what is
/// remembered of the connections grows with their number only. Drop it and nothing is left.
#[derive(Debug)]
pub struct Sampler {
    source: Source,
    reason: Option<String>,
    hints: Hints,
    listeners: Vec<Listener>,
    found_among: u64,
    ours: Ours,
    flight: InFlight,
    reader: Reader,
    closed: Option<Closed>,
    drops: bool,
    ties: Ties,
    accepted_before: Option<u64>,
}

#[derive(Debug)]
enum Source {
    Diag(Client),
    ProcNet,
    Blind,
}

/// Ties that are to be decided.
#[derive(Debug)]
struct Ties {
    /// Their inodes and cookies.
    undecided: Vec<(u64, u64)>,
    /// Whether /proc/net can decide them.
    by_ack_mode: ack_mode::Trust,
}

impl Ties {
    /// The tie of this inode, once: its cookie is 0, which no socket has, from then on.
    fn take(&mut self, inode: u64) -> Option<(u64, u64)> {
        let at = self.undecided.binary_search_by_key(&inode, |(inode, _)| *inode).ok()?;
        let (inode, cookie) = self.undecided[at];
        self.undecided[at].1 = 0;
        (cookie != 0).then_some((inode, cookie))
    }
}

impl Sampler {
    /// Opens what can be opened. Nothing is looked at yet; [`Self::find`] comes next.
    pub fn new(hints: Hints) -> Self {
        let mut sampler = Self {
            source: Source::ProcNet,
            reason: None,
            hints,
            listeners: Vec::new(),
            found_among: 0,
            ours: Ours::default(),
            flight: InFlight::default(),
            reader: Reader::default(),
            closed: Closed::open().ok(),
            drops: false,
            ties: Ties { undecided: Vec::new(), by_ack_mode: ack_mode::trust() },
            accepted_before: proc_net::passive_opens().ok(),
        };
        match Client::open() {
            Ok(client) => sampler.source = Source::Diag(client),
            Err(error) => sampler.reason = Some(error.to_string()),
        }
        sampler
    }

    /// How well the traffic can be seen.
    pub fn level(&self) -> Level {
        match self.source {
            Source::Diag(_) => Level::Diag,
            Source::ProcNet => Level::ProcNet,
            Source::Blind => Level::Blind,
        }
    }

    /// Why it cannot be seen better; once for each step down.
    pub fn take_reason(&mut self) -> Option<String> {
        self.reason.take()
    }

    /// The app's ports, as they were found.
    pub fn ports(&self) -> &[u16] {
        self.ours.ports()
    }

    /// Finds the listeners of these processes, which are the tree's. It reads the list of each one's descriptors.
    pub fn find(&mut self, pids: impl Iterator<Item = i32>) -> Found {
        self.at_some_level(Self::list);
        self.found_among = fingerprint(&self.listeners);
        self.ours = Ours::among(&self.listeners, pids, &self.hints);
        self.ours.found
    }

    /// Takes a sample. `now` is the time of the lifecycle. Connections that `skip` says yes to are left out: a prober's.
    pub fn sample(&mut self, now: Moment, skip: &dyn Fn(&Connection) -> bool) -> Seen {
        let (start, clock) = (cpu_time(), Instant::now());
        self.at_some_level(|sampler| sampler.look(now, skip));
        self.decide_ties();
        self.hear_of_closed(now + clock.elapsed(), skip);
        let accepted_by_all = self.accepted_since();
        let totals = self.flight.totals();
        let totals = accepted_by_all.map_or(totals, |accepted| totals.of_accepted(accepted));
        let cost = cpu_time().saturating_sub(start);
        Seen {
            level: self.level(),
            listeners: self.ours.len(),
            listeners_changed: fingerprint(&self.listeners) != self.found_among,
            new_is_a_floor: self.drops || self.closed.is_none(),
            accepted_by_all,
            next: self.pace(&totals, cost),
            totals,
            cost,
        }
    }

    /// Gives each of the app's connections, without counting anything.
    pub fn each_connection(&mut self, skip: &dyn Fn(&Connection) -> bool, each: &mut dyn FnMut(&Connection)) {
        let Self { source, ours, reader, .. } = self;
        let mut see = |row: &Connection| {
            if ours.has(row) && !skip(row) {
                each(row);
            }
        };
        // What cannot be listed is not shown: a sample has told why.
        let _ = connections(source, reader, ours, &mut see);
    }

    /// Tries this, and again a level lower where that is not granted.
    fn at_some_level(&mut self, act: impl Fn(&mut Self) -> Result<(), Error>) {
        let mut has_failed = false;
        while let Err(error) = act(self) {
            match (&self.source, error) {
                // What broke off once, for want of memory perhaps, gets another try.
                (Source::Diag(_), Error::Failed(_)) if !has_failed => {
                    has_failed = true;
                    self.reopen();
                }
                (Source::Diag(_), _) => self.step_down(Source::ProcNet, error.to_string()),
                (Source::ProcNet, Error::Denied(errno) | Error::Unsupported(errno) | Error::Failed(errno)) => {
                    self.step_down(Source::Blind, format!("/proc/net/tcp: {}", errno.desc()));
                }
                (Source::Blind, _) => return,
            }
        }
    }

    fn reopen(&mut self) {
        match Client::open() {
            Ok(client) => self.source = Source::Diag(client),
            Err(error) => self.step_down(Source::ProcNet, error.to_string()),
        }
    }

    fn step_down(&mut self, source: Source, reason: String) {
        self.source = source;
        self.reason = Some(match self.reason.take() {
            Some(first) => format!("{first}; {reason}"),
            None => reason,
        });
    }

    /// Lists all listeners.
    fn list(&mut self) -> Result<(), Error> {
        let listeners = &mut self.listeners;
        listeners.clear();
        match &mut self.source {
            Source::Diag(client) => both(|family| {
                client.dump(family, States::LISTENING, &[], &mut |row| listeners.push(Listener::from(row)))
            }),
            Source::ProcNet => both(|family| {
                each_in_proc(&mut self.reader, family, &mut |row| {
                    if row.state == State::LISTEN {
                        listeners.push(Listener::from(row));
                    }
                })
            }),
            Source::Blind => Ok(()),
        }
    }

    /// Looks at the listeners and at the connections of ours.
    fn look(&mut self, now: Moment, skip: &dyn Fn(&Connection) -> bool) -> Result<(), Error> {
        self.flight.begin(now);
        self.ties.undecided.clear();
        self.list()?;
        let Self { source, listeners, ours, flight, reader, ties, .. } = self;
        listeners.iter().filter(|one| ours.listens(one.inode)).for_each(|one| flight.see_queue(one.queue));
        let mut see = |row: &Connection| {
            if ours.has(row) && !skip(row) && flight.see(row) == Verdict::Undecided {
                ties.undecided.push((row.inode, row.cookie));
            }
        };
        connections(source, reader, ours, &mut see)
    }

    /// Asks /proc/net of the old ties how their last request was acknowledged. Each is asked once until a byte moves, so
    /// that idle connections cost nothing.
    fn decide_ties(&mut self) {
        let Self { reader, flight, ties, ours, .. } = self;
        if ties.undecided.is_empty() {
            return;
        }
        ties.undecided.sort_unstable();
        let trust = ties.by_ack_mode;
        if trust != ack_mode::Trust::None {
            for family in Family::BOTH.into_iter().filter(|family| ours.uses(*family)) {
                // A list that cannot be read leaves them as they are.
                let _ = reader.each(family, &mut |row| {
                    if let Some((_, cookie)) = ties.take(row.connection.inode) {
                        flight.decide(cookie, trust.went_alone(row.in_pingpong));
                    }
                });
            }
        }
        ties.undecided.drain(..).filter(|(_, cookie)| *cookie != 0).for_each(|(_, cookie)| flight.decide(cookie, None));
    }

    fn hear_of_closed(&mut self, now: Moment, skip: &dyn Fn(&Connection) -> bool) {
        let Self { closed: Some(closed), ours, flight, drops, .. } = self else { return };
        *drops |= !closed.each(&mut |row| {
            if ours.has(row) && !skip(row) && row.state != State::LISTEN {
                flight.see_closed(row, now);
            }
        });
    }

    fn accepted_since(&self) -> Option<u64> {
        Some(proc_net::passive_opens().ok()?.saturating_sub(self.accepted_before?))
    }

    fn pace(&self, totals: &Totals, cost: Duration) -> Duration {
        let by_lone_ack = totals.young_ties > 0 && self.ties.by_ack_mode != ack_mode::Trust::Full;
        (cost * SHARE).min(SLOWEST).max(if by_lone_ack { TIE_PACE } else { PACE })
    }
}

/// Gives the connections to our ports.
fn connections(
    source: &mut Source,
    reader: &mut Reader,
    ours: &Ours,
    see: &mut dyn FnMut(&Connection),
) -> Result<(), Error> {
    match source {
        _ if ours.ports().is_empty() => Ok(()),
        Source::Diag(client) => both(|family| match ours.uses(family) {
            true => client.dump(family, States::CONNECTED, ours.ports(), see),
            false => Ok(()),
        }),
        Source::ProcNet => both(|family| {
            each_in_proc(reader, family, &mut |row| {
                if States::CONNECTED.contains(row.state) {
                    see(row);
                }
            })
        }),
        Source::Blind => Ok(()),
    }
}

/// Does this for both families. A kernel without IPv6 has no list of it.
pub(super) fn both(mut act: impl FnMut(Family) -> Result<(), Error>) -> Result<(), Error> {
    act(Family::V4)?;
    match act(Family::V6) {
        Err(Error::Unsupported(_)) => Ok(()),
        done => done,
    }
}

fn each_in_proc(reader: &mut Reader, family: Family, each: &mut dyn FnMut(&Connection)) -> Result<(), Error> {
    let read = reader.each(family, &mut |row| each(&row.connection));
    read.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EPROTO)).into())
}

/// The same for the same set of listeners, in whatever order.
fn fingerprint(listeners: &[Listener]) -> u64 {
    listeners.iter().fold(0, |sum, one| sum ^ one.inode.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

/// The CPU time that this thread has used.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

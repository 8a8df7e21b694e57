//! Whether a request is in flight on a connection, told from what TCP has counted. Pure: samples go in with their time,
//! what they say comes out.
//!
//! Each sample is [`InFlight::begin`], [`InFlight::see`] for every connection, then [`InFlight::totals`]. Data that
//! came after the last data went is a request without its answer; data that went after the last that came, an answer
//! given. Both in the same tick of the kernel is a tie: on the busy connections of a proxy, three in four are. A tie is
//! busy until a delayed acknowledgement is due, and then is told apart by acknowledgements:
//!
//! - The client acknowledged something in a later tick: there was an answer to acknowledge. (A request carries its
//!   acknowledgement of the answer before.)
//! - The acknowledgement of the request had to go out alone: there was no answer that could carry it. It is seen between
//!   two samples, or in the kernel's ping-pong mode ([`super::ack_mode`]).
//! - It did not go out alone, and nothing went without data since the request: it went with the answer.
//! - Else nobody can tell: the request came in several segments, which are acknowledged at once. Then it is busy for 5 s.
//!
//! What no rule sees (an answer streamed with pauses, HTTP/2, a WebSocket) is left to the quiet window: see
//! [`Totals::last_active`].

use std::collections::HashMap;
use std::time::Duration;

use crate::lifecycle::Moment;
use crate::traffic::diag::{Connection, Info, State};

#[cfg(test)]
mod tests;

/// A tie is busy until it is this old: TCP_DELACK_MAX, 200 ms, and some ticks.
const TIE_IS_YOUNG: Duration = Duration::from_millis(220);
/// The kernel's times are no finer than this, where it ticks slowest (CONFIG_HZ=100).
const TICK: Duration = Duration::from_millis(10);
/// An acknowledgement that comes or goes later than this is no delayed one: it belongs to a keep-alive probe.
const DELAYED_ACK: Duration = Duration::from_millis(500);
/// A tie that cannot be told apart is busy until it is this old. For ever would hold every drain of an app whose clients
/// think before their next request; not at all would lose what a busy proxy has sent in two segments.
const TIE_IS_SUSPECT: Duration = Duration::from_secs(5);
/// A connection that is shown no more may still be told as closed; for this long it is known not to be new then.
const REMEMBERED: Duration = Duration::from_secs(30);
/// With more connections than this nobody is remembered beyond the sample that saw him.
const MOST_REMEMBERED: usize = 65_536;

/// What is said of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Not a byte has come yet: a client that connects ahead, or a health check that only connects.
    Fresh,
    /// A request or an answer is under way.
    Busy,
    /// The last request has its answer, as far as can be seen.
    Idle,
    /// A tie that is old enough for [`InFlight::decide`], which is to be called before the totals are taken.
    Undecided,
    /// The kernel does not say what was sent and when: it counts as busy.
    Untold,
    /// Not counted: the app has closed it and nothing is left to send, or the list showed it twice.
    Over,
}

/// What all connections of a sample come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Connections, without those that the app has closed.
    pub connections: u32,
    /// Those with a request or an answer under way; with [`Verdict::Untold`], all of which that may be.
    pub in_flight: u32,
    /// Those on which not a byte has come yet.
    pub fresh: u32,
    /// Those of which the kernel says nothing but that they are there. They are part of `in_flight`.
    pub untold: u32,
    /// Ties that are still young.
    pub young_ties: u32,
    /// Connections that the app has not accepted. Those that are through their handshake are part of `in_flight` too.
    pub accept_queue: u32,
    /// Connections that were not there at the first sample.
    pub new: u32,
    /// When the last of those was first seen.
    pub last_new: Option<Moment>,
    /// Requests that came since the first sample, as TCP shows them: data that came after an answer, or first on its
    /// connection. Of those between two samples on one connection only the last is seen.
    pub requests: u32,
    /// When the last of those came.
    pub last_request: Option<Moment>,
    /// When traffic was last seen: now, if anything is in flight; else when a byte last moved or a connection last came.
    pub last_active: Option<Moment>,
    /// For how long the oldest request has waited for its answer, where that can be said.
    pub oldest_request: Duration,
    /// For how long the connection that was idle longest has been.
    pub longest_idle: Duration,
}

impl Totals {
    /// For how long it has been quiet. `since` is when the looking began: nothing is known of the time before.
    pub fn quiet_for(&self, now: Moment, since: Moment) -> Duration {
        now.saturating_sub(self.last_active.unwrap_or(since))
    }

    /// No more than that can be new, if the kernel has accepted so many since the first sample. One that ended just before it
    /// and is told just after looks as if it had come and gone between.
    #[must_use]
    pub fn of_accepted(self, accepted: u64) -> Self {
        let new = self.new.min(accepted.try_into().unwrap_or(u32::MAX));
        Self { new, last_new: self.last_new.filter(|_| new > 0), ..self }
    }
}

/// What is remembered of a connection from one sample to the next.
#[derive(Clone, Copy, Debug)]
struct Known {
    seen: Moment,
    /// In which sample that was.
    sample: u64,
    /// When a byte last moved.
    moved: Moment,
    /// Both change with every byte that moves.
    bytes_received: u64,
    data_segs_out: u32,
    /// Bytes of the client's.
    payload: u64,
    /// Segments sent without data.
    bare_segs_out: u32,
    /// Whether nothing has gone since the last that came, as far as can be told.
    unanswered: bool,
    /// Whether none of those was sent between the two samples in which bytes moved last.
    moved_bare_of_acks: bool,
    tie: Tie,
}

/// What is decided of a tie, until a byte moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tie {
    Open,
    Waits,
    Answered,
    Suspect,
}

/// The connections, sample by sample.
#[derive(Debug, Default)]
pub struct InFlight {
    known: HashMap<u64, Known>,
    now: Moment,
    sample: u64,
    /// When the first sample was taken, if this is not it.
    first: Option<Moment>,
    totals: Totals,
    not_accepted: u32,
    queue: u32,
}

impl InFlight {
    /// A sample begins. Called again before the next one's [`Self::totals`], it starts the sample anew.
    pub fn begin(&mut self, now: Moment) {
        self.now = now;
        self.sample += 1;
        self.not_accepted = 0;
        self.queue = 0;
        let Totals { new, last_new, requests, last_request, last_active, .. } = self.totals;
        self.totals = Totals { new, last_new, requests, last_request, last_active, ..Totals::default() };
    }

    /// A connection of this sample.
    pub fn see(&mut self, connection: &Connection) -> Verdict {
        // The kernel's lists are read in parts, and what moves in them meanwhile may be shown twice.
        if self.known.get(&connection.cookie).is_some_and(|known| known.sample == self.sample) {
            return Verdict::Over;
        }
        let verdict = self.judge(connection);
        self.count(verdict);
        if let Some(info) = connection.info {
            self.note_active(self.now.saturating_sub(age(&info)));
            self.note_times(verdict, &info);
        }
        verdict
    }

    /// A listener of this sample, with the length of its queue.
    pub fn see_queue(&mut self, length: u32) {
        self.queue = self.queue.saturating_add(length);
    }

    /// A connection that ended since the last sample, of which we hear now. A sample takes long on a busy machine: what ended
    /// within this one is younger than its beginning.
    pub fn see_closed(&mut self, connection: &Connection, now: Moment) {
        let before = self.known.remove(&connection.cookie);
        let Some(first) = self.first else { return };
        let last = connection.info.map_or(now, |info| now.saturating_sub(age(&info)));
        // Its last answer may have gone after the last sample, which may be long ago.
        self.note_active(last);
        // The kernel may be late in telling of one that was gone before the first sample, and its times are in ticks.
        if last < first + TICK {
            return;
        }
        if let Some(info) = connection.info
            && Known::new(self, connection, &info).brings_request(before.as_ref())
        {
            self.note_request(last);
        }
        if before.is_none() {
            self.note_new();
            self.note_active(self.now);
        }
    }

    /// Decides a tie of this sample: whether the acknowledgement of the last that came went out alone, if that is known.
    /// The decision holds until a byte moves.
    pub fn decide(&mut self, cookie: u64, ack_went_alone: Option<bool>) {
        let Some(known) = self.known.get_mut(&cookie) else { return };
        known.tie = match ack_went_alone {
            Some(true) => Tie::Waits,
            Some(false) if known.moved_bare_of_acks => Tie::Answered,
            _ => Tie::Suspect,
        };
        let is_suspect = known.tie == Tie::Suspect && self.now.saturating_sub(known.moved) < TIE_IS_SUSPECT;
        self.totals.in_flight += u32::from(known.tie == Tie::Waits || is_suspect);
    }

    /// What the sample says. It is over then.
    pub fn totals(&mut self) -> Totals {
        self.totals.accept_queue = self.queue.max(self.not_accepted);
        if self.totals.in_flight > 0 || self.totals.accept_queue > 0 {
            self.note_active(self.now);
        }
        self.forget();
        self.first.get_or_insert(self.now);
        self.totals
    }

    fn judge(&mut self, connection: &Connection) -> Verdict {
        let known = self.meet(connection);
        match connection.state {
            State::ESTABLISHED | State::CLOSE_WAIT => {}
            // The app has closed it. Only its end of stream, which takes one number too, may be left to acknowledge.
            _ if connection.wqueue > 1 => return Verdict::Busy,
            _ => return Verdict::Over,
        }
        if connection.inode == 0 {
            self.not_accepted += 1;
            return Verdict::Busy;
        }
        // The client's end of stream takes a number as well, and an app that leaks its descriptor never reads it.
        let end = u32::from(connection.state == State::CLOSE_WAIT);
        if connection.rqueue > end || connection.wqueue > 0 {
            return Verdict::Busy;
        }
        match connection.info {
            Some(info) if info.bytes_received <= u64::from(end) => Verdict::Fresh,
            Some(info) if info.data_segs_out == 0 => Verdict::Busy,
            Some(info) => self.by_times(&info, known.tie),
            None => Verdict::Untold,
        }
    }

    fn by_times(&mut self, info: &Info, tie: Tie) -> Verdict {
        if info.last_data_recv_ms != info.last_data_sent_ms {
            return if info.last_data_recv_ms < info.last_data_sent_ms { Verdict::Busy } else { Verdict::Idle };
        }
        let young = age(info) < TIE_IS_YOUNG;
        self.totals.young_ties += u32::from(young);
        match tie {
            Tie::Waits => Verdict::Busy,
            Tie::Suspect if age(info) < TIE_IS_SUSPECT => Verdict::Busy,
            Tie::Answered | Tie::Suspect => Verdict::Idle,
            Tie::Open if young => Verdict::Busy,
            Tie::Open => Verdict::Undecided,
        }
    }

    /// What is known of the connection with this sample.
    fn meet(&mut self, connection: &Connection) -> Known {
        let info = connection.info.unwrap_or_default();
        let mut known = Known::new(self, connection, &info);
        let before = self.known.get(&connection.cookie).copied();
        known.compare(before.as_ref(), &info);
        if known.brings_request(before.as_ref()) && self.first.is_some() {
            self.note_request(self.now.saturating_sub(Duration::from_millis(info.last_data_recv_ms.into())));
        }
        self.known.insert(connection.cookie, known);
        if before.is_none() && self.first.is_some() {
            self.note_new();
            self.note_active(self.now);
        }
        known
    }

    fn count(&mut self, verdict: Verdict) {
        let totals = &mut self.totals;
        totals.connections += u32::from(verdict != Verdict::Over);
        totals.in_flight += u32::from(matches!(verdict, Verdict::Busy | Verdict::Untold));
        totals.fresh += u32::from(verdict == Verdict::Fresh);
        totals.untold += u32::from(verdict == Verdict::Untold);
    }

    fn note_times(&mut self, verdict: Verdict, info: &Info) {
        let longest = match verdict {
            Verdict::Over => return,
            Verdict::Busy => &mut self.totals.oldest_request,
            _ => &mut self.totals.longest_idle,
        };
        *longest = age(info).max(*longest);
    }

    fn note_new(&mut self) {
        self.totals.new += 1;
        self.totals.last_new = Some(self.now);
    }

    fn note_request(&mut self, at: Moment) {
        self.totals.requests += 1;
        self.totals.last_request = self.totals.last_request.max(Some(at));
    }

    fn note_active(&mut self, at: Moment) {
        self.totals.last_active = self.totals.last_active.max(Some(at));
    }

    fn forget(&mut self) {
        let now = self.now;
        let kept = if self.known.len() > MOST_REMEMBERED { Duration::ZERO } else { REMEMBERED };
        self.known.retain(|_, known| now.saturating_sub(known.seen) <= kept);
    }
}

/// Since a byte last moved; since the connection came, if none has.
fn age(info: &Info) -> Duration {
    Duration::from_millis(info.last_data_recv_ms.min(info.last_data_sent_ms).into())
}

impl Known {
    /// What this sample shows of it.
    fn new(flight: &InFlight, connection: &Connection, info: &Info) -> Self {
        // The client's end of stream is a byte to the kernel.
        let payload = info.bytes_received.saturating_sub(u64::from(connection.state != State::ESTABLISHED));
        Self {
            seen: flight.now,
            sample: flight.sample,
            moved: flight.now.saturating_sub(age(info)),
            bytes_received: info.bytes_received,
            payload,
            data_segs_out: info.data_segs_out,
            bare_segs_out: info.segs_out.wrapping_sub(info.data_segs_out),
            unanswered: payload > 0 && (info.data_segs_out == 0 || info.last_data_recv_ms <= info.last_data_sent_ms),
            moved_bare_of_acks: false,
            tie: Tie::Open,
        }
    }

    /// Whether a request has come since the sample before; what follows without an answer in between belongs to it.
    fn brings_request(&self, before: Option<&Self>) -> bool {
        let Some(before) = before else { return self.payload > 0 };
        let answered = self.data_segs_out != before.data_segs_out || !before.unanswered;
        self.payload > before.payload && answered
    }

    /// Fills in what takes the sample before to know.
    fn compare(&mut self, before: Option<&Self>, info: &Info) {
        // The answer to the first SYN is the one segment without data that says nothing.
        let bare_before = before.map_or(1, |before| before.bare_segs_out);
        let bare_of_acks = self.bare_segs_out == bare_before;
        match before {
            Some(before)
                if before.bytes_received == self.bytes_received && before.data_segs_out == self.data_segs_out =>
            {
                let alone = !bare_of_acks && age(info) < DELAYED_ACK;
                (self.moved_bare_of_acks, self.tie) = (before.moved_bare_of_acks, before.tie);
                if alone {
                    self.tie = Tie::Waits;
                }
            }
            _ => self.moved_bare_of_acks = bare_of_acks,
        }
        if self.tie == Tie::Open && was_acknowledged_later(info) {
            self.tie = Tie::Answered;
        }
    }
}

/// Whether the other end acknowledged something after the last that it sent, in the time of a delayed acknowledgement.
fn was_acknowledged_later(info: &Info) -> bool {
    let later = info.last_data_recv_ms.saturating_sub(info.last_ack_recv_ms);
    later > 0 && u128::from(later) < DELAYED_ACK.as_millis()
}

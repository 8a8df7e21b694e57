//! For how long the app keeps an idle connection, from the connections that it closes. Pure.
//!
//! The kernel tells of a socket's end with what TCP last counted on it (sock_diag(7), the destroy multicast). At the moment
//! when an idle connection is closed, the time since data last moved is the time that it was kept. Four things that look
//! alike are not it, and say nothing:
//!
//! - The client closed. The event does not tell who did: its state is always CLOSE. But who closes first is left with the
//!   connection in FIN-WAIT-2 or TIME-WAIT for a minute, so that the app did if the kernel still lists it so on our side;
//!   after a client's close or a reset it lists nothing.
//! - The app closed with its answer (`Connection: close`, a limit of requests): the age is next to nothing then.
//! - A request without its answer, or a connection that never had one.
//! - A worker that restarts closes all that it has, at one moment and at any age: what ends together counts once.

use std::time::Duration;

use crate::lifecycle::Moment;
use crate::traffic::diag::{Connection, State};

/// Connections that are closed sooner after the answer are closed with it: no server keeps them for less on purpose.
const LEAST: Duration = Duration::from_millis(500);
/// Ages agree within this.
const AGREEMENT: Duration = Duration::from_millis(500);
/// So many closes have to agree.
const ENOUGH: usize = 3;
/// Closes nearer to each other than this may have one cause.
const MOMENT: Duration = Duration::from_millis(200);
/// The closes that are remembered.
const REMEMBERED: usize = 16;

/// The app's keep-alive timeout, as it was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimate {
    /// On which of its ports.
    pub port: u16,
    /// How long the app keeps an idle connection. No server closes early, so it is the least of the ages that agree.
    pub timeout: Duration,
    /// From how many closes that is.
    pub closes: usize,
}

/// For how long this connection, which has ended, had been idle; none where its end says nothing.
pub fn idle_for(ended: &Connection) -> Option<Duration> {
    let info = ended.info.filter(|_| ended.state != State::LISTEN)?;
    let is_answered = info.data_segs_out > 0 && info.bytes_received > 0 && ended.wqueue == 0;
    let age = Duration::from_millis(info.last_data_sent_ms.into());
    // The times are in ticks: request and answer may have one.
    (is_answered && info.last_data_sent_ms <= info.last_data_recv_ms && age >= LEAST).then_some(age)
}

/// The idle connections that the app has closed.
#[derive(Debug, Default)]
pub struct Closes {
    seen: Vec<Close>,
}

#[derive(Clone, Copy, Debug)]
struct Close {
    at: Moment,
    port: u16,
    idle: Duration,
}

impl Closes {
    /// The app closed a connection to this port of its, which had been idle for so long. Gives the estimate once enough of
    /// them agree.
    pub fn note(&mut self, at: Moment, port: u16, idle: Duration) -> Option<Estimate> {
        if self.seen.iter().any(|other| other.port == port && at.saturating_sub(other.at) < MOMENT) {
            return None;
        }
        if self.seen.len() == REMEMBERED {
            self.seen.remove(0);
        }
        self.seen.push(Close { at, port, idle });
        self.estimate(port)
    }

    fn estimate(&self, port: u16) -> Option<Estimate> {
        let mut ages: Vec<Duration> =
            self.seen.iter().filter(|close| close.port == port).map(|close| close.idle).collect();
        ages.sort_unstable();
        let agreeing = ages.windows(ENOUGH).find(|ages| ages[ENOUGH - 1] - ages[0] <= AGREEMENT)?;
        Some(Estimate { port, timeout: agreeing[0], closes: ENOUGH })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::diag::{Family, Info};

    const SECOND: Duration = Duration::from_secs(1);

    fn ended(sent_ms: u32, recv_ms: u32) -> Connection {
        Connection {
            family: Family::V4,
            local: "127.0.0.1:80".parse().expect("an address"),
            remote: "127.0.0.1:40000".parse().expect("an address"),
            state: State(7),
            inode: 0,
            cookie: 1,
            rqueue: 0,
            wqueue: 0,
            info: Some(Info {
                last_data_sent_ms: sent_ms,
                last_data_recv_ms: recv_ms,
                bytes_received: 27,
                bytes_acked: 125,
                segs_out: 3,
                data_segs_out: 1,
                ..Info::default()
            }),
            cgroup: None,
        }
    }

    /// Closes of these ages, in milliseconds, a second apart.
    fn estimate(ages: &[u64]) -> Option<Duration> {
        let mut closes = Closes::default();
        let noted = (1..).zip(ages).map(|(at, age)| closes.note(SECOND * at, 80, Duration::from_millis(*age)));
        noted.last().flatten().map(|estimate| estimate.timeout)
    }

    #[test]
    fn the_age_is_the_time_since_the_answer() {
        assert_eq!(idle_for(&ended(6008, 6020)), Some(Duration::from_millis(6008)));
        assert_eq!(idle_for(&ended(5004, 5004)), Some(Duration::from_millis(5004)), "within one tick");
    }

    #[test]
    fn what_was_not_idle_says_nothing() {
        assert_eq!(idle_for(&ended(44, 48)), None, "closed with its answer");
        assert_eq!(idle_for(&ended(5000, 4000)), None, "closed without an answer");
        let change = |change: fn(&mut Connection, &mut Info)| {
            let mut ended = ended(5000, 5000);
            let mut info = ended.info.expect("it has");
            change(&mut ended, &mut info);
            ended.info = Some(info);
            idle_for(&ended)
        };
        assert_eq!(change(|_, info| info.data_segs_out = 0), None, "never answered");
        assert_eq!(change(|_, info| info.bytes_received = 0), None, "never asked");
        assert_eq!(change(|ended, _| ended.wqueue = 9), None, "the client has gone away");
        assert_eq!(change(|ended, _| ended.state = State::LISTEN), None);
        assert_eq!(idle_for(&Connection { info: None, ..ended(5000, 5000) }), None);
    }

    #[test]
    fn three_closes_that_agree_are_an_estimate() {
        assert_eq!(estimate(&[5004, 5010]), None);
        assert_eq!(estimate(&[5010, 5004, 5048]), Some(Duration::from_millis(5004)));
        assert_eq!(estimate(&[2100, 2900, 2500]), None, "a server that looks once a second");
        assert_eq!(estimate(&[2100, 2900, 2500, 2050]), Some(Duration::from_millis(2050)));
        assert_eq!(estimate(&[900, 5004, 31_000, 5010, 700, 5048]), Some(Duration::from_millis(5004)));
    }

    #[test]
    fn what_ends_together_counts_once() {
        let mut closes = Closes::default();
        for age in [5000, 5010, 5020, 5030] {
            assert_eq!(closes.note(SECOND, 80, Duration::from_millis(age)), None, "a worker that restarts");
        }
        assert_eq!(closes.note(SECOND * 2, 80, SECOND * 5), None);
        assert!(closes.note(SECOND * 3, 80, SECOND * 5).is_some());
    }

    #[test]
    fn each_port_has_its_own_timeout() {
        let mut closes = Closes::default();
        for at in 1..=2 {
            assert_eq!(closes.note(SECOND * at, 80, SECOND * 5), None);
            assert_eq!(closes.note(SECOND * at, 9100, SECOND * 5), None);
        }
        assert_eq!(closes.note(SECOND * 3, 9100, SECOND * 5).map(|estimate| estimate.port), Some(9100));
    }

    #[test]
    fn few_are_remembered() {
        let mut closes = Closes::default();
        for at in 1..1000 {
            closes.note(SECOND * at, 80, SECOND * at);
        }
        assert_eq!(closes.seen.len(), REMEMBERED);
    }
}

//! What a drain has seen of the traffic, and what follows for its length. Pure.

use std::fmt;
use std::time::Duration;

use crate::lifecycle::DrainEnd;
use crate::plan::human;
use crate::report::advice::{Advice, Id};

/// So many arrivals would have had to come, had they gone on at their rate, before silence says anything.
const MANY: f64 = 20.0;

/// A drain that is over. Times count from the stop request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Drained {
    /// Its least length.
    pub least: Duration,
    /// Why it ended.
    pub why: DrainEnd,
    /// Connections that came meanwhile.
    pub connections: Arrivals,
    /// Whether there may have been more of them.
    pub is_a_floor: bool,
    /// Requests that came meanwhile; there may have been more, where they followed each other quickly on one connection.
    pub requests: Arrivals,
    /// Requests that wait for their answer at the end.
    pub in_flight: u32,
}

/// What came in the drain.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Arrivals {
    /// How many.
    pub count: u32,
    /// How many of them by half of the least length.
    pub by_half: u32,
    /// How many of them by the least length.
    pub by_least: u32,
    /// When the last came.
    pub last: Duration,
}

impl Arrivals {
    /// So many have come by now, and the last came at `last`.
    pub fn note(&mut self, count: u32, last: Option<Duration>, now: Duration, least: Duration) {
        self.count = count;
        self.last = last.unwrap_or_default();
        if now <= least / 2 {
            self.by_half = count;
        }
        if now <= least {
            self.by_least = count;
        }
    }
}

impl Drained {
    /// What the next drain's length should be, if this one says anything about it.
    pub fn lesson(&self) -> Option<Lesson> {
        let (arrivals, what) = match self.requests.count {
            0 => (self.connections, "connection"),
            _ => (self.requests, "request"),
        };
        let Arrivals { count, by_half, by_least, last } = arrivals;
        // A drain that was cut short, or that balancers ended, says nothing about the time that was stated.
        if count == 0 || !matches!(self.why, DrainEnd::Quiet | DrainEnd::NoNew | DrainEnd::TimeUp | DrainEnd::Greatest)
        {
            return None;
        }
        let enough = human(whole_seconds(last));
        let late = count - by_least;
        if late > 0 {
            let seen = format!(
                "{} came after the least drain of {}, the last {} after the stop request",
                Count(late, what),
                human(self.least),
                human(last),
            );
            let fix = format!("with --drain-delay {enough} it is sure to be long enough");
            let leads_to = "only other traffic kept the drain so long, and a quiet second would have lost them";
            return Some(Lesson::Advice(Advice::new(Id::DrainTooShort, seen, leads_to, fix)));
        }
        let half = self.least / 2;
        if last > half {
            return Some(Lesson::Note(format!(
                "the last {what} came {} after the stop request: a --drain-delay below {enough} would have lost some, one of {} would have lost {}",
                human(last),
                human(half),
                count - by_half,
            )));
        }
        let rate = f64::from(count) / last.as_secs_f64().max(1.0);
        let expected = rate * self.least.saturating_sub(last).as_secs_f64();
        (expected >= MANY).then(|| {
            let seen = format!(
                "nothing came later than {} after the stop request, of {} until then",
                human(last),
                Count(count, what),
            );
            let fix = format!("a --drain-delay of {} would have been enough this time", human(whole_seconds(last * 2)));
            Lesson::Advice(Advice::new(Id::DrainTooLong, seen, "the deploy takes longer than it must", fix))
        })
    }
}

/// What to make of a drain's length.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lesson {
    /// It should be another.
    Advice(Advice),
    /// It was needed, and this is how it shows.
    Note(String),
}

/// Up to the next one.
fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0))
}

struct Count<'a>(u32, &'a str);

impl fmt::Display for Count<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, what) = self;
        write!(f, "{count} {what}{}", if *count == 1 { "" } else { "s" })
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, requests, is_a_floor, in_flight, .. } = self;
        if connections.count > 0 {
            let floor = if *is_a_floor { "at least " } else { "" };
            let last = human(connections.last);
            write!(f, ", {floor}{} meanwhile, the last after {last}", Count(connections.count, "new connection"))?;
        }
        if requests.count > 0 {
            let last = human(requests.last);
            write!(f, ", at least {} meanwhile, the last after {last}", Count(requests.count, "request"))?;
        }
        if *in_flight > 0 {
            write!(f, ", {} still in flight", Count(*in_flight, "request"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn drained(least: u32, arrivals: Arrivals) -> Drained {
        Drained {
            least: SECOND * least,
            why: DrainEnd::Quiet,
            connections: Arrivals::default(),
            is_a_floor: false,
            requests: arrivals,
            in_flight: 0,
        }
    }

    /// The advice that must come of it.
    #[track_caller]
    fn advice(drained: Drained, id: Id) -> String {
        match drained.lesson() {
            Some(Lesson::Advice(advice)) if advice.id == id => advice.to_string(),
            other => panic!("{id:?} is not {other:?}"),
        }
    }

    #[test]
    fn arrivals_are_counted_by_the_half_and_by_the_least_time() {
        let mut arrivals = Arrivals::default();
        for (at, count) in [(1, 2), (4, 5), (5, 7), (8, 9), (9, 11)] {
            arrivals.note(count, Some(SECOND * at), SECOND * at, SECOND * 8);
        }
        assert_eq!(arrivals, Arrivals { count: 11, by_half: 5, by_least: 9, last: SECOND * 9 });
    }

    #[test]
    fn what_came_after_the_stated_time_asks_for_a_longer_one() {
        let late = Arrivals { count: 14, by_half: 1, by_least: 2, last: Duration::from_millis(7200) };
        let text = advice(drained(1, late), Id::DrainTooShort);
        assert!(text.starts_with("SD401: 12 requests came after the least drain of 1s, the last 7.2s after"), "{text}");
        assert!(text.contains("--drain-delay 8s"), "{text}");
        assert_eq!(Drained { why: DrainEnd::Released, ..drained(1, late) }.lesson(), None);
        assert_eq!(Drained { why: DrainEnd::Hurry, ..drained(1, late) }.lesson(), None);
    }

    #[test]
    fn what_came_in_its_second_half_proves_the_stated_time() {
        let arrivals = Arrivals { count: 40, by_half: 28, by_least: 40, last: Duration::from_millis(7200) };
        let Some(Lesson::Note(text)) = drained(10, arrivals).lesson() else { panic!("no note") };
        assert!(text.contains("below 8s would have lost some, one of 5s would have lost 12"), "{text}");
    }

    #[test]
    fn silence_speaks_only_after_much_traffic() {
        let last = Duration::from_millis(1100);
        let of = |count| drained(8, Arrivals { count, by_half: count, by_least: count, last });
        let text = advice(of(22), Id::DrainTooLong);
        assert!(text.contains("later than 1.1s") && text.contains("a --drain-delay of 3s"), "{text}");
        assert_eq!(of(1).lesson(), None);
        assert_eq!(of(0).lesson(), None);
    }

    #[test]
    fn where_requests_cannot_be_told_connections_are() {
        let connections = Arrivals { count: 3, by_half: 0, by_least: 0, last: SECOND * 2 };
        let drained = Drained { connections, is_a_floor: true, in_flight: 1, ..drained(1, Arrivals::default()) };
        assert_eq!(
            drained.to_string(),
            ", at least 3 new connections meanwhile, the last after 2s, 1 request still in flight"
        );
        assert!(advice(drained, Id::DrainTooShort).contains("3 connections came"));
    }
}

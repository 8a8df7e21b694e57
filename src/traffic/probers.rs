//! Who probes our readiness, and whether a prober's balancer has let go of us. Pure: visits go in with their time.
//!
//! What a drain sees of the traffic says nothing where there is little of it. A balancer's health check does not depend on
//! traffic: it asks us, and so we know how often it has heard that we go. A prober counts as having let go when it has been
//! given as many failing answers in a row as its balancer wants, and one and a half of its periods more have passed (so that
//! one answer too few in the setting is not too early yet); or when it has missed two and a half periods, since a balancer that has taken a target out may stop asking.

use std::fmt;
use std::time::Duration;

use crate::http::Visitor;
use crate::lifecycle::Moment;
use crate::plan::human;

/// More than this many cannot be told apart any more. Google's balancers probe from dozens of addresses.
const MOST: usize = 256;
/// The period is the longest of so many gaps: several probers behind one address may ask in a burst each period.
const GAPS: usize = 16;
/// A prober that has been silent for this many of its periods makes room for another.
const FORGOTTEN: u32 = 20;

/// One that asks whether we are ready.
#[derive(Clone, Debug)]
pub struct Prober {
    /// Who.
    pub visitor: Visitor,
    /// When it last asked.
    pub last: Moment,
    /// How often it has asked.
    pub visits: u64,
    /// The failing answers it was given, in a row up to the last.
    pub refusals: u32,
    /// When the last of those that count was given.
    counted: Moment,
    /// When that row began.
    pub refused: Option<Moment>,
    /// When that row had become long enough for its balancer to let go.
    enough: Option<Moment>,
    gaps: [Duration; GAPS],
}

/// Whether the balancers have let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// Every one has.
    All,
    /// Some still count on us.
    NotYet,
    /// None has ever asked.
    NoneSeen,
    /// Some asked once and never again: their period is not known, so nobody can say what their silence means.
    Silent,
    /// More have asked than can be told apart.
    TooMany,
}

/// All that have asked.
#[derive(Debug)]
pub struct Probers {
    threshold: u32,
    seen: Vec<Prober>,
    too_many: bool,
}

impl Probers {
    /// Nobody yet. Each one's balancer lets go after `threshold` failing answers in a row.
    pub fn new(threshold: u32) -> Self {
        Self { threshold, seen: Vec::new(), too_many: false }
    }

    /// Somebody has asked at `now`, and `refused` says whether it was told that we are not ready.
    pub fn asked(&mut self, now: Moment, visitor: &Visitor, refused: bool) {
        match self.seen.iter_mut().find(|prober| prober.visitor == *visitor) {
            Some(prober) => prober.comes_again(now, refused, self.threshold),
            None => self.meet(now, visitor, refused),
        }
    }

    /// Whether every balancer has let go.
    pub fn released(&self, now: Moment) -> Release {
        if self.too_many {
            return Release::TooMany;
        }
        let mut balancers = self.balancers().peekable();
        if balancers.peek().is_none() {
            return Release::NoneSeen;
        }
        let mut all = Release::All;
        for prober in balancers {
            match prober.has_let_go(now) {
                Some(true) => {}
                Some(false) => return Release::NotYet,
                None => all = Release::Silent,
            }
        }
        all
    }

    /// All but the kubelets.
    pub fn balancers(&self) -> impl Iterator<Item = &Prober> {
        self.seen.iter().filter(|prober| !prober.visitor.is_kubelet())
    }

    /// All.
    pub fn iter(&self) -> impl Iterator<Item = &Prober> {
        self.seen.iter()
    }

    fn meet(&mut self, now: Moment, visitor: &Visitor, refused: bool) {
        if self.seen.len() >= MOST {
            self.seen.retain(|prober| prober.period().is_none_or(|period| now - prober.last < period * FORGOTTEN));
        }
        if self.seen.len() >= MOST {
            self.too_many = true;
            return;
        }
        let mut prober = Prober {
            visitor: *visitor,
            last: now,
            visits: 1,
            refusals: 0,
            counted: now,
            refused: None,
            enough: None,
            gaps: [Duration::ZERO; GAPS],
        };
        prober.answered(now, refused, self.threshold);
        self.seen.push(prober);
    }
}

impl fmt::Display for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.period() {
            Some(period) => write!(f, "{}, every {}", self.visitor, human(period)),
            None => write!(f, "{}, once", self.visitor),
        }
    }
}

impl Prober {
    fn comes_again(&mut self, now: Moment, refused: bool, threshold: u32) {
        // A balancer may ask sooner once an answer has failed; its period is what it was before.
        if !refused || self.visits < 2 {
            self.gaps.rotate_right(1);
            self.gaps[0] = now.saturating_sub(self.last);
        }
        self.last = now;
        self.visits += 1;
        self.answered(now, refused, threshold);
    }

    fn answered(&mut self, now: Moment, refused: bool, threshold: u32) {
        // Answers in one burst are one to each of several probers, and not several to one.
        let burst = self.period().map_or(Duration::ZERO, |period| period / 2);
        if !refused {
            self.refusals = 0;
        } else if self.refusals == 0 || now.saturating_sub(self.counted) >= burst {
            self.refusals = self.refusals.saturating_add(1);
            self.counted = now;
        }
        self.refused = refused.then(|| self.refused.unwrap_or(now));
        self.enough = (self.refusals >= threshold).then(|| self.enough.unwrap_or(now));
    }

    /// From one of its visits to the next, as far as it is known.
    pub fn period(&self) -> Option<Duration> {
        self.gaps.into_iter().max().filter(|_| self.visits > 1)
    }

    /// Whether its balancer has let go of us; none if it asked only once and can be thought to be late or gone.
    fn has_let_go(&self, now: Moment) -> Option<bool> {
        let period = self.period()?;
        let silent = now.saturating_sub(self.last) >= period * 5 / 2;
        Some(silent || self.enough.is_some_and(|at| now.saturating_sub(at) >= period * 3 / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    use hyper::header::HeaderValue;

    const SECOND: Duration = Duration::from_secs(1);

    fn visitor(last: u8, agent: &'static str) -> Visitor {
        Visitor::new(Ipv4Addr::new(10, 0, 0, last).into(), Some(&HeaderValue::from_static(agent)))
    }

    fn alb() -> Visitor {
        visitor(1, "ELB-HealthChecker/2.0")
    }

    /// Asked each `period` up to `until`, with failing answers from `refused` on; all in seconds.
    fn ask(probers: &mut Probers, who: &Visitor, period: u32, refused: u32, until: u32) {
        for at in (0..=until).step_by(period as usize) {
            probers.asked(SECOND * at, who, at >= refused);
        }
    }

    fn probers() -> Probers {
        Probers::new(2)
    }

    #[test]
    fn a_prober_lets_go_some_time_after_the_threshold() {
        for (at, threshold, released) in [
            (44, 2, Release::NotYet),
            (45, 2, Release::All),
            (54, 3, Release::NotYet),
            (55, 3, Release::All),
            (55, 4, Release::NotYet),
        ] {
            let mut probers = Probers::new(threshold);
            // Failing answers at 20, 30, 40.
            ask(&mut probers, &alb(), 10, 20, 40);
            assert_eq!(probers.released(SECOND * at), released, "{at} s, threshold {threshold}");
        }
    }

    #[test]
    fn one_that_goes_on_asking_has_let_go_all_the_same() {
        let mut probers = Probers::new(12);
        ask(&mut probers, &alb(), 1, 0, 100);
        assert_eq!(probers.released(SECOND * 100), Release::All);
    }

    #[test]
    fn a_good_answer_begins_the_row_anew() {
        let mut probers = probers();
        for (at, refused) in [(0, true), (10, true), (20, false), (30, true)] {
            probers.asked(SECOND * at, &alb(), refused);
        }
        assert_eq!(probers.released(SECOND * 41), Release::NotYet);
    }

    #[test]
    fn one_that_stops_asking_has_let_go() {
        let mut probers = probers();
        ask(&mut probers, &alb(), 10, 1000, 50);
        assert_eq!(probers.released(SECOND * 74), Release::NotYet);
        assert_eq!(probers.released(SECOND * 75), Release::All);
    }

    #[test]
    fn the_slowest_decides() {
        let mut probers = probers();
        ask(&mut probers, &alb(), 5, 10, 30);
        ask(&mut probers, &visitor(2, "ELB-HealthChecker/2.0"), 15, 10, 45);
        assert_eq!(probers.released(SECOND * 52), Release::NotYet);
        assert_eq!(probers.released(SECOND * 53), Release::All);
    }

    #[test]
    fn the_period_is_the_longest_gap_before_the_failing_answers() {
        let mut probers = probers();
        // A balancer that asks faster once an answer fails.
        let early = [0, 10].map(|at| (at, false));
        for (at, refused) in early.into_iter().chain((20..46).map(|at| (at, true))) {
            probers.asked(SECOND * at, &alb(), refused);
            let released = match at {
                0 => Release::Silent,
                1..40 => Release::NotYet,
                _ => Release::All,
            };
            assert_eq!(probers.released(SECOND * at), released, "{at} s");
        }
    }

    #[test]
    fn a_burst_of_several_probers_behind_one_address_counts_once() {
        let mut probers = probers();
        for (round, refused) in [(0, false), (10, false), (20, false), (30, true), (40, true)] {
            for one in 0..6 {
                probers.asked(SECOND * round + Duration::from_millis(one), &alb(), refused);
            }
            // Before the second burst its period is not known.
            let known = round > 0;
            assert!(!known || probers.released(SECOND * round + SECOND * 9) == Release::NotYet, "round {round}");
        }
        assert_eq!(probers.released(SECOND * 54), Release::NotYet);
        assert_eq!(probers.released(SECOND * 55), Release::All);
    }

    #[test]
    fn kubelets_do_not_count() {
        let mut probers = probers();
        ask(&mut probers, &visitor(9, "kube-probe/1.31"), 10, 1000, 50);
        assert_eq!(probers.released(SECOND * 50), Release::NoneSeen);
        ask(&mut probers, &alb(), 5, 10, 50);
        assert_eq!(probers.released(SECOND * 50), Release::All);
        assert_eq!((probers.iter().count(), probers.balancers().count()), (2, 1));
    }

    #[test]
    fn nobody_can_say_what_the_silence_of_one_that_asked_once_means() {
        let mut probers = probers();
        ask(&mut probers, &alb(), 5, 10, 50);
        probers.asked(SECOND * 3, &visitor(2, "curl/8.5.0"), false);
        assert_eq!(probers.released(SECOND * 50), Release::Silent);
        assert_eq!(probers.released(SECOND * 12), Release::NotYet, "whoever counts on us for sure comes first");
    }

    #[test]
    fn those_who_are_gone_make_room_and_the_number_is_bounded() {
        let mut probers = probers();
        let many = |probers: &mut Probers, from: u32| {
            for one in 0..MOST as u32 {
                let address = Ipv4Addr::from_bits(0x0a00_0000 + from + one);
                for at in [0, 1] {
                    probers.asked(SECOND * (from + at), &Visitor::new(address.into(), None), false);
                }
            }
        };
        many(&mut probers, 1000);
        many(&mut probers, 2000);
        assert_eq!(probers.released(SECOND * 2002), Release::NotYet);
        probers.asked(SECOND * 2002, &alb(), false);
        assert_eq!((probers.released(SECOND * 3000), probers.iter().count()), (Release::TooMany, MOST));
    }
}

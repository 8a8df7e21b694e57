//! The catalogue of advice: mistakes of a set-up, each with an id that stays, what was seen of it, what it leads to, and
//! what to do. Each is given once in an instance's life.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// Requests, exit codes or children are at stake.
    Warning,
    /// It costs time or memory, or could be said better.
    Note,
}

/// One kind of advice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Id {
    /// A package manager or a shell stands between us and the app.
    Wrapper,
    /// Nothing catches the stop signal.
    NothingCatches,
    /// The signal is not the one that this program stops on.
    WrongSignal,
    /// We may not signal it.
    OutOfReach,
    /// The sum does not fit the grace period.
    Budget,
    /// The drain's greatest length does not fit it.
    DrainTimeout,
    /// A balancer needs a grace period, and none is stated.
    NoGracePeriod,
    /// The platform does not allow so much.
    BeyondPlatform,
    /// The platform's default is assumed.
    GraceNotStated,
    /// A balancer asks that nobody named.
    UnnamedBalancer,
    /// The app closes idle connections sooner than the balancer.
    KeepAlive,
    /// Nobody has asked whether we are ready.
    NeverAsked,
    /// Nobody has asked since the stop request.
    NotAskedSince,
    /// Requests came after the drain's least length.
    DrainTooShort,
    /// Nothing came for most of the drain.
    DrainTooLong,
    /// Requests came after the app was told.
    LateArrivals,
    /// The app used up nearly all of its time.
    SlowStop,
    /// Idle connections hold the stop.
    IdleHoldStop,
    /// The kernel has killed for want of memory.
    OomKilled,
    /// Memory is nearly used up.
    MemoryNearLimit,
    /// One that is killed for want of memory takes all along.
    OomGroup,
    /// The CPU quota holds the group back.
    Throttled,
    /// Nobody reaps the dead.
    Zombies,
}

struct Topic {
    id: Id,
    code: &'static str,
    severity: Severity,
    page: &'static str,
}

const CATALOGUE: &[Topic] = &[
    topic(Id::Wrapper, "SD101", Severity::Note, include_str!("../../docs/advice/SD101.md")),
    topic(Id::NothingCatches, "SD102", Severity::Warning, include_str!("../../docs/advice/SD102.md")),
    topic(Id::WrongSignal, "SD103", Severity::Warning, include_str!("../../docs/advice/SD103.md")),
    topic(Id::OutOfReach, "SD104", Severity::Warning, include_str!("../../docs/advice/SD104.md")),
    topic(Id::Budget, "SD201", Severity::Warning, include_str!("../../docs/advice/SD201.md")),
    topic(Id::DrainTimeout, "SD202", Severity::Warning, include_str!("../../docs/advice/SD202.md")),
    topic(Id::NoGracePeriod, "SD203", Severity::Warning, include_str!("../../docs/advice/SD203.md")),
    topic(Id::BeyondPlatform, "SD204", Severity::Warning, include_str!("../../docs/advice/SD204.md")),
    topic(Id::GraceNotStated, "SD205", Severity::Note, include_str!("../../docs/advice/SD205.md")),
    topic(Id::UnnamedBalancer, "SD206", Severity::Warning, include_str!("../../docs/advice/SD206.md")),
    topic(Id::KeepAlive, "SD301", Severity::Warning, include_str!("../../docs/advice/SD301.md")),
    topic(Id::NeverAsked, "SD302", Severity::Warning, include_str!("../../docs/advice/SD302.md")),
    topic(Id::NotAskedSince, "SD303", Severity::Warning, include_str!("../../docs/advice/SD303.md")),
    topic(Id::DrainTooShort, "SD401", Severity::Warning, include_str!("../../docs/advice/SD401.md")),
    topic(Id::DrainTooLong, "SD402", Severity::Note, include_str!("../../docs/advice/SD402.md")),
    topic(Id::LateArrivals, "SD403", Severity::Warning, include_str!("../../docs/advice/SD403.md")),
    topic(Id::SlowStop, "SD404", Severity::Warning, include_str!("../../docs/advice/SD404.md")),
    topic(Id::IdleHoldStop, "SD405", Severity::Warning, include_str!("../../docs/advice/SD405.md")),
    topic(Id::OomKilled, "SD501", Severity::Warning, include_str!("../../docs/advice/SD501.md")),
    topic(Id::MemoryNearLimit, "SD502", Severity::Warning, include_str!("../../docs/advice/SD502.md")),
    topic(Id::OomGroup, "SD503", Severity::Note, include_str!("../../docs/advice/SD503.md")),
    topic(Id::Throttled, "SD504", Severity::Warning, include_str!("../../docs/advice/SD504.md")),
    topic(Id::Zombies, "SD601", Severity::Warning, include_str!("../../docs/advice/SD601.md")),
];

const fn topic(id: Id, code: &'static str, severity: Severity, page: &'static str) -> Topic {
    Topic { id, code, severity, page }
}

impl Id {
    /// Whether it is a warning of the sums: what does not fit.
    pub fn is_budget_warning(self) -> bool {
        self.code().starts_with("SD2") && self.severity() == Severity::Warning
    }

    /// How bad it is.
    pub fn severity(self) -> Severity {
        CATALOGUE.iter().find(|topic| topic.id == self).map_or(Severity::Note, |topic| topic.severity)
    }

    /// What it is known by: `SD101`.
    pub fn code(self) -> &'static str {
        CATALOGUE.iter().find(|topic| topic.id == self).map_or("", |topic| topic.code)
    }
}

/// One advice, with what was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// Of which kind.
    pub id: Id,
    /// What was seen, with its figures.
    pub seen: String,
    /// What it leads to.
    pub leads_to: Cow<'static, str>,
    /// What to do.
    pub fix: Cow<'static, str>,
}

impl Advice {
    /// From its three sentences, each without its full stop.
    pub fn new(
        id: Id,
        seen: impl Into<String>,
        leads_to: impl Into<Cow<'static, str>>,
        fix: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { id, seen: seen.into(), leads_to: leads_to.into(), fix: fix.into() }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, seen, leads_to, fix } = self;
        write!(f, "{}: {seen}: {leads_to}; {fix}", id.code())
    }
}

/// What has been given.
#[derive(Debug)]
pub struct Given([Cell<bool>; CATALOGUE.len()]);

impl Default for Given {
    fn default() -> Self {
        Self([const { Cell::new(false) }; CATALOGUE.len()])
    }
}

impl Given {
    /// Writes it to the log, unless one of its kind has been given.
    pub fn give(&self, advice: &Advice) {
        self.write(advice, false);
    }

    /// Writes it to the log each time: something has happened again that costs requests.
    pub fn repeat(&self, advice: &Advice) {
        self.write(advice, true);
    }

    fn write(&self, advice: &Advice, again: bool) {
        let place = CATALOGUE.iter().zip(&self.0).find(|(topic, _)| topic.id == advice.id);
        match place {
            Some((_, given)) if given.replace(true) && !again => {}
            Some((Topic { code, severity: Severity::Note, .. }, _)) => tracing::info!(advice = code, "{advice}"),
            Some((Topic { code, .. }, _)) => tracing::warn!(advice = code, "{advice}"),
            None => {}
        }
    }

    /// The codes of those that have been.
    pub fn codes(&self) -> impl Iterator<Item = &'static str> {
        CATALOGUE.iter().zip(&self.0).filter(|(_, given)| given.get()).map(|(topic, _)| topic.code)
    }
}

/// The page of a code, or all codes with their titles where none is asked for.
///
/// # Errors
/// There is no such code; the text says which there are.
pub fn explain(code: Option<&str>) -> Result<String, String> {
    let Some(code) = code else { return Ok(list()) };
    let wanted = code.to_ascii_uppercase();
    CATALOGUE
        .iter()
        .find(|topic| topic.code == wanted)
        .map(|topic| topic.page.to_owned())
        .ok_or_else(|| format!("there is no advice {code}; there are:\n{}", list()))
}

fn list() -> String {
    CATALOGUE.iter().map(|topic| format!("{}\n", title(topic.page))).collect()
}

/// The first line, `# SD101: ...`, without its mark.
fn title(page: &str) -> &str {
    page.lines().next().unwrap_or_default().trim_start_matches("# ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_code_and_its_page() {
        for topic in CATALOGUE {
            assert_eq!(topic.id.code(), topic.code);
            assert!(title(topic.page).starts_with(&format!("{}: ", topic.code)), "{}", topic.page);
            for part in ["\n**Seen.** ", "\n**It leads to**", "\n**What to do.** "] {
                assert!(topic.page.contains(part), "{part:?} is not on the page of {}", topic.code);
            }
            assert_eq!(CATALOGUE.iter().filter(|other| other.code == topic.code).count(), 1, "{}", topic.code);
        }
    }

    #[test]
    fn each_is_given_once() {
        let given = Given::default();
        let advice = Advice::new(Id::SlowStop, "seen", "leads", "fix");
        given.give(&advice);
        given.give(&advice);
        assert_eq!(given.codes().collect::<Vec<_>>(), ["SD404"]);
        // An id without a topic would be passed over.
        assert_eq!(Id::Zombies as usize + 1, CATALOGUE.len());
    }

    #[test]
    fn a_code_is_explained_in_either_case() {
        assert!(explain(Some("sd101")).expect("a page").starts_with("# SD101: "));
        assert!(explain(Some("SD999")).expect_err("no page").contains("SD101: "));
        assert_eq!(explain(None).expect("the list").lines().count(), CATALOGUE.len());
    }
}

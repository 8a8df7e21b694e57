//! The verdict that a run of results adds up to.

/// Turns results into a verdict that one slip does not change. Failing until the first passes.
#[derive(Clone, Debug)]
pub struct Judge {
    failures: u32,
    successes: u32,
    ok: bool,
    /// Results in a row that speak against the verdict.
    against: u32,
}

impl Judge {
    /// `failures` in a row (Kubernetes' default: 3) turn a passing verdict, `successes` in a row (default: 1) a failing
    /// one. 0 counts as 1.
    pub fn new(failures: u32, successes: u32) -> Self {
        Self { failures: failures.max(1), successes: successes.max(1), ok: false, against: 0 }
    }

    /// Takes one result. Returns the new verdict if this one turned it.
    pub fn hear(&mut self, passed: bool) -> Option<bool> {
        if passed == self.ok {
            self.against = 0;
            return None;
        }
        self.against += 1;
        let enough = if self.ok { self.failures } else { self.successes };
        if self.against < enough {
            return None;
        }
        self.ok = passed;
        self.against = 0;
        Some(passed)
    }
}

impl Default for Judge {
    /// Three failures, one success.
    fn default() -> Self {
        Self::new(3, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::Judge;

    fn turns(mut judge: Judge, results: &str) -> String {
        let turn = |result| match judge.hear(result == '+') {
            Some(true) => '+',
            Some(false) => '-',
            None => '.',
        };
        results.chars().map(turn).collect()
    }

    #[test]
    fn failing_until_the_first_pass() {
        assert!(!Judge::default().ok);
        assert_eq!(turns(Judge::default(), "-----+"), ".....+");
    }

    #[test]
    fn only_failures_in_a_row_turn_it() {
        assert_eq!(turns(Judge::default(), "+--+--+---"), "+........-");
    }

    #[test]
    fn one_pass_turns_it_back() {
        assert_eq!(turns(Judge::default(), "+-----+-"), "+..-..+.");
    }

    #[test]
    fn successes_can_be_asked_for_too() {
        assert_eq!(turns(Judge::new(1, 2), "+-++-++"), "...+-.+");
    }

    #[test]
    fn a_threshold_of_nothing_is_one() {
        assert_eq!(turns(Judge::new(0, 0), "+-+"), "+-+");
    }
}

//! How many processes were killed for want of memory, from look to look.

use super::Cgroup;

/// The count at the start and at the last look.
#[derive(Default, Debug)]
pub struct Kills {
    /// None where the kernel does not tell.
    counts: Option<Counts>,
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    at_start: u64,
    last: u64,
}

impl Kills {
    /// Takes down where the count starts: a group that is not only ours may have had some before.
    pub fn begin(cgroup: &Cgroup) -> Self {
        Self { counts: cgroup.oom_kills().map(|count| Counts { at_start: count, last: count }) }
    }

    /// How many there were since the last look.
    pub fn look(&mut self, cgroup: &Cgroup) -> u64 {
        let Some(counts) = &mut self.counts else { return 0 };
        let Some(count) = cgroup.oom_kills() else { return 0 };
        // In a group that we were moved to it starts anew.
        count.saturating_sub(std::mem::replace(&mut counts.last, count))
    }

    /// How many there were since the start, up to the last look.
    pub fn since_start(&self) -> Option<u64> {
        self.counts.map(|counts| counts.last.saturating_sub(counts.at_start))
    }
}

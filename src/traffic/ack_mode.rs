//! What the kernel's ping-pong mode says of a tie.
//!
//! TCP is in that mode once it has answered data with data within the time of a delayed acknowledgement, and leaves it
//! when a delayed acknowledgement has to go out alone (tcp_event_data_sent, tcp_delack_timer_handler). So 220 ms after a
//! request and an answer in the same tick: not in the mode, the request came last, and waits; in it, the answer did, or the
//! request came in several segments, which are acknowledged at once. This is what `getsockopt(TCP_QUICKACK)` says in
//! reverse, but readable from outside, without a duplicate of the socket.

use std::fs;

/// How far the mode can be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Both ways.
    Full,
    /// Only that an answer was given: it takes several exchanges to get into the mode.
    Answered,
    /// Not at all.
    None,
}

impl Trust {
    /// Whether the last acknowledgement went out alone, on a tie that is past the time for it.
    pub fn went_alone(self, in_pingpong: bool) -> Option<bool> {
        match (self, in_pingpong) {
            (Self::Full, _) => Some(!in_pingpong),
            (Self::Answered, true) => Some(false),
            _ => None,
        }
    }
}

/// How far this kernel's can be.
pub fn trust() -> Trust {
    let read = |path| fs::read_to_string(path).ok();
    judge(read("/proc/sys/net/ipv4/tcp_pingpong_thresh").as_deref(), read("/proc/sys/kernel/osrelease").as_deref())
}

/// The number of exchanges is 1, but was 3 from 5.1 to 5.18, and is settable where there is a file for it.
fn judge(threshold: Option<&str>, release: Option<&str>) -> Trust {
    if let Some(threshold) = threshold {
        return if threshold.trim() == "1" { Trust::Full } else { Trust::Answered };
    }
    match release.and_then(version) {
        Some((5, 1..19)) => Trust::Answered,
        Some(_) => Trust::Full,
        None => Trust::None,
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_takes_several_exchanges_is_believed_one_way() {
        assert_eq!(judge(Some("1\n"), Some("6.18.44\n")), Trust::Full);
        assert_eq!(judge(Some("3\n"), Some("6.18.44\n")), Trust::Answered);
        assert_eq!(judge(None, Some("5.15.0-91-generic\n")), Trust::Answered);
        assert_eq!(judge(None, Some("5.4.0\n")), Trust::Answered);
        assert_eq!(judge(None, Some("5.0.1\n")), Trust::Full);
        assert_eq!(judge(None, Some("4.19.0\n")), Trust::Full);
        assert_eq!(judge(None, Some("6.1.0\n")), Trust::Full);
        assert_eq!(judge(None, None), Trust::None);
        assert_eq!(judge(None, Some("Linux")), Trust::None);
    }

    #[test]
    fn a_request_waits_where_its_acknowledgement_went_alone() {
        assert_eq!(Trust::Full.went_alone(true), Some(false));
        assert_eq!(Trust::Full.went_alone(false), Some(true));
        assert_eq!(Trust::Answered.went_alone(true), Some(false));
        assert_eq!(Trust::Answered.went_alone(false), None);
        assert_eq!(Trust::None.went_alone(true), None);
    }
}

//! What `sundown status` says, to a person and to a machine.

use std::fmt::Write;
use std::time::Duration;

use super::Supervisor;
use super::traffic::Connections;
use crate::plan::human;
use crate::report::board::LookedUp;
use crate::traffic::sampler::Level;

impl Supervisor {
    /// What a scrape wants to know beside what stands on the board.
    pub(super) fn look_up(&mut self) -> LookedUp {
        self.teller.tree.look();
        let traffic = self.connections_of_last_look();
        let now = self.now();
        LookedUp {
            traffic: traffic.map(|traffic| traffic.totals),
            zombies: self.teller.tree.zombies().map(|(_, count)| count).sum(),
            stopping_for: self.lifecycle.clock().map_or(Duration::ZERO, |clock| now.saturating_sub(clock.start)),
        }
    }

    pub(super) fn status_text(&mut self) -> String {
        let traffic = self.connections_now();
        let mut text = format!(
            "phase    {} ({})\nready    {}\nserving  {}\nchild    pid {}, {}\n",
            self.board.phase(),
            self.board.why(),
            yes(self.lifecycle.is_ready()),
            yes(self.lifecycle.is_serving()),
            self.child.pid,
            self.child.ended.map_or("running".into(), |ended| ended.to_string()),
        );
        let _ = writeln!(text, "drain    {}", human(self.plan.drain.least));
        let limit = self.plan.deadline().map_or("not stated".into(), |limit| human(limit + self.plan.kill_margin));
        let _ = writeln!(text, "grace    {limit}");
        let _ = match traffic {
            Some(traffic) => writeln!(text, "traffic  {traffic}"),
            None => writeln!(text, "traffic  cannot be seen"),
        };
        let now = self.now();
        for prober in self.board.probers.borrow().iter() {
            let ago = human(now.saturating_sub(prober.last));
            let refused = match prober.refusals {
                0 => String::new(),
                count => format!(", told {count} times in a row that we are not ready"),
            };
            let _ = writeln!(text, "prober   {prober}, last {ago} ago{refused}");
        }
        for told in self.teller.ledger.told() {
            let _ = writeln!(text, "told     {} to {} (pid {})", told.signal, told.comm.as_str(), told.key.pid);
        }
        if let Some(at) = self.lifecycle.kill_at() {
            let _ = writeln!(text, "killed   in {}", human(at.saturating_sub(now)));
        }
        text
    }

    pub(super) fn status_json(&mut self) -> String {
        let traffic = self.connections_now().map_or_else(|| "null".to_owned(), |traffic| traffic_json(&traffic));
        let since = self.lifecycle.clock().map(|clock| self.now().saturating_sub(clock.start));
        let told = list(self.teller.ledger.told().iter().map(|told| {
            let (pid, name) = (told.key.pid, quote(told.comm.as_str()));
            format!("{{\"pid\":{pid},\"name\":{name},\"signal\":\"{}\"}}", told.signal)
        }));
        format!(
            concat!(
                "{{\"version\":\"{}\",\"pid\":{},\"phase\":\"{}\",\"why\":{},\"ready\":{},\"serving\":{},\"child\":{},\"child_ended\":{},",
                "\"drain_seconds\":{:.3},\"grace_period_seconds\":{},\"stop_asked_seconds_ago\":{},\"kill_in_seconds\":{},",
                "\"traffic\":{},\"probers\":{},\"told\":{}}}"
            ),
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            self.board.phase(),
            quote(&self.board.why()),
            self.lifecycle.is_ready(),
            self.lifecycle.is_serving(),
            self.child.pid,
            self.child.ended.map_or("null".into(), |ended| quote(&ended.to_string())),
            self.plan.drain.least.as_secs_f64(),
            seconds(self.plan.deadline().map(|limit| limit + self.plan.kill_margin)),
            seconds(since),
            seconds(self.lifecycle.kill_at().map(|at| at.saturating_sub(self.now()))),
            traffic,
            self.probers_json(),
            told,
        )
    }

    fn probers_json(&self) -> String {
        let now = self.now();
        list(self.board.probers.borrow().iter().map(|prober| {
            format!(
                concat!(
                    "{{\"address\":\"{}\",\"agent\":{},\"visits\":{},\"last_visit_seconds_ago\":{},\"period_seconds\":{},",
                    "\"refusals_in_a_row\":{}}}"
                ),
                prober.visitor.address(),
                quote(prober.visitor.agent()),
                prober.visits,
                seconds(Some(now.saturating_sub(prober.last))),
                seconds(prober.period()),
                prober.refusals,
            )
        }))
    }
}

fn traffic_json(traffic: &Connections) -> String {
    let Connections { level, totals } = traffic;
    let is_seen = *level == Level::Diag;
    let known = |known: String| if is_seen { known } else { "null".into() };
    format!(
        concat!(
            "{{\"connections\":{},\"in_flight\":{},\"accept_queue\":{},\"oldest_request_seconds\":{},",
            "\"longest_idle_seconds\":{}}}"
        ),
        totals.connections,
        known(totals.in_flight.to_string()),
        totals.accept_queue,
        known(seconds(Some(totals.oldest_request))),
        known(seconds(Some(totals.longest_idle))),
    )
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or("null".into(), |time| format!("{:.3}", time.as_secs_f64()))
}

/// A list of JSON.
fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// A string of JSON (RFC 8259, section 7).
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\0'..='\x1f' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(character));
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_quoted() {
        assert_eq!(quote("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}

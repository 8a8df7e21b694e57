//! What `sundown status` says, to a person and to a machine.

use std::fmt::Write;

use super::Supervisor;
use super::examine::ancestors;
use super::traffic::Connections;
use crate::cgroup::Snapshot;
use crate::plan::human;
use crate::report::board::LookedUp;
use crate::report::json::{list, quote, seconds};
use crate::signals::Signal;
use crate::traffic::sampler::Level;
use crate::tree::walk::{self, Target};

impl Supervisor {
    /// What a scrape wants to know beside what stands on the board.
    pub(super) fn look_up(&mut self) -> LookedUp {
        self.teller.tree.look();
        let traffic = self.connections_of_last_look();
        LookedUp {
            traffic: traffic.map(|traffic| traffic.totals),
            zombies: self.teller.tree.zombies().map(|(_, count)| count).sum(),
            cgroup: self.look_at_cgroup(),
        }
    }

    pub(super) fn status_text(&mut self) -> String {
        let apps = self.apps();
        let traffic = self.connections_of_last_look();
        let cgroup = self.look_at_cgroup().to_string();
        let mut text = format!(
            "phase    {} ({})\nready    {}\nserving  {}\nchild    pid {}, {}\n",
            self.board.phase(),
            self.board.why(),
            yes(self.lifecycle.is_ready()),
            yes(self.lifecycle.is_serving()),
            self.child.pid,
            self.child.ended.map_or("running".into(), |ended| ended.to_string()),
        );
        for App { pid, chain, signal } in &apps {
            let _ = writeln!(text, "app      {} (pid {pid}), is told {signal}", chain.join(" > "));
        }
        if let Some(ports) = traffic.as_ref().map(|traffic| &traffic.ports).filter(|ports| !ports.is_empty()) {
            let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
            let _ = writeln!(text, "ports    {}", ports.join(", "));
        }
        let _ = writeln!(text, "drain    {}", human(self.plan.drain.least));
        let limit = self.plan.deadline().map_or("not stated".into(), |limit| human(limit + self.plan.kill_margin));
        let _ = writeln!(text, "grace    {limit}");
        let _ = match traffic {
            Some(traffic) => writeln!(text, "traffic  {traffic}"),
            None => writeln!(text, "traffic  cannot be seen"),
        };
        if let Some(seen) = self.keepalive.estimate {
            let _ = writeln!(text, "keepalive {}, of {} closes seen", human(seen.timeout), seen.closes);
        }
        if !cgroup.is_empty() {
            let _ = writeln!(text, "cgroup   {cgroup}");
        }
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
        let apps = list(self.apps().iter().map(|App { pid, chain, signal }| {
            let chain = list(chain.iter().map(|name| quote(name)));
            format!("{{\"pid\":{pid},\"chain\":{chain},\"signal\":\"{signal}\"}}")
        }));
        let traffic = self.connections_of_last_look();
        let ports = list(traffic.iter().flat_map(|traffic| &traffic.ports).map(u16::to_string));
        let traffic = traffic.map_or_else(|| "null".to_owned(), |traffic| traffic_json(&traffic));
        let cgroup = cgroup_json(&self.look_at_cgroup());
        let since = self.lifecycle.clock().map(|clock| self.now().saturating_sub(clock.start));
        let told = list(self.teller.ledger.told().iter().map(|told| {
            let (pid, name) = (told.key.pid, quote(told.comm.as_str()));
            format!("{{\"pid\":{pid},\"name\":{name},\"signal\":\"{}\"}}", told.signal)
        }));
        format!(
            concat!(
                "{{\"version\":\"{}\",\"pid\":{},\"phase\":\"{}\",\"why\":{},\"ready\":{},\"serving\":{},\"child\":{},\"child_ended\":{},",
                "\"drain_seconds\":{:.3},\"grace_period_seconds\":{},\"stop_asked_seconds_ago\":{},\"kill_in_seconds\":{},",
                "\"apps\":{},\"ports\":{},\"traffic\":{},\"cgroup\":{},\"keepalive_seconds\":{},\"probers\":{},\"told\":{}}}"
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
            apps,
            ports,
            traffic,
            cgroup,
            seconds(self.keepalive.estimate.map(|seen| seen.timeout)),
            self.probers_json(),
            told,
        )
    }

    /// Who would be told now, and behind which others each stands.
    fn apps(&mut self) -> Vec<App> {
        self.teller.look();
        let nodes = self.teller.tree.nodes();
        let app = |target: Target| {
            let name = |at: &usize| self.teller.tree.name(&nodes[*at]);
            let chain = ancestors(nodes, target.at).iter().rev().chain([&target.at]).map(name).collect();
            App { pid: target.key.pid, chain, signal: self.teller.stop_signal(&nodes[target.at]) }
        };
        walk::own_apps(nodes).into_iter().map(app).collect()
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

/// An app of the tree.
struct App {
    pid: i32,
    /// The names of all above it, and its own.
    chain: Vec<String>,
    signal: Signal,
}

fn traffic_json(traffic: &Connections) -> String {
    let Connections { level, totals, .. } = traffic;
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

fn cgroup_json(figures: &Snapshot) -> String {
    let number = |figure: Option<u64>| figure.map_or("null".into(), |figure| figure.to_string());
    format!(
        concat!(
            "{{\"memory_used_bytes\":{},\"memory_limit_bytes\":{},\"oom_kills\":{},\"cpu_periods\":{},",
            "\"cpu_throttled_periods\":{},\"cpu_throttled_seconds\":{}}}"
        ),
        number(figures.memory_used),
        number(figures.memory_limit),
        number(figures.oom_kills),
        number(figures.cpu_periods),
        number(figures.cpu_throttled_periods),
        seconds(figures.throttled_time),
    )
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

//! What `sundown status` says of a sidecar, and what a scrape is told.

use std::time::Duration;

use super::Sidecar;
use crate::plan::human;
use crate::report::board::LookedUp;
use crate::report::json::{quote, seconds};
use crate::supervisor::status::{probers, probers_json, traffic_json, yes};
use crate::supervisor::traffic::{Connections, connections};

impl Sidecar {
    pub(super) fn look_up(&self) -> LookedUp {
        // The control group is our own container's, and says nothing of the app.
        let traffic = self.connections_now().map(|connections| connections.totals);
        LookedUp { traffic, ..LookedUp::default() }
    }

    pub(super) fn status_text(&self) -> String {
        let limit = self.grace().map_or("not stated".into(), human);
        let traffic = self.connections_now().map_or("cannot be seen".into(), |connections| connections.to_string());
        format!(
            "phase    {} ({})\nready    {}\nserving  {}\napp      {} {}, in another container\ndrain    {}\ngrace    {limit}\ntraffic  {traffic}\n{}",
            self.board.phase(),
            self.board.why(),
            yes(self.lifecycle.is_ready()),
            yes(self.lifecycle.is_serving()),
            if self.app.is_there() { "listens on" } else { "does not listen on" },
            self.app,
            human(self.plan.drain.least),
            probers(&self.board, self.now()),
        )
    }

    pub(super) fn status_json(&self) -> String {
        let since = self.lifecycle.clock().map(|clock| self.now().saturating_sub(clock.start));
        format!(
            concat!(
                "{{\"version\":\"{}\",\"pid\":{},\"phase\":\"{}\",\"why\":{},\"ready\":{},\"serving\":{},\"sidecar\":true,",
                "\"app_listens\":{},\"drain_seconds\":{:.3},\"grace_period_seconds\":{},\"stop_asked_seconds_ago\":{},",
                "\"traffic\":{},\"probers\":{}}}"
            ),
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            self.board.phase(),
            quote(&self.board.why()),
            self.lifecycle.is_ready(),
            self.lifecycle.is_serving(),
            self.app.is_there(),
            self.plan.drain.least.as_secs_f64(),
            seconds(self.grace()),
            seconds(since),
            self.connections_now().map_or_else(|| "null".to_owned(), |connections| traffic_json(&connections)),
            probers_json(&self.board, self.now()),
        )
    }

    fn grace(&self) -> Option<Duration> {
        self.plan.deadline().map(|limit| limit + self.plan.kill_margin)
    }

    fn connections_now(&self) -> Option<Connections> {
        connections(&mut self.sampler(), self.now(), &self.not_clients())
    }
}

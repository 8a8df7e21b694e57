//! Where we run, and what is usual there.

use std::time::Duration;

use super::words::{one_of, word_of};
use super::{Limit, human};
use crate::report::advice::{Advice, Id};

/// Where we run, by what its runtime leaves in the environment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Platform {
    /// A pod.
    Kubernetes,
    /// An ECS task on EC2.
    Ecs,
    /// An ECS task on Fargate.
    Fargate,
    /// A Cloud Run instance.
    CloudRun,
    /// A Nomad allocation.
    Nomad,
    /// Docker or podman.
    Docker,
}

const NAMES: &[(&str, Platform)] = &[
    ("kubernetes", Platform::Kubernetes),
    ("ecs", Platform::Ecs),
    ("fargate", Platform::Fargate),
    ("cloudrun", Platform::CloudRun),
    ("nomad", Platform::Nomad),
    ("compose", Platform::Docker),
];

impl Platform {
    /// Recognises the platform. `variable` gives a variable's value, `exists` tells whether a file is there.
    pub fn detect(
        variable: impl Fn(&str) -> Option<std::ffi::OsString>,
        exists: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let has = |name| variable(name).is_some();
        let is = |name, value| variable(name).is_some_and(|set| set == value);
        if has("K_SERVICE") || has("CLOUD_RUN_JOB") {
            Some(Self::CloudRun)
        } else if has("KUBERNETES_SERVICE_HOST") {
            Some(Self::Kubernetes)
        } else if is("AWS_EXECUTION_ENV", "AWS_ECS_FARGATE") {
            Some(Self::Fargate)
        } else if has("ECS_CONTAINER_METADATA_URI_V4") || has("ECS_CONTAINER_METADATA_URI") {
            Some(Self::Ecs)
        } else if has("NOMAD_ALLOC_ID") {
            Some(Self::Nomad)
        } else if exists("/.dockerenv") || exists("/run/.containerenv") {
            Some(Self::Docker)
        } else {
            None
        }
    }

    /// Reads the name that `sundown plan --for` gives.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        one_of(NAMES, text)
    }

    /// That name.
    pub(super) fn word(self) -> &'static str {
        word_of(NAMES, &self)
    }

    /// What people call it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Kubernetes => "Kubernetes",
            Self::Ecs => "ECS",
            Self::Fargate => "ECS on Fargate",
            Self::CloudRun => "Cloud Run",
            Self::Nomad => "Nomad",
            Self::Docker => "Docker Compose",
        }
    }

    /// The limit where nobody set another.
    pub(super) fn default_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Kubernetes | Self::Ecs | Self::Fargate => 30,
            Self::CloudRun | Self::Docker => 10,
            Self::Nomad => 5,
        })
    }

    /// The longest limit that can be set, where the platform has one: stopTimeout on Fargate, and what Cloud Run gives.
    pub(super) fn longest_limit(self) -> Option<Duration> {
        match self {
            Self::Fargate => Some(Duration::from_secs(120)),
            Self::CloudRun => Some(Duration::from_secs(10)),
            Self::Kubernetes | Self::Ecs | Self::Nomad | Self::Docker => None,
        }
    }

    /// What is to be said of a stated limit that this platform cannot keep.
    pub(super) fn too_long(self, limit: Limit) -> Option<Advice> {
        let (Limit::Stated(stated), Some(longest)) = (limit, self.longest_limit()) else { return None };
        (stated > longest).then(|| {
            let longest = human(longest);
            Advice::new(
                Id::BeyondPlatform,
                format!("--grace-period {} is more than the {longest} that this platform gives at most", human(stated)),
                "the container is killed from outside in the middle of its stop",
                format!("state {longest}, and a drain that fits it"),
            )
        })
    }

    /// How long a balancer of the platform goes on sending at the least, where none was named.
    pub(super) fn default_drain(self) -> Duration {
        match self {
            Self::Kubernetes | Self::Ecs | Self::Fargate => Duration::from_secs(5),
            Self::CloudRun | Self::Nomad | Self::Docker => Duration::ZERO,
        }
    }

    /// The name of its own setting for the limit.
    pub(super) fn setting(self) -> &'static str {
        match self {
            Self::Kubernetes => "terminationGracePeriodSeconds",
            Self::Ecs | Self::Fargate => "stopTimeout",
            Self::CloudRun => "the platform's fixed 10 s",
            Self::Nomad => "kill_timeout",
            Self::Docker => "docker stop -t, stop_grace_period",
        }
    }
}

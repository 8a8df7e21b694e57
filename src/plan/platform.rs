//! Where we run, and what is usual there.

use std::time::Duration;

/// Where we run, by what its runtime leaves in the environment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Platform {
    /// A pod.
    Kubernetes,
    /// An ECS task.
    Ecs,
    /// A Cloud Run instance.
    CloudRun,
    /// A Nomad allocation.
    Nomad,
    /// Docker or podman.
    Docker,
}

impl Platform {
    /// Recognises the platform. `has` tells whether a variable is set, `exists` whether a file is there.
    pub fn detect(has: impl Fn(&str) -> bool, exists: impl Fn(&str) -> bool) -> Option<Self> {
        if has("K_SERVICE") || has("CLOUD_RUN_JOB") {
            Some(Self::CloudRun)
        } else if has("KUBERNETES_SERVICE_HOST") {
            Some(Self::Kubernetes)
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

    /// The limit where nobody set another.
    pub(super) fn default_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Kubernetes | Self::Ecs => 30,
            Self::CloudRun | Self::Docker => 10,
            Self::Nomad => 5,
        })
    }

    /// How long a balancer of the platform goes on sending at the least, where none was named.
    pub(super) fn default_drain(self) -> Duration {
        match self {
            Self::Kubernetes | Self::Ecs => Duration::from_secs(5),
            Self::CloudRun | Self::Nomad | Self::Docker => Duration::ZERO,
        }
    }

    /// The name of its own setting for the limit.
    pub(super) fn setting(self) -> &'static str {
        match self {
            Self::Kubernetes => "terminationGracePeriodSeconds",
            Self::Ecs => "stopTimeout",
            Self::CloudRun => "the platform's fixed 10 s",
            Self::Nomad => "kill_timeout",
            Self::Docker => "docker stop -t, stop_grace_period",
        }
    }
}

//! The part of a manifest that states the numbers of a plan: the limit, the same for sundown, and who asks it what.

use std::fmt::{self, Formatter};
use std::time::Duration;

use super::{Plan, Platform, human};
use crate::cli::{OPTIONS, Settings};
use crate::report::json::quote;

/// What Nomad's agents allow a task unless their own configuration says otherwise (max_kill_timeout).
const NOMADS_LONGEST: Duration = Duration::from_secs(30);

/// A fragment of a manifest, as its [`Display`](fmt::Display).
pub(super) struct Manifest {
    platform: Platform,
    limit: Duration,
    /// Variables by name, in the order of the options.
    pub environment: Vec<(String, String)>,
    /// The endpoint's, where others can reach it.
    port: Option<u16>,
    /// Whether the subcommands can be used as probes.
    has_control: bool,
    has_balancer: bool,
    /// What all that was asked for needs, where the platform gives less.
    needed: Option<Duration>,
}

impl Manifest {
    pub(super) fn of(settings: &Settings, plan: &Plan, platform: Platform) -> Self {
        let limit = plan.suitable_limit(platform);
        Self {
            platform,
            limit,
            environment: environment(settings, limit),
            port: plan.http.filter(|address| !address.is_loopback()).map(|address| address.port()),
            has_control: plan.control,
            has_balancer: plan.budget.lb.is_some(),
            needed: plan.excess(limit).map(|drain| plan.budget.needed(drain)),
        }
    }

    /// Where it belongs.
    pub(super) fn place(&self) -> &'static str {
        match self.platform {
            Platform::Kubernetes => "the pod's spec (in a Deployment: spec.template.spec)",
            Platform::Ecs | Platform::Fargate => "the task definition",
            Platform::CloudRun => "the service",
            Platform::Nomad => "the job's group",
            Platform::Docker => "compose.yaml",
        }
    }

    /// What is to be known and cannot stand in it.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(needed) = self.needed {
            notes.push(format!(
                "This does not fit yet: it needs a grace period of {}, and {} gives {} at most. Lower the drain.",
                human(needed),
                self.platform.title(),
                human(self.limit),
            ));
        }
        // JSON has no comments.
        if matches!(self.platform, Platform::Ecs | Platform::Fargate) {
            notes.push(self.balancers_check());
        }
        notes
    }

    fn balancers_check(&self) -> String {
        match self.port {
            Some(port) => format!("The load balancer's own health check: port {port}, path /readyz."),
            None if self.has_balancer => {
                "The load balancer's own health check needs /readyz: set SUNDOWN_HTTP=:9180.".to_owned()
            }
            None => "Where a load balancer is to ask for /readyz: set SUNDOWN_HTTP=:9180.".to_owned(),
        }
    }

    fn kubernetes(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "spec:\n  terminationGracePeriodSeconds: {}", self.limit.as_secs())?;
        writeln!(f, "  containers:\n    - name: app\n      env:")?;
        self.env_list(f, "        ")?;
        if let Some(port) = self.port {
            writeln!(f, "      ports:\n        - {{name: sundown, containerPort: {port}}}")?;
        }
        let probe = match self.port {
            Some(_) => "httpGet: {path: /servez, port: sundown}",
            None => "exec: {command: [\"/sundown\", \"serve\"]}",
        };
        if self.port.is_some() || self.has_control {
            writeln!(
                f,
                "      readinessProbe:\n        {probe}\n        periodSeconds: 2\n        failureThreshold: 2"
            )?;
        }
        writeln!(f, "      # {}", self.balancers_check())
    }

    /// Kubernetes' list of variables, which is Cloud Run's too.
    fn env_list(&self, f: &mut Formatter<'_>, indent: &str) -> fmt::Result {
        for (name, value) in &self.environment {
            // `$(NAME)` would be replaced there.
            writeln!(f, "{indent}- {{name: {name}, value: {}}}", quote(&value.replace("$(", "$$(")))?;
        }
        Ok(())
    }

    fn ecs(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seconds = self.limit.as_secs();
        writeln!(
            f,
            "{{\n  \"containerDefinitions\": [\n    {{\n      \"name\": \"app\",\n      \"stopTimeout\": {seconds},"
        )?;
        let variable =
            |(name, value): &(String, String)| format!("        {{\"name\": \"{name}\", \"value\": {}}}", quote(value));
        let variables: Vec<String> = self.environment.iter().map(variable).collect();
        write!(f, "      \"environment\": [\n{}\n      ]", variables.join(",\n"))?;
        if let Some(port) = self.port {
            write!(f, ",\n      \"portMappings\": [{{\"containerPort\": {port}}}]")?;
        }
        if self.has_control {
            f.write_str(concat!(
                ",\n      \"healthCheck\": {\n        \"command\": [\"CMD\", \"/sundown\", \"ready\"],\n",
                "        \"interval\": 5, \"timeout\": 2, \"retries\": 3, \"startPeriod\": 30\n      }"
            ))?;
        }
        f.write_str("\n    }\n  ]\n}\n")
    }

    fn cloud_run(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "# The grace period is {} there and cannot be set.", human(self.limit))?;
        writeln!(f, "spec:\n  template:\n    spec:\n      containers:\n        - env:")?;
        self.env_list(f, "            ")
    }

    fn nomad(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seconds = self.limit.as_secs();
        writeln!(f, "group \"app\" {{")?;
        if let Some(port) = self.port {
            writeln!(f, "  network {{\n    port \"sundown\" {{\n      to = {port}\n    }}\n  }}\n")?;
        }
        if self.port.is_some() || self.has_control {
            writeln!(f, "  service {{\n    port = \"http\" # the app's own\n    task = \"app\"\n")?;
            writeln!(f, "    # Who fails it is sent nothing new.\n    check {{")?;
            match self.port {
                Some(_) => writeln!(
                    f,
                    "      type     = \"http\"\n      port     = \"sundown\"\n      path     = \"/readyz\""
                )?,
                None => writeln!(
                    f,
                    "      type     = \"script\"\n      command  = \"/sundown\"\n      args     = [\"ready\"]"
                )?,
            }
            writeln!(f, "      interval = \"2s\"\n      timeout  = \"1s\"\n    }}\n  }}\n")?;
        }
        writeln!(f, "  task \"app\" {{")?;
        if self.limit > NOMADS_LONGEST {
            writeln!(f, "    # More than {}: the clients' max_kill_timeout has to allow it.", human(NOMADS_LONGEST))?;
        }
        writeln!(f, "    kill_timeout = \"{seconds}s\"\n\n    env {{")?;
        for (name, value) in &self.environment {
            // `${` and `%{` would be replaced there.
            writeln!(f, "      {name} = {}", quote(&value.replace("${", "$${").replace("%{", "%%{")))?;
        }
        writeln!(f, "    }}\n  }}\n}}")
    }

    fn compose(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seconds = self.limit.as_secs();
        writeln!(f, "services:\n  app:\n    stop_grace_period: {seconds}s\n    environment:")?;
        for (name, value) in &self.environment {
            // `$NAME` would be replaced there.
            writeln!(f, "      {name}: {}", quote(&value.replace('$', "$$")))?;
        }
        if self.has_control {
            writeln!(f, "    healthcheck:\n      test: [\"CMD\", \"/sundown\", \"ready\"]")?;
            writeln!(f, "      interval: 2s\n      timeout: 1s\n      retries: 2\n      start_period: 30s")?;
        }
        writeln!(f, "    # {}", self.balancers_check())
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.platform {
            Platform::Kubernetes => self.kubernetes(f),
            Platform::Ecs | Platform::Fargate => self.ecs(f),
            Platform::CloudRun => self.cloud_run(f),
            Platform::Nomad => self.nomad(f),
            Platform::Docker => self.compose(f),
        }
    }
}

/// All that was said, as variables, with the limit that is to be stated.
fn environment(settings: &Settings, limit: Duration) -> Vec<(String, String)> {
    let value = |name: &str| match name {
        "grace-period" => Some(format!("{}s", limit.as_secs())),
        // Those that may be repeated are words of one variable.
        "wrapper" | "remap-exit" => {
            let words: Vec<&str> = settings.all(name).map(|said| said.value.trim()).collect();
            Some(words.join(" ")).filter(|words| !words.is_empty())
        }
        // And these are its lines.
        "wait-for" | "on-exit" => {
            let lines: Vec<&str> = settings.all(name).map(|said| said.value.trim()).collect();
            Some(lines.join("\n")).filter(|lines| !lines.is_empty())
        }
        _ => settings.get(name).map(|said| said.value.trim().to_owned()),
    };
    let shown = OPTIONS.iter().filter(|option| option.is_of_a_run());
    shown.filter_map(|option| Some((option.variable(), value(option.name)?))).collect()
}

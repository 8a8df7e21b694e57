//! The chains of wrappers that people put in front of an app.

use std::time::Duration;

/// What each app needs to clean up.
pub const CLEAN_UP: Duration = Duration::from_millis(1500);

/// How much longer a stop may take where all ends with the app.
const PROMPT: Duration = Duration::from_secs(1);
/// And where something is left that has to be told in a round of its own.
const ROUNDS: Duration = Duration::from_secs(2);

/// An app and what stands in front of it.
pub struct Chain {
    pub name: &'static str,
    pub program: &'static [&'static str],
    pub files: &'static [(&'static str, &'static str)],
    /// The programs that must be there.
    pub needs: &'static [&'static str],
    /// The apps that run, by their names in the record.
    pub apps: &'static [&'static str],
    /// The apps that are started only when those are told to stop.
    pub restarted: &'static [&'static str],
    /// Whether a script that traps the signal hears in place of the app.
    pub trapped: bool,
    /// The exit code of the whole.
    pub code: i32,
    /// What the stop may take beyond the clean-up.
    pub grace: Duration,
}

const fn chain(name: &'static str, needs: &'static [&'static str], program: &'static [&'static str]) -> Chain {
    Chain { name, program, files: &[], needs, apps: &["app"], restarted: &[], trapped: false, code: 0, grace: PROMPT }
}

impl Chain {
    const fn files(mut self, files: &'static [(&'static str, &'static str)]) -> Self {
        self.files = files;
        self
    }

    const fn apps(mut self, apps: &'static [&'static str]) -> Self {
        self.apps = apps;
        self
    }

    /// It does not end with the app but has to be told itself, and then gives this code.
    const fn told_later(mut self, code: i32) -> Self {
        self.grace = ROUNDS;
        self.code = code;
        self
    }

    /// It starts the first app again, under the second name, when it has ended.
    const fn restarts(mut self) -> Self {
        self.apps = &["a"];
        self.restarted = &["b"];
        self.grace = CLEAN_UP.saturating_add(ROUNDS);
        self
    }

    /// It traps the signal, passes it on and gives this code.
    const fn traps(mut self, code: i32) -> Self {
        self.trapped = true;
        self.code = code;
        self
    }
}

const PACKAGE: &[(&str, &str)] = &[(
    "package.json",
    r#"{"name": "x", "version": "1.0.0", "private": true, "scripts": {
        "start": "{node}", "twice": "npm run start", "from-npm": "pnpm start"}}"#,
)];

/// yarn 4 runs nothing in a folder that it has not installed; it does so from itself alone.
const YARN4: &[(&str, &str)] = &[PACKAGE[0], ("yarn.lock", ""), (".yarnrc.yml", "nodeLinker: node-modules\n")];

pub const CHAINS: &[Chain] = &[
    chain("node", &["node"], &["{node}"]),
    // Package managers: told, they exit first, with the app untold or cut off.
    chain("npm start", &["npm"], &["npm", "start"]).files(PACKAGE),
    chain("npm run", &["npm"], &["npm", "--silent", "run", "start"]).files(PACKAGE),
    chain("npm exec", &["npm"], &["npm", "exec", "-c", "{node} name=app"]).files(PACKAGE),
    chain("npx", &["npx"], &["npx", "-c", "{node} name=app"]).files(PACKAGE),
    chain("pnpm 9", &["pnpm"], &["pnpm", "start"]).files(PACKAGE),
    chain("pnpm 9 exec", &["pnpm"], &["pnpm", "exec", "{node}"]).files(PACKAGE),
    chain("yarn 1", &["yarn"], &["yarn", "start"]).files(PACKAGE),
    chain("yarn 1 exec", &["yarn"], &["yarn", "exec", "{node}"]).files(PACKAGE),
    chain("yarn 4", &["yarn4"], &["sh", "-c", "yarn4 install --no-immutable >&2 && exec yarn4 start"]).files(YARN4),
    chain("npm -> npm", &["npm"], &["npm", "run", "twice"]).files(PACKAGE),
    chain("npm -> pnpm", &["npm", "pnpm"], &["npm", "run", "from-npm"]).files(PACKAGE),
    chain("bash -> yarn -> npm", &["yarn", "npm"], &["bash", "-c", "yarn twice; exit $?"]).files(PACKAGE),
    // Shells.
    chain("sh -c", &[], &["sh", "-c", "{node}; :"]),
    chain("entry script", &["bash"], &["{dir}/entry"]).files(&[("entry", "#!/bin/bash\nset -e\n{node}\necho over\n")]),
    // It passes TERM on and ends with its interrupted wait: by its own code, which is ours.
    chain("trap TERM", &["bash"], &["bash", "-c", "trap 'kill -TERM $pid' TERM; {node} & pid=$!; wait $pid"])
        .traps(143),
    chain(
        "trap TERM, wait again",
        &["bash"],
        &["bash", "-c", "trap 'kill -TERM $pid' TERM; {node} & pid=$!; wait $pid; wait $pid"],
    )
    .traps(0),
    // bash dies of the signal once its trap has run, and the app outlives it: the app's code counts.
    chain("trap EXIT", &["bash"], &["bash", "-c", "trap 'kill $pid' EXIT; {node} & pid=$!; wait $pid"]).traps(0),
    chain("pipe to tee", &[], &["sh", "-c", "{node} | tee {dir}/log"]),
    chain("two apps", &[], &["sh", "-c", "{node} name=a & {node} name=b & wait"]).apps(&["a", "b"]),
    // The shell is told once the app is gone, and with it what it has just started again, whose code then counts.
    chain("restart loop", &[], &["sh", "-c", "n=a; while true; do {node} name=$n; n=b; done"]).restarts(),
    // It waits for ever, and dies of TERM when the daemon is gone.
    chain(
        "daemon and tail",
        &["setsid"],
        &["sh", "-c", "env -i PATH=\"$PATH\" setsid -f {node}; exec tail -f /dev/null"],
    )
    .told_later(143),
    // What runs a program for the user, the time, the environment.
    chain("su", &["su"], &["su", "-s", "/bin/sh", "nobody", "-c", "{node} name=app"]),
    chain("runuser", &["runuser"], &["runuser", "-u", "nobody", "--", "{node}"]),
    chain("sudo", &["sudo"], &["sudo", "-E", "-u", "nobody", "{node}"]),
    chain("timeout", &[], &["timeout", "1h", "{node}"]),
    chain("env -i", &[], &["env", "-i", "{node}"]),
    chain("tini", &["tini"], &["tini", "-s", "--", "{node}"]),
    chain("dumb-init", &["dumb-init"], &["dumb-init", "{node}"]),
    chain("tsx", &["tsx"], &["sh", "-c", "set -- {node}; shift; exec tsx \"$@\""]),
    chain("cross-env", &["cross-env"], &["cross-env", "A=1", "{node}"]),
    chain("concurrently", &["concurrently"], &["concurrently", "{node} name=app"]),
    // It waits for a changed file when the app has ended, and gives 128 and the number when told.
    chain("nodemon", &["nodemon"], &["nodemon", "--watch", "{dir}/script.js", "--exec", "{node} name=app"])
        .told_later(143),
    chain("node --watch", &[], &["sh", "-c", "set -- {node}; shift; exec node --watch \"$@\""]).told_later(0),
    chain("make", &["make"], &["make", "--silent"]).files(&[("Makefile", "all:\n\t{node}; :\n")]),
    // Python.
    chain("uv run", &["uv"], &["uv", "run", "--no-project", "--offline", "{app}", "catch=TERM", "cleanup=1.5"]),
    chain("honcho run", &["honcho"], &["honcho", "run", "{app}", "catch=TERM", "cleanup=1.5"]),
];

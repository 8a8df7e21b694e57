//! What a process is, by its command line: a wrapper, a shell, an interpreter; and the signal that its program stops on.

use std::ffi::OsString;

use crate::signals::Signal;

/// What the walk and the early-signal rule ask of a command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// It only starts another program. It counts while it has a child: `bun app.ts` is the app itself.
    pub wrapper: bool,
    /// It serves the app, and not the world.
    pub helper: bool,
    /// What runs it.
    pub kind: Kind,
    /// The signal that this program stops gracefully on, where that is not TERM.
    pub stop_signal: Option<Signal>,
    /// Its clients hold on to it until it says that it goes: a drain gains nothing.
    pub database: bool,
    /// Which server it is, where its settings are known.
    pub server: Option<Server>,
}

/// A server for HTTP, to say how it is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "they are names")]
pub enum Server {
    Node,
    Gunicorn,
    Uvicorn,
    Hypercorn,
    Nginx,
    Puma,
    Apache,
    HaProxy,
    Java,
}

/// How soon after its start a program can have its handlers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// At once, as far as we know.
    #[default]
    Plain,
    /// A shell: when its script has set the trap.
    Shell,
    /// An interpreter: when the script has got there. Also what replaces itself by another program.
    Interpreter,
    /// It catches every signal by itself long before the application is there; node, Java, Go.
    Runtime,
}

/// The words of a command line, from /proc/PID/cmdline or from our own arguments.
struct Words<'a> {
    words: std::slice::Split<'a, u8, fn(&u8) -> bool>,
}

impl<'a> Words<'a> {
    fn of(line: &'a [u8]) -> Self {
        let is_nul: fn(&u8) -> bool = |byte| *byte == 0;
        // A program that has set its title leaves NULs behind it, and often one word that holds all: `npm run start`.
        let line = &line[..line.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)];
        let is_title = !line.contains(&0) && line.contains(&b' ');
        let is_blank: fn(&u8) -> bool = |byte| *byte == b' ';
        Self { words: line.split(if is_title { is_blank } else { is_nul }) }
    }
}

impl Words<'_> {
    fn skip_first(mut self) -> Self {
        self.next();
        self
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.words.next()
    }
}

const SHELLS: &[&str] = &["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "busybox"];
const INTERPRETERS: &[&str] = &["python", "ruby", "perl", "php", "lua", "luajit", "Rscript", "R", "tclsh", "pypy"];
/// They replace themselves by what they were given, within moments: `#!/usr/bin/env python3` is this first.
const REPLACED: &[&str] =
    &["env", "gosu", "su-exec", "setpriv", "chpst", "chroot", "nice", "ionice", "nohup", "setsid", "stdbuf", "taskset"];
const RUNTIMES: &[&str] = &["node", "nodejs", "java", "bun", "deno", "dotnet", "iojs", "electron"];

// The wrappers. Each was tried: it stays in front of what it starts and catches or blocks TERM, and told, it exits first,
// tells the app twice, kills it, or never passes the signal on. What replaces itself by exec (gosu, poetry run, env) and
// what does not catch TERM (sh -c, xargs, flock) needs no name. Supervisors in their own right (supervisord, pm2, s6) are
// apps: they must be told, or they start again what has ended.

/// Under their own name. npm's and yarn's own titles (`npm run start`) start so too.
const WRAPPERS: &[&str] = &[
    "npm",
    "npx",
    "pnpm",
    "pnpx",
    "yarn",
    "yarnpkg",
    "su",
    "sudo",
    "runuser",
    "doas",
    "script",
    "timeout",
    "unshare",
    "make",
    "just",
    "entr",
    "parallel",
    "uvx",
    "tini",
    "tini-static",
    "docker-init",
    "dumb-init",
    "catatonit",
    "pid1",
];

/// Under their own name, or as a script, with one of these subcommands.
const WRAPPING_SUBCOMMANDS: &[(&str, &[&str])] = &[
    ("uv", &["run"]),
    ("pdm", &["run"]),
    ("bun", &["run", "x"]),
    ("deno", &["task"]),
    ("go", &["run"]),
    ("foreman", &["run"]),
    ("dotnet", &["run", "watch"]),
    ("doppler", &["run"]),
    ("infisical", &["run"]),
    ("op", &["run"]),
];

/// As a script under node, wherever it lies.
const NODE_WRAPPERS: &[&str] = &["npm-cli", "npx-cli", "npm", "npx", "pnpm", "pnpx", "yarn", "yarnpkg", "corepack"];

/// As a script of a package under `node_modules`, or as a link to one: an app's own `tsx.js` is no wrapper.
const PACKAGE_WRAPPERS: &[&str] = &[
    "cross-env",
    "cross-env-shell",
    "dotenv",
    "dotenv-cli",
    "dotenvx",
    "env-cmd",
    "node-dev",
    "npm-run-all",
    "run-s",
    "run-p",
    "nf",
    "foreman",
    "zx",
    "concurrently",
    "tsx",
    "turbo",
    "wireit",
    "lerna",
    "nx",
    "nodemon",
];

/// As a script under python, ruby or perl.
const SCRIPT_WRAPPERS: &[&str] = &["watchfiles", "pidproxy", "parallel"];

/// Servers that stand beside the app for its sake: they end with it, and hear after it.
const HELPERS: &[&str] = &["Xvfb", "dbus-daemon", "faked-sysv", "faked-tcp"];

/// The official images' own stop signals; and runsvdir's, which on TERM leaves its services alone.
const STOP_SIGNALS: &[(&str, Signal)] = &[
    ("nginx", Signal::QUIT),
    ("php-fpm", Signal::QUIT),
    ("unicorn", Signal::QUIT),
    ("unicorn_rails", Signal::QUIT),
    ("httpd", Signal::WINCH),
    ("apache2", Signal::WINCH),
    ("haproxy", Signal::USR1),
    ("postgres", Signal::INT),
    ("postmaster", Signal::INT),
    ("runsvdir", Signal::HUP),
];

/// Scripts that start Apache, as the official images and Debian have them: until then the process is a shell.
const APACHE_STARTERS: &[&str] = &["httpd-foreground", "apache2-foreground", "apachectl", "apache2ctl"];

const DATABASES: &[&str] =
    &["postgres", "postmaster", "mysqld", "mariadbd", "mongod", "redis-server", "valkey-server", "etcd"];

const SERVERS: &[(&str, Server)] = &[
    ("node", Server::Node),
    ("next-server", Server::Node),
    ("gunicorn", Server::Gunicorn),
    ("uvicorn", Server::Uvicorn),
    ("hypercorn", Server::Hypercorn),
    ("nginx", Server::Nginx),
    ("puma", Server::Puma),
    ("httpd", Server::Apache),
    ("apache2", Server::Apache),
    ("haproxy", Server::HaProxy),
    ("java", Server::Java),
];

/// Options that take the next word as their value, so that it is not the script: node's, python's and ruby's.
const OPTIONS_WITH_VALUE: &[&str] =
    &["-r", "--require", "--import", "--loader", "--experimental-loader", "-W", "-X", "-I", "-C", "--env-file"];

impl Program {
    /// Reads a command line as /proc gives it; `comm` is the last resort, and `extra` are the wrappers the user named.
    pub fn of(line: &[u8], comm: &str, has_terminal: bool, extra: &[String]) -> Self {
        let mut words = Words::of(line);
        let first = words.next().map_or("", |word| base_name(text(word)));
        // In the middle of an exec there is only the name, which may be a title: `npm start`.
        let first = if first.is_empty() { base_name(comm) } else { first };
        let kind = kind(first);
        let script = if kind == Kind::Plain { None } else { script(words) };
        let name = script.map_or(first, base_name);
        let is_named = |wrapper: &String| wrapper == first || wrapper == name;
        let stop_signal =
            lookup(STOP_SIGNALS, first).or_else(|| lookup(STOP_SIGNALS, name)).or_else(|| lookup(STOP_SIGNALS, comm));
        // What runs in such a shell ends with its terminal.
        let interactive = kind == Kind::Shell && script.is_none() && has_terminal && is_interactive(line);
        Self {
            wrapper: is_wrapper(line, first, kind, script) || extra.iter().any(is_named),
            helper: HELPERS.contains(&first),
            kind,
            stop_signal: if interactive { Some(Signal::HUP) } else { stop_signal },
            server: [first, name, comm].iter().find_map(|name| lookup(SERVERS, name)),
            database: [first, name, comm].iter().any(|name| DATABASES.contains(name)),
        }
    }
}

/// What a command line is called: its program, or its script where that is what matters.
pub fn name(line: &[u8], by_script: bool) -> String {
    let mut words = Words::of(line);
    let first = base_name(text(words.next().unwrap_or_default()));
    let script = if by_script && kind(first) != Kind::Plain { script(words) } else { None };
    script.map_or(first, base_name).to_owned()
}

/// The program and its words up to its script, as a Dockerfile's CMD has them; the rest is `...`.
pub fn exec_form(line: &[u8]) -> String {
    let all: Vec<&str> = Words::of(line).map(text).collect();
    let first = all.first().copied().map_or("", base_name);
    let script = if kind(first) == Kind::Plain { None } else { script(Words::of(line).skip_first()) };
    let shown = script.and_then(|script| all.iter().position(|word| *word == script)).map_or(1, |at| at + 1);
    let mut words: Vec<String> = all.iter().take(shown).map(|word| format!("\"{word}\"")).collect();
    if all.len() > shown {
        words.push("...".to_owned());
    }
    format!("[{}]", words.join(", "))
}

/// The stop signal of the program that a command starts, by its name or by that of a script which starts it; none where the
/// name tells nothing.
pub fn usual_stop_signal(command: &[OsString]) -> Option<Signal> {
    let line = command.iter().map(|word| word.as_encoded_bytes()).collect::<Vec<_>>().join(&0);
    if starts_apache(&line) { Some(Signal::WINCH) } else { Program::of(&line, "", false, &[]).stop_signal }
}

/// Whether a command line starts Apache by a script, perhaps behind an entrypoint's.
fn starts_apache(line: &[u8]) -> bool {
    Words::of(line).any(|word| APACHE_STARTERS.contains(&base_name(text(word))))
}

fn is_wrapper(line: &[u8], first: &str, kind: Kind, script: Option<&str>) -> bool {
    let wraps = |name| lookup(WRAPPING_SUBCOMMANDS, name).is_some_and(|subcommands| has_word(line, subcommands));
    if WRAPPERS.contains(&first) || wraps(first) {
        return true;
    }
    let Some(script) = script else { return false };
    let name = base_name(script);
    match kind {
        Kind::Runtime => {
            let package =
                script.rsplit_once("/node_modules/").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
            let is_known = |name| PACKAGE_WRAPPERS.contains(&name);
            // `npm install --global` leaves a link without an ending in a folder of PATH.
            let is_link = is_known(name) && script.strip_suffix(name).is_some_and(|folder| folder.ends_with('/'));
            let is_packaged = package.is_some_and(|package| is_known(package) || is_known(name));
            NODE_WRAPPERS.contains(&name) || is_link || is_packaged || has_word(line, &["--watch"])
        }
        Kind::Interpreter => SCRIPT_WRAPPERS.contains(&name) || wraps(name),
        Kind::Shell | Kind::Plain => false,
    }
}

fn text(word: &[u8]) -> &str {
    str::from_utf8(word).unwrap_or_default()
}

/// The script that an interpreter was given, or its module: the first word that is no option.
fn script<'a>(mut words: Words<'a>) -> Option<&'a str> {
    while let Some(word) = words.next() {
        match text(word) {
            "-c" | "-e" | "--eval" | "-p" | "--print" => return None,
            "-m" | "-jar" => return words.next().map(text),
            word if OPTIONS_WITH_VALUE.contains(&word) => {
                words.next();
            }
            word if word.starts_with('-') => {}
            word => return Some(word),
        }
    }
    None
}

/// `/usr/lib/node_modules/npm/bin/npm-cli.js` is `npm-cli`, `nginx: master process` is `nginx`, `-bash` is `bash`,
/// `yarn-4.5.0.cjs` is `yarn`.
fn base_name(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or_default();
    let name = name.split([':', ' ']).next().unwrap_or_default();
    let name = name.strip_prefix('-').unwrap_or(name);
    let name = [".js", ".cjs", ".mjs", ".py", ".rb"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    without_version(name)
}

/// `python3.11`, `php-fpm8.2`, `yarn-4.5.0`, `ruby3.1` without their versions.
fn without_version(name: &str) -> &str {
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    match bare.strip_suffix('-').unwrap_or(bare) {
        known @ ("python" | "pypy" | "php" | "php-fpm" | "ruby" | "perl" | "lua" | "yarn" | "pnpm" | "node"
        | "foreman") => known,
        _ => name,
    }
}

fn kind(name: &str) -> Kind {
    if SHELLS.contains(&name) {
        Kind::Shell
    } else if INTERPRETERS.contains(&name) || REPLACED.contains(&name) {
        Kind::Interpreter
    } else if RUNTIMES.contains(&name) {
        Kind::Runtime
    } else {
        Kind::Plain
    }
}

/// Whether one of these words stands behind the program's name.
fn has_word(line: &[u8], wanted: &[&str]) -> bool {
    Words::of(line).skip(1).any(|word| wanted.contains(&text(word)))
}

fn is_interactive(line: &[u8]) -> bool {
    Words::of(line)
        .skip(1)
        .all(|word| matches!(word, b"-i" | b"-l" | b"--login" | b"-il" | b"-li" | b"--norc" | b"--noprofile"))
}

fn lookup<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(line: &str) -> Program {
        Program::of(line.replace(' ', "\0").as_bytes(), "", false, &["mytool".to_owned()])
    }

    fn title(line: &str) -> Program {
        Program::of(format!("{line}\0\0\0").as_bytes(), "", false, &[])
    }

    #[test]
    fn wrappers_are_known_by_their_command_line() {
        for line in [
            "node /usr/local/bin/yarn start",
            "/usr/bin/node /opt/yarn-v1.22.22/bin/yarn.js start",
            "node /app/.yarn/releases/yarn-4.5.0.cjs start",
            "node --no-warnings /usr/local/bin/pnpm start",
            "node -r ./hook.js /usr/lib/node_modules/pnpm/bin/pnpm.cjs run x",
            "node /usr/lib/node_modules/corepack/dist/corepack.js yarn start",
            "uv run app.py",
            "uv --quiet run app.py",
            "/usr/bin/python3.11 /usr/bin/pdm run app",
            "node /app/node_modules/.bin/cross-env A=1 node app.js",
            "node /app/node_modules/tsx/dist/cli.mjs app.ts",
            "node /usr/local/bin/nodemon app.js",
            "node --watch app.js",
            "timeout 60 app",
            "/usr/bin/perl /usr/bin/parallel x",
            "su - node -c x",
            "tini -- node app",
            "mytool x",
        ] {
            assert!(program(line).wrapper, "{line}");
        }
        for line in ["npm start", "npm run start", "npm exec tsx /x/app.ts"] {
            assert!(title(line).wrapper, "{line}");
        }
        assert!(Program::of(b"", "npm run start", false, &[]).wrapper);
    }

    #[test]
    fn an_app_is_no_wrapper() {
        for line in [
            "node server.js",
            "node /srv/npm-registry/server.js",
            "sh -c yarn",
            "bash entry.sh",
            "uv pip install",
            "python app.py yarn",
            "java -jar x.jar",
            "node -e yarn",
            "node timeout.js",
            "python3 script.py",
            "node tsx.js",
            "node /app/bin/tsx.js",
            "bun app.ts",
            "deno run app.ts",
            "node --require /app/node_modules/tsx/dist/preflight.cjs app.ts",
        ] {
            assert!(!program(line).wrapper, "{line}");
        }
    }

    #[test]
    fn stop_signals_are_those_of_the_official_images() {
        assert_eq!(title("nginx: master process nginx -g daemon off;").stop_signal, Some(Signal::QUIT));
        assert_eq!(title("php-fpm: master process (/etc/php-fpm.conf)").stop_signal, Some(Signal::QUIT));
        for (line, signal) in [
            ("php-fpm8.2 -F", Some(Signal::QUIT)),
            ("/usr/bin/ruby3.1 /usr/bin/unicorn -c x", Some(Signal::QUIT)),
            ("/usr/sbin/apache2 -DFOREGROUND", Some(Signal::WINCH)),
            ("runsvdir /etc/service", Some(Signal::HUP)),
            ("haproxy -f x", Some(Signal::USR1)),
            ("gosu postgres postgres", Some(Signal::INT)),
            ("postgres", Some(Signal::INT)),
            ("node nginx.conf.js", None),
        ] {
            assert_eq!(program(line).stop_signal, signal, "{line}");
        }
    }

    #[test]
    fn apache_is_known_by_the_scripts_that_start_it() {
        let starts = |line: &str| starts_apache(line.replace(' ', "\0").as_bytes());
        assert!(starts("docker-php-entrypoint apache2-foreground"));
        assert!(starts("/usr/sbin/apache2ctl -D FOREGROUND"));
        assert!(!starts("vim /etc/apache2"));
    }

    #[test]
    fn an_interactive_shell_on_a_terminal_stops_on_hup() {
        let shell =
            |line: &str, terminal| Program::of(line.replace(' ', "\0").as_bytes(), "", terminal, &[]).stop_signal;
        assert_eq!(shell("-bash", true), Some(Signal::HUP));
        assert_eq!(shell("bash -l", true), Some(Signal::HUP));
        assert_eq!(shell("bash", false), None);
        assert_eq!(shell("bash entry.sh", true), None);
        assert_eq!(shell("sh -c x", true), None);
    }

    #[test]
    fn nothing_is_read_into_garbage() {
        for line in [&b""[..], b"\0", b"\0\0\0", b"/", b"\xff\xfe", b" ", b":"] {
            assert_eq!(Program::of(line, "", true, &[]), Program::default(), "{line:?}");
        }
    }

    #[test]
    fn a_command_is_named_and_shown_without_its_arguments() {
        let line = |words: &str| words.replace(' ', "\0").into_bytes();
        assert_eq!(name(&line("/usr/bin/node /usr/lib/node_modules/yarn/bin/yarn.js start"), true), "yarn");
        assert_eq!(name(&line("/usr/local/bin/node server.js"), false), "node");
        assert_eq!(name(&line("/bin/sh -c x"), false), "sh");
        for (words, shown) in [
            (
                "node --max-old-space-size=512 server.js --password=x",
                r#"["node", "--max-old-space-size=512", "server.js", ...]"#,
            ),
            ("node server.js", r#"["node", "server.js"]"#),
            ("/opt/app --token x", r#"["/opt/app", ...]"#),
            ("python3 -m http.server", r#"["python3", "-m", "http.server"]"#),
            ("python3 -c secret", r#"["python3", ...]"#),
        ] {
            assert_eq!(exec_form(&line(words)), shown);
        }
    }
}

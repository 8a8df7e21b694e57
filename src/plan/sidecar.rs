//! What a sidecar's settings may not say, since it has no child; and what only a sidecar's may.

use std::path::PathBuf;

use super::{BadSetting, Plan};
use crate::cli::{Settings, Source};
use crate::http::Key;

/// Where a sidecar serves if nothing else was said.
pub(super) const PORT: &str = ":9180";

/// Options that are about a child, and what is so instead.
const REFUSED: &[(&str, &str)] = &[
    ("stop-signal", "it is the kubelet that tells the app"),
    ("signal-to", "it is the kubelet that tells the app"),
    ("wrapper", "it signals nobody, and so needs to know no wrapper"),
    ("expand-env", "it starts no program, and so has no arguments"),
    ("lb-idle-timeout", "it does not see who closes a connection"),
    ("linger", "it leaves no processes behind"),
    ("exit-zero-on-stop", "it exits with 0 after a stop anyway"),
    ("remap-exit", "it has no program's exit code to pass on"),
];

/// Options that only a sidecar has a use for.
const OWN: &[&str] = &["prestop-token", "prestop-token-file", "prestop-open"];

/// Refuses what makes no sense without a child.
///
/// # Errors
/// The first such option, by its name.
pub(super) fn refuse(settings: &Settings) -> Result<(), BadSetting> {
    if let Some(word) = settings.command.first() {
        return Err(BadSetting(format!(
            "`{}`: a sidecar starts no program, it stands beside one in another container (as PID 1 in front of it: sundown -- {0})",
            word.to_string_lossy()
        )));
    }
    for (name, instead) in REFUSED {
        if let Some(said) = settings.get(name) {
            return Err(BadSetting::new(said, format!("not for a sidecar, which has no child: {instead}")));
        }
    }
    for name in ["ready-check", "live-check"] {
        if let Some(said) = settings.get(name).filter(|said| said.value.trim() == "running") {
            return Err(BadSetting::new(
                said,
                "a sidecar has no child to see running; ask http://, tcp:// or listening",
            ));
        }
    }
    Ok(())
}

/// Refuses a sidecar that could not do its work.
///
/// # Errors
/// What it lacks.
pub(super) fn complete(plan: &Plan) -> Result<(), BadSetting> {
    let Some(http) = plan.http else {
        return Err(BadSetting("--http off: to answer there is what a sidecar is for; leave it out for :9180".into()));
    };
    if plan.ports.is_empty() {
        return Err(BadSetting(
            "--ports is missing: by the app's ports a sidecar sees that it is there and what it does (--ports 3000)"
                .into(),
        ));
    }
    if plan.ports.contains(&http.port()) {
        return Err(BadSetting(format!("--ports {}: that is the sidecar's own port (--http {http})", http.port())));
    }
    Ok(())
}

/// Who may call /prestop, if it was said.
///
/// # Errors
/// More than one was said, or there is no child's end to hold. The word itself is never part of the text.
pub(super) fn key(settings: &Settings, warnings: &mut Vec<String>) -> Result<Option<Key>, BadSetting> {
    if !settings.is_sidecar {
        return match OWN.iter().find_map(|name| settings.get(name)) {
            Some(said) if said.source == Source::Flag => Err(BadSetting(format!(
                "--{}: only `sundown sidecar` serves /prestop; a hook here is `sundown prestop`",
                said.name
            ))),
            Some(said) => {
                warnings.push(format!(
                    "--{} (from the environment) has no effect here: only `sundown sidecar` serves /prestop",
                    said.name
                ));
                Ok(None)
            }
            None => Ok(None),
        };
    }
    let token = settings.get("prestop-token").map(|said| Key::Token(said.value.clone()));
    let file = settings.get("prestop-token-file").map(|said| Key::File(PathBuf::from(&said.value)));
    let open = super::read(settings, "prestop-open", super::switch)?.unwrap_or(false).then_some(Key::Open);
    let mut keys = token.into_iter().chain(file).chain(open);
    match (keys.next(), keys.next()) {
        (Some(_), Some(_)) => Err(BadSetting(
            "--prestop-token, --prestop-token-file and --prestop-open: one of them says who may call /prestop".into(),
        )),
        (None, _) => {
            warnings.push("none of --prestop-token, --prestop-token-file and --prestop-open is set: there is no /prestop for a hook to call".into());
            Ok(None)
        }
        (key, None) => Ok(key),
    }
}

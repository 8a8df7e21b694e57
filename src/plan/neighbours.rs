//! What the program starts after and ends before, and the service manager that is told of both.

use std::time::Duration;

use super::words::{drain_check, duration, notify, positive_duration, wait_check};
use super::{BadSetting, read};
use crate::check::{Check, Errand};
use crate::cli::Settings;

/// The settings.
#[derive(Debug)]
pub struct Neighbours {
    /// The program is started once each of these has passed.
    pub wait_for: Vec<Check>,
    /// How long that may take; none for ever.
    pub wait_timeout: Option<Duration>,
    /// The program is not told to stop while this passes.
    pub outlive: Option<Check>,
    /// What is done after its end, in order.
    pub on_exit: Vec<Errand>,
    /// How long each of them may take.
    pub on_exit_timeout: Duration,
    /// Whose systemd's socket is.
    pub notify: Notify,
}

/// Who tells the service manager (sd_notify(3)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// The program, which is given the socket.
    Child,
    /// We.
    Own,
    /// Nobody.
    Off,
}

impl Neighbours {
    pub(super) fn read(settings: &Settings) -> Result<Self, BadSetting> {
        let wait_timeout = read(settings, "wait-timeout", duration)?.unwrap_or(Duration::from_secs(60));
        // Who says how it is known that the program is ready has left it to us to say so. Without that we would not know, and
        // the program may.
        let knows =
            ["ready-check", "http"].iter().any(|name| settings.get(name).is_some_and(|said| said.value != "off"));
        Ok(Self {
            wait_for: lines(settings, "wait-for", wait_check)?,
            wait_timeout: Some(wait_timeout).filter(|time| !time.is_zero()),
            outlive: read(settings, "outlive", drain_check)?,
            on_exit: lines(settings, "on-exit", Errand::parse)?,
            on_exit_timeout: read(settings, "on-exit-timeout", positive_duration)?.unwrap_or(Duration::from_secs(5)),
            notify: read(settings, "notify", notify)?.unwrap_or(if knows { Notify::Own } else { Notify::Child }),
        })
    }
}

/// All values of an option that may be repeated; a variable holds several, one a line.
fn lines<T>(settings: &Settings, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, BadSetting> {
    let lines = settings.all(name).flat_map(|said| said.value.lines().map(move |line| (said, line.trim())));
    let read = |(said, line)| parse(line).map_err(|why| BadSetting::new(said, why));
    lines.filter(|(_, line)| !line.is_empty()).map(read).collect()
}

//! Keep-alive against the balancer's idle timeout: what is said where the app closes first, and `sundown keepalive`, which
//! measures it.
//!
//! A balancer keeps its connections to the app open for the next request. Where the app closes them sooner than the balancer
//! would, some request meets the close on its way, and the balancer answers it 502.

use std::ffi::OsString;
use std::time::Duration;

use crate::check::Check;
use crate::check::idle::{self, Idle, Measured};
use crate::control::Reply;
use crate::control::client::Failure;
use crate::plan;
use crate::report::advice::{Advice, Id};
use crate::report::json;
use crate::traffic::keepalive::Estimate;
use crate::tree::program::Server;

/// For how long an AWS ALB keeps an idle connection, by default (idle_timeout.timeout_seconds).
pub const ALB: Duration = Duration::from_secs(60);
/// The same for Google's balancer for HTTP, where it cannot be changed.
pub const GCLB: Duration = Duration::from_secs(600);
/// The same for ingress-nginx, by default (upstream-keepalive-timeout).
const INGRESS_NGINX: Duration = Duration::from_secs(60);

const BALANCERS: [(&str, &str, Duration); 3] =
    [("alb", "an ALB", ALB), ("ingress_nginx", "ingress-nginx", INGRESS_NGINX), ("gclb", "a GCLB", GCLB)];

/// How long the command waits where nothing else is said: an ALB's time, and some.
const PATIENCE: Duration = Duration::from_secs(75);

/// What the app's timeout is to be for a balancer: a bit more, as both clocks start at different ends of the network.
fn recommended(balancer: Duration) -> Duration {
    balancer + (balancer / 30).max(Duration::from_secs(15))
}

/// What to say of an app that closes idle connections sooner than the balancer; none where it keeps them for longer.
pub fn too_short(estimate: Estimate, balancer: Duration, server: Option<Server>) -> Option<Advice> {
    let Estimate { port, timeout, closes } = estimate;
    (timeout <= balancer).then(|| {
        let seen = format!(
            "the app closes idle connections to port {port} after {} ({closes} closes seen), and the balancer keeps them for {}",
            seconds(timeout),
            seconds(balancer)
        );
        let leads_to = "it may send a request on a connection that the app closes at that moment, and answers it 502";
        Advice::new(Id::KeepAlive, seen, leads_to, setting(server, recommended(balancer)))
    })
}

/// How the timeout is set.
fn setting(server: Option<Server>, wanted: Duration) -> String {
    let seconds = wanted.as_secs();
    match server {
        Some(Server::Node) => {
            format!("set server.keepAliveTimeout = {seconds}_000 in node, and server.headersTimeout above it")
        }
        Some(Server::Gunicorn) => format!("start gunicorn with --keep-alive {seconds}"),
        Some(Server::Uvicorn) => format!("start uvicorn with --timeout-keep-alive {seconds}"),
        Some(Server::Hypercorn) => format!("start hypercorn with --keep-alive {seconds}"),
        Some(Server::Nginx) => format!("set `keepalive_timeout {seconds}s;` in nginx"),
        Some(Server::Puma) => format!("set `persistent_timeout {seconds}` in puma"),
        Some(Server::Apache) => format!("set `KeepAliveTimeout {seconds}` in Apache"),
        Some(Server::HaProxy) => format!("set `timeout http-keep-alive {seconds}s` in HAProxy"),
        Some(Server::Java) => format!(
            "set Tomcat's keepAliveTimeout to {seconds}000 (server.tomcat.keep-alive-timeout={seconds}s in Spring Boot), or Jetty's idleTimeout"
        ),
        None => format!(
            "set the app's keep-alive timeout to {seconds}s (net/http of Go: Server.IdleTimeout; others: see docs/keepalive.md)"
        ),
    }
}

/// In seconds, as the balancers' manuals count, to the nearest tenth.
fn seconds(time: Duration) -> String {
    match (time.as_millis() + 50) / 100 {
        tenths if tenths.is_multiple_of(10) => format!("{}s", tenths / 10),
        tenths => format!("{}.{}s", tenths / 10, tenths % 10),
    }
}

/// `sundown keepalive URL [--timeout D] [--json]`.
///
/// # Errors
/// Bad usage, or the reason why nothing could be measured.
pub fn run(words: &[OsString]) -> Result<Reply, Failure> {
    let Options { url, patience, json } = Options::parse(words).map_err(Failure::Usage)?;
    let check = match Check::parse(&url) {
        Ok(Check::Http(check)) => check,
        Err(why) if url.starts_with("http://") => return Err(Failure::Usage(format!("{url}: {why}"))),
        _ if url.starts_with("https://") => {
            return Err(Failure::Usage(format!(
                "{url}: sundown does not speak TLS; ask the port behind it, or: time printf 'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' | openssl s_client -quiet -connect HOST:PORT"
            )));
        }
        _ => return Err(Failure::Usage(format!("`{url}` is no URL, such as http://127.0.0.1:3000/"))),
    };
    let measured = idle::measure(&check, patience).map_err(Failure::Run)?;
    Ok(Reply::ok(if json { to_json(&measured) } else { to_text(&measured) }))
}

struct Options {
    url: String,
    patience: Duration,
    json: bool,
}

impl Options {
    fn parse(words: &[OsString]) -> Result<Self, String> {
        let (mut url, mut patience, mut json) = (None, PATIENCE, false);
        let mut words = words.iter().map(|word| word.to_string_lossy());
        while let Some(word) = words.next() {
            let said = match word.as_ref() {
                "--json" => {
                    json = true;
                    continue;
                }
                "--timeout" => words.next().unwrap_or_default(),
                word if word.starts_with("--timeout=") => word["--timeout=".len()..].to_owned().into(),
                word if word.starts_with('-') || url.is_some() => {
                    return Err(format!("`{word}` is not understood (see sundown --help)"));
                }
                word => {
                    url = Some(word.to_owned());
                    continue;
                }
            };
            patience = plan::duration(&said).map_err(|why| format!("--timeout {said}: {why}"))?;
            if patience.is_zero() {
                return Err("--timeout 0: longer than 0 is wanted".into());
            }
        }
        let url = url.ok_or("a URL is wanted: sundown keepalive http://127.0.0.1:3000/ [--timeout 75s] [--json]")?;
        Ok(Self { url, patience, json })
    }
}

/// How the time compares with a balancer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Shorter,
    LongEnough,
    /// It was not waited for so long.
    Unknown,
    /// No connection is kept, and the balancer is told so.
    NotKept,
}

fn verdict(measured: &Measured, balancer: Duration) -> Verdict {
    match measured.idle {
        Idle::ClosedAfter(_) if measured.says_close => Verdict::NotKept,
        Idle::ClosedAfter(time) if time <= balancer => Verdict::Shorter,
        Idle::OpenAfter(time) if time <= balancer => Verdict::Unknown,
        Idle::ClosedAfter(_) | Idle::OpenAfter(_) => Verdict::LongEnough,
    }
}

/// What was measured, and what it means behind each balancer.
pub fn to_text(measured: &Measured) -> String {
    let Measured { authority, keep_alive, idle, says_close, .. } = measured;
    let said = keep_alive.as_ref().map_or_else(String::new, |said| format!(" (it said Keep-Alive: {said})"));
    let mut text = match idle {
        Idle::ClosedAfter(_) if *says_close => {
            return format!(
                "{authority} keeps no connection: it closed this one with its answer, and said so (Connection: close, or HTTP/1.0)\n\
                each request takes a new one, which costs time and loses nothing"
            );
        }
        Idle::ClosedAfter(time) => format!("{authority} closed an idle connection after {}{said}", seconds(*time)),
        Idle::OpenAfter(time) => format!("{authority}: still open after {}{said}", seconds(*time)),
    };
    for (_, name, balancer) in BALANCERS {
        let (time, wanted) = (seconds(balancer), seconds(recommended(balancer)));
        text.push_str("\n  ");
        text.push_str(&match verdict(measured, balancer) {
            Verdict::Shorter => format!("shorter than {name}'s idle timeout of {time}: set it above, to {wanted}"),
            Verdict::Unknown => format!("not known for {name}, whose idle timeout is {time}: --timeout {wanted}"),
            Verdict::LongEnough | Verdict::NotKept => format!("long enough for {name}, whose idle timeout is {time}"),
        });
    }
    let is_short = |(_, _, balancer): &(_, _, Duration)| verdict(measured, *balancer) == Verdict::Shorter;
    if BALANCERS.iter().any(is_short) {
        text.push_str("\na request that the balancer sends at the moment of the close is answered 502");
    }
    text
}

/// Nothing in it has to be quoted: it is numbers and words of ours.
pub fn to_json(measured: &Measured) -> String {
    let (closed, open) = match measured.idle {
        Idle::ClosedAfter(time) => (Some(time), None),
        Idle::OpenAfter(time) => (None, Some(time)),
    };
    let balancers: Vec<String> = BALANCERS
        .iter()
        .map(|(key, _, balancer)| {
            let word = match verdict(measured, *balancer) {
                Verdict::Shorter => "shorter",
                Verdict::LongEnough => "long_enough",
                Verdict::Unknown => "unknown",
                Verdict::NotKept => "not_kept",
            };
            format!("{{\"name\":\"{key}\",\"idle_timeout_seconds\":{},\"keepalive\":\"{word}\"}}", balancer.as_secs())
        })
        .collect();
    format!(
        concat!(
            "{{\"status\":{},\"closed_after_seconds\":{},\"still_open_after_seconds\":{},\"closed_by\":{},",
            "\"says_close\":{},\"says_timeout_seconds\":{},\"balancers\":[{}]}}"
        ),
        measured.status,
        json::seconds(closed),
        json::seconds(open),
        if closed.is_some() { "\"server\"" } else { "null" },
        measured.says_close,
        measured.said_timeout().map_or("null".into(), |seconds| seconds.to_string()),
        balancers.join(","),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn estimate(millis: u64) -> Estimate {
        Estimate { port: 3000, timeout: Duration::from_millis(millis), closes: 3 }
    }

    fn measured(idle: Idle) -> Measured {
        let keep_alive = Some("timeout=5".into());
        Measured { authority: "127.0.0.1:3000".into(), status: 200, keep_alive, says_close: false, idle }
    }

    #[test]
    fn an_app_that_closes_first_is_told_with_figure_consequence_and_setting() {
        let text = too_short(estimate(6008), ALB, Some(Server::Node)).expect("it is too short").to_string();
        assert_eq!(
            text,
            "SD301: the app closes idle connections to port 3000 after 6s (3 closes seen), and the balancer keeps them for 60s: \
            it may send a request on a connection that the app closes at that moment, and answers it 502; \
            set server.keepAliveTimeout = 75_000 in node, and server.headersTimeout above it"
        );
    }

    #[test]
    fn an_app_that_outlasts_the_balancer_is_not_told() {
        assert_eq!(too_short(estimate(6008), SECOND * 3, None), None);
        assert!(too_short(estimate(3000), SECOND * 3, None).is_some(), "a race");
    }

    #[test]
    fn the_setting_is_the_programs_own() {
        for (server, part) in [
            (Some(Server::Gunicorn), "--keep-alive 75"),
            (Some(Server::Uvicorn), "--timeout-keep-alive 75"),
            (Some(Server::Hypercorn), "--keep-alive 75"),
            (Some(Server::Nginx), "keepalive_timeout 75s;"),
            (Some(Server::Puma), "persistent_timeout 75"),
            (Some(Server::Apache), "KeepAliveTimeout 75"),
            (Some(Server::HaProxy), "http-keep-alive 75s"),
            (Some(Server::Java), "keepAliveTimeout to 75000"),
            (None, "Server.IdleTimeout"),
        ] {
            let advice = too_short(estimate(5004), ALB, server).expect("it is too short");
            assert!(advice.fix.contains(part), "{server:?}: {}", advice.fix);
        }
        assert!(setting(Some(Server::Nginx), recommended(GCLB)).contains("620s"));
    }

    #[test]
    fn a_measured_time_is_compared_with_the_balancers() {
        let text = to_text(&measured(Idle::ClosedAfter(Duration::from_millis(6008))));
        for part in [
            "closed an idle connection after 6s (it said Keep-Alive: timeout=5)",
            "shorter than an ALB's idle timeout of 60s: set it above, to 75s",
            "shorter than a GCLB's idle timeout of 600s: set it above, to 620s",
            "502",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        let text = to_text(&measured(Idle::OpenAfter(SECOND * 75)));
        for part in ["still open after 75s", "long enough for an ALB", "not known for a GCLB"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(!text.contains("502"), "{text}");
        let json = to_json(&measured(Idle::ClosedAfter(SECOND * 6)));
        for part in ["\"closed_after_seconds\":6.000", "\"says_timeout_seconds\":5", "\"keepalive\":\"shorter\""] {
            assert!(json.contains(part), "{part:?} is not in {json}");
        }
    }

    #[test]
    fn who_says_that_he_closes_loses_nothing() {
        let text = to_text(&Measured { says_close: true, ..measured(Idle::ClosedAfter(Duration::ZERO)) });
        assert!(text.contains("Connection: close") && !text.contains("502"), "{text}");
    }

    #[test]
    fn the_words_are_read_or_refused() {
        let parse = |words: &[&str]| Options::parse(&words.iter().map(OsString::from).collect::<Vec<_>>());
        let options = parse(&["http://:1/", "--timeout=620s", "--json"]).unwrap_or_else(|text| panic!("{text}"));
        assert_eq!((options.url.as_str(), options.patience, options.json), ("http://:1/", SECOND * 620, true));
        for words in [&[][..], &["a", "b"], &["a", "--no"], &["a", "--timeout"], &["a", "--timeout", "0"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
        let refused = |url: &str| match run(&[url.into()]) {
            Err(Failure::Usage(text)) => text,
            _ => panic!("{url} is taken"),
        };
        assert!(refused("https://127.0.0.1/").contains("openssl s_client"));
        assert!(refused("http://app/").contains("resolves no names"));
        assert!(refused("listening").contains("is no URL"));
    }
}

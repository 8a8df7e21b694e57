//! From a request to its answer. Pure but for what it asks of the supervisor.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE,
};
use hyper::{Method, Response, StatusCode};

use super::guests::Activity;
use super::{Answers, Prestop, Verdict, Visitor};

const TEXT: &str = "text/plain; charset=utf-8";
/// Prometheus' text exposition format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

const NO_LIVE_CHECK: &str =
    "no --live-check is set, so whether the app is alive is not known; a 200 here would hide a dead app";
const PATHS: &str = "not found; there are /readyz, /servez, /livez and /metrics";
const METHODS: &str = "method not allowed; this endpoint only answers GET and HEAD";
const PRESTOP_METHODS: &str = "method not allowed; a preStop hook is a GET";
const NO_KEY: &str =
    "no token is set, so /prestop cannot be called: --prestop-token, --prestop-token-file or --prestop-open";
const DENIED: &str = "this wants the token that was set: Authorization: Bearer TOKEN";

/// A request, as far as it matters.
pub struct Question<'a> {
    /// Who asks.
    pub visitor: &'a Visitor,
    /// The method.
    pub method: &'a Method,
    /// The path.
    pub path: &'a str,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// Whether a body is announced.
    pub has_body: bool,
}

/// The whole answer to a request. One that announces a body is answered and its connection closed, since the body is
/// never read.
pub async fn answer(answers: &dyn Answers, question: &Question<'_>, activity: &Activity) -> Response<Full<Bytes>> {
    let mut response = route(answers, question, activity).await;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if question.has_body {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn route(answers: &dyn Answers, question: &Question<'_>, activity: &Activity) -> Response<Full<Bytes>> {
    let Question { visitor, method, path, .. } = *question;
    if !matches!(*method, Method::GET | Method::HEAD) {
        return with(line(StatusCode::METHOD_NOT_ALLOWED, METHODS), ALLOW, "GET, HEAD");
    }
    match path {
        "/readyz" => probe(answers.readyz(visitor)),
        "/servez" => probe(answers.servez()),
        "/livez" => answers.livez().map_or_else(|| line(StatusCode::NOT_FOUND, NO_LIVE_CHECK), probe),
        "/metrics" => respond(StatusCode::OK, METRICS, answers.metrics().await),
        "/prestop" => prestop(answers, question, activity).await,
        _ => line(StatusCode::NOT_FOUND, PATHS),
    }
}

/// Waits for the drain with its seat kept. HEAD must not change anything (RFC 9110, section 9.2.1), and is no hook.
async fn prestop(answers: &dyn Answers, question: &Question<'_>, activity: &Activity) -> Response<Full<Bytes>> {
    let is_get = *question.method == Method::GET;
    let authorization = question.headers.get(AUTHORIZATION).filter(|_| is_get);
    match answers.prestop(authorization) {
        Prestop::Nowhere => line(StatusCode::NOT_FOUND, PATHS),
        Prestop::Unset => line(StatusCode::NOT_FOUND, NO_KEY),
        _ if !is_get => with(line(StatusCode::METHOD_NOT_ALLOWED, PRESTOP_METHODS), ALLOW, "GET"),
        Prestop::Denied => with(line(StatusCode::UNAUTHORIZED, DENIED), WWW_AUTHENTICATE, "Bearer"),
        Prestop::Wait(over) => {
            let _seat = activity.hold();
            line(StatusCode::OK, over.await)
        }
    }
}

fn with(
    mut response: Response<Full<Bytes>>,
    name: hyper::header::HeaderName,
    value: &'static str,
) -> Response<Full<Bytes>> {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

fn probe(verdict: Verdict) -> Response<Full<Bytes>> {
    line(if verdict.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, verdict.text)
}

fn line(status: StatusCode, text: impl Into<String>) -> Response<Full<Bytes>> {
    let mut text = text.into();
    text.push('\n');
    respond(status, TEXT, text)
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

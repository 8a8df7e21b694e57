//! From a request to its answer. Pure but for what it asks of the supervisor.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};

use super::{Answers, Verdict, Visitor};

const TEXT: &str = "text/plain; charset=utf-8";
/// Prometheus' text exposition format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

const NO_LIVE_CHECK: &str =
    "no --live-check is set, so whether the app is alive is not known; a 200 here would hide a dead app";
const PATHS: &str = "not found; there are /readyz, /servez, /livez and /metrics";
const METHODS: &str = "method not allowed; this endpoint only answers GET and HEAD";

/// The whole answer to a request. One that announces a body is answered and its connection closed, since the body is
/// never read.
pub async fn answer(
    answers: &dyn Answers,
    visitor: &Visitor,
    method: &Method,
    path: &str,
    has_body: bool,
) -> Response<Full<Bytes>> {
    let mut response = route(answers, visitor, method, path).await;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if has_body {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn route(answers: &dyn Answers, visitor: &Visitor, method: &Method, path: &str) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = line(StatusCode::METHOD_NOT_ALLOWED, METHODS);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/readyz" => probe(answers.readyz(visitor)),
        "/servez" => probe(answers.servez()),
        "/livez" => answers.livez().map_or_else(|| line(StatusCode::NOT_FOUND, NO_LIVE_CHECK), probe),
        "/metrics" => respond(StatusCode::OK, METRICS, answers.metrics().await),
        _ => line(StatusCode::NOT_FOUND, PATHS),
    }
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

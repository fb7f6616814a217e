//! Answers that are small and whole: documents, and problems.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use forebay_transport::Version;
use forebay_transport::exchange::{Responder, SendError};
use forebay_transport::wire::problem::{self, Kind};
use forebay_transport::wire::{HEADER_VERSION, TYPE_JSON, date};
use http::header::{ALLOW, CONTENT_TYPE, DATE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::Serialize;

/// How long a client that found no room should stay away, in seconds.
const RETRY_SECONDS: u32 = 1;

/// Why a request gets no other answer than a problem document.
#[derive(Debug)]
pub(super) struct Refusal {
    pub kind: Kind,
    pub detail: String,
    /// The methods that the route has, where that is what is wrong.
    pub allow: Option<&'static str>,
}

impl Refusal {
    pub fn new(kind: Kind, detail: impl Into<String>) -> Refusal {
        Refusal { kind, detail: detail.into(), allow: None }
    }

    pub async fn send(self, responder: Responder) -> Result<(), SendError> {
        let document = self.kind.problem(self.detail);
        let status = StatusCode::from_u16(document.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = dated(head(status, problem::CONTENT_TYPE, None));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, RETRY_SECONDS.into());
        }
        if let Some(allow) = self.allow {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
        }
        responder.send(response, json(&document)).await
    }
}

/// A head with what every answer of ours has.
pub(super) fn head(status: StatusCode, content_type: &'static str, version: Option<Version>) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    set(response.headers_mut(), CONTENT_TYPE, content_type);
    if let Some(version) = version {
        set(response.headers_mut(), HeaderName::from_static(HEADER_VERSION), &version.to_string());
    }
    response
}

/// With what this machine's clock says, so that whoever asks can tell when clocks differ. Samples go without: they are many.
fn dated(mut response: Response<()>) -> Response<()> {
    if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
        set(response.headers_mut(), DATE, &date::format(now.as_secs()));
    }
    response
}

/// Sets a header whose value is one that headers can hold.
pub(super) fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// A JSON document.
pub(super) async fn document(
    responder: Responder,
    version: Option<Version>,
    document: &impl Serialize,
) -> Result<(), SendError> {
    responder.send(dated(head(StatusCode::OK, TYPE_JSON, version)), json(document)).await
}

fn json(document: &impl Serialize) -> Bytes {
    // Our documents have text keys and finite numbers: nothing that JSON cannot say.
    serde_json::to_vec(document).expect("a document of ours").into()
}

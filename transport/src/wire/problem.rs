//! Problem documents (RFC 9457): what they are called, and what they mean to whoever asked.

use std::time::Duration;

use super::describe::Problem;
use crate::link::LinkError;

/// Content type of a problem document.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// The most bytes of an error's body that a client should read; a longer one is not a problem document.
pub const MAX_PROBLEM: usize = 16 << 10;

const PREFIX: &str = "urn:forebay:problem:";

/// The kinds of problem. Their names are stable; a later server may have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The request makes no sense.
    BadRequest,
    /// The request is of a wire version that the server does not speak.
    WireVersion,
    /// The server's owner does not allow it.
    Forbidden,
    /// No such dataset, sample, field, key or route.
    NotFound,
    /// The route exists, but not for this method.
    MethodNotAllowed,
    /// The request did not arrive in time.
    Timeout,
    /// The version asked for is not, or no longer, the one that is served.
    DatasetChanged,
    /// More was asked for than can ever be served.
    TooLarge,
    /// The body is of another content type than the route takes.
    UnsupportedType,
    /// The dataset is still being indexed.
    NotReady,
    /// The dataset cannot be served.
    Damaged,
    /// No memory or no time for the request now.
    Busy,
    /// The bytes could not be read from storage.
    Storage,
    /// The server failed.
    Internal,
    /// The server has not what it takes.
    Unavailable,
}

impl Kind {
    pub const ALL: [Kind; 15] = [
        Kind::BadRequest,
        Kind::WireVersion,
        Kind::Forbidden,
        Kind::NotFound,
        Kind::MethodNotAllowed,
        Kind::Timeout,
        Kind::DatasetChanged,
        Kind::TooLarge,
        Kind::UnsupportedType,
        Kind::NotReady,
        Kind::Damaged,
        Kind::Busy,
        Kind::Storage,
        Kind::Internal,
        Kind::Unavailable,
    ];

    /// The last part of the document's `type`.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The status it travels with.
    pub fn status(self) -> u16 {
        self.row().1
    }

    fn row(self) -> (&'static str, u16, &'static str) {
        match self {
            Kind::BadRequest => ("bad-request", 400, "The request makes no sense"),
            Kind::WireVersion => ("wire-version", 400, "The wire version is not spoken here"),
            Kind::Forbidden => ("forbidden", 403, "The server's owner does not allow this"),
            Kind::NotFound => ("not-found", 404, "There is no such thing"),
            Kind::MethodNotAllowed => ("method-not-allowed", 405, "The route does not have this method"),
            Kind::Timeout => ("timeout", 408, "The request did not arrive in time"),
            Kind::DatasetChanged => ("dataset-changed", 412, "The dataset is not the version asked for"),
            Kind::TooLarge => ("too-large", 413, "More was asked for than can be served"),
            Kind::UnsupportedType => ("unsupported-type", 415, "The body is of a type that the route does not take"),
            Kind::NotReady => ("not-ready", 503, "The dataset is still being indexed"),
            Kind::Damaged => ("damaged", 500, "The dataset cannot be served"),
            Kind::Busy => ("busy", 503, "The server is too busy"),
            Kind::Storage => ("storage", 500, "The bytes could not be read from storage"),
            Kind::Internal => ("internal", 500, "The server failed"),
            Kind::Unavailable => ("unavailable", 501, "The server cannot do this"),
        }
    }

    /// The kind that a document's `type` names, if it is one of ours.
    pub fn parse(kind: &str) -> Option<Kind> {
        let name = kind.strip_prefix(PREFIX)?;
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The document, with what is particular to this occurrence.
    pub fn problem(self, detail: impl Into<String>) -> Problem {
        let (name, status, title) = self.row();
        Problem { kind: format!("{PREFIX}{name}"), title: title.into(), status, detail: Some(detail.into()) }
    }
}

/// The document in an error's body; a body that holds none (a proxy's page, say) becomes one of type `about:blank`.
pub fn parse(status: u16, body: &[u8]) -> Problem {
    let found = body.len() <= MAX_PROBLEM;
    found.then(|| serde_json::from_slice(body).ok()).flatten().unwrap_or_else(|| Problem {
        kind: "about:blank".into(),
        title: "No problem document".into(),
        status,
        detail: None,
    })
}

/// What an answer other than 200 means for the operation that got it. `retry_after` is the header's value, in seconds.
/// The status that came with the answer decides, not the one inside the document: a proxy may have made one of its own.
pub fn link_error(status: u16, retry_after: Option<&str>, body: &[u8]) -> LinkError {
    let problem = parse(status, body);
    let kind = Kind::parse(&problem.kind);
    let detail = problem.detail.unwrap_or(problem.title);
    match (status, kind) {
        (412, _) | (_, Some(Kind::DatasetChanged)) => LinkError::DatasetChanged(detail),
        // A request that was slow to arrive is asked for again, as is one that the server was too busy for.
        (408 | 429 | 503, _) => {
            let seconds = retry_after.and_then(|value| value.trim().parse().ok());
            LinkError::Busy { retry_after: seconds.map(|seconds: u32| Duration::from_secs(seconds.into())) }
        }
        (400..=499, _) | (500, Some(Kind::Damaged)) => LinkError::Refused { status, detail },
        (500..=599, _) => LinkError::Server { status, detail },
        // Nothing else is ever an answer to a fetch.
        _ => LinkError::Protocol(format!("an answer with status {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_back_by_name() {
        for kind in Kind::ALL {
            let problem = kind.problem("why");
            assert_eq!(Kind::parse(&problem.kind), Some(kind));
            assert_eq!(problem.status, kind.status());
        }
        assert_eq!(Kind::parse("about:blank"), None);
        assert_eq!(Kind::parse("urn:forebay:problem:later"), None);
    }

    #[test]
    fn answers_become_errors() {
        let body = |kind: Kind| serde_json::to_vec(&kind.problem("shard 3")).unwrap();
        let error = |kind: Kind, after| link_error(kind.status(), after, &body(kind));
        assert_eq!(error(Kind::DatasetChanged, None), LinkError::DatasetChanged("shard 3".into()));
        assert_eq!(error(Kind::Busy, Some("2")), LinkError::Busy { retry_after: Some(Duration::from_secs(2)) });
        assert_eq!(error(Kind::NotReady, Some("soon")), LinkError::Busy { retry_after: None });
        assert_eq!(link_error(429, None, b""), LinkError::Busy { retry_after: None });
        assert_eq!(error(Kind::TooLarge, None), LinkError::Refused { status: 413, detail: "shard 3".into() });
        assert_eq!(error(Kind::Damaged, None), LinkError::Refused { status: 500, detail: "shard 3".into() });
        assert_eq!(error(Kind::Internal, None), LinkError::Server { status: 500, detail: "shard 3".into() });
        assert!(matches!(link_error(502, None, b"<html>"), LinkError::Server { status: 502, .. }));
        assert!(matches!(link_error(302, None, b""), LinkError::Protocol(_)));
        assert!(matches!(link_error(404, None, &vec![b'['; MAX_PROBLEM + 1]), LinkError::Refused { .. }));
    }
}

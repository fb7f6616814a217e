//! Why the client could not do what was asked of it.

use std::time::Duration;

use forebay_transport::dial::{AskError, DialError};
use forebay_transport::h3::tls::TlsError;
use forebay_transport::pool::{OverBudget, SlabError};
use forebay_transport::wire::describe::{Problem, WireRange};

use crate::loader::{LoaderError, SourceError};
use crate::plan::PlanError;
use crate::url::UrlError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Budget(#[from] OverBudget),
    #[error(transparent)]
    Slab(#[from] SlabError),
    #[error(transparent)]
    Connect(#[from] DialError),
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The server answered with a problem document.
    #[error("{server} refuses {path}: {}", explain(.problem))]
    Refused { server: String, path: String, problem: Box<Problem> },
    /// The server's answer is not the document it should be.
    #[error("{server} answers {path} with what makes no sense: {reason}")]
    Answer { server: String, path: String, reason: String },
    #[error("{server} speaks wire versions {} to {}, this client {} to {}", .theirs.min, .theirs.max, .ours.min, .ours.max)]
    Wire { server: String, theirs: WireRange, ours: WireRange },
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("dataset {dataset} has no sample with the key {key:?}")]
    NoSuchKey { dataset: String, key: String },
    #[error("dataset {dataset} has {} samples with the key {key:?}: ask by ordinal ({ordinals:?})", .ordinals.len())]
    AmbiguousKey { dataset: String, key: String, ordinals: Vec<u64> },
    #[error("dataset {dataset} has {samples} samples: there is no sample {ordinal}")]
    NoSuchSample { dataset: String, ordinal: u64, samples: u64 },
    /// The one fabric that may be taken cannot be.
    #[error("dataset {dataset} of {server} cannot be read over {fabric}: {reason}")]
    Fabric { fabric: String, dataset: String, server: String, reason: String },
    /// The pool can never hold what the loader must have at once.
    #[error(
        "the pool of {pool} bytes cannot hold {what} of dataset {dataset}: {needed} bytes; give --memory at least twice that"
    )]
    PoolTooSmall { dataset: String, what: String, needed: u64, pool: u64 },
    #[error("more than {0} loaders at once")]
    TooManyLoaders(usize),
    #[error(transparent)]
    Loader(#[from] LoaderError),
    #[error("not connected to {server} for {elapsed:.1?}: {cause}")]
    Disconnected { server: String, elapsed: Duration, cause: String },
    /// The thread that serves all loaders of the client panicked: nothing more comes of it.
    #[error("the client's thread panicked, which is a bug: {0}")]
    Panicked(String),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    #[error("cannot start the client's thread: {0}")]
    Thread(std::io::Error),
}

fn explain(problem: &Problem) -> String {
    let Problem { title, status, detail, .. } = problem;
    match detail {
        Some(detail) => format!("{title} ({status}): {detail}"),
        None => format!("{title} ({status})"),
    }
}

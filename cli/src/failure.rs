//! What went wrong, and the exit code that says so.

use std::fmt;

use forebay_client::loader::Reason;
use forebay_client::transport::link::LinkError;
use forebay_client::{Error, LoaderError};
use forebay_server::catalog::BuildError;
use forebay_server::publish::PublishError;

/// A command's end that is not success. The codes are documented in `forebay --help`.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
}

pub const OTHER: u8 = 1;
pub const USAGE: u8 = 2;
pub const UNREACHABLE: u8 = 3;
pub const CHANGED: u8 = 4;
pub const DAMAGED: u8 = 5;
pub const POOL: u8 = 6;
pub const UNWELL: u8 = 7;
pub const INTERRUPTED: u8 = 130;

impl Failure {
    pub fn new(code: u8, message: impl fmt::Display) -> Failure {
        Failure { code, message: message.to_string() }
    }

    pub fn other(message: impl fmt::Display) -> Failure {
        Failure::new(OTHER, message)
    }

    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure::new(USAGE, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::Url(_) | Error::Tls(_) | Error::Budget(_) | Error::Slab(_) => USAGE,
            Error::Source(_) | Error::Plan(_) => USAGE,
            Error::Connect(_) | Error::Ask(_) | Error::Disconnected { .. } => UNREACHABLE,
            Error::Fabric { .. } => UNREACHABLE,
            Error::PoolTooSmall { .. } | Error::Loader(LoaderError::PoolExhausted(_)) => POOL,
            Error::Refused { problem, .. } if problem.kind.ends_with(":dataset-changed") => CHANGED,
            Error::Loader(LoaderError::DatasetChanged { .. }) => CHANGED,
            Error::Loader(LoaderError::Stalled { .. }) => UNREACHABLE,
            Error::Loader(LoaderError::Fetch(fetch)) => match &fetch.reason {
                // Told by whoever has the data: no loss of the way to it.
                Reason::Link(LinkError::Refused { status: 500.., .. }) => DAMAGED,
                Reason::Link(LinkError::Refused { .. }) => OTHER,
                Reason::Link(_) => UNREACHABLE,
                _ => DAMAGED,
            },
            Error::Loader(LoaderError::TooManySkipped { .. }) => DAMAGED,
            _ => OTHER,
        };
        Failure::new(code, error)
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Failure {
        match error {
            BuildError::Cancelled { .. } => Failure::new(INTERRUPTED, "interrupted; what is done is kept"),
            BuildError::Damaged { .. } => Failure::new(
                DAMAGED,
                format!(
                    "{error}\n  Make what is damaged anew, or leave it out with --skip-damaged: the dataset is then another version"
                ),
            ),
            BuildError::Write { ref source, .. } if is_full(source) => Failure::other(format!(
                "{error}\n  Make room and run it again: shards that were noted are not read again"
            )),
            error => Failure::other(error),
        }
    }
}

/// Whether there is no room to write to.
fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Failure {
        match error {
            PublishError::Build(error) => error.into(),
            error => Failure::other(error),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::other(error)
    }
}

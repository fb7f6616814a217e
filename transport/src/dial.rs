//! How a client comes by a link: a dialer makes paths of one fabric to one peer, as often as it is asked to.
//!
//! HTTP/3's dialer is the client's own; others are handed to it by whoever puts a program together, so that the client
//! names no other fabric and knows no server.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use crate::link::Link;
use crate::pool::Slab;

/// A path that stands: samples come over the link, documents are asked for beside it.
pub struct Dialled {
    pub link: Box<dyn Link>,
    pub control: Box<dyn Control>,
}

impl fmt::Debug for Dialled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialled").field("link", &self.link.stats()).finish()
    }
}

/// What [`Dialer::dial`] returns.
pub type Dialling = Pin<Box<dyn Future<Output = Result<Dialled, DialError>> + Send>>;

/// Makes paths to one peer.
pub trait Dialer: Send + Sync {
    /// The fabric's name, for messages: `h3`, `local`.
    fn fabric(&self) -> &str;
    /// Who is dialled, for messages: `HOST:PORT`, or a folder.
    fn peer(&self) -> &str;
    /// Makes a path, within a time that it bounds itself. Called, and polled, on the client's tokio runtime.
    fn dial(&self) -> Dialling;
}

/// What [`RailDialer::dial`] returns. The link has proved itself: bytes came over it and were what was asked for.
pub type RailDialling = Pin<Box<dyn Future<Output = Result<Box<dyn Link>, RailError>> + Send>>;

/// Makes links of a faster fabric beside a path that stands, to the same server: a rail. It is made with what the path
/// knows, and is of no use without it.
pub trait RailDialer: Send + Sync {
    /// The fabric's name, for messages, and for the path of the route that lets clients in: `rdma`.
    fn fabric(&self) -> &str;
    /// Makes a link that reads one dataset into leases of `pool`, and tries it. `offer` is the answer to a `POST` to
    /// `/v1/datasets/{dataset}/{fabric}`; it is asked for when it is first polled, so that who cannot use it need not.
    ///
    /// Called, and polled, on the client's tokio runtime, which has one thread: what takes long goes elsewhere. The future is
    /// dropped when nobody waits for it any more: after a second, or when the path that the offer came over is gone.
    fn dial(&self, offer: Asking, pool: &Slab) -> RailDialling;
}

/// Why there is no rail, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RailError {
    /// It may work the next time: soon, and then after pauses that grow.
    #[error("{0}")]
    Failed(String),
    /// It is not for us, or not to be had here: asking again soon would not change that.
    #[error("{0}")]
    Refused(String),
}

/// A rail that there is not: says why whenever it is dialled.
#[derive(Clone, Debug)]
pub struct NoRail {
    pub fabric: String,
    pub why: String,
}

impl RailDialer for NoRail {
    fn fabric(&self) -> &str {
        &self.fabric
    }

    fn dial(&self, _: Asking, _: &Slab) -> RailDialling {
        Box::pin(std::future::ready(Err(RailError::Refused(self.why.clone()))))
    }
}

/// A control document, or the problem document in its place.
#[derive(Clone, Debug)]
pub struct Document {
    /// As HTTP's.
    pub status: u16,
    pub body: Bytes,
}

/// What [`Control::get`] returns.
pub type Asking = Pin<Box<dyn Future<Output = Result<Document, AskError>> + Send>>;

/// What [`Control::close`] returns.
pub type Closing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Answers what is asked beside a link.
pub trait Control: Send {
    /// The document at `path`, as `GET` over HTTP would have it, within a time that it bounds itself.
    fn get(&self, path: &str) -> Asking;
    /// The answer to an empty `POST`. Not to be had of fabrics that are no server.
    fn post(&self, path: &str) -> Asking {
        let error = AskError::Protocol { path: path.to_owned(), reason: "nobody here takes a POST".to_owned() };
        Box::pin(std::future::ready(Err(error)))
    }
    /// Ends the path, and tells the peer if there is one that would wait for it. Ready soon, whether it heard or not.
    fn close(&self) -> Closing {
        Box::pin(std::future::ready(()))
    }
}

/// Why there is no path. What a fabric has to say about it is its source.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DialError(Box<dyn std::error::Error + Send + Sync>);

impl DialError {
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> DialError {
        DialError(Box::new(error))
    }

    /// The fabric's own error, if it is a `T`.
    pub fn downcast_ref<T: std::error::Error + 'static>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    #[error("no answer to {path} within {elapsed:.1?}")]
    Timeout { path: String, elapsed: Duration },
    #[error("the answer to {path} has more than {limit} bytes")]
    TooLarge { path: String, limit: usize },
    #[error("connection lost while asking for {path}: {reason}")]
    Closed { path: String, reason: String },
    #[error("the server broke the answer to {path} off: {reason}")]
    Reset { path: String, reason: String },
    #[error("{path}: {reason}")]
    Protocol { path: String, reason: String },
}

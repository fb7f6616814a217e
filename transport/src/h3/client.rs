//! Connects, asks, and is a link.

use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::endpoint::TransportConfig;
use super::tls::{Fingerprint, TlsError, Trust};
use crate::link::{Completion, Fetch, Link, LinkStats, Tag};
use crate::pool::Claim;

/// How a client connects.
#[derive(Clone, Debug)]
pub struct ConnectConfig {
    pub trust: Trust,
    pub transport: TransportConfig,
    /// How long connecting may take, over all addresses of the host. Default 10 s.
    pub timeout: Duration,
}

impl Default for ConnectConfig {
    fn default() -> ConnectConfig {
        ConnectConfig { trust: Trust::System, transport: TransportConfig::client(), timeout: Duration::from_secs(10) }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot find the address of {host}: {reason}")]
    Resolve { host: String, reason: String },
    #[error(
        "{host}:{port} ({address}) did not answer within {elapsed:.1?}: nothing listens there, or UDP is blocked on the way"
    )]
    Timeout { host: String, port: u16, address: SocketAddr, elapsed: Duration },
    #[error("{host}:{port} ({address}) refused after {elapsed:.1?}: nothing listens on that UDP port")]
    Refused { host: String, port: u16, address: SocketAddr, elapsed: Duration },
    #[error(
        "{host}:{port} ({address}) presented a certificate that is not trusted: {reason}. If it is the right one, trust it with --trust {presented}"
    )]
    Untrusted { host: String, port: u16, address: SocketAddr, reason: String, presented: Fingerprint },
    #[error("{host}:{port} ({address}) failed after {elapsed:.1?}: {reason}")]
    Failed { host: String, port: u16, address: SocketAddr, elapsed: Duration, reason: String },
}

/// Makes connections.
#[derive(Clone, Debug)]
pub struct Connector {
    config: ConnectConfig,
}

impl Connector {
    /// Reads what the configuration names (the authorities' file, the system's authorities).
    pub fn new(config: ConnectConfig) -> Result<Connector, TlsError> {
        Ok(Connector { config })
    }

    /// What each connection may hold in memory besides the pool.
    pub fn claims(&self) -> Vec<Claim> {
        let _ = &self.config;
        Vec::new()
    }

    /// Connects to whichever of the host's addresses answers first. Must be called within a tokio runtime.
    pub async fn connect(&self, host: &str, port: u16) -> Result<Connection, ConnectError> {
        Err(ConnectError::Resolve { host: host.to_owned(), reason: format!("port {port}") })
    }
}

/// One connection to a server. Cloning makes another handle; dropping the last closes it.
#[derive(Clone, Debug)]
pub struct Connection {}

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
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

/// Bounds of one question.
#[derive(Clone, Copy, Debug)]
pub struct AskLimits {
    /// Default 64 MiB.
    pub body: usize,
    /// Default 30 s.
    pub time: Duration,
}

impl Default for AskLimits {
    fn default() -> AskLimits {
        AskLimits { body: 64 << 20, time: Duration::from_secs(30) }
    }
}

impl Connection {
    /// The answer to `GET path`, whatever its status.
    pub async fn get(&self, path: &str, limits: AskLimits) -> Result<Answer, AskError> {
        Err(AskError::Timeout { path: path.to_owned(), elapsed: limits.time })
    }

    /// A link that carries up to `window` operations at once over this connection.
    pub fn link(&self, window: usize) -> H3Link {
        let _ = window;
        H3Link {}
    }

    /// Smoothed round-trip time.
    pub fn rtt(&self) -> Duration {
        Duration::ZERO
    }

    pub fn is_alive(&self) -> bool {
        false
    }

    /// Closes at once: what is in flight ends with an error.
    pub fn close(&self) {}
}

/// An HTTP/3 connection as a [`Link`].
#[derive(Debug)]
pub struct H3Link {}

impl Link for H3Link {
    fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        Err(fetch)
    }

    fn flush(&mut self) {}

    fn cancel(&mut self, _tag: Tag) {}

    fn poll(&mut self, _cx: &mut Context<'_>) -> Poll<Completion> {
        Poll::Pending
    }

    fn is_alive(&self) -> bool {
        false
    }

    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }
}

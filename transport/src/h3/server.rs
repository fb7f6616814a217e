//! Accepts connections and calls a handler.
//!
//! Everything that a client can make the server hold has a bound: connections, handshakes, streams, heads that do not
//! come to an end, bodies that nobody reads (they stay under flow control), answers that nobody takes.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use h3::error::Code;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::endpoint::{TransportConfig, endpoint};
use super::quic::{self, Side, var_int};
use super::tls::{Identity, TlsError};
use crate::exchange::{Handler, Session, SessionLife};
use crate::pool::{Account, Claim};

mod request;

pub(crate) use request::{Incoming, Outgoing};

/// The most bytes a request's head may have when it is decoded. Ours have a few hundred.
const MAX_HEAD: u64 = 16 << 10;
/// The most bytes of an encoded head that are looked at: one between this and [`MAX_HEAD`] is answered 431, a larger one
/// not at all.
const MAX_ENCODED_HEAD: usize = 32 << 10;
/// Heads that may be half there at once, over all connections.
const SLOW_HEADS: usize = 512;
/// Handshakes in progress at once.
const HANDSHAKES: usize = 64;
/// How long a handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// The fewest connections that [`ServerConfig::within`] gives: a server for fewer is hardly one.
const MIN_CONNECTIONS: usize = 8;
/// Streams without a request after which a connection is closed.
const MAX_MISFITS: usize = 10_000;

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

    /// This, with as many connections (no more than it has) as fit with all else that the server may hold in `budget` bytes;
    /// never less than eight, which may then be more than the budget: whoever keeps the ledger refuses it.
    pub fn within(mut self, budget: u64) -> ServerConfig {
        let most = self.max_connections;
        self.max_connections = 0;
        let fixed = self.claims().iter().fold(0, |sum: u64, claim| sum.saturating_add(claim.bytes));
        let fit = budget.saturating_sub(fixed) / self.transport.receive_bytes().max(1);
        self.max_connections = usize::try_from(fit).unwrap_or(usize::MAX).max(MIN_CONNECTIONS).min(most);
        self
    }

    /// See [`Server::claims`].
    fn claims(&self) -> Vec<Claim> {
        let connections = self.max_connections as u64;
        vec![
            self.transport.socket_claim(),
            Claim { name: "requests' receive windows", bytes: connections * self.transport.receive_bytes() },
            Claim { name: "requests' heads", bytes: (SLOW_HEADS * MAX_ENCODED_HEAD) as u64 },
            Claim { name: "handshakes", bytes: 4 << 20 },
        ]
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
    endpoint: quinn::Endpoint,
    address: SocketAddr,
    base: quinn::ServerConfig,
    config: ServerConfig,
}

/// What all connections of a server share.
struct Shared {
    config: ServerConfig,
    handler: Arc<dyn Handler>,
    slots: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
    slow_heads: Semaphore,
    connections: AtomicU64,
}

impl Server {
    /// Binds. Must be called within a tokio runtime.
    pub fn bind(config: ServerConfig) -> Result<Server, ServerError> {
        let mut base = quinn::ServerConfig::with_crypto(Arc::new(config.identity.server_config()?));
        base.max_incoming(2 * HANDSHAKES).incoming_buffer_size(64 << 10).incoming_buffer_size_total(4 << 20);
        let bind = |source| ServerError::Bind { address: config.listen, source };
        let endpoint =
            endpoint(config.listen, &config.transport, Some((&config.identity, base.clone()))).map_err(bind)?;
        let address = endpoint.local_addr().map_err(bind)?;
        Ok(Server { endpoint, address, base, config })
    }

    /// Where it listens: with the port that the system chose, if that was left to it.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What it may hold in memory besides the pool, at worst. Answers' bytes are in the pool until clients have
    /// acknowledged them; what handlers write from elsewhere is bounded by `send_window` for each connection.
    pub fn claims(&self) -> Vec<Claim> {
        self.config.claims()
    }

    /// Serves until `shutdown` is ready. Then tells clients that it goes, lets what is in flight finish within `grace`,
    /// and closes.
    pub async fn serve(self, handler: Arc<dyn Handler>, shutdown: impl Future<Output = ()>, grace: Duration) {
        let Server { endpoint, base, config, .. } = self;
        let shared = Arc::new(Shared {
            slots: Arc::new(Semaphore::new(config.max_connections)),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES)),
            slow_heads: Semaphore::new(SLOW_HEADS),
            connections: AtomicU64::new(0),
            config,
            handler,
        });
        let (stop, stopping) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                incoming = endpoint.accept() => match incoming {
                    Some(incoming) => {
                        if let Some((connecting, permits)) = shared.admit(incoming, &base) {
                            connections.spawn(shared.clone().connection(connecting, permits, stopping.clone()));
                        }
                    }
                    None => break,
                },
                Some(_) = connections.join_next() => {}
            }
        }
        stop.send_replace(true);
        let finishing = async {
            while !connections.is_empty() {
                tokio::select! {
                    _ = connections.join_next() => {}
                    Some(incoming) = endpoint.accept() => incoming.refuse(),
                }
            }
        };
        if timeout(grace, finishing).await.is_err() {
            tracing::warn!(?grace, "requests were still in flight when the time for them was over");
        }
        connections.shutdown().await;
        endpoint.close(var_int(Code::H3_NO_ERROR), b"the server shuts down");
        let _ = timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
    }
}

/// What a connection holds while it lives, and while it is being made.
type Permits = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Shared {
    /// Lets a connection begin, or sends it away.
    fn admit(&self, incoming: quinn::Incoming, base: &quinn::ServerConfig) -> Option<(quinn::Connecting, Permits)> {
        // With many handshakes in progress, a client must first show that its address is its own.
        let busy = self.handshakes.available_permits() < HANDSHAKES / 2;
        if busy && !incoming.remote_address_validated() && incoming.may_retry() {
            let _ = incoming.retry();
            return None;
        }
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            tracing::warn!(peer = %incoming.remote_address(), "connection refused: there are as many as are allowed");
            incoming.refuse();
            return None;
        };
        // Not answered: the client asks again by itself, a little later.
        let Ok(handshake) = self.handshakes.clone().try_acquire_owned() else {
            incoming.ignore();
            return None;
        };
        let mut config = base.clone();
        let transport = &self.config.transport;
        config.transport_config(transport.quinn(incoming.remote_address(), transport.streams));
        match incoming.accept_with(Arc::new(config)) {
            Ok(connecting) => Some((connecting, (slot, handshake))),
            Err(error) => {
                tracing::debug!(%error, "connection attempt failed");
                None
            }
        }
    }

    async fn connection(self: Arc<Self>, connecting: quinn::Connecting, permits: Permits, stop: watch::Receiver<bool>) {
        let (_slot, handshake) = permits;
        let peer = connecting.remote_address();
        let conn = match timeout(HANDSHAKE_TIME, connecting).await {
            Ok(Ok(conn)) => conn,
            Ok(Err(error)) => return tracing::debug!(%peer, %error, "handshake failed"),
            Err(_) => return tracing::debug!(%peer, "handshake took too long"),
        };
        let quic = quic::Connection::new(conn.clone(), Side::Server, MAX_ENCODED_HEAD);
        let registry = quic.registry();
        let mut builder = h3::server::builder();
        builder.max_field_section_size(MAX_HEAD).send_grease(false);
        let h3 = match timeout(HANDSHAKE_TIME, builder.build(quic)).await {
            Ok(Ok(h3)) => h3,
            Ok(Err(error)) => return tracing::debug!(%peer, %error, "connection failed"),
            Err(_) => return tracing::debug!(%peer, "the client allows no control streams"),
        };
        drop(handshake);
        let id = self.connections.fetch_add(1, Ordering::Relaxed);
        let account = Account::new(format!("connection {id} from {peer}"), self.config.pool / 4);
        let (life, session) = Session::begin();
        let patience = self.config.patience;
        let link = Arc::new(request::Link { conn, peer, id, account, session, patience });
        self.requests(h3, registry, (link, life), stop).await;
    }

    /// Takes requests until the client goes or the server stops.
    async fn requests(
        self: Arc<Self>,
        mut h3: h3::server::Connection<quic::Connection, bytes::Bytes>,
        registry: quic::Registry,
        (link, life): (Arc<request::Link>, SessionLife),
        mut stop: watch::Receiver<bool>,
    ) {
        let mut tasks = JoinSet::new();
        let (mut stopping, mut misfits) = (false, 0);
        // A client that resets its requests gets its streams back before the handlers are done with them.
        let most = 2 * self.config.transport.streams as usize;
        loop {
            tokio::select! {
                accepted = h3.accept(), if tasks.len() < most => match accepted {
                    Ok(Some(resolver)) => {
                        let Some(cell) = registry.take(resolver.frame_stream.id()) else { continue };
                        tasks.spawn(request::run(resolver, cell, self.clone(), link.clone()));
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::debug!(peer = %link.peer, %error, "connection ended");
                        break;
                    }
                },
                Some(ended) = tasks.join_next() => {
                    misfits += usize::from(!ended.unwrap_or(false));
                    if misfits > MAX_MISFITS {
                        link.conn.close(var_int(Code::H3_EXCESSIVE_LOAD), b"too many streams without a request");
                    }
                }
                () = told(&mut stop), if !stopping => {
                    stopping = true;
                    // Those that are on their way may still come, one at least: `h3` names the last one it has taken, which
                    // to a client means that this one will not be answered.
                    if h3.shutdown(1).await.is_err() {
                        break;
                    }
                }
            }
            if stopping && tasks.is_empty() {
                break;
            }
        }
        drop(life);
        // Whoever is left of the handlers has nobody to answer to, and is told so by whatever it waits for next.
        let leaving = async { while tasks.join_next().await.is_some() {} };
        if timeout(self.config.patience, leaving).await.is_err() {
            tracing::warn!(peer = %link.peer, left = tasks.len(), "handlers did not notice that their client is gone");
            tasks.shutdown().await;
        }
    }
}

/// Ready when the server is to stop.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|&stop| stop).await;
}

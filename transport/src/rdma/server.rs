//! Lets clients with tickets in, and answers what they ask by writing into their memory.
//!
//! One handler serves HTTP and this: what it answers, this turns into writes and a table. Everything that a client can make the
//! server hold has a bound: connections, frames under way, payload that is being sent.

mod answer;
mod connection;
mod endpoints;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::connection::Connection;
pub use self::endpoints::endpoints;
use super::area::Pinned;
use super::device::{Error, devices};
use super::frame::{MAX_FRAME, MIN_FRAME};
use super::hello::{HEARTBEAT, Hello, MAX_CREDITS, Reason, Rejection, Welcome};
use super::manager::Id;
use super::memory::Rights;
use super::table::{DEFAULT_TABLE, MAX_TABLE, MIN_TABLE};
use super::tickets::{Grant, Tickets};
use crate::exchange::Handler;
use crate::pool::{Claim, Slab};

/// How long a client that was let in may take to be there.
const ESTABLISH: Duration = Duration::from_secs(5);
/// How long nobody is let in after the connection manager failed.
const PAUSE: Duration = Duration::from_millis(200);

/// How a server listens for RDMA.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// An address of a device's, or the unspecified one: all of them. Port 0 is one of the system's choice.
    pub listen: SocketAddr,
    /// Frames that a client may have under way. Default 32; each costs [`frame`](Config::frame) and [`table`](Config::table).
    pub credits: u16,
    /// The most bytes of a frame. Default 16 KiB.
    pub frame: usize,
    /// The most bytes of a table. Default 64 KiB.
    pub table: usize,
    /// The time between heartbeats. Default 1 s; who is not heard of for three times as long is gone.
    pub heartbeat: Duration,
    /// Connections at once. Default 64; one more is rejected.
    pub max_connections: usize,
}

impl Config {
    pub fn new(listen: SocketAddr) -> Config {
        Config {
            listen,
            credits: 32,
            frame: 16 << 10,
            table: DEFAULT_TABLE,
            heartbeat: Duration::from_secs(1),
            max_connections: 64,
        }
    }

    /// This, with as many connections (no more than it has, and one at least) as fit in `budget` bytes.
    pub fn within(mut self, budget: u64) -> Config {
        let fit = budget / self.in_range().each();
        self.max_connections = usize::try_from(fit).unwrap_or(usize::MAX).clamp(1, self.max_connections.max(1));
        self
    }

    /// What a server may hold in memory besides the pool, at worst.
    pub fn claims(&self) -> Vec<Claim> {
        let bytes = self.max_connections as u64 * self.in_range().each();
        vec![Claim { name: "RDMA frames and tables", bytes }]
    }

    /// Bytes that each connection holds.
    fn each(&self) -> u64 {
        u64::from(self.credits) * (self.frame + self.table) as u64
    }

    /// With every figure where the protocol wants it.
    fn in_range(mut self) -> Config {
        self.credits = self.credits.clamp(4, MAX_CREDITS);
        self.frame = self.frame.clamp(MIN_FRAME, MAX_FRAME);
        self.table = self.table.clamp(MIN_TABLE, MAX_TABLE);
        self.heartbeat = self.heartbeat.clamp(*HEARTBEAT.start(), *HEARTBEAT.end());
        self
    }

    fn welcome(&self, asked: u16, version: u16) -> Welcome {
        let Config { credits, frame, table, heartbeat, .. } = *self;
        // For no more has the client receives.
        let credits = asked.min(credits);
        Welcome { version, credits, frame: frame as u32, table: table as u32, heartbeat }
    }
}

/// How often something happened, since the server began.
#[derive(Debug, Default)]
pub struct Counters {
    /// Clients that were let in.
    pub connections: AtomicU64,
    /// Clients that were not.
    pub rejected: AtomicU64,
    /// Connections that ended because of what the client sent.
    pub misbehaved: AtomicU64,
    /// Connections that ended because the client was not heard of, or the path was lost.
    pub lost: AtomicU64,
}

/// Listens for RDMA.
pub struct Server {
    listener: Id,
    shared: Arc<Shared>,
}

/// What all connections share.
struct Shared {
    config: Config,
    tickets: Arc<Tickets>,
    pinned: Arc<Pinned>,
    slots: Arc<Semaphore>,
    counters: Arc<Counters>,
}

impl Server {
    /// Listens. Clients with tickets of `tickets` are let in; answers lie in `pool`, which is registered with each device
    /// when the first client comes by it. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Without rdma-core's libraries, without the connection manager's device, or if the address cannot be listened at.
    pub fn bind(config: Config, tickets: Arc<Tickets>, pool: &Slab) -> Result<Server, Error> {
        let config = config.in_range();
        let listener = Id::listen(config.listen)?;
        let shared = Shared {
            config,
            tickets,
            pinned: Arc::new(Pinned::new(pool, Rights::Local)),
            slots: Arc::new(Semaphore::new(config.max_connections)),
            counters: Arc::default(),
        };
        Ok(Server { listener, shared: Arc::new(shared) })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Serves until `shutdown` is ready; then all connections end, and clients ask elsewhere for what they had asked for.
    pub async fn serve(self, handler: Arc<dyn Handler>, shutdown: impl Future<Output = ()>) {
        let Server { listener, shared } = self;
        let mut connections = JoinSet::new();
        connections.spawn(shared.clone().warm());
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                incoming = listener.incoming() => match incoming {
                    Ok((id, said)) => {
                        if let Some((id, welcome, grant, permit)) = shared.admit(id, &said) {
                            connections.spawn(shared.clone().connection(id, welcome, grant, permit, handler.clone()));
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "RDMA: a client could not be let in");
                        sleep(PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
        connections.shutdown().await;
    }
}

impl Shared {
    /// Registers the pool with the devices that there are, so that the first client does not wait for it.
    async fn warm(self: Arc<Self>) {
        let found = tokio::task::spawn_blocking(devices).await;
        for device in found.ok().and_then(Result::ok).unwrap_or_default() {
            if let Err(error) = self.pinned.with(device.name).await {
                tracing::warn!(%error, "RDMA: a device cannot be used");
            }
        }
    }

    /// Lets a client in, or sends it away.
    fn admit(&self, id: Id, said: &[u8]) -> Option<(Id, Welcome, Grant, OwnedSemaphorePermit)> {
        match self.check(said) {
            Ok((welcome, grant, permit)) => Some((id, welcome, grant, permit)),
            Err(reason) => {
                self.counters.rejected.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%reason, "RDMA: a client was rejected");
                id.reject(&Rejection::new(reason).encode());
                None
            }
        }
    }

    fn check(&self, said: &[u8]) -> Result<(Welcome, Grant, OwnedSemaphorePermit), Reason> {
        let hello = Hello::decode(said).map_err(|_| Reason::Malformed)?;
        let version = hello.version().map_err(|_| Reason::Version)?;
        // Before the ticket is used up.
        let permit = self.slots.clone().try_acquire_owned().map_err(|_| Reason::Busy)?;
        let grant = self.tickets.redeem(Instant::now(), &hello.ticket)?;
        Ok((self.config.welcome(hello.credits, version), grant, permit))
    }

    async fn connection(
        self: Arc<Self>,
        id: Id,
        welcome: Welcome,
        grant: Grant,
        _permit: OwnedSemaphorePermit,
        handler: Arc<dyn Handler>,
    ) {
        let peer = grant.peer;
        let connected = timeout(ESTABLISH, async {
            let device = id.device().unwrap_or_default();
            let (domain, pool) = self.pinned.with(device).await?;
            let mut connection = Connection::new(id, welcome, grant, handler, (&domain, pool, self.pinned.pool()))?;
            connection.establish(&welcome).await.map(|()| connection)
        });
        let connection = match connected.await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return tracing::warn!(%peer, %error, "RDMA: a client could not be let in"),
            Err(_) => return tracing::warn!(%peer, "RDMA: a client that was let in did not come"),
        };
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        tracing::info!(%peer, "RDMA: a client is connected");
        let end = connection.run().await;
        match &end {
            End::Over => tracing::info!(%peer, "RDMA: a connection ended"),
            End::Lost(why) => {
                self.counters.lost.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%peer, why, "RDMA: a connection was lost");
            }
            End::Misbehaved(why) => {
                self.counters.misbehaved.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%peer, why, "RDMA: a connection was ended because of what the client sent");
            }
        }
    }
}

/// Why a connection ended.
#[derive(Debug)]
enum End {
    /// The client or its session went.
    Over,
    Lost(String),
    Misbehaved(String),
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("config", &self.shared.config).finish()
    }
}

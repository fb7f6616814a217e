//! How a connection is made, and why it is not.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::super::endpoint::{TransportConfig, endpoint};
use super::super::quic::{self, Side};
use super::super::tls::{Anchors, Fingerprint, Seen, TlsError, Trust};
use super::{Connection, Inner, MAX_HEAD};
use crate::pool::Claim;

/// How long an address has for itself before the next one is tried beside it (RFC 8305, section 5).
const STAGGER: Duration = Duration::from_millis(250);
/// The most addresses of one host that are tried.
const MAX_ADDRESSES: usize = 8;

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

impl ConnectError {
    /// How much it tells, for choosing among several.
    fn weight(&self) -> u8 {
        match self {
            ConnectError::Untrusted { .. } | ConnectError::Tls(_) => 3,
            ConnectError::Failed { .. } => 2,
            ConnectError::Refused { .. } => 1,
            ConnectError::Timeout { .. } | ConnectError::Resolve { .. } => 0,
        }
    }
}

/// Makes connections.
#[derive(Clone, Debug)]
pub struct Connector {
    config: Arc<ConnectConfig>,
    anchors: Anchors,
}

impl Connector {
    /// Reads what the configuration names (the authorities' file, the system's authorities).
    pub fn new(config: ConnectConfig) -> Result<Connector, TlsError> {
        let anchors = Anchors::new(&config.trust)?;
        Ok(Connector { config: Arc::new(config), anchors })
    }

    /// What each connection may hold in memory besides the pool, at worst.
    pub fn claims(&self) -> Vec<Claim> {
        let transport = &self.config.transport;
        vec![
            transport.socket_claim(),
            Claim { name: "QUIC receive window", bytes: transport.receive_bytes() },
            Claim { name: "QUIC send window", bytes: transport.send_window },
        ]
    }

    /// Connects to whichever of the host's addresses answers first. Must be called within a tokio runtime.
    pub async fn connect(&self, host: &str, port: u16) -> Result<Connection, ConnectError> {
        let started = Instant::now();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let resolve = |reason: String| ConnectError::Resolve { host: host.to_owned(), reason };
        let addresses = match timeout(self.config.timeout, tokio::net::lookup_host((host, port))).await {
            Ok(Ok(addresses)) => in_turn(addresses),
            Ok(Err(error)) => return Err(resolve(error.to_string())),
            Err(_) => return Err(resolve(format!("no answer within {:.1?}", started.elapsed()))),
        };
        let mut waiting = addresses.into_iter();
        let Some(first) = waiting.next() else { return Err(resolve("it has none".to_owned())) };
        let attempt = |address| {
            let attempt = Attempt { connector: self.clone(), host: host.to_owned(), port, address, started };
            attempt.run()
        };
        let mut attempts = JoinSet::new();
        attempts.spawn(attempt(first));
        let mut worst: Option<ConnectError> = None;
        loop {
            tokio::select! {
                ended = attempts.join_next() => match ended {
                    Some(Ok(Ok(connection))) => return Ok(connection),
                    Some(Ok(Err(error))) => {
                        if worst.as_ref().is_none_or(|worst| error.weight() > worst.weight()) {
                            worst = Some(error);
                        }
                        if let Some(address) = waiting.next() {
                            attempts.spawn(attempt(address));
                        }
                    }
                    Some(Err(error)) => return Err(resolve(error.to_string())),
                    None => return Err(worst.unwrap_or_else(|| resolve("it has none".to_owned()))),
                },
                () = sleep(STAGGER), if waiting.len() > 0 => {
                    attempts.extend(waiting.next().map(&attempt));
                }
            }
        }
    }
}

/// The addresses in the order in which to try them: the families take turns, beginning with the system's favourite.
fn in_turn(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut all: Vec<SocketAddr> = Vec::new();
    for address in addresses {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    let first_is_v6 = all.first().is_some_and(SocketAddr::is_ipv6);
    let (one, other): (Vec<_>, Vec<_>) = all.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut order = Vec::new();
    loop {
        let pair = [one.next(), other.next()];
        if pair == [None, None] || order.len() >= MAX_ADDRESSES {
            return order;
        }
        order.extend(pair.into_iter().flatten());
    }
}

/// One address's try.
struct Attempt {
    connector: Connector,
    host: String,
    port: u16,
    address: SocketAddr,
    started: Instant,
}

impl Attempt {
    async fn run(self) -> Result<Connection, ConnectError> {
        let left = self.connector.config.timeout.saturating_sub(self.started.elapsed());
        let connecting = async {
            tokio::select! {
                biased;
                connection = self.connect() => connection,
                () = refused(self.address) => Err(self.refused()),
            }
        };
        match timeout(left, connecting).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.timed_out()),
        }
    }

    async fn connect(&self) -> Result<Connection, ConnectError> {
        let transport = &self.connector.config.transport;
        let (crypto, seen) = self.connector.anchors.client_config()?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(transport.quinn(self.address, 0));
        let any = match self.address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        // Each connection has a socket of its own, so that several can be carried by several cores.
        let endpoint = endpoint(any, transport, None).map_err(|error| self.failed(error.to_string()))?;
        let connecting =
            endpoint.connect_with(config, self.address, &self.host).map_err(|error| self.failed(error.to_string()))?;
        let conn = connecting.await.map_err(|error| self.explain(error, &seen))?;
        let quic = quic::Connection::new(conn.clone(), Side::Client, MAX_HEAD);
        let registry = quic.registry();
        let mut builder = h3::client::builder();
        builder.max_field_section_size(MAX_HEAD as u64).send_grease(false);
        let (mut driver, sender) = builder.build(quic).await.map_err(|error| self.failed(error.to_string()))?;
        // Ends with the connection, which the last handle closes.
        tokio::spawn(async move {
            let end = std::future::poll_fn(|cx| driver.poll_close(cx)).await;
            tracing::debug!(%end, "connection ended");
        });
        let authority = match self.address.is_ipv6() && self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        };
        let presented = seen.get().map(|(presented, _)| presented);
        let presented = presented.ok_or_else(|| self.failed("the server presented no certificate".to_owned()))?;
        Ok(Connection {
            inner: Arc::new(Inner { conn, endpoint, sender: Mutex::new(sender), registry, authority, presented }),
        })
    }

    /// What lies behind a failed handshake.
    fn explain(&self, error: quinn::ConnectionError, seen: &Seen) -> ConnectError {
        if let Some((presented, Some(reason))) = seen.get() {
            let (host, port, address) = (self.host.clone(), self.port, self.address);
            return ConnectError::Untrusted { host, port, address, reason, presented };
        }
        match error {
            quinn::ConnectionError::TimedOut => self.timed_out(),
            quinn::ConnectionError::ConnectionClosed(close) if u64::from(close.error_code) == CONNECTION_REFUSED => {
                self.failed("the server takes no more connections now".to_owned())
            }
            quinn::ConnectionError::ConnectionClosed(close) if u64::from(close.error_code) == NO_PROTOCOL => {
                self.failed("the server does not speak HTTP/3".to_owned())
            }
            other => self.failed(other.to_string()),
        }
    }

    fn failed(&self, reason: String) -> ConnectError {
        let (host, port, address, elapsed) = self.who();
        ConnectError::Failed { host, port, address, elapsed, reason }
    }

    fn timed_out(&self) -> ConnectError {
        let (host, port, address, elapsed) = self.who();
        ConnectError::Timeout { host, port, address, elapsed }
    }

    fn refused(&self) -> ConnectError {
        let (host, port, address, elapsed) = self.who();
        ConnectError::Refused { host, port, address, elapsed }
    }

    fn who(&self) -> (String, u16, SocketAddr, Duration) {
        (self.host.clone(), self.port, self.address, self.started.elapsed())
    }
}

/// QUIC's transport error of that name (RFC 9000, section 20.1).
const CONNECTION_REFUSED: u64 = 0x02;
/// TLS's alert `no_application_protocol` as a transport error.
const NO_PROTOCOL: u64 = 0x100 + 120;

/// Ready when the address's host says that nothing listens on the port. QUIC's own socket is not connected, so that the
/// system does not tell it: one that is asks, with a byte that no QUIC server answers.
async fn refused(address: SocketAddr) {
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let asking = async {
        let socket = UdpSocket::bind(any).await?;
        socket.connect(address).await?;
        loop {
            sleep(Duration::from_millis(200)).await;
            socket.send(&[0]).await?;
            let mut answer = [0];
            if let Ok(received) = timeout(Duration::from_secs(1), socket.recv(&mut answer)).await {
                received?;
            }
        }
    };
    let outcome: std::io::Result<()> = asking.await;
    if !outcome.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused) {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_families_take_turns() {
        let parse = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let got = in_turn(parse(&["[::1]:1", "[::2]:1", "[::1]:1", "127.0.0.1:1"]).into_iter());
        assert_eq!(got, parse(&["[::1]:1", "127.0.0.1:1", "[::2]:1"]));
        assert_eq!(in_turn(std::iter::empty()), []);
    }
}

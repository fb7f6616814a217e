//! QUIC with this fabric's sockets, settings and TLS, and nothing on top of it: what benches measure the fabric against.
//!
//! Not for programs: what speaks through this speaks no HTTP/3, though the handshake says so.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::client::ConnectError;
use super::endpoint::{TransportConfig, endpoint};
use super::server::ServerError;
use super::tls::{Anchors, Identity, Trust};

/// An endpoint that accepts connections, set up as [`Server`](super::Server) sets up those of clients on this machine.
/// Must be called within a tokio runtime.
pub fn listen(
    address: SocketAddr,
    identity: &Identity,
    transport: &TransportConfig,
) -> Result<quinn::Endpoint, ServerError> {
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(identity.server_config()?));
    config.transport_config(transport.quinn(address, transport.streams));
    endpoint(address, transport, Some((identity, config))).map_err(|source| ServerError::Bind { address, source })
}

/// A connection set up as [`Connector`](super::Connector) sets up its own, and the endpoint it lives on.
/// Must be called within a tokio runtime.
pub async fn connect(
    address: SocketAddr,
    trust: &Trust,
    transport: &TransportConfig,
) -> Result<(quinn::Endpoint, quinn::Connection), ConnectError> {
    let failed = |reason: String| ConnectError::Failed {
        host: address.ip().to_string(),
        port: address.port(),
        address,
        elapsed: std::time::Duration::ZERO,
        reason,
    };
    let (crypto, _) = Anchors::new(trust)?.client_config()?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport.quinn(address, 0));
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let endpoint = endpoint(any, transport, None).map_err(|error| failed(error.to_string()))?;
    let connecting = endpoint.connect_with(config, address, "localhost").map_err(|error| failed(error.to_string()))?;
    let connection = connecting.await.map_err(|error| failed(error.to_string()))?;
    Ok((endpoint, connection))
}

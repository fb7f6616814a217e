//! HTTP/3 over QUIC, both ends.
//!
//! The `h3` crate does the protocol (control streams, settings, QPACK, heads); the payload passes it by: our own
//! implementation of its QUIC traits (`quic`) lets us write and read DATA frames on the quinn streams directly, so that
//! a lease's bytes reach quinn without a copy, and an answer's bytes are copied once, into the lease.
//!
//! - [`tls`]: who is who.
//! - [`endpoint`]: sockets, windows, congestion control, and what all that may hold in memory.
//! - [`server`]: accepts connections and calls an [`exchange::Handler`](crate::exchange::Handler).
//! - [`client`]: connects, asks, and is a [`Link`](crate::link::Link).

#[doc(hidden)]
pub mod bare;
pub mod client;
pub mod endpoint;
mod frames;
mod halves;
mod quic;
pub mod server;
mod socket;
pub mod tls;

pub use client::{Connection, Connector, H3Link};
pub use endpoint::{Congestion, TransportConfig};
pub use server::{Server, ServerConfig};
pub use tls::{Fingerprint, Identity, Trust};

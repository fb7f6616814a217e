//! HTTP/3, both ends, over real sockets on loopback.

mod interop;
mod link;
mod server;
mod shutdown;
mod support;
mod trust;

//! Samples by RDMA: the server writes them straight into the client's pool.
//!
//! | module | holds | must not hold |
//! | --- | --- | --- |
//! | [`frame`] | what a client sends, and the 32 bits that an answer ends with (pure) | verbs |
//! | [`table`] | what a server's answer says: entries, or a problem (pure) | verbs |
//! | [`hello`] | what connecting says (pure) | verbs |
//! | [`offer`] | what a server answers to who asks for a ticket | verbs |
//! | [`tickets`] | who may connect: the clock is passed in | verbs, clocks |
//! | `library` | what rdma-core's libraries export, looked up when first needed | what is done with it |
//! | `device` | devices, ports and their addresses, as they are now | connections |
//! | [`client`] | a connection as a link | what a sample is |
//! | [`server`] | lets clients in, and answers what they ask | what a sample is |
//! | `area` | what both ends keep in registered memory | what it means |
//! | `manager` | how queues of two machines are connected | what they carry |
//! | `queue` | a queue pair and its completions, with one owner | what its work is for |
//! | `memory` | what devices may touch: domains, registrations, windows | what is in it |
//!
//! From `library` on they are built on Linux with feature `rdma`. The others always are, so that a program without verbs knows
//! the bytes as well, and tests of them need no device.

#[cfg(all(feature = "rdma", target_os = "linux"))]
mod area;
#[cfg(all(feature = "rdma", target_os = "linux"))]
pub mod client;
#[cfg(all(feature = "rdma", target_os = "linux"))]
pub mod device;
pub mod frame;
pub mod hello;
#[cfg(all(feature = "rdma", target_os = "linux"))]
mod library;
#[cfg(all(feature = "rdma", target_os = "linux"))]
mod manager;
#[cfg(all(feature = "rdma", target_os = "linux"))]
mod memory;
pub mod offer;
#[cfg(all(feature = "rdma", target_os = "linux"))]
mod queue;
#[cfg(all(feature = "rdma", target_os = "linux"))]
pub mod server;
pub mod table;
pub mod tickets;

#[cfg(all(test, feature = "rdma", target_os = "linux"))]
mod device_tests;
#[cfg(all(test, feature = "rdma", target_os = "linux"))]
mod link_tests;
#[cfg(all(test, feature = "rdma", target_os = "linux"))]
mod queue_tests;
#[cfg(all(test, feature = "rdma", target_os = "linux"))]
mod rude_tests;

//! Samples by RDMA: the server writes them straight into the client's pool.
//!
//! | module | holds | must not hold |
//! | --- | --- | --- |
//! | [`frame`] | what a client sends, and the 32 bits that an answer ends with (pure) | verbs |
//! | [`table`] | what a server's answer says: entries, or a problem (pure) | verbs |
//! | [`hello`] | what connecting says (pure) | verbs |
//! | [`tickets`] | who may connect: the clock is passed in | verbs, clocks |
//!
//! These are always built, so that a program without verbs knows the bytes as well, and tests of them need no device.

pub mod frame;
pub mod hello;
pub mod table;
pub mod tickets;

//! Serves samples out of shards as they lie.
//!
//! | module | holds | must not hold |
//! | --- | --- | --- |
//! | [`mod@format`] | readers of shard formats (pure) | I/O |
//! | [`catalog`] | which samples there are, where their bytes lie, and the version of it all | sockets |
//! | [`store`] | how bytes get from storage into leases | what a sample is |
//! | [`serve`] | requests and answers | who waits on the other end |
//! | [`local`] | the same for a client in this process, without a server | copies |
//! | [`pack`] | from a folder of files to shards | |
//! | `remote` (a feature) | objects of other stores: what is where, and their bytes | what a sample is, leases |
//! | [`publish`] | from shards to a served dataset | policy |
//! | [`metrics`] | figures of a running server | |

pub mod catalog;
pub mod format;
pub mod local;
pub mod metrics;
pub mod pack;
pub mod publish;
#[cfg(feature = "remote")]
pub mod remote;
pub mod serve;
pub mod store;

//! What both ends of Forebay share.
//!
//! | module | holds | must not hold |
//! | --- | --- | --- |
//! | [`link`] | the seam every fabric stands behind | anything that names a fabric |
//! | [`dial`] | how a client comes by a link, of whichever fabric | anything that names a fabric |
//! | [`exchange`] | a request and its answer, whatever carries them | streams, sockets |
//! | [`pool`] | the slab of pinned memory, its leases and views, the ledger | I/O, clocks |
//! | [`wire`] | the bytes of requests and answers, and the JSON of descriptions (pure) | sockets |
//! | [`place`] | where a group's entries lie in a lease (pure) | I/O |
//! | [`h3`] | HTTP/3 over QUIC: both ends of the fabric, TLS | samples' meaning, catalogs |
//! | [`rdma`] | samples by RDMA: what both ends say to each other | samples' meaning, catalogs |
//! | [`reply`] | answers given once between threads and tasks, without an allocation for each | what is answered |
//! | `uring` | reads from files into leases by io_uring (feature `uring`, on Linux) | what is in the files |
//! | [`sim`] | a seeded simulated link under virtual time, and a delay line for real sockets | |

pub mod dial;
pub mod exchange;
pub mod h3;
pub mod link;
pub mod place;
pub mod pool;
pub mod rdma;
pub mod reply;
pub mod sim;
#[cfg(all(feature = "uring", target_os = "linux"))]
pub mod uring;
pub mod wire;

pub use link::Version;

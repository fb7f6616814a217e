//! How bytes get from storage into leases.
//!
//! - [`Store`]: the trait; [`Read`], [`ReadDone`], [`ReadError`]: what goes in and comes out.
//! - [`PreadStore`]: shards that are files of this machine, read by a pool of threads.
//! - [`coalesce`]: which reads to make for which extents (pure).
//! - [`Faulty`]: a store that fails where it is told to, for tests of whoever uses one.

mod coalesce;
#[doc(hidden)]
pub mod conformance;
mod fault;
mod files;
mod pread;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;

use forebay_transport::pool::Lease;

pub use coalesce::{DEFAULT_GAP, coalesce};
pub use fault::{Fault, Faulty};
pub use pread::{PreadConfig, PreadStore};

/// One contiguous read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Index in the list of shards the store was made with.
    pub shard: u32,
    /// Byte offset in the shard.
    pub offset: u64,
    /// Bytes to read. 0 reads nothing, but the shard is checked all the same.
    pub len: usize,
    /// Where in the lease the bytes go.
    pub at: usize,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The shard is not the one that was indexed: nothing read from it may be used.
    #[error("shard {shard} changed on disk: {detail}")]
    Changed { shard: String, detail: String },
    #[error("cannot read {len} bytes at {offset} of shard {shard}: {source}")]
    Io { shard: String, offset: u64, len: usize, source: std::io::Error },
    /// The read is not one of this store's shards, or of this lease: whoever asked is wrong, not the storage.
    #[error("{0:?} is out of bounds")]
    OutOfBounds(Read),
    #[error("the store is closed")]
    Closed,
}

/// The end of a batch of reads: the lease comes back whatever happened.
#[derive(Debug)]
pub struct ReadDone {
    pub lease: Lease,
    /// The reads as they were given, handed back so that their memory can be used again.
    pub reads: Vec<Read>,
    /// One failure fails the batch: what else lies in the lease is then not to be used.
    pub result: Result<(), ReadError>,
}

/// What [`Store::read`] returns.
pub type Reading<'a> = Pin<Box<dyn Future<Output = ReadDone> + Send + 'a>>;

/// Storage that holds a fixed list of shards.
pub trait Store: Send + Sync {
    /// Fills the lease, from when the future is first polled. Dropping the future loses the lease to no writer: the
    /// store owns it until its reads are done, and then gives it back to the slab.
    fn read(&self, reads: Vec<Read>, lease: Lease) -> Reading<'_>;
}

impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    fn read(&self, reads: Vec<Read>, lease: Lease) -> Reading<'_> {
        (**self).read(reads, lease)
    }
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn read(&self, reads: Vec<Read>, lease: Lease) -> Reading<'_> {
        (**self).read(reads, lease)
    }
}

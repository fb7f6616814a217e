//! How bytes get from storage into leases.

use std::future::Future;
use std::pin::Pin;

use forebay_transport::pool::Lease;

/// One contiguous read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Index in the list of shards the store was made with.
    pub shard: u32,
    /// Byte offset in the shard.
    pub offset: u64,
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
    #[error("the store is closed")]
    Closed,
}

/// The end of a batch of reads: the lease comes back whatever happened.
#[derive(Debug)]
pub struct ReadDone {
    pub lease: Lease,
    /// The reads, handed back so that their memory can be used again.
    pub reads: Vec<Read>,
    /// One failure fails the batch: what else lies in the lease is then not to be used.
    pub result: Result<(), ReadError>,
}

/// Storage that holds a fixed list of shards.
pub trait Store: Send + Sync {
    /// Fills the lease. Dropping the future loses the lease to no writer: the store owns it until its reads are done,
    /// and then gives it back to the slab.
    fn read(&self, reads: Vec<Read>, lease: Lease) -> Pin<Box<dyn Future<Output = ReadDone> + Send + '_>>;
}

//! How bytes get from storage into leases.
//!
//! - [`Store`]: the trait; [`Read`], [`ReadDone`], [`ReadError`]: what goes in and comes out; [`Space`]: memory for that.
//! - [`LocalStores`]: makes stores of shards that are files of this machine, read by io_uring where that is possible.
//! - [`PreadStore`]: the same by a pool of threads.
//! - [`Stores`]: the same wherever shards lie: `RemoteStore` (feature `remote`) reads objects elsewhere, by ranges.
//! - [`coalesce`]: which reads to make for which extents (pure).
//! - [`Faulty`]: a store that fails where it is told to, for tests of whoever uses one.

mod coalesce;
#[doc(hidden)]
pub mod conformance;
mod elsewhere;
mod fault;
mod files;
mod local;
#[cfg(feature = "remote")]
mod object;
mod pread;
#[cfg(test)]
mod tests;
#[cfg_attr(not(all(feature = "uring", target_os = "linux")), path = "no_uring.rs")]
mod uring;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_transport::pool::Lease;
use tokio_util::sync::ReusableBoxFuture;

pub use coalesce::{DEFAULT_GAP, coalesce, coalesce_aligned};
pub use elsewhere::{RemoteConfig, Stores};
pub use fault::{Fault, Faulty};
pub use local::{Direct, Io, LocalConfig, LocalError, LocalStores, Refusal};
#[cfg(feature = "remote")]
pub use object::RemoteStore;
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
    #[error("shard {shard} changed: {detail}")]
    Changed { shard: String, detail: String },
    #[error("cannot read {len} bytes at {offset} of shard {shard}: {source}")]
    Io { shard: String, offset: u64, len: usize, source: std::io::Error },
    /// The read is not one of this store's shards, or of this lease: whoever asked is wrong, not the storage.
    #[error("{0:?} is out of bounds")]
    OutOfBounds(Read),
    /// Storage has not answered. The lease that comes back is an empty one in the place of that which was given: storage may
    /// still write to that, so it is set aside until it cannot.
    #[error("no answer from storage for {after:?}, reading {len} bytes at {offset} of shard {shard}")]
    Overdue { shard: String, offset: u64, len: usize, after: Duration },
    #[error("the store is closed")]
    Closed,
}

/// The end of a batch of reads.
#[derive(Debug)]
pub struct ReadDone {
    /// The lease that was given, whatever happened, except with [`ReadError::Overdue`].
    pub lease: Lease,
    /// The reads as they were given, handed back so that their memory can be used again.
    pub reads: Vec<Read>,
    /// One failure fails the batch: what else lies in the lease is then not to be used.
    pub result: Result<(), ReadError>,
}

/// What [`Store::read`] returns.
pub type Reading<'a> = Pin<Box<dyn Future<Output = ReadDone> + Send + 'a>>;

/// The memory of one batch of reads under way, for whoever makes one after the other: a future that is set anew by
/// [`Store::read_in`], and allocates only when it does not fit where the last one was.
pub struct Space(ReusableBoxFuture<'static, ReadDone>);

impl Space {
    pub fn new() -> Space {
        Space(ReusableBoxFuture::new(std::future::pending()))
    }

    /// `reading` instead of what is there, which is dropped.
    pub fn set(&mut self, reading: impl Future<Output = ReadDone> + Send + 'static) {
        self.0.set(reading);
    }
}

impl Default for Space {
    fn default() -> Space {
        Space::new()
    }
}

/// The reads set last. It is not to be polled again once they are done.
impl Future for Space {
    type Output = ReadDone;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ReadDone> {
        self.0.poll(cx)
    }
}

/// Storage that holds a fixed list of shards.
pub trait Store: Send + Sync + 'static {
    /// Fills the lease, from when the future is first polled. Dropping the future loses the lease to no writer: the
    /// store owns it until its reads are done, and then gives it back to the slab.
    fn read(&self, reads: Vec<Read>, lease: Lease) -> Reading<'_>;

    /// The same, in memory that is used again. Poll `space` for its end.
    fn read_in(self: Arc<Self>, reads: Vec<Read>, lease: Lease, space: &mut Space) {
        space.set(async move { self.read(reads, lease).await });
    }

    /// Reads whose `offset`, `len` and `at` are all multiples of this many bytes, a power of two, are the cheapest: nothing of
    /// theirs need be copied. All others are served too. 1 when it makes no difference, which is the default.
    fn align(&self) -> usize {
        1
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn read(&self, reads: Vec<Read>, lease: Lease) -> Reading<'_> {
        (**self).read(reads, lease)
    }

    fn read_in(self: Arc<Self>, reads: Vec<Read>, lease: Lease, space: &mut Space) {
        S::read_in(Arc::clone(&self), reads, lease, space);
    }

    fn align(&self) -> usize {
        (**self).align()
    }
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn read(&self, reads: Vec<Read>, lease: Lease) -> Reading<'_> {
        (**self).read(reads, lease)
    }

    fn align(&self) -> usize {
        (**self).align()
    }
}

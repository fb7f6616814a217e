//! Why a loader ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_transport::link::LinkError;

/// Why a loader ended before its plan did.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// A sample could not be had.
    #[error("{0}")]
    Fetch(Box<FetchError>),
    /// More samples were given up than `on_error` allows; the last of them.
    #[error("more than {max} samples were skipped; the last: {last}")]
    TooManySkipped { max: u64, last: Box<FetchError> },
    /// The server no longer has the version that was planned on. Nothing of the new one was delivered.
    #[error("dataset {dataset} changed on {server}: {detail}")]
    DatasetChanged { dataset: Arc<str>, server: Arc<str>, detail: String },
    /// The pool has no room for the next batch.
    #[error("{0}")]
    PoolExhausted(Box<PoolExhausted>),
    /// Nothing arrived for `stall_timeout` while the consumer waited.
    #[error("no progress on dataset {dataset} from {server} over {fabric} for {elapsed:?}: {cause}")]
    Stalled { dataset: Arc<str>, server: Arc<str>, fabric: Arc<str>, elapsed: Duration, cause: String },
}

/// A sample that could not be had, and all that is known about why.
#[derive(Clone, Debug, thiserror::Error)]
pub struct FetchError {
    pub dataset: Arc<str>,
    /// The shard that holds the sample, if the description told.
    pub shard: Option<Arc<str>>,
    pub epoch: u64,
    pub position: u64,
    pub ordinal: u64,
    pub server: Arc<str>,
    pub fabric: Arc<str>,
    /// Attempts made.
    pub attempts: u32,
    /// Since it was first asked for.
    pub elapsed: Duration,
    pub reason: Reason,
}

/// What went wrong with the last attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    #[error("the bytes do not match their CRC-32C")]
    Corrupt,
    #[error("the server could not read it from its storage")]
    Storage,
    /// The server does not place it though the lease has what it said it needs.
    #[error("the server does not place it: {needed} bytes needed, {given} given")]
    NotPlaced { needed: u64, given: u64 },
    /// The answer has another number of entries than the request asked for.
    #[error("the answer has {got} entries instead of {wanted}")]
    Entries { got: usize, wanted: usize },
    #[error("{0}")]
    Link(LinkError),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sample {} of dataset {}", self.ordinal, self.dataset)?;
        if let Some(shard) = &self.shard {
            write!(f, " (shard {shard})")?;
        }
        write!(
            f,
            ", position {} of epoch {}, from {} over {}: {} ({} attempts in {:?})",
            self.position, self.epoch, self.server, self.fabric, self.reason, self.attempts, self.elapsed
        )
    }
}

/// The pool has no room for the next batch, and who has the memory. All figures in bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PoolExhausted {
    pub dataset: Arc<str>,
    /// What the loader may hold at most: its account's limit or the slab's capacity.
    pub pool: u64,
    /// The contiguous memory that was wanted.
    pub needed: u64,
    /// What the whole batch needs, as far as its samples' lengths are known.
    pub batch: u64,
    /// Held by this loader for the batch itself.
    pub held: u64,
    /// Held by batches and samples that the consumer keeps.
    pub consumer: u64,
    /// Held by others of the same slab.
    pub others: u64,
    /// Free, and the longest contiguous run of it: their difference is fragmentation.
    pub free: u64,
    pub longest_free: u64,
    /// The (epoch, step) of batches of which the consumer keeps at least one sample; the oldest 16.
    pub kept: Vec<(u64, u64)>,
    /// How long was waited; 0 when waiting cannot help.
    pub waited: Duration,
}

impl fmt::Display for PoolExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the pool of {} bytes has no room for the next batch of dataset {}: it needs {} bytes in one piece ({} for \
             the whole batch)",
            self.pool, self.dataset, self.needed, self.batch
        )?;
        if self.consumer > 0 {
            write!(f, "; {} bytes are held by batches that the consumer keeps", self.consumer)?;
            for (at, (epoch, step)) in self.kept.iter().enumerate() {
                write!(f, "{}{epoch}/{step}", if at == 0 { " (epoch/step " } else { ", " })?;
            }
            if !self.kept.is_empty() {
                f.write_str(")")?;
            }
        }
        if self.others > 0 {
            write!(f, "; {} bytes are held by others of the same pool", self.others)?;
        }
        write!(f, "; {} bytes are free, at most {} in one piece", self.free, self.longest_free)?;
        if !self.waited.is_zero() {
            write!(f, "; waited {:?}", self.waited)?;
        }
        Ok(())
    }
}

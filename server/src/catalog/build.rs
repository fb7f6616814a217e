//! Building the index.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::{Dataset, SourceFile};
use crate::format::FormatError;

/// What to index, and how.
#[derive(Clone, Debug)]
pub struct BuildRequest {
    /// The dataset's name, for errors and descriptions.
    pub name: String,
    /// The shards, in order: see [`resolve`](super::resolve).
    pub sources: Vec<SourceFile>,
    /// The index file. Its folder must exist and be writable; it is never the data's folder.
    pub index: PathBuf,
    /// Threads that read shards. Default: as many as there are cores. Each holds a buffer of 2 MiB and one shard's records.
    pub threads: usize,
    /// Leave damaged shards out, which makes another version, instead of failing. Default false.
    pub skip_damaged: bool,
    /// How long to wait for another process that is building the same index. Default: without end.
    pub lock_wait: Option<Duration>,
}

impl BuildRequest {
    pub fn new(name: &str, sources: Vec<SourceFile>, index: PathBuf) -> BuildRequest {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        BuildRequest { name: name.to_owned(), sources, index, threads, skip_damaged: false, lock_wait: None }
    }
}

/// How far a build is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of shards that need not be read any more.
    pub bytes_done: u64,
    pub bytes_total: u64,
    pub shards_done: usize,
    pub shards_total: usize,
    /// Damaged shards found so far.
    pub damaged: usize,
}

/// How a build is watched and stopped.
#[derive(Clone, Copy)]
pub struct Monitor<'a> {
    /// Called from the building threads about every 2 MiB read and after each shard.
    pub progress: &'a (dyn Fn(&Progress) + Sync),
    /// Set it to end the build soon, with [`BuildError::Cancelled`].
    pub cancel: &'a AtomicBool,
}

/// One damaged shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {shard}: {error}")]
pub struct Damage {
    pub shard: String,
    pub error: FormatError,
}

/// A dataset ready to be served, and what it took.
#[derive(Debug)]
pub struct Built {
    pub dataset: Dataset,
    /// Bytes read from shards; the rest was known from an earlier index.
    pub bytes_read: u64,
    /// Shards left out, with `skip_damaged`.
    pub skipped: Vec<Damage>,
    /// Why an earlier index was thrown away, if one was.
    pub discarded: Option<String>,
}

/// Why there is no index.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    #[error("dataset {dataset}: indexing was cancelled")]
    Cancelled { dataset: String },
}

/// Makes the index of a dataset, reading only what an earlier index does not know.
pub fn build(request: &BuildRequest, monitor: Monitor<'_>) -> Result<Built, BuildError> {
    let _ = monitor;
    todo!("{}", request.name)
}

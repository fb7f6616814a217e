//! Why a build fails.

use std::io;
use std::path::PathBuf;

use crate::catalog::LockError;
use crate::format::FormatError;

/// One damaged shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {shard}: {error}")]
pub struct Damage {
    pub shard: String,
    pub error: FormatError,
}

/// Why there is no index.
///
/// What was learnt of intact shards is kept in the index all the same, so that the next build does not read them again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    #[error("dataset {dataset}: indexing was cancelled")]
    Cancelled { dataset: String },
    /// In the dataset's order; never empty.
    #[error("dataset {dataset}: {}", list(damage))]
    Damaged { dataset: String, damage: Vec<Damage> },
    #[error("dataset {dataset}: cannot read shard {shard} at byte {offset}: {source}")]
    Read { dataset: String, shard: String, offset: u64, source: io::Error },
    #[error("dataset {dataset}: shard {shard} changed while it was being indexed")]
    Changed { dataset: String, shard: String },
    #[error("dataset {dataset}: more than {limit} different field names, with those of shard {shard}")]
    TooManyFields { dataset: String, shard: String, limit: usize },
    #[error("dataset {dataset}: cannot write its index {path}: {source}")]
    Write { dataset: String, path: PathBuf, source: io::Error },
    #[error("dataset {dataset}: cannot read its index {path}: {source}")]
    Open { dataset: String, path: PathBuf, source: io::Error },
    #[error(
        "dataset {dataset}: its index {path} has format {format}, which a newer program wrote: use that program, or \
         keep the index elsewhere"
    )]
    Future { dataset: String, path: PathBuf, format: u32 },
    #[error("dataset {dataset}: cannot lock its index {path}: {error}")]
    Locked { dataset: String, path: PathBuf, error: LockError },
}

fn list(damage: &[Damage]) -> String {
    const NAMED: usize = 3;
    let mut text = damage.iter().take(NAMED).map(Damage::to_string).collect::<Vec<_>>().join("; ");
    if damage.len() > NAMED {
        text.push_str(&format!("; and {} damaged shards more", damage.len() - NAMED));
    }
    text
}

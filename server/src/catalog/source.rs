//! From what the user says to an ordered list of shards.

use std::path::PathBuf;

/// One shard as the user named it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceFile {
    /// Relative to the dataset's root.
    pub name: String,
    pub path: PathBuf,
}

/// Why a dataset's shards cannot be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    #[error("{spec}: nothing matches")]
    Nothing { spec: String },
}

/// Lists the shards that `spec` names.
pub fn resolve(spec: &str) -> Result<Vec<SourceFile>, SourceError> {
    todo!("{spec}")
}

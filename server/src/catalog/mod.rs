//! Which samples there are, where their bytes lie, and the version of it all.
//!
//! From what a user says to a dataset that can be served: [`resolve`] lists the shards, [`build`] makes or reuses the
//! index, and the [`Dataset`] it returns answers where each field of each sample lies. All of it blocks: call it from a
//! thread that may.

mod build;
mod dataset;
mod fingerprint;
mod index;
mod portable;
mod source;
mod synthetic;
mod verify;

use std::path::PathBuf;

pub use build::{BuildError, BuildRequest, Built, Damage, Depth, Monitor, Progress, build, ready};
pub use dataset::{CatalogError, Dataset, FieldStats, Sample, SampleExtent, Shard};
pub use fingerprint::Fingerprint;
pub use index::{FORMAT, LockError};
pub use portable::{EXTENSION, beside, headers_of, open, provisional, root};
pub use source::{SourceError, SourceFile, resolve};
#[doc(hidden)]
pub use synthetic::synthesize;
pub use verify::{Rot, RotProblem, RottenField, Verified, VerifyError, verify};

/// What tells that a file on disk is still the one that was indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub size: u64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub inode: u64,
}

impl Identity {
    /// Whether `file` can be taken for a copy of the file this was, by what copies keep: its size and the time of its last
    /// change. Their bytes are not compared; the CRC of each field is, when it is read.
    pub fn is_copy_of(&self, file: &Identity) -> bool {
        self.size == file.size && self.mtime_ns == file.mtime_ns
    }

    /// The identity of the file that `metadata` describes.
    pub fn of(metadata: &std::fs::Metadata) -> Identity {
        use std::os::unix::fs::MetadataExt;
        // Years beyond 2262 saturate: still the same for the same file.
        let ns = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        Identity {
            size: metadata.len(),
            mtime_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            ctime_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
        }
    }
}

/// A shard's file on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFile {
    /// Relative to the dataset's root; what the fingerprint covers.
    pub name: String,
    pub path: PathBuf,
    pub identity: Identity,
}

/// Where one field of one sample lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Index in the dataset's list of shards.
    pub shard: u32,
    /// Byte offset in the shard.
    pub offset: u64,
    pub len: u64,
    pub crc: Option<u32>,
}

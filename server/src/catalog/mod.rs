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

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use build::{BuildError, BuildRequest, Built, Damage, Depth, Monitor, Progress, build, ready};
pub use dataset::{CatalogError, Dataset, FieldStats, Sample, SampleExtent, Shard};
pub use fingerprint::Fingerprint;
pub use index::{FORMAT, LockError};
#[cfg(feature = "remote")]
pub(crate) use index::{MAGIC, memory};
#[cfg(feature = "remote")]
pub(crate) use portable::shards_of;
pub use portable::{EXTENSION, beside, headers_of, open, open_at, provisional, root};
pub use source::{Found, SourceError, SourceFile, find, is_url, resolve};
#[cfg(feature = "remote")]
pub(crate) use source::{LIMIT, TooMany, expand};
#[doc(hidden)]
pub use synthetic::synthesize;
pub use verify::{Rot, RotProblem, RottenField, Verified, VerifyError, verify};

/// Where a shard lies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A file of this machine: its absolute path.
    File(PathBuf),
    /// An object of a store elsewhere: its URL, as `s3://bucket/key` or `https://host/path`.
    Object(Arc<str>),
}

impl Place {
    /// The path, of a file of this machine.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Place::File(path) => Some(path),
            Place::Object(_) => None,
        }
    }

    /// What `text` names: a URL an object, all else a file.
    pub fn of(text: &Path) -> Place {
        match text.to_str().filter(|text| is_url(text)) {
            Some(url) => Place::Object(url.into()),
            None => Place::File(text.to_owned()),
        }
    }

    /// The path, or the URL in the place of one: for messages.
    fn to_path(&self) -> PathBuf {
        match self {
            Place::File(path) => path.clone(),
            Place::Object(url) => PathBuf::from(&**url),
        }
    }

    pub fn is_object(&self) -> bool {
        self.file().is_none()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => path.display().fmt(f),
            Place::Object(url) => f.write_str(url),
        }
    }
}

impl From<PathBuf> for Place {
    fn from(path: PathBuf) -> Place {
        Place::File(path)
    }
}

impl From<&Path> for Place {
    fn from(path: &Path) -> Place {
        Place::File(path.to_owned())
    }
}

/// What tells that a shard is still the one that was indexed.
///
/// Of an object there is no inode and no ctime: `mtime_ns` is when it was last modified (whole seconds; 0 where its server
/// does not tell), and `ctime_ns` and `inode` are a hash of its entity tag (0 without one).
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
        let second = |ns: i64| ns.div_euclid(1_000_000_000);
        let whole = |ns: i64| ns.rem_euclid(1_000_000_000) == 0;
        // Over HTTP times are told in whole seconds.
        let close = (whole(self.mtime_ns) || whole(file.mtime_ns)) && second(self.mtime_ns) == second(file.mtime_ns);
        self.size == file.size && (self.mtime_ns == file.mtime_ns || close)
    }

    /// The identity of an object. `modified` is in seconds since 1970.
    pub fn of_object(size: u64, modified: Option<i64>, tag: Option<&str>) -> Identity {
        let mtime_ns = modified.unwrap_or(0).saturating_mul(1_000_000_000);
        let Some(tag) = tag else { return Identity { size, mtime_ns, ctime_ns: 0, inode: 0 } };
        let hash = blake3::hash(tag.as_bytes());
        let half = |at: usize| <[u8; 8]>::try_from(&hash.as_bytes()[at..at + 8]).expect("a hash has 32 bytes");
        Identity { size, mtime_ns, ctime_ns: i64::from_le_bytes(half(0)), inode: u64::from_le_bytes(half(8)) }
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

/// A shard: a file of this machine, or an object of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFile {
    /// Relative to the dataset's root; what the fingerprint covers.
    pub name: String,
    pub place: Place,
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

//! Which samples there are, where their bytes lie, and the version of it all.

use std::path::PathBuf;

/// What tells that a file on disk is still the one that was indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub size: u64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub inode: u64,
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

//! Readers of shard formats. Pure: bytes in, members out.
//!
//! A shard is read once, front to back, in pieces of any size: [`tar::TarReader`] finds the members in it and
//! [`webdataset::Grouper`] makes samples of them. Neither allocates what a header claims.

pub mod tar;
pub mod webdataset;

use std::fmt;

/// Why a shard cannot be indexed, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {problem}")]
pub struct FormatError {
    /// Byte offset in the shard of the header (or, without one, the byte) that is wrong.
    pub offset: u64,
    pub problem: Problem,
}

/// What is wrong with a shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    #[error("the file is empty, which is not a tar: an empty tar has blocks of zeros")]
    Empty,
    #[error("this is no tar: its first 512 bytes are not a tar header")]
    NotTar,
    #[error(
        "the shard is compressed ({0}); samples are served from where they lie, which needs an uncompressed tar: \
         unpack it with `{unpack}`", unpack = .0.unpack()
    )]
    Compressed(Compression),
    #[error("truncated: the shard ends within a header")]
    TruncatedHeader,
    #[error(
        "{name:?} has {size} bytes from byte {data} on, but the shard ends at byte {end}: it is truncated, or its header lies"
    )]
    PastEnd { name: String, data: u64, size: u64, end: u64 },
    #[error("the shard ended at byte {end}, before the {expected} bytes that it should have")]
    Short { end: u64, expected: u64 },
    #[error("bad header checksum: this is garbage, or the header is damaged")]
    Checksum,
    #[error("the header's {field} is not a number")]
    Number { field: &'static str },
    #[error("the header's size is negative or beyond 2^63")]
    Size,
    #[error("an extended header of {size} bytes; more than {limit} is not read")]
    ExtendedTooLong { size: u64, limit: u64 },
    #[error("more than {limit} extended headers before one member")]
    ExtendedTooMany { limit: usize },
    #[error("malformed PAX header: {0}")]
    Pax(&'static str),
    #[error("an extended header with no member after it")]
    Dangling,
    #[error(
        "{name:?} is stored as a sparse file ({how}), whose bytes do not lie together: write the tar again without --sparse"
    )]
    Sparse { name: String, how: &'static str },
    #[error("{name:?} gives its sample a second field {field:?} (field names are lower-cased)")]
    DuplicateField { name: String, field: String },
    #[error("{name:?} would be a field {field:?}, a name that the webdataset package keeps for itself")]
    ReservedField { name: String, field: String },
    #[error("the field name of {name:?} is not UTF-8")]
    FieldName { name: String },
    #[error(
        "more than {limit} different field names, the latest {field:?}: everything after the first dot of a file's name is \
         the field's name"
    )]
    TooManyFields { limit: usize, field: String },
}

/// How a file is compressed, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    Gzip,
    Bzip2,
    Xz,
    Lzma,
    Zstd,
    Lz4,
    Compress,
}

impl Compression {
    /// Which compression `first`, a file's first bytes, tell of.
    pub fn sniff(first: &[u8]) -> Option<Compression> {
        const MAGICS: [(&[u8], Compression); 8] = [
            (b"\x1f\x8b", Compression::Gzip),
            (b"BZh", Compression::Bzip2),
            (b"\xfd7zXZ\0", Compression::Xz),
            (b"\x5d\0\0", Compression::Lzma),
            (b"\x28\xb5\x2f\xfd", Compression::Zstd),
            (b"\x04\x22\x4d\x18", Compression::Lz4),
            (b"\x02\x21\x4c\x18", Compression::Lz4),
            (b"\x1f\x9d", Compression::Compress),
        ];
        MAGICS.iter().find(|(magic, _)| first.starts_with(magic)).map(|(_, compression)| *compression)
    }

    fn unpack(self) -> &'static str {
        match self {
            Compression::Gzip | Compression::Compress => "gzip -d",
            Compression::Bzip2 => "bzip2 -d",
            Compression::Xz | Compression::Lzma => "xz -d",
            Compression::Zstd => "zstd -d",
            Compression::Lz4 => "lz4 -d",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::Gzip => "gzip",
            Compression::Bzip2 => "bzip2",
            Compression::Xz => "xz",
            Compression::Lzma => "lzma",
            Compression::Zstd => "zstd",
            Compression::Lz4 => "lz4",
            Compression::Compress => "compress",
        })
    }
}

/// A name for an error message: readable, and not longer than a message should be.
fn show(name: &[u8]) -> String {
    const LONGEST: usize = 200;
    let mut text = String::from_utf8_lossy(&name[..name.len().min(LONGEST)]).into_owned();
    if name.len() > LONGEST {
        text.push('…');
    }
    text
}

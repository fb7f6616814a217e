//! Why bytes are refused.

/// What is wrong with bytes that came from a peer, or with a request that is to be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    #[error("not a Forebay message: it does not begin with the magic bytes")]
    Magic,
    #[error("wire version {0} is not spoken here")]
    Version(u16),
    #[error("flags {0:#06x} are unknown")]
    Flags(u16),
    #[error("reserved bytes are not zero")]
    Reserved,
    #[error("the message ends in mid-{0}")]
    Truncated(&'static str),
    #[error("bytes follow the end of the message")]
    Trailing,
    #[error("an integer is not in its shortest form")]
    Varint,
    #[error("{what} is {value}, and must be between {min} and {max}")]
    Range { what: &'static str, value: u64, min: u64, max: u64 },
    #[error("extension {0:#06x} must be understood and is not")]
    Extension(u16),
    #[error("record kind {0:#04x} is unknown")]
    Record(u8),
    #[error("failure code {0} is unknown")]
    Failure(u8),
    #[error("the answer has {got} entries where {asked} were asked for")]
    Entries { got: u64, asked: u64 },
    #[error("entries {first} to {last} are not among the {entries} asked for")]
    NoSuchEntry { first: u64, last: u64, entries: u64 },
    #[error("entry {0} is answered twice")]
    Repeated(u64),
    #[error("entry {0} is taken back and was not sent")]
    NotSent(u64),
    #[error("entry {0} is not answered")]
    Unanswered(u64),
    #[error("entry {entry} lies at {offset}, {len} bytes long, outside a lease of {capacity} bytes")]
    OutOfBounds { entry: u64, offset: u64, len: u64, capacity: u64 },
    #[error("entry {entry} lies at {offset}, which is not aligned")]
    Misaligned { entry: u64, offset: u64 },
    #[error("entry {entry} overlaps bytes placed before")]
    Overlap { entry: u64 },
    #[error("the answer sums up to {got} {what}, and says {said}")]
    Totals { what: &'static str, got: u64, said: u64 },
}

//! Readers of shard formats. Pure: bytes in, members out.

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
    #[error("truncated")]
    Truncated,
}

//! Readers of shard formats. Pure: bytes in, members out.

//! The bytes that travel, as `docs/WIRE.md` describes them. Pure: slices in, values out, and back.

pub mod describe;

/// The oldest wire version this build speaks.
pub const WIRE_MIN: u16 = 1;
/// The newest wire version this build speaks.
pub const WIRE_MAX: u16 = 1;
/// The most ordinals in one group.
pub const MAX_ORDINALS: usize = 65_536;
/// The most fields in one request.
pub const MAX_FIELDS: usize = 256;
/// The most bytes a request may have.
pub const MAX_REQUEST: usize = 1 << 20;
/// The most payload bytes in one DATA frame, and the most a server reads for one answer at a time.
pub const MAX_CHUNK: usize = 1 << 20;
/// Where entries begin in a lease: multiples of a cache line.
pub const ALIGN: u64 = 64;

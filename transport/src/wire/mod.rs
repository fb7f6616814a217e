//! The bytes that travel, as `docs/WIRE.md` describes them. Pure: slices in, values out, and back.
//!
//! | module | holds |
//! | --- | --- |
//! | [`date`] | dates, as HTTP writes them |
//! | [`describe`] | the JSON documents of the control routes |
//! | [`problem`] | the kinds of problem documents, and what they mean to a client |
//! | [`request`] | the body of a fetch |
//! | [`answer`] | the records of its answer, written by a server |
//! | [`decode`] | the same records, read by a client from pieces of any size |

pub mod answer;
pub mod date;
pub mod decode;
pub mod describe;
mod error;
pub mod problem;
pub mod request;
mod varint;

pub use decode::{AnswerDecoder, Step};
pub use error::WireError;
pub use request::{FetchBody, FetchRequest, Ordinals};

/// The oldest wire version this build speaks.
pub const WIRE_MIN: u16 = 1;
/// The newest wire version this build speaks.
pub const WIRE_MAX: u16 = 1;
/// The most ordinals in one group.
pub const MAX_ORDINALS: usize = 65_536;
/// Ordinals are below this: one bit is left for the sign of a difference, one for a flag.
pub const MAX_ORDINAL: u64 = 1 << 62;
/// The most fields in one request.
pub const MAX_FIELDS: usize = 256;
/// The most entries (ordinals times fields) in one request.
pub const MAX_ENTRIES: usize = 1 << 20;
/// The most bytes a request may have.
pub const MAX_REQUEST: usize = 1 << 20;
/// The most payload bytes in one DATA frame, and the most a server reads for one answer at a time.
pub const MAX_CHUNK: usize = 1 << 20;
/// Where entries begin in a lease: multiples of a cache line.
pub const ALIGN: u64 = 64;

/// Content type of the body of a fetch.
pub const TYPE_FETCH: &str = "application/vnd.forebay.fetch";
/// Content type of the answer to a fetch.
pub const TYPE_GROUP: &str = "application/vnd.forebay.group";
/// Content type of the control routes' documents.
pub const TYPE_JSON: &str = "application/json";
/// Content type of one field's bytes.
pub const TYPE_BYTES: &str = "application/octet-stream";
/// Header of every answer that comes from a dataset: its version, `b3-…`.
pub const HEADER_VERSION: &str = "forebay-version";
/// Header of a field's bytes: their CRC-32C, eight hexadecimal digits, where it is known.
pub const HEADER_CRC: &str = "forebay-crc32c";

/// A dataset's name as one segment of a path (RFC 3986, section 3.3).
pub(crate) fn path_segment(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_segments_of_a_path() {
        assert_eq!(path_segment("imagenet-1k_v1.0~"), "imagenet-1k_v1.0~");
        assert_eq!(path_segment("a/b ?#é"), "a%2Fb%20%3F%23%C3%A9");
    }
}

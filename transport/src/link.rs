//! The seam between what wants samples and what carries them.
//!
//! A [`Link`] is one live path between a client and a server, of one fabric, shaped as a completion queue: operations go
//! in by [`submit`](Link::submit) until the link gives one back, and each accepted one comes out of
//! [`poll`](Link::poll) exactly once, in any order. In between the link *owns* the operation's lease: nobody else can
//! read, write, drop or reuse that memory, and the link hands it back only when nothing can still write to it.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::pool::Lease;

/// What identifies the bytes of a dataset: BLAKE3 over its shards' names and content digests, in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub [u8; 32]);

/// How a provisional version ends.
const PROVISIONAL: [u8; 8] = *b"deferred";

impl Version {
    /// The form people and URLs see: `b3-` and 64 hexadecimal digits, or `hdr-` and 48 of a provisional version.
    pub fn parse(text: &str) -> Option<Version> {
        if let Some(digits) = text.strip_prefix("hdr-").filter(|digits| digits.len() == 48) {
            let padded = blake3::Hash::from_hex(format!("{digits}{:016x}", 0)).ok()?;
            return Some(Version(*padded.as_bytes()).provisional());
        }
        let hash = blake3::Hash::from_hex(text.strip_prefix("b3-")?).ok()?;
        Some(Version(*hash.as_bytes()))
    }

    /// Whether the shards' headers only were read to make it: it stands for which files they are, not for their bytes,
    /// and gives way to another one once those have been read.
    pub fn is_provisional(&self) -> bool {
        self.0.ends_with(&PROVISIONAL)
    }

    /// The provisional version made of this hash: the first 24 bytes of it, and a mark.
    pub fn provisional(mut self) -> Version {
        self.0[24..].copy_from_slice(&PROVISIONAL);
        self
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = blake3::Hash::from_bytes(self.0).to_hex();
        match self.is_provisional() {
            true => write!(f, "hdr-{}", &hex[..48]),
            false => write!(f, "b3-{hex}"),
        }
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Names an operation between submission and completion. Chosen by the submitter; never reused while in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// A field's index in the list of fields of the dataset's description. Stable for a version.
pub type FieldId = u16;

/// A group of samples wanted in one lease.
#[derive(Debug)]
pub struct Fetch {
    pub tag: Tag,
    /// The dataset's name on the server.
    pub dataset: Arc<str>,
    /// The bytes wanted are of this version and no other.
    pub version: Version,
    /// Which samples, in the order in which the entries are answered. Never empty.
    pub ordinals: Vec<u64>,
    /// Which fields of each, in the order in which the entries are answered. Never empty.
    pub fields: Arc<[FieldId]>,
    /// Where the bytes go. Its length is the capacity told to the server.
    pub lease: Lease,
    /// Empty: memory for the entries of the answer, which a completion hands back in them. It may be of no capacity.
    pub entries: Vec<Entry>,
    /// How long the operation may go without progress before it completes with [`LinkError::Deadline`].
    /// Progress of the link as a whole counts, so that a large sample, or a queue on a thin wire, is no failure.
    pub deadline: Duration,
}

/// The one end of an accepted operation.
#[derive(Debug)]
pub struct Completion {
    pub tag: Tag,
    /// The lease, free of any writer.
    pub lease: Lease,
    /// The operation's ordinals, handed back so that their memory can be used again.
    pub ordinals: Vec<u64>,
    /// One entry per (sample, field), sample by sample: entry `s * fields + f`. Bounds are checked: an
    /// [`Status::Ok`] entry lies within the lease and overlaps no other.
    pub result: Result<Vec<Entry>, LinkError>,
}

/// What became of one field of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub status: Status,
    /// Where in the lease the bytes begin. 0 unless `status` is `Ok`.
    pub offset: u64,
    /// The field's length in bytes: what was placed if `Ok`, what it needs if `NotPlaced`, else 0.
    pub len: u64,
    /// The CRC-32C taken when the shard was indexed; absent while an index is still being completed.
    /// The link does not check it: that is done once, for every fabric, by the client.
    pub crc: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The bytes are in the lease.
    Ok,
    /// The sample has no such field.
    Absent,
    /// The lease was too small; `len` says what the field needs. Everything before it in the request was placed.
    NotPlaced,
    Failed(Failure),
}

/// Why one entry failed while the operation as a whole did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The server could not read the bytes from its storage.
    Storage,
    /// What arrived does not match its CRC-32C. Never sent by a server: found by the client.
    Corrupt,
}

/// Why a whole operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    #[error("cancelled")]
    Cancelled,
    /// No progress for the operation's deadline.
    #[error("no progress for {0:?}")]
    Deadline(Duration),
    /// The path is gone; every operation in flight ends so.
    #[error("connection lost: {0}")]
    Closed(String),
    /// The server no longer has the version asked for.
    #[error("the dataset changed on the server: {0}")]
    DatasetChanged(String),
    /// The server is too busy; ask again, not before the given time.
    #[error("the server is busy")]
    Busy { retry_after: Option<Duration> },
    /// The server understood and refused; asking again will not help.
    #[error("refused with status {status}: {detail}")]
    Refused { status: u16, detail: String },
    /// The server failed (5xx); asking again may help.
    #[error("server error {status}: {detail}")]
    Server { status: u16, detail: String },
    /// The peer's bytes make no sense.
    #[error("protocol error: {0}")]
    Protocol(String),
}

impl LinkError {
    /// Whether the same request may succeed when it is made again.
    pub fn is_retryable(&self) -> bool {
        match self {
            LinkError::Deadline(_) | LinkError::Closed(_) | LinkError::Busy { .. } | LinkError::Server { .. } => true,
            // A damaged answer is worth one more try: the attempt limit bounds it.
            LinkError::Protocol(_) => true,
            LinkError::Cancelled | LinkError::DatasetChanged(_) | LinkError::Refused { .. } => false,
        }
    }
}

/// One live path between a client and a server.
///
/// The contract, checked for every fabric by [`conformance`](crate::sim):
/// - an operation is either given back by `submit` or completes exactly once, also after `cancel` and after the path dies;
/// - the lease in a completion is the operation's own, and nothing writes to it any more;
/// - `cancel` of an unknown or completed tag does nothing;
/// - a dead link gives back every submission and never completes anything that was not in flight.
pub trait Link: Send {
    /// Takes the operation, or gives it back when the link's window is full or the path is dead
    /// ([`is_alive`](Link::is_alive) tells which).
    #[allow(clippy::result_large_err)]
    fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch>;
    /// Rings the bell, once for all that was submitted since the last time.
    fn flush(&mut self);
    /// Ends an operation early. It still completes, once: with [`LinkError::Cancelled`], or as it did.
    fn cancel(&mut self, tag: Tag);
    /// The next completion. `Pending` while operations are in flight, or when none are.
    /// After a `Pending` that followed a give-back, the waker is also woken when the window has room again.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion>;
    /// Whether the path may still carry new operations.
    fn is_alive(&self) -> bool;
    /// What the path knows about itself.
    fn stats(&self) -> LinkStats;
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        (**self).submit(fetch)
    }

    fn flush(&mut self) {
        (**self).flush();
    }

    fn cancel(&mut self, tag: Tag) {
        (**self).cancel(tag);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        (**self).poll(cx)
    }

    fn is_alive(&self) -> bool {
        (**self).is_alive()
    }

    fn stats(&self) -> LinkStats {
        (**self).stats()
    }
}

/// Figures of a link, for reports and for choosing windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkStats {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Operations accepted and not yet completed.
    pub in_flight: usize,
    /// Payload bytes received since the link was made.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn versions_are_what_they_say() {
        let final_one = Version([0xab; 32]);
        let provisional = final_one.provisional();
        assert!(provisional.is_provisional() && !final_one.is_provisional());
        assert_eq!(provisional.to_string(), format!("hdr-{}", "ab".repeat(24)));
        for version in [final_one, provisional] {
            assert_eq!(Version::parse(&version.to_string()), Some(version));
        }
        for bad in
            ["", "hdr-", "b3-ab", "hdr-xy", &format!("hdr-{}", "ab".repeat(32)), &format!("b3-{}", "ab".repeat(24))]
        {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
    }
}

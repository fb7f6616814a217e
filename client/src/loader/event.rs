//! What goes into the machine and what comes out.

use std::time::Duration;

use forebay_transport::link::{Completion, Fetch, LinkStats, Tag};

use super::{Batch, LoaderError};

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// An operation of this machine ended. The driver has checked the CRCs: an entry that does not match is
    /// `Status::Failed(Failure::Corrupt)` (its `len` may stay).
    Completed(Completion),
    /// The link gave a submission back. It is submitted again after [`Room`](Event::Room), a completion, or
    /// [`LinkUp`](Event::LinkUp).
    Refused(Fetch),
    /// The link has room for submissions again.
    Room,
    /// There is a path to the server. Until the first of these nothing is submitted.
    LinkUp,
    /// There is none any more, and why. Operations in flight still complete, as `LinkError::Closed`.
    LinkDown(String),
    /// What the link knows about itself. Sent about once a second: its byte count is what shows that a large sample on a
    /// thin wire makes progress, and its round trip is used in notes.
    Stats(LinkStats),
    /// Memory of the slab was given back (see `Slab::poll_returned`).
    MemoryReturned,
    /// The consumer takes this many more batches. A delivered batch is out of the machine's hands: its memory cannot be
    /// used for anything else until it is dropped, so a deep queue costs pool.
    Want(u32),
    /// Whether the consumer is waiting now. Timeouts run only while it does.
    ConsumerWaiting(bool),
    /// The time asked for by [`Action::WakeAt`] has come.
    Tick,
    /// Somebody else needs memory: gives back what is held ahead of need, and asks for no more for a while.
    Relinquish,
    /// Ends the machine: everything in flight is cancelled, and when all of it has completed [`Action::Ended`] follows.
    Close,
}

/// What is to be done, in this order.
#[derive(Debug)]
pub enum Action {
    /// Submit it to a link; if that gives it back, say so with [`Event::Refused`].
    Submit(Fetch),
    /// Flush the links that got submissions.
    Flush,
    /// Cancel it on the link that took it.
    Cancel(Tag),
    /// The next batch.
    Deliver(Batch),
    /// Every batch of every epoch has been delivered.
    Finished,
    /// The loader ends with an error. No batch follows.
    Fail(LoaderError),
    /// Nothing of this machine is in flight any more: it can be dropped. The last action of every machine.
    Ended,
    /// Send [`Event::Tick`] at this time; replaces the time asked for before.
    WakeAt(Duration),
    /// The next batch needs this much contiguous memory, and what is in the way is not this machine's: other loaders of
    /// the same slab can be asked to [`Relinquish`](Event::Relinquish). Said once per wait.
    Starved { bytes: u64 },
    /// Something worth a line in the log.
    Note(Note),
}

/// Something worth a line in the log, but nothing to act on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// Memory limits the speed of this path: the pool, or what the transport may hold if that is less, once a round trip.
    /// Said once, when the path comes near that.
    PoolLimits { pool: u64, rtt: Duration, bytes_per_second: f64 },
    /// A sample was given up and its position filled with another one.
    Skipped { epoch: u64, position: u64, ordinal: u64, reason: String },
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Note::PoolLimits { pool, rtt, bytes_per_second } => {
                let (rate, unit) = if *bytes_per_second >= 1e9 {
                    (bytes_per_second / 1e9, "GB/s")
                } else {
                    (bytes_per_second / 1e6, "MB/s")
                };
                let rtt = rtt.as_secs_f64() * 1e3;
                write!(f, "{} MiB limits this path to {rate:.1} {unit} at {rtt:.0} ms", pool >> 20)
            }
            Note::Skipped { epoch, position, ordinal, reason } => {
                write!(f, "skipped sample {ordinal} (epoch {epoch}, position {position}): {reason}")
            }
        }
    }
}

//! Figures of a running server: plain counters, read as a snapshot.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_transport::pool::{Slab, Usage};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the server started.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: Counter,)*
        }

        /// The counts at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Metrics {
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Requests of any kind.
    requests,
    /// Groups whose answer was finished.
    groups,
    /// Samples in them that were placed.
    samples,
    /// Payload bytes handed to the transport: of groups and of single fields.
    bytes,
    /// Bytes asked of storage: payload, and what lies between neighbours.
    bytes_read,
    /// Answers with a status from 400 to 499 other than 412.
    refused,
    /// Requests for a version that is not served (412), and answers broken off because it changed.
    changed,
    /// Requests that found no memory in time.
    busy,
    /// Entries that storage could not give.
    failed_entries,
    /// Answers with a status of 500 and above other than those that count as `busy`, and answers broken off for a fault
    /// of ours.
    failed,
    /// Answers whose client went away or stopped reading.
    abandoned,
    /// Tickets given out for RDMA.
    tickets,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: u64) {
        // Figures order nothing else.
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn one(&self) {
        self.add(1);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a server did and holds at one moment. Its text is the line logged at shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub counts: Counts,
    pub pool: Usage,
}

impl Metrics {
    pub fn snapshot(&self, slab: &Slab) -> Snapshot {
        Snapshot { counts: self.counts(), pool: slab.usage() }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { requests, groups, samples, bytes, bytes_read, refused, changed, busy, .. } = self.counts;
        let Counts { failed_entries, failed, abandoned, tickets, .. } = self.counts;
        let Usage { capacity, free, leases, .. } = self.pool;
        write!(
            f,
            "{requests} requests, {groups} groups, {samples} samples, {bytes} bytes sent, {bytes_read} bytes read; "
        )?;
        write!(f, "{refused} refused, {changed} changed, {busy} busy, {failed} failed, {abandoned} abandoned, ")?;
        write!(
            f,
            "{failed_entries} unreadable entries, {tickets} tickets for RDMA; pool: {} of {capacity} bytes in {leases} leases",
            capacity - free
        )
    }
}

//! What a place has asked, and how far its answer is.

use std::time::{Duration, Instant};

use super::super::memory::Window;
use crate::link::{Completion, Entry, Fetch, LinkError, Tag};
use crate::pool::Lease;

/// A place for one operation at a time: its frame, its table, its window.
pub(super) struct Place {
    /// Of the next operation, or of the one that is open.
    pub(super) generation: u32,
    pub(super) operation: Option<Operation>,
    /// What opens the lease; `None` where the whole pool is open.
    pub(super) window: Option<Window>,
    /// A cancellation is not answered.
    pub(super) cancelling: bool,
    /// It is among the free ones.
    pub(super) resting: bool,
}

/// Who waits for the answer.
pub(super) enum Asked {
    Fetch {
        tag: Tag,
        ordinals: Vec<u64>,
    },
    /// The connection itself.
    Echo,
}

impl Asked {
    pub(super) fn tag(&self) -> Tag {
        match self {
            Asked::Fetch { tag, .. } => *tag,
            Asked::Echo => Tag(u64::MAX),
        }
    }
}

/// What the server was asked and may write for.
pub(super) struct Operation {
    pub(super) asked: Asked,
    pub(super) lease: Lease,
    /// Memory for the entries of the answer, then these.
    pub(super) entries: Vec<Entry>,
    /// How many there must be.
    pub(super) count: usize,
    pub(super) deadline: Duration,
    pub(super) begun: Instant,
    /// Its frame is sent.
    pub(super) sent: bool,
    /// What the answer says. The entries are apart.
    pub(super) result: Option<Result<(), LinkError>>,
    /// Nobody can write to the lease any more.
    pub(super) shut: bool,
    /// Nobody waits for it any more: why, since when, and whether the server was told.
    pub(super) given_up: Option<LinkError>,
    pub(super) given_up_at: Option<Instant>,
    pub(super) told: bool,
}

impl Operation {
    pub(super) fn new(asked: Asked, lease: Lease, entries: Vec<Entry>, count: usize, deadline: Duration) -> Operation {
        Operation {
            asked,
            lease,
            entries,
            count,
            deadline,
            begun: Instant::now(),
            sent: false,
            result: None,
            shut: false,
            given_up: None,
            given_up_at: None,
            told: false,
        }
    }

    pub(super) fn of(fetch: Fetch) -> Operation {
        let Fetch { tag, ordinals, fields, lease, entries, deadline, .. } = fetch;
        let count = ordinals.len() * fields.len();
        Operation::new(Asked::Fetch { tag, ordinals }, lease, entries, count, deadline)
    }

    /// From now on the server may end it with a problem. The first reason counts.
    pub(super) fn give_up(&mut self, why: LinkError, now: Instant) {
        if self.result.is_none() && self.given_up.is_none() {
            self.given_up = Some(why);
            self.given_up_at = Some(now);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.sent && self.shut && self.result.is_some()
    }

    /// Hands everything back. What has no result was never asked.
    pub(super) fn complete(self) -> Completion {
        let tag = self.asked.tag();
        let ordinals = match self.asked {
            Asked::Fetch { ordinals, .. } => ordinals,
            Asked::Echo => Vec::new(),
        };
        let result = self.result.unwrap_or(Err(LinkError::Cancelled)).map(|()| self.entries);
        Completion { tag, lease: self.lease, ordinals, result }
    }
}

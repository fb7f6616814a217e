//! What a place has asked, and how far its answer is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::frame::Target;
use super::super::memory::Window;
use crate::link::{Completion, Entry, Fetch, FieldId, LinkError, Status, Tag, Version};
use crate::pool::Lease;
use crate::wire::ALIGN;

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
        version: Version,
        ordinals: Vec<u64>,
        fields: Arc<[FieldId]>,
    },
    /// The connection itself, with what the bytes are made of.
    Echo {
        nonce: u64,
    },
}

impl Asked {
    pub(super) fn tag(&self) -> Tag {
        match self {
            Asked::Fetch { tag, .. } => *tag,
            Asked::Echo { .. } => Tag(u64::MAX),
        }
    }
}

/// What the server was asked and may write for.
pub(super) struct Operation {
    pub(super) asked: Asked,
    pub(super) lease: Lease,
    /// As the server knows it.
    pub(super) target: Target,
    /// Memory for the entries of the answer, then these.
    pub(super) entries: Vec<Entry>,
    /// A fetch may take several frames, one after the other. How many of the ordinals are answered, and how many entries the
    /// frame asks for that is under way.
    pub(super) answered: usize,
    pub(super) count: usize,
    /// What the answers take of the lease from its beginning on.
    used: u64,
    /// Something did not fit: nothing that follows is placed.
    full: bool,
    pub(super) deadline: Duration,
    pub(super) begun: Instant,
    /// Its frame is sent.
    pub(super) sent: bool,
    /// A frame is answered, and the next one not written.
    pub(super) more: bool,
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
    pub(super) fn new(asked: Asked, lease: Lease, mut entries: Vec<Entry>, deadline: Duration) -> Operation {
        entries.clear();
        Operation {
            asked,
            lease,
            target: Target::default(),
            entries,
            answered: 0,
            count: 0,
            used: 0,
            full: false,
            deadline,
            begun: Instant::now(),
            sent: false,
            more: false,
            result: None,
            shut: false,
            given_up: None,
            given_up_at: None,
            told: false,
        }
    }

    pub(super) fn of(fetch: Fetch) -> Operation {
        let Fetch { tag, version, ordinals, fields, lease, entries, deadline, .. } = fetch;
        Operation::new(Asked::Fetch { tag, version, ordinals, fields }, lease, entries, deadline)
    }

    /// The part of the lease that the next frame is about.
    pub(super) fn rest(&self) -> Target {
        match self.target.capacity.saturating_sub(self.used) {
            0 => Target::default(),
            _ if self.full => Target::default(),
            capacity => Target { address: self.target.address + self.used, capacity, ..self.target },
        }
    }

    /// The entries from `from` on are the answer to a frame about [`rest`](Operation::rest). Whether there is more to ask.
    pub(super) fn take(&mut self, from: usize) -> bool {
        let (base, mut used, full) = (self.used, self.used, self.full);
        for entry in &mut self.entries[from..] {
            match entry.status {
                // What takes no room fits anywhere, but not behind something that did not.
                Status::Ok if full => {
                    *entry = Entry { status: Status::NotPlaced, offset: 0, len: entry.len, crc: None };
                }
                Status::Ok if entry.len > 0 => {
                    entry.offset += base;
                    used = used.max(entry.offset + entry.len);
                }
                Status::NotPlaced => self.full = true,
                _ => {}
            }
        }
        self.used = used.next_multiple_of(ALIGN);
        match &self.asked {
            Asked::Fetch { ordinals, fields, .. } => {
                self.answered += self.count / fields.len().max(1);
                self.answered < ordinals.len()
            }
            Asked::Echo { .. } => false,
        }
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
            Asked::Echo { .. } => Vec::new(),
        };
        let result = self.result.unwrap_or(Err(LinkError::Cancelled)).map(|()| self.entries);
        Completion { tag, lease: self.lease, ordinals, result }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{Account, Slab, SlabConfig};

    fn entry(status: Status, offset: u64, len: u64) -> Entry {
        Entry { status, offset, len, crc: None }
    }

    #[test]
    fn parts_lie_one_behind_the_other_until_one_does_not_fit() {
        let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(4096) }).unwrap();
        let lease = slab.try_lease(&Account::new("test", 4096), 300).unwrap();
        let asked =
            Asked::Fetch { tag: Tag(1), version: Version([0; 32]), ordinals: (0..8).collect(), fields: [0].into() };
        let mut operation = Operation::new(asked, lease, Vec::new(), Duration::MAX);
        (operation.target, operation.count) = (Target { address: 1000, key: 5, capacity: 300 }, 2);
        let answer = |operation: &mut Operation, entries: [Entry; 2]| {
            let from = operation.entries.len();
            operation.entries.extend(entries);
            operation.take(from)
        };
        assert!(answer(&mut operation, [entry(Status::Ok, 0, 10), entry(Status::Ok, 64, 70)]));
        assert_eq!(operation.rest(), Target { address: 1192, key: 5, capacity: 108 });
        assert!(answer(&mut operation, [entry(Status::Ok, 0, 10), entry(Status::NotPlaced, 0, 60)]));
        assert_eq!(operation.rest(), Target::default());
        assert!(answer(&mut operation, [entry(Status::Ok, 0, 0), entry(Status::NotPlaced, 0, 9)]));
        assert!(!answer(&mut operation, [entry(Status::Absent, 0, 0), entry(Status::NotPlaced, 0, 9)]));
        let expected = [
            entry(Status::Ok, 0, 10),
            entry(Status::Ok, 64, 70),
            entry(Status::Ok, 192, 10),
            entry(Status::NotPlaced, 0, 60),
            entry(Status::NotPlaced, 0, 0),
            entry(Status::NotPlaced, 0, 9),
            entry(Status::Absent, 0, 0),
            entry(Status::NotPlaced, 0, 9),
        ];
        assert_eq!(operation.entries, expected);
    }
}

//! What the machine holds ahead of the consumer: consecutive samples of an epoch, and what became of each.

use std::time::Duration;

use forebay_transport::pool::View;

use super::FetchError;
use super::batch::Cell;

/// A length that is not known.
pub(super) const UNKNOWN: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// To be asked for.
    Missing,
    /// In an operation in flight.
    Flying,
    /// In this part of the segment.
    Placed(u32),
    /// Given up: to be filled with another sample.
    Skipped,
    /// Given up: the loader ends when its batch is next.
    Dead,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub ordinal: u64,
    /// Bytes of lease that its fields need, or [`UNKNOWN`].
    pub need: u64,
    pub state: State,
    /// Attempts that failed.
    pub attempts: u32,
    /// Times it was first in a request of which nothing was placed.
    pub refusals: u32,
    /// Ask for it by itself.
    pub alone: bool,
    /// Stands in for the sample planned here.
    pub substitute: bool,
    /// How many samples were tried as substitutes.
    pub tried: u32,
}

/// A lease that has arrived.
#[derive(Debug)]
pub(super) struct Part {
    /// Until the last of its samples is delivered.
    pub view: Option<View>,
    /// Samples in it that are not delivered.
    pub live: u32,
    /// Whole frames.
    pub bytes: u64,
}

/// Consecutive indexes of one epoch, asked for together at first.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// Never used twice.
    pub id: u64,
    pub epoch: u64,
    /// Index of the first slot.
    pub first: u64,
    pub slots: Vec<Slot>,
    /// For each slot, each field.
    pub cells: Vec<Cell>,
    pub parts: Vec<Part>,
    /// How many slots are `Missing`, and how many `Flying`.
    pub missing: u32,
    pub flying: u32,
    /// Whether it has been asked for before.
    pub asked: bool,
    pub asked_at: Duration,
    /// What is missing is not asked for before this time.
    pub not_before: Duration,
    /// Failures in a row.
    pub failures: u32,
    /// The most samples in one request; halved when one fails as a whole.
    pub run_limit: u64,
    /// To be asked for in as few leases as possible.
    pub tight: bool,
    /// Slots that were given up, and why.
    pub faults: Vec<(u32, FetchError)>,
}

impl Segment {
    pub fn end(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Makes it an empty one at a new place, keeping its memory.
    pub fn reset(&mut self, id: u64, epoch: u64, first: u64) {
        let Segment { mut slots, mut cells, mut parts, mut faults, .. } = std::mem::take(self);
        slots.clear();
        cells.clear();
        parts.clear();
        faults.clear();
        *self = Segment { id, epoch, first, slots, cells, parts, faults, run_limit: u64::MAX, ..Segment::default() };
    }

    /// Adds a sample that is to be asked for.
    pub fn push(&mut self, ordinal: u64, fields: usize) {
        let state = State::Missing;
        let fresh =
            Slot { ordinal, need: UNKNOWN, state, attempts: 0, refusals: 0, alone: false, substitute: false, tried: 0 };
        self.slots.push(fresh);
        self.cells.resize(self.cells.len() + fields, None);
        self.missing += 1;
    }

    /// Changes a slot's state, and the counts with it.
    pub fn set(&mut self, slot: usize, state: State) {
        let before = std::mem::replace(&mut self.slots[slot].state, state);
        let count = |of: State| (u32::from(of == State::Missing), u32::from(of == State::Flying));
        let ((missing_before, flying_before), (missing, flying)) = (count(before), count(state));
        self.missing = self.missing - missing_before + missing;
        self.flying = self.flying - flying_before + flying;
    }

    /// Bytes of the leases that have arrived.
    pub fn ready_bytes(&self) -> u64 {
        self.parts.iter().filter(|part| part.view.is_some()).map(|part| part.bytes).sum()
    }

    /// The run of missing slots from the first one on that may be asked for together: (first, count, bytes known to be
    /// needed, samples of unknown length).
    pub fn next_run(&self, most_samples: u64, most_bytes: u64, mean: u64) -> Option<Run> {
        let first = self.slots.iter().position(|slot| slot.state == State::Missing)?;
        let mut run = Run { first, count: 0, known: 0, unknown: 0 };
        // To pack tightly, all lengths must be known: a request for everything tells those that do not fit.
        let probe =
            self.tight && self.slots[first..].iter().any(|slot| slot.state == State::Missing && slot.need == UNKNOWN);
        for slot in &self.slots[first..] {
            let full = run.count as u64 >= most_samples.min(self.run_limit);
            if slot.state != State::Missing || (run.count > 0 && (full || slot.alone)) {
                break;
            }
            let need = if slot.need == UNKNOWN { 0 } else { slot.need };
            let known = aligned(run.known).saturating_add(need);
            let unknown = run.unknown + u64::from(slot.need == UNKNOWN);
            // A fresh segment was cut to size when it was planned.
            let bytes = if known == 0 { 0 } else { known.saturating_add(unknown.saturating_mul(mean)) };
            if run.count > 0 && bytes > most_bytes && !probe {
                break;
            }
            run = Run { first, count: run.count + 1, known, unknown };
            if slot.alone {
                break;
            }
        }
        Some(run)
    }
}

impl Segment {
    /// The beginning of a run that fits into `bytes`, if all its lengths are known: at least one slot.
    pub fn cut(&self, run: Run, bytes: u64) -> Run {
        if run.unknown > 0 {
            return run;
        }
        let mut fits = Run { count: 0, known: 0, ..run };
        for slot in &self.slots[run.first..run.first + run.count] {
            let known = aligned(fits.known).saturating_add(slot.need);
            if fits.count > 0 && known > bytes {
                break;
            }
            fits = Run { count: fits.count + 1, known, ..fits };
        }
        fits
    }
}

/// Slots to be asked for together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub first: usize,
    pub count: usize,
    /// What those of known length need.
    pub known: u64,
    /// How many are of unknown length.
    pub unknown: u64,
}

/// `bytes`, up to where the next entry may begin.
pub(super) fn aligned(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(forebay_transport::wire::ALIGN).unwrap_or(u64::MAX)
}

//! Asking for samples, and what the answers mean for them.

use std::time::Duration;

use forebay_transport::link::{Entry, Failure, Fetch, Status, Tag};
use forebay_transport::pool::Lease;
use forebay_transport::wire::MAX_ORDINALS;

use super::machine::{Machine, Op};
use super::segment::{Part, Run, State, UNKNOWN, aligned};
use super::{Action, LoaderError, Reason};
use crate::fetch::{Class, classify};

/// Whether a request could be made.
pub(super) enum Asked {
    Yes,
    /// The window is full.
    Later,
    /// There is no memory.
    Short,
}

impl Machine {
    /// Submits again what the link gave back.
    pub(super) fn resubmit(&mut self, out: &mut Vec<Action>) {
        while !self.link_full && !self.refused.is_empty() {
            // All at once: those that it gives back again come back in order.
            out.extend(self.refused.drain(..).map(Action::Submit));
            self.unflushed = true;
        }
    }

    /// Asks for what is missing, in order, and for more behind it while memory and window allow.
    pub(super) fn request(&mut self, out: &mut Vec<Action>) -> Result<(), LoaderError> {
        let (mut at, mut waiting) = (0, 0);
        while !self.link_full {
            if at == self.ahead.len() && !(self.may_prefetch(waiting) && self.plan_segment()) {
                break;
            }
            let segment = &self.ahead[at];
            let Some(run) = self.run(at).filter(|_| self.now >= segment.not_before) else {
                waiting += usize::from(segment.missing > 0);
                at += 1;
                continue;
            };
            let head = self.is_head(segment);
            let asked = if head { self.ask_for_head(at, run, out)? } else { self.ask_ahead(at, run, out) };
            // Room for the head may have been made by packing all of it into one segment.
            at = at.min(self.ahead.len() - 1);
            match asked {
                // There may be another run in it.
                Asked::Yes => {}
                Asked::Later => break,
                Asked::Short => {
                    self.note_short(out);
                    break;
                }
            }
        }
        Ok(())
    }

    /// The next slots of a segment to be asked for together.
    pub(super) fn run(&self, at: usize) -> Option<Run> {
        let segment = &self.ahead[at];
        if segment.missing == 0 {
            return None;
        }
        let (samples, bytes) = match segment.tight {
            true => (MAX_ORDINALS as u64, self.source.max_group_bytes),
            false => (self.window.group_samples(), self.window.group_bytes()),
        };
        segment.next_run(samples, bytes, self.window.estimate(1))
    }

    /// Whether to plan one more segment, when `waiting` of them are to be asked for again later: those count as in
    /// flight, or a path on which everything fails would fill the queue without end.
    fn may_prefetch(&self, waiting: usize) -> bool {
        if !self.window.has_room(self.ops.len() - self.orphans + waiting, 0, 0) {
            return false;
        }
        let (epoch, index) = self.planned;
        let head = self.head.is_some_and(|head| head.epoch == epoch && index < head.end);
        // What the consumer waits for is needed whoever else wants memory.
        self.now >= self.hold || (head && self.waiting.is_some())
    }

    /// Bytes of lease for a run: exact where lengths are known, with slack where not.
    pub(super) fn capacity_for(&self, run: Run) -> u64 {
        let known = if run.unknown == 0 { run.known } else { aligned(run.known) };
        let bytes = known.saturating_add(if run.unknown == 0 { 0 } else { self.window.estimate(run.unknown) });
        // More than the server places for a group is of no use; a sample alone is placed whatever its size.
        let most = if run.count > 1 { self.source.max_group_bytes.max(1) } else { u64::MAX };
        bytes.min(most).max(1)
    }

    /// A lease's whole frames.
    pub(super) fn framed(&self, bytes: u64) -> u64 {
        bytes.max(1).checked_next_multiple_of(self.slab.frame() as u64).unwrap_or(u64::MAX)
    }

    pub(super) fn window_has_room(&self, bytes: u64) -> bool {
        let groups = self.ops.len() - self.orphans;
        self.window.has_room(groups, self.flying_bytes - self.orphan_bytes, bytes)
    }

    fn ask_ahead(&mut self, at: usize, run: Run, out: &mut Vec<Action>) -> Asked {
        let capacity = self.capacity_for(run);
        let bytes = self.framed(capacity);
        if !self.window_has_room(bytes) {
            return Asked::Later;
        }
        if self.available() < bytes.saturating_add(self.reserve()) {
            return Asked::Short;
        }
        match self.lease(capacity) {
            Some(lease) => {
                self.submit(at, run, lease, out);
                Asked::Yes
            }
            None => Asked::Short,
        }
    }

    pub(super) fn submit(&mut self, at: usize, run: Run, lease: Lease, out: &mut Vec<Action>) {
        let tag = Tag(u64::from(self.config.tag_prefix) << 48 | self.next_tag & 0xffff_ffff_ffff);
        self.next_tag += 1;
        let bytes = self.framed(lease.len() as u64);
        let mut ordinals = self.spare_ordinals.pop().unwrap_or_default();
        let entries = self.spare_entries.pop().unwrap_or_default();
        let segment = &mut self.ahead[at];
        for slot in run.first..run.first + run.count {
            ordinals.push(segment.slots[slot].ordinal);
            segment.set(slot, State::Flying);
        }
        if !std::mem::replace(&mut segment.asked, true) {
            segment.asked_at = self.now;
        }
        let op = Op {
            epoch: segment.epoch,
            index: segment.first,
            segment: segment.id,
            first: run.first,
            count: run.count,
            capacity: lease.len() as u64,
            bytes,
            submitted: self.now,
            orphan: false,
        };
        self.ops.insert(tag.0, op);
        self.flying_bytes += bytes;
        self.stats.submitted += 1;
        self.unflushed = true;
        let (dataset, fields) = (self.source.dataset.clone(), self.source.fields.clone());
        let (version, deadline) = (self.source.version, self.config.deadline);
        out.push(Action::Submit(Fetch { tag, dataset, version, ordinals, fields, lease, entries, deadline }));
    }

    /// An operation's answer for its samples.
    pub(super) fn arrived(&mut self, at: usize, op: &Op, entries: &[Entry], mut lease: Lease) {
        let fields = self.source.fields.len();
        let part = self.ahead[at].parts.len() as u32;
        let (mut live, mut used, mut failed) = (0, 0, false);
        for (within, entries) in entries.chunks_exact(fields).enumerate() {
            let slot = op.first + within;
            match outcome(entries, op.capacity) {
                Outcome::Placed { end, need } => {
                    let segment = &mut self.ahead[at];
                    segment.set(slot, State::Placed(part));
                    segment.slots[slot].need = need;
                    let cells = &mut segment.cells[slot * fields..][..fields];
                    for (cell, entry) in cells.iter_mut().zip(entries) {
                        *cell = (entry.status == Status::Ok).then_some((entry.offset as usize, entry.len as usize));
                    }
                    (live, used) = (live + 1, end.max(used));
                    self.window.learn(need);
                    self.stats.fetched += 1;
                }
                Outcome::NotPlaced { need } => {
                    self.ahead[at].slots[slot].need = need;
                    self.stats.unplaced += 1;
                    if within == 0 && live == 0 {
                        self.refused_to_place(at, slot, op.capacity);
                    } else {
                        self.ahead[at].set(slot, State::Missing);
                    }
                }
                Outcome::Failed { failure, need } => {
                    let reason = if failure == Failure::Storage { Reason::Storage } else { Reason::Corrupt };
                    match reason {
                        Reason::Storage => self.stats.storage += 1,
                        _ => self.stats.corrupt += 1,
                    }
                    self.cause = Some(format!("sample {}: {reason}", self.ahead[at].slots[slot].ordinal));
                    let state = &mut self.ahead[at].slots[slot];
                    state.alone = true;
                    state.need = if need == UNKNOWN { state.need } else { need };
                    self.try_again(at, slot, reason);
                    failed = true;
                }
            }
        }
        if live > 0 {
            // What lies behind the head may be dropped again: to get it over and over is no progress.
            if self.is_head(&self.ahead[at]) {
                self.progressed();
            }
            lease.shrink(used as usize);
            let bytes = self.framed(used);
            self.ready_bytes += bytes;
            self.ahead[at].parts.push(Part { view: Some(lease.freeze()), live, bytes });
        }
        if (live as usize) < op.count {
            // Lengths were learnt, or attempts used up: packing the head may now help where it did not.
            self.packed.1 = false;
        }
        self.set_back(at, failed.then_some(Duration::ZERO));
    }

    /// The first sample of a request was not placed, nor was any other: the lease was too small for it, or the server
    /// does not mean to.
    fn refused_to_place(&mut self, at: usize, slot: usize, capacity: u64) {
        let limit = self.config.retry.attempts.max(1) + 1;
        let segment = &mut self.ahead[at];
        let state = &mut segment.slots[slot];
        state.refusals += 1;
        state.alone = true;
        if state.refusals > limit {
            state.attempts = state.refusals;
            let reason = Reason::NotPlaced { needed: state.need, given: capacity };
            self.give_up(at, slot, reason);
        } else {
            segment.set(slot, State::Missing);
        }
    }

    /// An operation failed as a whole.
    pub(super) fn op_failed(&mut self, at: usize, op: &Op, reason: Reason, out: &mut Vec<Action>) {
        self.stats.failed += 1;
        self.cause = Some(reason.to_string());
        let class = match &reason {
            Reason::Link(error) => classify(error),
            _ => Class::Retry,
        };
        let slots = op.first..op.first + op.count;
        let delay = match class {
            Class::Retry => {
                let segment = &mut self.ahead[at];
                segment.run_limit = (op.count as u64 / 2).max(1);
                slots.for_each(|slot| self.try_again(at, slot, reason.clone()));
                Duration::ZERO
            }
            Class::Elsewhere => {
                slots.for_each(|slot| self.ahead[at].set(slot, State::Missing));
                Duration::ZERO
            }
            Class::Later(delay) => {
                self.lost = self.lost.saturating_add(u32::from(self.is_head(&self.ahead[at])));
                slots.for_each(|slot| self.ahead[at].set(slot, State::Missing));
                delay
            }
            Class::Fatal | Class::Changed(_) => {
                let error = LoaderError::Fetch(Box::new(self.fault(&self.ahead[at], op.first, reason)));
                out.push(Action::Fail(error));
                return self.close(out);
            }
        };
        self.stats.retried += op.count as u64;
        // What it was packed for did not come: meanwhile its room may have gone to others.
        self.packed.1 = false;
        self.set_back(at, Some(delay));
    }

    /// Uses up one of a slot's attempts.
    fn try_again(&mut self, at: usize, slot: usize, reason: Reason) {
        self.ahead[at].slots[slot].attempts += 1;
        if self.ahead[at].slots[slot].attempts >= self.config.retry.attempts {
            self.give_up(at, slot, reason);
        } else {
            if !matches!(reason, Reason::Link(_) | Reason::Entries { .. }) {
                self.stats.retried += 1;
            }
            self.ahead[at].set(slot, State::Missing);
        }
    }

    /// After an answer: how long to wait before asking for the rest.
    fn set_back(&mut self, at: usize, failed: Option<Duration>) {
        match failed {
            Some(least) => {
                self.ahead[at].failures += 1;
                let delay = self.backoff.delay(self.ahead[at].failures).max(least);
                self.ahead[at].not_before = self.now.saturating_add(delay);
            }
            None => {
                self.ahead[at].failures = 0;
                self.ahead[at].run_limit = u64::MAX;
            }
        }
    }

    /// Memory holds a submission back.
    fn note_short(&mut self, out: &mut Vec<Action>) {
        self.short = true;
        let pool = self.pool();
        if self.waiting.is_some() && self.flying_bytes - self.orphan_bytes >= pool / 2 {
            out.extend(self.limit.note(pool.min(self.config.path_bytes), self.link.rtt).map(Action::Note));
        }
    }
}

/// What became of a sample, all fields together.
enum Outcome {
    /// All fields that it has lie in the lease; the last byte used, and what they need elsewhere.
    Placed {
        end: u64,
        need: u64,
    },
    NotPlaced {
        need: u64,
    },
    Failed {
        failure: Failure,
        need: u64,
    },
}

fn outcome(entries: &[Entry], capacity: u64) -> Outcome {
    let lens = entries.iter().map(|entry| entry.len);
    let need = lens.fold(0, |need, len| if len == 0 { need } else { aligned(need).saturating_add(len) });
    let (mut end, mut unplaced) = (0, false);
    for entry in entries {
        match entry.status {
            Status::Failed(failure) => {
                // The length of a failed field may not be known.
                let need = if entry.len == 0 { UNKNOWN } else { need };
                return Outcome::Failed { failure, need };
            }
            Status::NotPlaced => unplaced = true,
            Status::Absent => {}
            Status::Ok => match entry.offset.checked_add(entry.len).filter(|&end| end <= capacity) {
                Some(last) => end = last.max(end),
                // The link promises bounds; a view beyond them would panic later, in the consumer's hands.
                None => return Outcome::Failed { failure: Failure::Corrupt, need: UNKNOWN },
            },
        }
    }
    if unplaced { Outcome::NotPlaced { need } } else { Outcome::Placed { end, need } }
}

//! Who gets memory: the head always, what is ahead of it while there is enough.
//!
//! When there is no room for the head's next request, in this order: a smaller lease that serves its beginning; the back
//! of the queue gives way; what is in flight comes back; the head's own leases are dropped and it is fetched again packed
//! tightly. If then only the consumer (or another loader) is in the way, its memory is waited for, with a timeout; if
//! nobody is, the batch does not fit.

use std::time::Duration;

use forebay_transport::pool::Lease;

use super::machine::{Machine, Phase};
use super::requests::Asked;
use super::segment::{Run, Segment, State, UNKNOWN, aligned};
use super::{Action, LoaderError, PoolExhausted};

/// The head waits for memory that only others can give back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    since: Duration,
    /// Contiguous bytes wanted.
    needed: u64,
    /// Whether others were asked to give way.
    starved: bool,
}

/// How often the head is packed again at most: a server that answers differently each time must not keep us busy.
const MAX_PACKED: u32 = 32;
/// How often of these while the consumer holds memory: each time costs a fetch, and may not help.
const MAX_PACKED_BESIDE: u32 = 8;
/// How long nothing is asked for ahead of need after another loader was starved.
const HOLD: Duration = Duration::from_secs(1);
/// The reserve's share of the pool at most.
const RESERVE_SHARE: u64 = 4;

impl Machine {
    /// The most this loader can hold.
    pub(super) fn pool(&self) -> u64 {
        let frame = self.slab.frame();
        self.slab.capacity().min(self.account.limit() / frame * frame) as u64
    }

    /// Bytes that could be leased now, if they were in one piece.
    pub(super) fn available(&self) -> u64 {
        self.slab.usage().free.min(self.account.limit().saturating_sub(self.account.held())) as u64
    }

    /// The longest lease that could be had now.
    fn longest(&self) -> u64 {
        let frame = self.slab.frame();
        let account = self.account.limit().saturating_sub(self.account.held()) / frame * frame;
        self.slab.usage().longest_free.min(account) as u64
    }

    /// What is kept free for the head.
    pub(super) fn reserve(&self) -> u64 {
        self.framed(aligned(self.source.largest_sample)).min(self.pool() / RESERVE_SHARE)
    }

    pub(super) fn lease(&self, bytes: u64) -> Option<Lease> {
        self.slab.try_lease(&self.account, usize::try_from(bytes).ok()?)
    }

    /// Bytes held by batches that the consumer keeps, and by others of the same slab.
    fn holders(&self) -> (u64, u64) {
        let held = self.account.held() as u64;
        let usage = self.slab.usage();
        let taken = (usage.capacity - usage.free) as u64;
        (held.saturating_sub(self.flying_bytes + self.ready_bytes), taken.saturating_sub(held))
    }

    pub(super) fn ask_for_head(
        &mut self,
        mut at: usize,
        mut run: Run,
        out: &mut Vec<Action>,
    ) -> Result<Asked, LoaderError> {
        loop {
            let need = self.ahead[at].slots[run.first].need;
            let least = if need == UNKNOWN { 1 } else { need.max(1) };
            if least > self.pool() {
                return Err(self.exhausted(least, Duration::ZERO));
            }
            let wanted = self.capacity_for(run).min(self.pool()).max(least);
            // What was asked for before is not held back again by what was asked for after it.
            if !self.ahead[at].asked && !self.window_has_room(self.framed(wanted)) {
                return Ok(Asked::Later);
            }
            let enough = if need == UNKNOWN { wanted.div_ceil(2) } else { least };
            if self.take(at, run, wanted, enough, out) {
                return Ok(Asked::Yes);
            }
            if self.make_room(wanted, out) {
                // From here on, anything that serves the beginning.
                if self.take(at, run, wanted, least, out) {
                    return Ok(Asked::Yes);
                }
                if self.ops.is_empty() {
                    if !self.pack() {
                        return self.wait_for_others(least, out).map(|()| Asked::Short);
                    }
                    (at, run) = match self.run(0) {
                        Some(run) => (0, run),
                        None => return Ok(Asked::Later),
                    };
                    continue;
                }
            }
            return Ok(Asked::Short);
        }
    }

    /// Submits the run with `wanted` bytes, or with what there is if that is at least `enough`.
    fn take(&mut self, at: usize, mut run: Run, wanted: u64, enough: u64, out: &mut Vec<Action>) -> bool {
        let mut lease = self.lease(wanted);
        if lease.is_none() {
            let longest = self.longest();
            if longest >= enough.max(1) {
                run = self.ahead[at].cut(run, longest);
                lease = self.lease(if run.unknown == 0 { run.known.max(1) } else { longest });
            }
        }
        let Some(lease) = lease else { return false };
        self.unblock();
        self.submit(at, run, lease, out);
        true
    }

    /// Takes memory from the back of the queue until `bytes` can be leased or are coming back. Whether that is all that
    /// can be done: nothing is left behind the head, and nothing cancelled is still in flight.
    fn make_room(&mut self, bytes: u64, out: &mut Vec<Action>) -> bool {
        let bytes = self.framed(bytes);
        loop {
            if self.longest() >= bytes {
                return true;
            }
            if self.orphans > 0 && self.available() + self.orphan_bytes >= bytes {
                return false;
            }
            if !self.evict(out) {
                return self.orphans == 0;
            }
        }
    }

    /// Drops the last segment, to be planned again, unless it is of the head.
    fn evict(&mut self, out: &mut Vec<Action>) -> bool {
        let Some(segment) = self.ahead.back().filter(|segment| !self.is_head(segment)) else { return false };
        self.planned = (segment.epoch, segment.first);
        let arrived = segment.slots.iter().filter(|slot| matches!(slot.state, State::Placed(_))).count();
        self.stats.evicted += arrived as u64;
        if let Some(segment) = self.ahead.pop_back() {
            self.drop_segment(segment, out);
        }
        true
    }

    /// Gives a segment's memory back: at once what has arrived, by cancelling what is in flight.
    pub(super) fn drop_segment(&mut self, mut segment: Segment, out: &mut Vec<Action>) {
        self.ready_bytes -= segment.ready_bytes();
        if segment.flying > 0 {
            let of_it = self.ops.iter_mut().filter(|(_, op)| op.segment == segment.id && !op.orphan);
            for (tag, op) in of_it {
                op.orphan = true;
                self.orphans += 1;
                self.orphan_bytes += op.bytes;
                if !self.refused.iter().any(|fetch| fetch.tag.0 == tag) {
                    out.push(Action::Cancel(forebay_transport::link::Tag(tag)));
                    if self.phase == Phase::Running {
                        self.stats.cancelled += 1;
                    }
                }
            }
            // What the link never took does not come back either.
            for fetch in std::mem::take(&mut self.refused) {
                if self.ops.get(fetch.tag.0).is_some_and(|op| op.orphan) {
                    self.forget(fetch.tag, fetch.lease);
                } else {
                    self.refused.push_back(fetch);
                }
            }
        }
        segment.reset(0, 0, 0);
        self.spare_segments.push(segment);
    }

    /// Another loader of the slab is starved: gives back what is not needed now.
    pub(super) fn relinquish(&mut self, out: &mut Vec<Action>) {
        self.hold = self.now + HOLD;
        while self.evict(out) {}
        let Some(head) = self.head.filter(|_| self.waiting.is_none()) else { return };
        // Nobody waits for the head either.
        while let Some(segment) = self.ahead.pop_back() {
            self.planned = (segment.epoch, segment.first.max(head.first));
            self.drop_segment(segment, out);
        }
    }

    /// Drops what the head holds, to fetch it again in as few leases as possible, without what was fetched with it for
    /// later batches. Whether there was reason to: nothing is in flight, nothing is behind the head.
    fn pack(&mut self) -> bool {
        let Some(head) = self.head else { return false };
        let (consumer, others) = self.holders();
        let alone = consumer == 0 && others == 0;
        let (count, clean) = self.packed;
        let most = if alone { MAX_PACKED } else { MAX_PACKED_BESIDE };
        let helps = if alone { !clean } else { self.available() + self.ready_bytes >= self.framed(self.head_need()) };
        if self.ready_bytes == 0 || count >= most || !helps {
            return false;
        }
        let fields = self.source.fields.len();
        let mut packed = self.spare_segments.pop().unwrap_or_default();
        packed.reset(self.next_id, head.epoch, head.first);
        self.next_id += 1;
        packed.tight = true;
        let (mut known, mut asked_at) = (true, self.now);
        for mut segment in std::mem::take(&mut self.ahead) {
            self.ready_bytes -= segment.ready_bytes();
            asked_at = asked_at.min(segment.asked_at);
            for (at, slot) in segment.slots.iter().enumerate() {
                let index = segment.first + at as u64;
                if index < head.first || index >= head.end {
                    continue;
                }
                let to = packed.slots.len();
                packed.push(slot.ordinal, fields);
                packed.slots[to] = super::segment::Slot { state: State::Missing, alone: false, ..*slot };
                if matches!(slot.state, State::Skipped | State::Dead) {
                    packed.set(to, slot.state);
                }
                known &= slot.need != UNKNOWN;
                self.stats.evicted += u64::from(matches!(slot.state, State::Placed(_)));
                let fault = segment.faults.iter().position(|(of, _)| *of as usize == at);
                packed.faults.extend(fault.map(|fault| (to as u32, segment.faults[fault].1.clone())));
            }
            segment.reset(0, 0, 0);
            self.spare_segments.push(segment);
        }
        // What of it was not planned yet is asked for with the rest.
        known &= packed.end() == head.end;
        let order = self.plan.epoch(head.epoch);
        for index in packed.end()..head.end {
            packed.push(order.ordinal(self.plan.position(index)), fields);
        }
        self.planned = (head.epoch, head.end);
        packed.asked = true;
        packed.asked_at = asked_at;
        self.ahead.push_back(packed);
        self.packed = (count + 1, alone && known);
        true
    }

    /// What the samples of the next batch need together, as far as it is known.
    fn head_need(&self) -> u64 {
        let Some(head) = self.head else { return 0 };
        let head_segments = self.ahead.iter().take_while(|segment| self.is_head(segment));
        let slots = head_segments.flat_map(|segment| (segment.first..).zip(&segment.slots));
        let known = slots.filter(|(index, slot)| *index >= head.first && *index < head.end && slot.need != UNKNOWN);
        known.fold(0, |sum: u64, (_, slot)| aligned(sum).saturating_add(slot.need))
    }

    /// Only others can give memory back.
    fn wait_for_others(&mut self, needed: u64, out: &mut Vec<Action>) -> Result<(), LoaderError> {
        let (consumer, others) = self.holders();
        if consumer == 0 && others == 0 || self.head_need() > self.pool() {
            return Err(self.exhausted(needed, Duration::ZERO));
        }
        let now = self.now;
        let blocked = self.blocked.get_or_insert(Blocked { since: now, needed, starved: false });
        blocked.needed = needed;
        if others > 0 && !std::mem::replace(&mut blocked.starved, true) {
            out.push(Action::Starved { bytes: needed });
        }
        Ok(())
    }

    /// Memory is not waited for any more.
    pub(super) fn unblock(&mut self) {
        if let (Some(blocked), Some(waiting)) = (self.blocked.take(), self.waiting) {
            self.blocked_before += self.now.saturating_sub(blocked.since.max(waiting));
        }
    }

    /// When the wait for others' memory ends.
    pub(super) fn pool_deadline(&self) -> Option<Duration> {
        let (blocked, waiting) = (self.blocked?, self.waiting?);
        let left = self.config.pool_timeout.saturating_sub(self.blocked_before);
        Some(blocked.since.max(waiting).saturating_add(left))
    }

    /// Ends a wait for memory that does not come.
    pub(super) fn check_blocked(&self) -> Result<(), LoaderError> {
        match (self.blocked, self.pool_deadline()) {
            (Some(blocked), Some(deadline)) if self.now >= deadline => {
                Err(self.exhausted(blocked.needed, self.config.pool_timeout))
            }
            _ => Ok(()),
        }
    }

    fn exhausted(&self, needed: u64, waited: Duration) -> LoaderError {
        let (consumer, others) = self.holders();
        let usage = self.slab.usage();
        LoaderError::PoolExhausted(Box::new(PoolExhausted {
            dataset: self.source.dataset.clone(),
            pool: self.pool(),
            needed,
            batch: self.head_need(),
            held: self.ready_bytes,
            consumer,
            others,
            free: usage.free as u64,
            longest_free: usage.longest_free as u64,
            kept: self.tables.held().take(16).collect(),
            waited,
        }))
    }
}

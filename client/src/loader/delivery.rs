//! From what has arrived to batches, and what to do about samples that never will.

use std::sync::Arc;

use super::batch::{Row, Table};
use super::machine::{Head, Machine};
use super::segment::{Segment, State};
use super::{Action, Batch, LoaderError, Note, OnError, Reason};

/// How many other samples are tried in the place of one, when its whole batch was given up.
const MAX_TRIED: u32 = 8;
/// A row without a sample yet.
const NO_VIEW: u32 = u32::MAX;

/// How far the next batch is.
enum Ready {
    No,
    Yes,
    /// Everything is settled, but not one of its samples can be had.
    Barren,
}

impl Machine {
    /// Hands out batches while they are wanted and complete.
    pub(super) fn deliver(&mut self, out: &mut Vec<Action>) -> Result<(), LoaderError> {
        while let Some(head) = self.head {
            self.check_dead(head)?;
            match self.ready(head) {
                Ready::Yes if self.want > 0 => self.deliver_one(head, out)?,
                Ready::Barren => self.try_another(head)?,
                Ready::Yes | Ready::No => return Ok(()),
            }
        }
        Ok(())
    }

    /// A sample that cannot be had ends the loader when its batch is next.
    fn check_dead(&self, head: Head) -> Result<(), LoaderError> {
        for segment in self.ahead.iter().take_while(|segment| self.is_head(segment)) {
            for (slot, fault) in &segment.faults {
                let index = segment.first + u64::from(*slot);
                let dead = segment.slots[*slot as usize].state == State::Dead;
                if dead && index >= head.first && index < head.end {
                    return Err(LoaderError::Fetch(Box::new(fault.clone())));
                }
            }
        }
        Ok(())
    }

    fn ready(&self, head: Head) -> Ready {
        let (mut covered, mut good) = (head.first, false);
        for segment in self.ahead.iter().take_while(|segment| self.is_head(segment)) {
            let range = segment.part_of(head);
            covered += range.len() as u64;
            for slot in &segment.slots[range] {
                match slot.state {
                    State::Missing | State::Flying => return Ready::No,
                    State::Placed(_) => good = true,
                    State::Skipped | State::Dead => {}
                }
            }
        }
        match (covered == head.end, good) {
            (false, _) => Ready::No,
            (true, true) => Ready::Yes,
            (true, false) => Ready::Barren,
        }
    }

    fn deliver_one(&mut self, head: Head, out: &mut Vec<Action>) -> Result<(), LoaderError> {
        self.count_skips(head, out)?;
        let (len, fields) = ((head.end - head.first) as usize, self.source.fields.len());
        let (mut table, mut views) = self.tables.take();
        let Table { epoch, step, first_position, samples: rows, cells, .. } =
            Arc::get_mut(&mut table).expect("nobody else has a table that is not delivered");
        (*epoch, *step, *first_position) = (head.epoch, head.step, self.plan.position(head.first));
        let mut placed = std::mem::take(&mut self.placed);
        while let Some(segment) = self.ahead.front_mut().filter(|segment| segment.overlaps(head)) {
            placed.clear();
            placed.resize(segment.parts.len(), NO_VIEW);
            for at in segment.part_of(head) {
                let slot = segment.slots[at];
                let mut view = NO_VIEW;
                if let State::Placed(part) = slot.state {
                    let held = &mut segment.parts[part as usize];
                    let at = &mut placed[part as usize];
                    if *at == NO_VIEW {
                        *at = views.len() as u32;
                        views.extend(held.view.clone());
                    }
                    view = *at;
                    held.live -= 1;
                    if held.live == 0 {
                        held.view = None;
                        self.ready_bytes -= held.bytes;
                    }
                }
                rows.push(Row { ordinal: slot.ordinal, view, substitute: slot.substitute || view == NO_VIEW });
                cells.extend_from_slice(&segment.cells[at * fields..][..fields]);
            }
            if segment.end() > head.end {
                break;
            }
            if let Some(mut done) = self.ahead.pop_front() {
                done.reset(0, 0, 0);
                self.spare_segments.push(done);
            }
        }
        self.placed = placed;
        fill(rows, cells, fields);
        self.tables.deliver(&table);
        let batch = Batch { table, views };
        self.stats.batches += 1;
        self.stats.samples += len as u64;
        self.stats.bytes += batch.bytes();
        self.want -= 1;
        self.blocked = None;
        self.progressed();
        self.packed = (0, false);
        self.head = self.batch(head.epoch, head.step + 1);
        out.push(Action::Deliver(batch));
        Ok(())
    }

    /// Counts the positions of the batch that are filled with other samples, and says so, once each.
    fn count_skips(&mut self, head: Head, out: &mut Vec<Action>) -> Result<(), LoaderError> {
        let OnError::Skip { max } = self.config.on_error else { return Ok(()) };
        for segment in self.ahead.iter().take_while(|segment| segment.overlaps(head)) {
            let range = segment.part_of(head);
            for (_, fault) in segment.faults.iter().filter(|(slot, _)| range.contains(&(*slot as usize))) {
                self.stats.skipped += 1;
                if self.stats.skipped > max {
                    return Err(LoaderError::TooManySkipped { max, last: Box::new(fault.clone()) });
                }
                let (epoch, position, ordinal) = (fault.epoch, fault.position, fault.ordinal);
                out.push(Action::Note(Note::Skipped { epoch, position, ordinal, reason: fault.reason.to_string() }));
            }
        }
        Ok(())
    }

    /// No sample of the batch can be had: the first position is tried with the rank's samples before and after it.
    fn try_another(&mut self, head: Head) -> Result<(), LoaderError> {
        let len = self.plan.len();
        let Some(segment) = self.ahead.front_mut() else { return Ok(()) };
        let at = segment.part_of(head).start;
        let slot = &mut segment.slots[at];
        let mut candidate = None;
        while candidate.is_none() && slot.tried < MAX_TRIED {
            let distance = u64::from(slot.tried / 2);
            candidate = match slot.tried % 2 {
                0 => head.first.checked_sub(1 + distance),
                _ => Some(head.end + distance).filter(|&index| index < len),
            };
            slot.tried += 1;
        }
        let fault = segment.faults.iter().find(|(of, _)| *of as usize == at).map(|(_, fault)| fault.clone());
        match (candidate, fault) {
            (Some(index), _) => {
                slot.ordinal = self.plan.epoch(head.epoch).ordinal(self.plan.position(index));
                (slot.need, slot.attempts, slot.refusals) = (super::segment::UNKNOWN, 0, 0);
                (slot.alone, slot.substitute) = (true, true);
                segment.set(at, State::Missing);
                segment.not_before = self.now;
                Ok(())
            }
            (None, Some(fault)) => Err(LoaderError::Fetch(Box::new(fault))),
            (None, None) => unreachable!("a sample is given up with its reason"),
        }
    }

    /// A slot is not asked for again.
    pub(super) fn give_up(&mut self, at: usize, slot: usize, reason: Reason) {
        let fault = self.fault(&self.ahead[at], slot, reason);
        let segment = &mut self.ahead[at];
        let skip = matches!(self.config.on_error, OnError::Skip { .. });
        segment.set(slot, if skip { State::Skipped } else { State::Dead });
        // Of a substitute that cannot be had either, the first reason stays: it names the sample that was planned.
        if !segment.faults.iter().any(|(of, _)| *of as usize == slot) {
            segment.faults.push((slot as u32, fault));
        }
    }
}

impl Segment {
    /// Whether samples of the batch are in it, given that it does not end before the batch begins.
    pub(super) fn overlaps(&self, head: Head) -> bool {
        self.epoch == head.epoch && self.first < head.end
    }

    /// The slots that are the batch's.
    pub(super) fn part_of(&self, head: Head) -> std::ops::Range<usize> {
        let from = head.first.max(self.first) - self.first;
        let to = head.end.min(self.end()) - self.first;
        from as usize..to as usize
    }
}

/// Fills rows without a sample with the nearest one that has one, the earlier of two.
fn fill(rows: &mut [Row], cells: &mut [super::batch::Cell], fields: usize) {
    for at in 0..rows.len() {
        if rows[at].view != NO_VIEW {
            continue;
        }
        // Rows filled before are as good as their sample, and as near as can be.
        let before = at.checked_sub(1);
        let after = (at + 1..rows.len()).find(|&other| rows[other].view != NO_VIEW);
        let Some(from) = before.or(after) else { continue };
        rows[at] = Row { substitute: true, ..rows[from] };
        cells.copy_within(from * fields..(from + 1) * fields, at * fields);
    }
}

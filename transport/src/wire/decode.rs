//! The answer to a fetch, as a client reads it: from pieces of any size, with one copy of the payload, straight to
//! where it belongs. Nothing that a server says is believed: every byte's place is checked before it is given out.

use std::collections::BTreeMap;

use super::answer::{
    END_RECORD, FLAG_CRC, HEADER, IGNORABLE_RECORD, MAGIC, MAX_IGNORABLE, OK_RECORD, RETRACTED_RECORD, RUN_RECORD,
    failure, kind,
};
use super::varint::{self, Varint};
use super::{ALIGN, WIRE_MAX, WIRE_MIN, WireError};
use crate::link::{Entry, Status};

/// What [`AnswerDecoder::step`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// `bytes` belong at `at` of the lease: in bounds, and no other entry's. Never empty.
    Payload { entry: u32, at: u64, bytes: &'a [u8] },
    /// The input is used up, and more must come.
    More,
    /// The answer is complete, and the input is used up.
    End,
}

/// Reads one answer. Its memory is bounded by what was asked for, never by what the server says.
#[derive(Debug)]
pub struct AnswerDecoder {
    capacity: u64,
    entries: Vec<Entry>,
    /// A bit for each entry that is answered.
    seen: Vec<u64>,
    answered: u64,
    payload: u64,
    ignored: u64,
    taken: Intervals,
    state: State,
    /// The front of a record (or of an integer) whose rest is still to come.
    scratch: [u8; OK_RECORD],
    filled: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    Record,
    Payload {
        entry: u32,
        at: u64,
        left: u64,
    },
    /// Lengths of entries that are not placed, from `next` on.
    Lengths {
        next: u32,
        left: u32,
    },
    Skip {
        left: u64,
    },
    Ended,
    Failed(WireError),
}

impl AnswerDecoder {
    /// A decoder for the answer to a request of `entries` entries (ordinals times fields) into a lease of `capacity`
    /// bytes.
    pub fn new(entries: usize, capacity: u64) -> AnswerDecoder {
        AnswerDecoder::new_in(Vec::new(), entries, capacity)
    }

    /// The same, which keeps what it learns in `memory`, whatever that holds.
    pub fn new_in(mut memory: Vec<Entry>, entries: usize, capacity: u64) -> AnswerDecoder {
        memory.clear();
        memory.resize(entries, Entry { status: Status::Absent, offset: 0, len: 0, crc: None });
        AnswerDecoder {
            capacity,
            entries: memory,
            seen: vec![0; entries.div_ceil(64)],
            answered: 0,
            payload: 0,
            ignored: 0,
            taken: Intervals::default(),
            state: State::Header,
            scratch: [0; OK_RECORD],
            filled: 0,
        }
    }

    /// Takes what it can from the front of `input`. Call it until it answers `More` or `End`. An error is for good.
    pub fn step<'a>(&mut self, input: &mut &'a [u8]) -> Result<Step<'a>, WireError> {
        self.advance(input).inspect_err(|&error| self.state = State::Failed(error))
    }

    /// Takes all of `input`, and copies its payload into `lease`, whose length is the capacity. Whether the answer is
    /// complete.
    ///
    /// # Panics
    /// When the lease is shorter than the capacity.
    pub fn copy_into(&mut self, mut input: &[u8], lease: &mut [u8]) -> Result<bool, WireError> {
        loop {
            match self.step(&mut input)? {
                // In bounds of the capacity, so that it fits `usize` as the lease does.
                Step::Payload { at, bytes, .. } => lease[at as usize..][..bytes.len()].copy_from_slice(bytes),
                Step::More => return Ok(false),
                Step::End => return Ok(true),
            }
        }
    }

    /// Payload bytes given out so far.
    pub fn payload(&self) -> u64 {
        self.payload
    }

    /// The stream has ended: the entries, if the answer is complete.
    pub fn finish(self) -> Result<Vec<Entry>, WireError> {
        match self.state {
            State::Ended => Ok(self.entries),
            State::Failed(error) => Err(error),
            _ => Err(WireError::Truncated("answer")),
        }
    }

    fn advance<'a>(&mut self, input: &mut &'a [u8]) -> Result<Step<'a>, WireError> {
        loop {
            match self.state {
                State::Failed(error) => return Err(error),
                State::Ended if input.is_empty() => return Ok(Step::End),
                State::Ended => return Err(WireError::Trailing),
                State::Payload { left: 0, .. } | State::Lengths { left: 0, .. } | State::Skip { left: 0 } => {
                    self.state = State::Record;
                }
                _ if input.is_empty() => return Ok(Step::More),
                State::Header => {
                    if self.fill(input, HEADER) {
                        self.header()?;
                    }
                }
                State::Record => self.record(input)?,
                State::Payload { entry, at, left } => {
                    let bytes = take(input, left);
                    let len = bytes.len() as u64;
                    self.payload += len;
                    self.state = State::Payload { entry, at: at + len, left: left - len };
                    return Ok(Step::Payload { entry, at, bytes });
                }
                State::Lengths { next, left } => {
                    if let Some(len) = self.length(input)? {
                        self.entries[next as usize].len = len;
                        self.state = State::Lengths { next: next + 1, left: left - 1 };
                    }
                }
                State::Skip { left } => {
                    let skipped = take(input, left).len() as u64;
                    self.state = State::Skip { left: left - skipped };
                }
            }
        }
    }

    /// Gathers `need` bytes in `scratch`; whether they are there.
    fn fill(&mut self, input: &mut &[u8], need: usize) -> bool {
        let bytes = take(input, need.saturating_sub(self.filled) as u64);
        self.scratch[self.filled..][..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        self.filled >= need
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.scratch[at..][..4].try_into().expect("four bytes"))
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.scratch[at..][..8].try_into().expect("eight bytes"))
    }

    fn header(&mut self) -> Result<(), WireError> {
        self.filled = 0;
        if self.scratch[..4] != MAGIC {
            return Err(WireError::Magic);
        }
        let word = |at: usize| u16::from_le_bytes([self.scratch[at], self.scratch[at + 1]]);
        let (wire, flags) = (word(4), word(6));
        if !(WIRE_MIN..=WIRE_MAX).contains(&wire) {
            return Err(WireError::Version(wire));
        }
        if flags != 0 {
            return Err(WireError::Flags(flags));
        }
        let (got, asked) = (u64::from(self.u32_at(8)), self.entries.len() as u64);
        if got != asked {
            return Err(WireError::Entries { got, asked });
        }
        self.state = State::Record;
        Ok(())
    }

    fn record(&mut self, input: &mut &[u8]) -> Result<(), WireError> {
        if !self.fill(input, 1) {
            return Ok(());
        }
        let what = self.scratch[0];
        let need = match what {
            kind::OK => OK_RECORD,
            kind::ABSENT | kind::NOT_PLACED | kind::FAILED => RUN_RECORD,
            kind::RETRACTED => RETRACTED_RECORD,
            kind::END => END_RECORD,
            kind::IGNORABLE.. => IGNORABLE_RECORD,
            _ => return Err(WireError::Record(what)),
        };
        if !self.fill(input, need) {
            return Ok(());
        }
        self.filled = 0;
        if what < kind::IGNORABLE && self.scratch[2..4] != [0, 0] {
            return Err(WireError::Reserved);
        }
        // Only `OK` has flags here and only failures have a code.
        if !matches!(what, kind::OK | kind::FAILED | kind::RETRACTED | kind::IGNORABLE..) && self.scratch[1] != 0 {
            return Err(WireError::Reserved);
        }
        match what {
            kind::OK => self.placed(),
            kind::RETRACTED => self.retracted(),
            kind::END => self.end(),
            kind::IGNORABLE.. => self.ignorable(),
            _ => self.run(what),
        }
    }

    fn placed(&mut self) -> Result<(), WireError> {
        let (flags, entry) = (self.scratch[1], self.u32_at(4));
        let (crc, offset, len) = (self.u32_at(8), self.u64_at(12), self.u64_at(20));
        if flags & !FLAG_CRC != 0 {
            return Err(WireError::Flags(flags.into()));
        }
        if offset.checked_add(len).is_none_or(|end| end > self.capacity) {
            return Err(WireError::OutOfBounds { entry: entry.into(), offset, len, capacity: self.capacity });
        }
        if offset % ALIGN != 0 {
            return Err(WireError::Misaligned { entry: entry.into(), offset });
        }
        self.answer(entry, 1)?;
        if !self.taken.insert(offset, len) {
            return Err(WireError::Overlap { entry: entry.into() });
        }
        let crc = (flags & FLAG_CRC != 0).then_some(crc);
        self.entries[entry as usize] = Entry { status: Status::Ok, offset, len, crc };
        self.state = State::Payload { entry, at: offset, left: len };
        Ok(())
    }

    fn run(&mut self, what: u8) -> Result<(), WireError> {
        let (code, first, count) = (self.scratch[1], self.u32_at(4), self.u32_at(8));
        let status = match what {
            kind::ABSENT => Status::Absent,
            kind::NOT_PLACED => Status::NotPlaced,
            _ => Status::Failed(failure(code).ok_or(WireError::Failure(code))?),
        };
        if count == 0 {
            return Err(WireError::Range { what: "a run", value: 0, min: 1, max: self.entries.len() as u64 });
        }
        self.answer(first, count)?;
        for entry in &mut self.entries[first as usize..][..count as usize] {
            entry.status = status;
        }
        if what == kind::NOT_PLACED {
            self.state = State::Lengths { next: first, left: count };
        }
        Ok(())
    }

    /// The bytes were given out to where they belong, so that nothing but the table needs to change.
    fn retracted(&mut self) -> Result<(), WireError> {
        let (code, entry) = (self.scratch[1], self.u32_at(4));
        let why = failure(code).ok_or(WireError::Failure(code))?;
        match self.entries.get_mut(entry as usize) {
            Some(found) if found.status == Status::Ok => {
                *found = Entry { status: Status::Failed(why), offset: 0, len: 0, crc: None };
                Ok(())
            }
            _ => Err(WireError::NotSent(entry.into())),
        }
    }

    /// Notes that `count` entries from `first` on are answered; each may be only once.
    fn answer(&mut self, first: u32, count: u32) -> Result<(), WireError> {
        let (first, end, entries) = (u64::from(first), u64::from(first) + u64::from(count), self.entries.len() as u64);
        if end > entries {
            return Err(WireError::NoSuchEntry { first, last: end - 1, entries });
        }
        for entry in first..end {
            let (word, bit) = (&mut self.seen[(entry / 64) as usize], 1 << (entry % 64));
            if *word & bit != 0 {
                return Err(WireError::Repeated(entry));
            }
            *word |= bit;
        }
        self.answered += u64::from(count);
        Ok(())
    }

    fn ignorable(&mut self) -> Result<(), WireError> {
        let left = u64::from(self.u32_at(4));
        self.ignored += left + IGNORABLE_RECORD as u64;
        if self.ignored > MAX_IGNORABLE {
            let what = "the length of ignorable records";
            return Err(WireError::Range { what, value: self.ignored, min: 0, max: MAX_IGNORABLE });
        }
        self.state = State::Skip { left };
        Ok(())
    }

    fn end(&mut self) -> Result<(), WireError> {
        let asked = self.entries.len() as u64;
        if self.answered != asked {
            let missing = (0..asked).find(|entry| self.seen[(entry / 64) as usize] & (1 << (entry % 64)) == 0);
            return Err(WireError::Unanswered(missing.unwrap_or(asked)));
        }
        let totals = [("entries", asked, self.u32_at(4).into()), ("bytes", self.payload, self.u64_at(8))];
        if let Some((what, got, said)) = totals.into_iter().find(|(_, got, said)| got != said) {
            return Err(WireError::Totals { what, got, said });
        }
        self.state = State::Ended;
        Ok(())
    }

    /// One integer, if all its bytes are there.
    fn length(&mut self, input: &mut &[u8]) -> Result<Option<u64>, WireError> {
        // In the common case all of it lies in the input.
        if self.filled == 0
            && let Varint::Value(value, len) = varint::get(input)
        {
            *input = &input[len..];
            return Ok(Some(value));
        }
        while !input.is_empty() {
            self.fill(input, self.filled + 1);
            match varint::get(&self.scratch[..self.filled]) {
                Varint::Value(value, _) => {
                    self.filled = 0;
                    return Ok(Some(value));
                }
                Varint::Short => {}
                Varint::Invalid => return Err(WireError::Varint),
            }
        }
        Ok(None)
    }
}

/// At most `len` bytes from the front of `input`.
fn take<'a>(input: &mut &'a [u8], len: u64) -> &'a [u8] {
    let len = usize::try_from(len).map_or(input.len(), |len| len.min(input.len()));
    let (front, rest) = input.split_at(len);
    *input = rest;
    front
}

/// Which bytes of the lease are taken, in whole units of [`ALIGN`]: disjoint intervals, start to end. Neighbours are
/// joined, so that entries that come in the order of their offsets need one interval however many they are.
#[derive(Debug, Default)]
struct Intervals(BTreeMap<u64, u64>);

impl Intervals {
    /// Takes `offset..offset + len`, which does not overflow; false when a part of it is taken already.
    fn insert(&mut self, offset: u64, len: u64) -> bool {
        if len == 0 {
            return true;
        }
        let end = (offset + len).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
        let below = self.0.range_mut(..end).next_back();
        let joined = match below {
            Some((_, below_end)) if *below_end > offset => return false,
            Some((&start, below_end)) if *below_end == offset => {
                *below_end = end;
                start
            }
            _ => {
                self.0.insert(offset, end);
                offset
            }
        };
        if let Some(above_end) = self.0.remove(&end) {
            self.0.insert(joined, above_end);
        }
        true
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;

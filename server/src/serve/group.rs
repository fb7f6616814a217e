//! The answer to a fetch: looks up, places, reads and writes records, in constant memory whatever the group's size.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use forebay_transport::link::{Failure, FieldId};
use forebay_transport::place::Placer;
use forebay_transport::wire::answer::AnswerEncoder;
use forebay_transport::wire::request::OrdinalIter;
use forebay_transport::wire::{ALIGN, FetchBody};

use super::pump::{Batch, Source};
use super::read::{Piece, Reader, Stop};
use crate::catalog::Extent;

/// The most entries in a batch: bounds what a batch costs beside its payload. Few enough that between neighbours in a
/// tar, a header and padding apart, there is room in a chunk to read along what lies between.
const MAX_ENTRIES: usize = 512;
/// How many samples are looked up before others get their turn on the thread.
const TURN: u32 = 256;
/// What stands in for bytes that could not be read once their entry was announced.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// An entry that is placed (or absent) and not yet sent.
struct Pending {
    entry: u32,
    /// Where it lies, here and in the client's lease; absent ones lie nowhere.
    place: Option<(Extent, u64)>,
    /// Bytes of it that were sent.
    done: u64,
}

/// An entry, or a part of one, in the batch that is being made.
struct Part {
    entry: u32,
    place: Option<(Extent, u64)>,
    /// Its first byte, within the entry.
    from: u64,
    /// Index of what is read for it.
    piece: usize,
}

/// Makes the answer to one fetch.
pub(super) struct Group<'a> {
    reader: &'a Reader,
    fields: &'a [FieldId],
    ordinals: OrdinalIter,
    placer: Placer,
    /// The client's lease, where that is more than a group may have: for a first sample that is larger than any group.
    beyond: Option<u64>,
    /// Nothing more is placed: what is left of the ordinals does not fit.
    closed: bool,
    /// The entry that the next ordinal's first field is.
    next: u32,
    pending: VecDeque<Pending>,
    /// Bytes of all that is pending.
    pending_bytes: u64,
    /// Entries from `next` on that are looked up and not placed: of one sample while there is room for more.
    unplaced: Vec<Option<Extent>>,
    encoder: Option<AnswerEncoder>,
    records: BytesMut,
    /// An entry that failed in mid-payload, and how many zeros it still needs before it can be taken back.
    broken: Option<(u32, u64)>,
    lens: Vec<Option<u64>>,
    offsets: Vec<u64>,
}

impl<'a> Group<'a> {
    /// The answer to `request`, of at most `max_bytes` or one sample. Ordinals and fields must be among the dataset's.
    pub fn new(reader: &'a Reader, request: &'a FetchBody, max_bytes: u64) -> Group<'a> {
        let mut records = BytesMut::new();
        let entries = request.ordinals.len() * request.fields.len();
        let encoder = AnswerEncoder::begin(entries, &mut records);
        Group {
            reader,
            fields: &request.fields,
            ordinals: request.ordinals.iter(),
            placer: Placer::new(request.capacity.min(max_bytes), ALIGN),
            beyond: Some(request.capacity).filter(|&capacity| capacity > max_bytes),
            closed: false,
            next: 0,
            pending: VecDeque::new(),
            pending_bytes: 0,
            unplaced: Vec::new(),
            encoder: Some(encoder),
            records,
            broken: None,
            lens: Vec::new(),
            offsets: Vec::new(),
        }
    }

    fn encoder(&mut self) -> &mut AnswerEncoder {
        self.encoder.as_mut().expect("the answer has not ended")
    }

    /// Appends the next sample's extents to `unplaced`; false after the last.
    fn look_up(&mut self) -> Result<bool, Stop> {
        let Some(ordinal) = self.ordinals.next() else { return Ok(false) };
        let found = self.reader.served.dataset.extents(ordinal, self.fields, &mut self.unplaced);
        found.map_err(|error| Stop::Damaged(error.to_string()))?;
        Ok(true)
    }

    /// Places samples until there is a chunk to read, or until nothing more is placed.
    async fn fill(&mut self) -> Result<(), Stop> {
        let mut turn = 0;
        while !self.closed && self.pending.len() < MAX_ENTRIES && self.pending_bytes < self.reader.chunk as u64 {
            if !self.look_up()? {
                self.closed = true;
                break;
            }
            self.place();
            turn += 1;
            if turn % TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Moves the sample in `unplaced` to what is pending, if it fits.
    fn place(&mut self) {
        self.lens.clear();
        self.lens.extend(self.unplaced.iter().map(|extent| extent.map(|extent| extent.len)));
        self.offsets.clear();
        let mut fits = self.placer.sample(&self.lens, &mut self.offsets);
        // Whatever the limit of a group, its first sample can be had alone.
        if let Some(capacity) = self.beyond.take().filter(|_| !fits && self.next == 0) {
            fits = Placer::new(capacity, ALIGN).sample(&self.lens, &mut self.offsets);
        }
        self.closed = self.placer.is_full();
        if !fits {
            return;
        }
        self.reader.metrics.samples.one();
        for (extent, &offset) in self.unplaced.drain(..).zip(&self.offsets) {
            self.pending_bytes += extent.map_or(0, |extent| extent.len);
            self.pending.push_back(Pending { entry: self.next, place: extent.map(|extent| (extent, offset)), done: 0 });
            self.next += 1;
        }
    }

    /// Takes from what is pending as much as one chunk holds: whole entries, or a part of one that is larger than any
    /// chunk, so that nothing else comes between its parts.
    fn take(&mut self, pieces: &mut Vec<Piece>) -> Vec<Part> {
        let (mut parts, mut room) = (Vec::new(), self.reader.chunk);
        while let Some(front) = self.pending.front_mut() {
            let Pending { entry, place, done: from } = *front;
            let mut part = Part { entry, place, from, piece: pieces.len() };
            if let Some((extent, _)) = place {
                let left = extent.len - from;
                let len = match usize::try_from(left) {
                    Ok(left) if left <= room => left,
                    _ if left > self.reader.chunk as u64 && room == self.reader.chunk => room,
                    _ => break,
                };
                pieces.push(Piece::of(&extent, from, len));
                room -= len;
                self.pending_bytes -= len as u64;
                if (len as u64) < left {
                    front.done += len as u64;
                    parts.push(part);
                    break;
                }
            } else {
                part.piece = usize::MAX;
            }
            parts.push(part);
            self.pending.pop_front();
            if parts.len() == MAX_ENTRIES {
                break;
            }
        }
        parts
    }

    /// Reads a chunk of what is pending and writes its records.
    async fn chunk(&mut self) -> Result<Batch, Stop> {
        let mut pieces = Vec::new();
        let parts = self.take(&mut pieces);
        let bytes = self.reader.read(&mut pieces).await?;
        let mut made = Making::default();
        let mut parts = parts.into_iter().peekable();
        while let Some(part) = parts.next() {
            let Some((extent, offset)) = part.place else {
                let mut count = 1;
                while parts.next_if(|next| next.place.is_none() && next.entry == part.entry + count).is_some() {
                    count += 1;
                }
                self.with_records(|encoder, out| encoder.absent(part.entry, count, out));
                continue;
            };
            let piece = pieces[part.piece];
            let whole = part.from + piece.len as u64 == extent.len;
            if piece.failed {
                self.failed(&part, extent.len - part.from, whole, &mut made);
                continue;
            }
            if part.from == 0 {
                self.with_records(|encoder, out| encoder.ok(part.entry, extent.crc, offset, extent.len, out));
            }
            made.payload(self.records.len(), bytes.slice(piece.at..piece.at + piece.len));
        }
        Ok(made.finish(&mut self.records))
    }

    /// A part could not be read, and `left` bytes of its entry are not sent.
    fn failed(&mut self, part: &Part, left: u64, whole: bool, made: &mut Making) {
        let entry = part.entry;
        self.reader.metrics.failed_entries.one();
        if !whole {
            // The rest of the entry is at the front, and need not be read.
            if let Some(rest) = self.pending.pop_front() {
                self.pending_bytes -= rest.place.map_or(0, |(extent, _)| extent.len - rest.done);
            }
        }
        if part.from == 0 {
            self.with_records(|encoder, out| encoder.failed(entry, 1, Failure::Storage, out));
        } else if whole {
            // No more than a chunk, and other entries may follow in this batch.
            made.zeros(self.records.len(), left);
            self.with_records(|encoder, out| encoder.retracted(entry, Failure::Storage, out));
        } else {
            self.broken = Some((entry, left));
        }
    }

    /// Zeros for an entry that failed in mid-payload, and in the end its retraction.
    fn mend(&mut self, entry: u32, left: u64) -> Batch {
        let now = left.min(self.reader.chunk as u64);
        let mut made = Making::default();
        made.zeros(self.records.len(), now);
        self.broken = Some((entry, left - now)).filter(|&(_, left)| left > 0);
        if self.broken.is_none() {
            self.with_records(|encoder, out| encoder.retracted(entry, Failure::Storage, out));
        }
        made.finish(&mut self.records)
    }

    /// Records for entries that do not fit, up to a batch of them; none when all are told.
    async fn unplaced(&mut self) -> Result<Option<Batch>, Stop> {
        let mut turn = 0;
        while self.unplaced.len() < MAX_ENTRIES && self.look_up()? {
            turn += 1;
            if turn % TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        let entries = std::mem::take(&mut self.unplaced);
        if entries.is_empty() {
            return Ok(None);
        }
        for run in entries.chunk_by(|one, next| one.is_some() == next.is_some()) {
            let first = self.next;
            if run[0].is_some() {
                let lens: Vec<u64> = run.iter().flatten().map(|extent| extent.len).collect();
                self.with_records(|encoder, out| encoder.not_placed(first, &lens, out));
            } else {
                self.with_records(|encoder, out| encoder.absent(first, run.len() as u32, out));
            }
            self.next += run.len() as u32;
        }
        self.unplaced = entries;
        self.unplaced.clear();
        Ok(Some(Making::default().finish(&mut self.records)))
    }

    fn with_records(&mut self, write: impl FnOnce(&mut AnswerEncoder, &mut BytesMut)) {
        let mut records = std::mem::take(&mut self.records);
        write(self.encoder(), &mut records);
        self.records = records;
    }
}

impl Source for Group<'_> {
    async fn next(&mut self) -> Result<Option<Batch>, Stop> {
        if self.encoder.is_none() {
            return Ok(None);
        }
        self.reader.check()?;
        if let Some((entry, left)) = self.broken {
            return Ok(Some(self.mend(entry, left)));
        }
        self.fill().await?;
        if !self.pending.is_empty() {
            return self.chunk().await.map(Some);
        }
        if let Some(batch) = self.unplaced().await? {
            return Ok(Some(batch));
        }
        if let Some(encoder) = self.encoder.take() {
            encoder.end(&mut self.records);
        }
        Ok(Some(Making::default().finish(&mut self.records)))
    }
}

/// A batch in the making: payload, each with the records before it, which lie in one buffer until the end.
#[derive(Default)]
struct Making {
    parts: Vec<(Range<usize>, Bytes)>,
    /// Up to where the records are accounted for.
    upto: usize,
    payload: u64,
}

impl Making {
    /// Some payload, after the records up to `records`.
    fn payload(&mut self, records: usize, bytes: Bytes) {
        self.payload += bytes.len() as u64;
        self.parts.push((self.upto..records, bytes));
        self.upto = records;
    }

    /// `len` zeros, after the records up to `records`.
    fn zeros(&mut self, records: usize, mut len: u64) {
        while len > 0 {
            let now = len.min(ZEROS.len() as u64);
            self.payload(records, Bytes::from_static(&ZEROS[..now as usize]));
            len -= now;
        }
    }

    /// The batch, with all of `records`, which is empty afterwards.
    fn finish(self, records: &mut BytesMut) -> Batch {
        let records = records.split().freeze();
        let mut chunks = Vec::with_capacity(2 * self.parts.len() + 1);
        for (range, bytes) in self.parts {
            chunks.extend([records.slice(range), bytes].into_iter().filter(|chunk| !chunk.is_empty()));
        }
        if self.upto < records.len() {
            chunks.push(records.slice(self.upto..));
        }
        Batch { chunks, payload: self.payload }
    }
}

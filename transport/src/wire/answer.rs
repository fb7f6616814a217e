//! The answer to a fetch, as a server writes it: small records into a buffer, each followed by its payload, which the
//! server sends as it lies.
//!
//! Little-endian: a header of 12 bytes, then records in any order, each entry answered exactly once, then the end
//! record, so that an answer cut short is always noticed.

use bytes::{BufMut, BytesMut};

use super::{WIRE_MAX, varint};
use crate::link::Failure;

/// What an answer begins with.
pub const MAGIC: [u8; 4] = *b"FBYA";
/// Bytes of the header.
pub const HEADER: usize = 12;

/// Kinds of record: their first byte.
pub mod kind {
    /// One entry's bytes.
    pub const OK: u8 = 1;
    /// Consecutive entries that their samples do not have.
    pub const ABSENT: u8 = 2;
    /// Consecutive entries that did not fit, with their lengths.
    pub const NOT_PLACED: u8 = 3;
    /// Consecutive entries that failed, for one reason.
    pub const FAILED: u8 = 4;
    /// An entry whose bytes were sent, in whole or with zeros at their end, and are not to be used: it failed in
    /// mid-payload.
    pub const RETRACTED: u8 = 5;
    /// The last record.
    pub const END: u8 = 6;
    /// Records of this kind and above may be ignored by those who do not know them.
    pub const IGNORABLE: u8 = 0x80;
}

/// Bytes of an `OK` record before its payload.
pub const OK_RECORD: usize = 28;
/// Bytes of an `ABSENT` or `FAILED` record, and of a `NOT_PLACED` one before its lengths.
pub const RUN_RECORD: usize = 12;
/// Bytes of a `RETRACTED` record.
pub const RETRACTED_RECORD: usize = 8;
/// Bytes of the end record.
pub const END_RECORD: usize = 16;
/// Bytes of an ignorable record before what it holds.
pub const IGNORABLE_RECORD: usize = 8;
/// The most bytes that the ignorable records of one answer may have together.
pub const MAX_IGNORABLE: u64 = 1 << 20;

/// In the flags of an `OK` record: the CRC is there.
pub(crate) const FLAG_CRC: u8 = 1;

/// The failure that a code stands for, if it is one that travels.
pub(crate) fn failure(code: u8) -> Option<Failure> {
    (code == 1).then_some(Failure::Storage)
}

fn code(failure: Failure) -> u8 {
    match failure {
        Failure::Storage => 1,
        Failure::Corrupt => unreachable!("found by clients, never sent"),
    }
}

/// Writes one answer. It counts what it wrote; that each entry is answered once is the caller's to keep.
#[derive(Debug)]
pub struct AnswerEncoder {
    entries: u32,
    answered: u32,
    payload: u64,
}

impl AnswerEncoder {
    /// Begins the answer to a request with `entries` entries (at most [`MAX_ENTRIES`](super::MAX_ENTRIES)).
    pub fn begin(entries: usize, out: &mut BytesMut) -> AnswerEncoder {
        let entries = u32::try_from(entries).expect("the request's limit holds");
        out.put_slice(&MAGIC);
        out.put_u16_le(WIRE_MAX);
        out.put_u16_le(0);
        out.put_u32_le(entries);
        AnswerEncoder { entries, answered: 0, payload: 0 }
    }

    /// One entry's record; its `len` payload bytes must follow at once. They belong at `offset` of the client's lease.
    pub fn ok(&mut self, entry: u32, crc: Option<u32>, offset: u64, len: u64, out: &mut BytesMut) {
        out.put_u8(kind::OK);
        out.put_u8(if crc.is_some() { FLAG_CRC } else { 0 });
        out.put_u16_le(0);
        out.put_u32_le(entry);
        out.put_u32_le(crc.unwrap_or(0));
        out.put_u64_le(offset);
        out.put_u64_le(len);
        self.answered += 1;
        self.payload += len;
    }

    /// `count` consecutive entries that their samples do not have.
    pub fn absent(&mut self, first: u32, count: u32, out: &mut BytesMut) {
        self.run(kind::ABSENT, 0, first, count, out);
    }

    /// `count` consecutive entries that failed.
    ///
    /// # Panics
    /// When the failure is not one that a server can have.
    pub fn failed(&mut self, first: u32, count: u32, why: Failure, out: &mut BytesMut) {
        self.run(kind::FAILED, code(why), first, count, out);
    }

    /// Takes back an entry that [`ok`](AnswerEncoder::ok) announced and whose payload, zeros for what could not be had,
    /// was sent.
    ///
    /// # Panics
    /// When the failure is not one that a server can have.
    pub fn retracted(&mut self, entry: u32, why: Failure, out: &mut BytesMut) {
        out.put_u8(kind::RETRACTED);
        out.put_u8(code(why));
        out.put_u16_le(0);
        out.put_u32_le(entry);
    }

    /// Consecutive entries that do not fit, with the length that each needs.
    pub fn not_placed(&mut self, first: u32, lens: &[u64], out: &mut BytesMut) {
        self.run(kind::NOT_PLACED, 0, first, lens.len() as u32, out);
        lens.iter().for_each(|&len| varint::put(out, len));
    }

    /// Entries answered so far.
    pub fn answered(&self) -> u32 {
        self.answered
    }

    /// Payload bytes announced so far.
    pub fn payload(&self) -> u64 {
        self.payload
    }

    /// The end record. Nothing may follow.
    pub fn end(self, out: &mut BytesMut) {
        debug_assert_eq!(self.answered, self.entries, "each entry is answered once");
        out.put_u8(kind::END);
        out.put_bytes(0, 3);
        out.put_u32_le(self.entries);
        out.put_u64_le(self.payload);
    }

    fn run(&mut self, kind: u8, code: u8, first: u32, count: u32, out: &mut BytesMut) {
        out.put_u8(kind);
        out.put_u8(code);
        out.put_u16_le(0);
        out.put_u32_le(first);
        out.put_u32_le(count);
        self.answered += count;
    }
}

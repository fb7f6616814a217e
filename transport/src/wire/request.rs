//! The body of `POST /v1/datasets/{d}/fetch`.
//!
//! Little-endian: a head of 60 bytes, the field ids (`u16` each), the ordinals, and extensions up to the body's end.
//! Ordinals are tokens: a varint whose lowest bit says that a run follows, and whose other bits are the zigzag
//! difference between this ordinal and the one after the previous (0 at first). A run is followed by a varint: how many
//! more ordinals there are, less one, each one more than the one before it.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::varint::{self, Varint};
use super::{MAX_ENTRIES, MAX_FIELDS, MAX_ORDINAL, MAX_ORDINALS, MAX_REQUEST, WIRE_MAX, WIRE_MIN, WireError};
use crate::link::{FieldId, Version};

/// What a request begins with.
pub const MAGIC: [u8; 4] = *b"FBYQ";
/// Bytes of a request before its field ids.
pub const HEAD: usize = 60;
/// Where in it the capacity stands: eight bytes.
pub const CAPACITY: usize = 40;
/// An extension whose type has this bit may be ignored by those who do not know it.
pub const IGNORABLE: u16 = 0x8000;

/// How many entries a body asks for, if it is long enough to say; nothing else of it is looked at.
pub fn entries(body: &[u8]) -> Option<usize> {
    let fields = u16::from_le_bytes(body.get(52..54)?.try_into().ok()?);
    let ordinals = u32::from_le_bytes(body.get(56..60)?.try_into().ok()?);
    usize::try_from(u64::from(fields) * u64::from(ordinals)).ok()
}

/// A request about to be sent, borrowed from whoever has its parts.
#[derive(Clone, Copy, Debug)]
pub struct FetchRequest<'a> {
    pub version: Version,
    /// The lease's length.
    pub capacity: u64,
    /// How long the client will wait for progress from now on. Milliseconds on the wire, rounded up.
    pub remaining: Duration,
    pub fields: &'a [FieldId],
    pub ordinals: &'a [u64],
}

impl FetchRequest<'_> {
    /// Appends the request to `out`. Fails when it is beyond the wire's limits, and then leaves `out` as it was.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), WireError> {
        check_counts(self.fields.len(), self.ordinals.len())?;
        if let Some(&ordinal) = self.ordinals.iter().find(|&&ordinal| ordinal >= MAX_ORDINAL) {
            return Err(range("an ordinal", ordinal, 0, MAX_ORDINAL - 1));
        }
        out.reserve(HEAD + 2 * self.fields.len() + 4 * self.ordinals.len());
        out.put_slice(&MAGIC);
        out.put_u16_le(WIRE_MAX);
        out.put_u16_le(0);
        out.put_slice(&self.version.0);
        out.put_u64_le(self.capacity);
        let millis = self.remaining.as_nanos().div_ceil(1_000_000).clamp(1, u32::MAX.into());
        out.put_u32_le(millis as u32);
        out.put_u16_le(self.fields.len() as u16);
        out.put_u16_le(0);
        out.put_u32_le(self.ordinals.len() as u32);
        self.fields.iter().for_each(|&field| out.put_u16_le(field));
        encode_ordinals(self.ordinals, out);
        Ok(())
    }
}

fn encode_ordinals(ordinals: &[u64], out: &mut BytesMut) {
    let mut expected = 0u64;
    let mut rest = ordinals;
    while let [first, following @ ..] = rest {
        let more = following.iter().zip(first + 1..).take_while(|(ordinal, next)| *ordinal == next).count();
        let step = varint::zigzag(*first as i64 - expected as i64) << 1;
        if more == 0 {
            varint::put(out, step);
        } else {
            varint::put(out, step | 1);
            varint::put(out, more as u64 - 1);
        }
        expected = first + 1 + more as u64;
        rest = &following[more..];
    }
}

/// A request as it arrived: checked, and no larger in memory than on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchBody {
    pub version: Version,
    /// The client's lease's length.
    pub capacity: u64,
    /// How long the client will wait for progress.
    pub remaining: Duration,
    /// Never empty.
    pub fields: Vec<FieldId>,
    pub ordinals: Ordinals,
}

impl FetchBody {
    /// Reads a whole body. `Ok` means that every part of it is valid, ordinals included.
    pub fn decode(mut body: Bytes) -> Result<FetchBody, WireError> {
        if body.len() > MAX_REQUEST {
            return Err(range("the request's length", body.len() as u64, HEAD as u64, MAX_REQUEST as u64));
        }
        if body.len() < HEAD {
            let known = body.len().min(MAGIC.len());
            return Err(if body[..known] == MAGIC[..known] { WireError::Truncated("head") } else { WireError::Magic });
        }
        if body.split_to(4)[..] != MAGIC {
            return Err(WireError::Magic);
        }
        let wire = body.get_u16_le();
        if !(WIRE_MIN..=WIRE_MAX).contains(&wire) {
            return Err(WireError::Version(wire));
        }
        let flags = body.get_u16_le();
        if flags != 0 {
            return Err(WireError::Flags(flags));
        }
        let mut version = Version([0; 32]);
        body.copy_to_slice(&mut version.0);
        let capacity = body.get_u64_le();
        let remaining = Duration::from_millis(body.get_u32_le().into());
        let fields = usize::from(body.get_u16_le());
        if body.get_u16_le() != 0 {
            return Err(WireError::Reserved);
        }
        let count = body.get_u32_le();
        // `usize` may be 32 bits, which this fits as well.
        check_counts(fields, count as usize)?;
        if body.len() < 2 * fields {
            return Err(WireError::Truncated("fields"));
        }
        let fields = (0..fields).map(|_| body.get_u16_le()).collect();
        let len = checked_ordinals(&body, count)?;
        let ordinals = Ordinals { tokens: body.split_to(len), count };
        extensions(body)?;
        Ok(FetchBody { version, capacity, remaining, fields, ordinals })
    }
}

/// Checks `count` ordinals at the front of `bytes`; how many bytes they take.
fn checked_ordinals(bytes: &[u8], count: u32) -> Result<usize, WireError> {
    let (mut at, mut left, mut expected) = (0, u64::from(count), 0u64);
    let mut next = || match varint::get(&bytes[at..]) {
        Varint::Value(value, len) => {
            at += len;
            Ok(value)
        }
        Varint::Short => Err(WireError::Truncated("ordinals")),
        Varint::Invalid => Err(WireError::Varint),
    };
    while left > 0 {
        let token = next()?;
        // Neither sum can overflow: what is expected is at most 2^62, and a step is of 63 bits.
        let first = expected as i64 + varint::unzigzag(token >> 1);
        let run = if token & 1 == 1 { next()?.saturating_add(2) } else { 1 };
        if run > left {
            return Err(range("a run", run, 1, left));
        }
        if first < 0 || first as u64 > MAX_ORDINAL - run {
            return Err(range("an ordinal", first as u64, 0, MAX_ORDINAL - run));
        }
        expected = first as u64 + run;
        left -= run;
    }
    Ok(at)
}

/// Extensions: type `u16`, length `u16`, that many bytes; up to the body's end. This version knows none.
fn extensions(mut body: Bytes) -> Result<(), WireError> {
    while !body.is_empty() {
        if body.len() < 4 {
            return Err(WireError::Truncated("extension"));
        }
        let (kind, len) = (body.get_u16_le(), usize::from(body.get_u16_le()));
        if kind & IGNORABLE == 0 {
            return Err(WireError::Extension(kind));
        }
        if body.len() < len {
            return Err(WireError::Truncated("extension"));
        }
        body.advance(len);
    }
    Ok(())
}

fn check_counts(fields: usize, ordinals: usize) -> Result<(), WireError> {
    let check = |what, value: usize, max: usize| match value {
        value if (1..=max).contains(&value) => Ok(()),
        value => Err(range(what, value as u64, 1, max as u64)),
    };
    check("the count of fields", fields, MAX_FIELDS)?;
    check("the count of ordinals", ordinals, MAX_ORDINALS)?;
    check("the count of entries", fields * ordinals, MAX_ENTRIES)
}

fn range(what: &'static str, value: u64, min: u64, max: u64) -> WireError {
    WireError::Range { what, value, min, max }
}

/// The ordinals of a request, in its order, still as the tokens they travelled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordinals {
    /// Valid for `count` ordinals, and no byte more.
    tokens: Bytes,
    count: u32,
}

impl Ordinals {
    /// Never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    pub fn iter(&self) -> OrdinalIter {
        OrdinalIter { tokens: self.tokens.clone(), next: 0, run: 0, left: self.count as usize }
    }
}

/// Each of a request's ordinals.
#[derive(Clone, Debug)]
pub struct OrdinalIter {
    tokens: Bytes,
    next: u64,
    /// How many more follow by one before the next token.
    run: u64,
    left: usize,
}

impl OrdinalIter {
    fn token(&mut self) -> Option<u64> {
        // Checked when the request was decoded.
        let Varint::Value(value, len) = varint::get(&self.tokens) else { return None };
        self.tokens.advance(len);
        Some(value)
    }
}

impl Iterator for OrdinalIter {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        if self.run > 0 {
            self.run -= 1;
        } else {
            let token = self.token()?;
            self.next = self.next.wrapping_add_signed(varint::unzigzag(token >> 1));
            if token & 1 == 1 {
                self.run = self.token()? + 1;
            }
        }
        self.next += 1;
        Some(self.next - 1)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for OrdinalIter {}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;

//! HTTP/3 frames (RFC 9114, section 7) as a request stream carries them, both ways. Pure.

use bytes::{BufMut, Bytes, BytesMut};
use h3::error::Code;

use crate::wire::MAX_CHUNK;

const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;

/// Chunks shorter than this are put together by copying: a kilobyte's copy costs less than a segment's upkeep.
pub(super) const COALESCE: usize = 1024;

/// Puts `chunks` into DATA frames of at most [`MAX_CHUNK`] bytes: `out` is what goes on the wire. Chunks of [`COALESCE`]
/// bytes and more are passed on as they are, the same memory.
pub(super) fn frame_data(chunks: &mut [Bytes], scratch: &mut BytesMut, out: &mut Vec<Bytes>) {
    let mut total: usize = chunks.iter().map(Bytes::len).sum();
    // What is left of the frame that is open.
    let mut room = 0;
    for chunk in chunks {
        let mut chunk = std::mem::take(chunk);
        while !chunk.is_empty() {
            if room == 0 {
                room = total.min(MAX_CHUNK);
                total -= room;
                scratch.reserve(9 + COALESCE);
                scratch.put_u8(DATA as u8);
                put_varint(scratch, room as u64);
            }
            let piece = chunk.split_to(chunk.len().min(room));
            room -= piece.len();
            if piece.len() < COALESCE {
                scratch.reserve(piece.len());
                scratch.put_slice(&piece);
            } else {
                out.push(scratch.split().freeze());
                out.push(piece);
            }
        }
    }
    out.push(scratch.split().freeze());
    out.retain(|bytes| !bytes.is_empty());
}

fn put_varint(buf: &mut BytesMut, value: u64) {
    match value {
        0..0x40 => buf.put_u8(value as u8),
        0x40..0x4000 => buf.put_u16(value as u16 | 0x4000),
        0x4000..0x4000_0000 => buf.put_u32(value as u32 | 0x8000_0000),
        _ => buf.put_u64(value | 0xc000_0000_0000_0000),
    }
}

/// The varint that `bytes` begin with, and its length, if it is all there.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let len = 1 << (first >> 6);
    let rest = bytes.get(1..len)?;
    Some((rest.iter().fold(u64::from(first & 0x3f), |value, &byte| value << 8 | u64::from(byte)), len))
}

/// What a reader has to say.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    /// Bytes of a HEADERS frame, its frame header included.
    Head(Bytes),
    /// Bytes of a body.
    Data(Bytes),
    /// The stream has ended where it may.
    End,
    /// It must be given more.
    Wanting,
}

/// Takes a request stream apart, in constant memory, whatever lengths a peer claims.
pub(super) struct Reader {
    /// What has arrived and is not looked at yet.
    input: Bytes,
    ended: bool,
    /// A frame header of which not all has arrived: two varints.
    partial: [u8; 16],
    have: usize,
    state: State,
    /// The next HEADERS frame is the head; else it is trailers.
    heading: bool,
    /// Trailers have come.
    trailed: bool,
    max_head: u64,
    too_large: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Between,
    Head(u64),
    Data(u64),
    /// A frame of no meaning here.
    Skip(u64),
}

type Violation = (Code, &'static str);

impl Reader {
    pub(super) fn new(max_head: usize) -> Reader {
        Reader {
            input: Bytes::new(),
            ended: false,
            partial: [0; 16],
            have: 0,
            state: State::Between,
            heading: true,
            trailed: false,
            max_head: max_head as u64,
            too_large: false,
        }
    }

    /// Takes what has arrived; `None` is the end. Only when [`Piece::Wanting`].
    pub(super) fn fill(&mut self, input: Option<Bytes>) {
        debug_assert!(self.input.is_empty());
        match input {
            Some(input) => self.input = input,
            None => self.ended = true,
        }
    }

    pub(super) fn expect_head(&mut self) {
        self.heading = true;
    }

    pub(super) fn head_too_large(&self) -> bool {
        self.too_large
    }

    /// The next piece of the head: nothing but one HEADERS frame is ever given away, so that the rest of the stream stays
    /// here. Frames that must not come before it are given as empty ones, for `h3` to be indignant about.
    pub(super) fn next_of_head(&mut self) -> Result<Piece, Violation> {
        if !self.heading && !matches!(self.state, State::Head(_)) {
            return Ok(Piece::End);
        }
        match self.next() {
            Err((Code::H3_FRAME_UNEXPECTED, _)) => Ok(Piece::Head(Bytes::from_static(&[DATA as u8, 0]))),
            // `h3` sees the end, and judges by what it has.
            Err((Code::H3_FRAME_ERROR, _)) => Ok(Piece::End),
            other => other,
        }
    }

    pub(super) fn next(&mut self) -> Result<Piece, Violation> {
        loop {
            if self.input.is_empty() {
                return match self.state {
                    _ if !self.ended => Ok(Piece::Wanting),
                    State::Between if self.have == 0 => Ok(Piece::End),
                    _ => Err((Code::H3_FRAME_ERROR, "the stream ends within a frame")),
                };
            }
            match self.state {
                State::Between => {
                    if let Some(head) = self.frame_header()? {
                        return Ok(Piece::Head(head));
                    }
                }
                State::Head(left) => {
                    let bytes = self.take(left);
                    self.state = after(State::Head, left, bytes.len());
                    return Ok(Piece::Head(bytes));
                }
                State::Data(left) => {
                    let bytes = self.take(left);
                    self.state = after(State::Data, left, bytes.len());
                    return Ok(Piece::Data(bytes));
                }
                State::Skip(left) => {
                    let skipped = self.take(left).len();
                    self.state = after(State::Skip, left, skipped);
                }
            }
        }
    }

    /// Reads on in a frame header. Gives its bytes when it is complete and the head's.
    fn frame_header(&mut self) -> Result<Option<Bytes>, Violation> {
        let more = (self.partial.len() - self.have).min(self.input.len());
        self.partial[self.have..self.have + more].copy_from_slice(&self.input[..more]);
        let seen = &self.partial[..self.have + more];
        let parsed = varint(seen).and_then(|(kind, at)| Some((kind, at, varint(&seen[at..])?)));
        let Some((kind, at, (len, size))) = parsed else {
            self.have += more;
            let _ = self.input.split_to(more);
            return Ok(None);
        };
        let header = at + size;
        let _ = self.input.split_to(header - self.have);
        self.have = 0;
        match kind {
            HEADERS if self.heading => {
                if len > self.max_head {
                    self.too_large = true;
                    return Err((Code::H3_EXCESSIVE_LOAD, "the head is too large"));
                }
                self.heading = false;
                self.state = after(State::Head, len, 0);
                return Ok(Some(Bytes::copy_from_slice(&self.partial[..header])));
            }
            HEADERS if !self.trailed => {
                self.trailed = true;
                self.state = after(State::Skip, len, 0);
            }
            DATA if !self.heading && !self.trailed => self.state = after(State::Data, len, 0),
            // Known frames out of place: of HTTP/3 itself, and those of HTTP/2 that have no like here.
            0x00..=0x09 | 0x0d => return Err((Code::H3_FRAME_UNEXPECTED, "a frame out of place on a request stream")),
            _ => self.state = after(State::Skip, len, 0),
        }
        Ok(None)
    }

    fn take(&mut self, left: u64) -> Bytes {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(self.input.len());
        self.input.split_to(len)
    }
}

fn after(state: fn(u64) -> State, left: u64, done: usize) -> State {
    match left - done as u64 {
        0 => State::Between,
        left => state(left),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_HEAD: usize = 1000;

    /// All that a reader says of `stream`, given in pieces: the head's bytes, the body's, and how it ended.
    fn read(stream: &[u8], cuts: &[usize]) -> (Vec<u8>, Vec<u8>, Result<(), Code>) {
        let mut reader = Reader::new(MAX_HEAD);
        let (mut head, mut body) = (Vec::new(), Vec::new());
        let (mut at, mut cuts) = (0, cuts.iter().cycle());
        loop {
            match reader.next() {
                Ok(Piece::Head(bytes)) => head.extend_from_slice(&bytes),
                Ok(Piece::Data(bytes)) => body.extend_from_slice(&bytes),
                Ok(Piece::End) => return (head, body, Ok(())),
                Ok(Piece::Wanting) if at == stream.len() => reader.fill(None),
                Ok(Piece::Wanting) => {
                    let end = (at + cuts.next().copied().unwrap_or(1).max(1)).min(stream.len());
                    reader.fill(Some(Bytes::copy_from_slice(&stream[at..end])));
                    at = end;
                }
                Err((code, _)) => return (head, body, Err(code)),
            }
        }
    }

    fn frames(chunks: &mut [Bytes]) -> Vec<Bytes> {
        let mut out = Vec::new();
        frame_data(chunks, &mut BytesMut::new(), &mut out);
        out
    }

    #[test]
    fn large_chunks_are_the_same_memory_and_small_ones_travel_together() {
        let large = Bytes::from(vec![1; 3 * MAX_CHUNK / 2]);
        let (start, end) = (large.as_ptr() as usize, large.as_ptr() as usize + large.len());
        let mut chunks = vec![Bytes::from_static(b"small"); 10];
        chunks.insert(5, large);
        let out = frames(&mut chunks);
        let same = out.iter().filter(|piece| (start..end).contains(&(piece.as_ptr() as usize)));
        assert_eq!(same.map(Bytes::len).sum::<usize>(), 3 * MAX_CHUNK / 2);
        // Header and five small ones, a part, a header, the other part, five small ones.
        assert_eq!(out.len(), 5);
        assert!(chunks.iter().all(Bytes::is_empty));
        assert!(frames(&mut [Bytes::new(), Bytes::new()]).is_empty(), "nothing is said about nothing");
    }

    #[test]
    fn lengths_are_checked_before_memory_is_used() {
        let head = |len: &[u8]| [&[1], len].concat();
        assert_eq!(read(&head(&[0x43, 0xe9]), &[1]).2, Err(Code::H3_EXCESSIVE_LOAD));
        assert_eq!(read(&head(&[0xff; 8]), &[9]).2, Err(Code::H3_EXCESSIVE_LOAD));
        // A body, or a frame of no meaning, may be of any length: it is passed on, or over, as it comes.
        let endless = [&[1, 0, 0], &[0xff; 8][..], b"body"].concat();
        assert_eq!(read(&endless, &[3]), (vec![1, 0], b"body".to_vec(), Err(Code::H3_FRAME_ERROR)));
        let endless = [&[0x21], &[0xff; 8][..], b"nothing"].concat();
        assert_eq!(read(&endless, &[1]), (vec![], vec![], Err(Code::H3_FRAME_ERROR)));
    }

    #[test]
    fn what_follows_the_head_stays_here() {
        let mut reader = Reader::new(MAX_HEAD);
        reader.fill(Some(Bytes::from_static(&[1, 2, 8, 9, 0, 1, 7])));
        assert_eq!(reader.next_of_head(), Ok(Piece::Head(Bytes::from_static(&[1, 2]))));
        assert_eq!(reader.next_of_head(), Ok(Piece::Head(Bytes::from_static(&[8, 9]))));
        assert_eq!(reader.next_of_head(), Ok(Piece::End));
        assert_eq!(reader.next(), Ok(Piece::Data(Bytes::from_static(&[7]))));
    }

    proptest! {
        #[test]
        fn what_is_framed_is_read_however_it_is_cut(
            lens in prop::collection::vec(
                prop_oneof![0usize..20, 1000usize..1100, 0usize..200_000, MAX_CHUNK..MAX_CHUNK + 2],
                0..5,
            ),
            cuts in prop::collection::vec(prop_oneof![1usize..10, 1000usize..100_000], 0..8),
        ) {
            let mut chunks: Vec<Bytes> = lens.iter().zip(0u8..).map(|(&len, i)| vec![i; len].into()).collect();
            let want = chunks.concat();
            let stream = [vec![1, 3, 5, 5, 5, 0x21, 2, 9, 9], frames(&mut chunks).concat(), vec![1, 1, 0]].concat();
            // Not a byte at a time all the way: there are megabytes.
            let cuts = [cuts, vec![50_000]].concat();
            let (head, body, end) = read(&stream, &cuts);
            prop_assert_eq!(head, [1, 3, 5, 5, 5]);
            prop_assert!(body == want);
            prop_assert_eq!(end, Ok(()));
        }

        #[test]
        fn garbage_ends_in_a_verdict_that_does_not_depend_on_the_cuts(
            stream in prop::collection::vec(prop_oneof![0u8..16, any::<u8>()], 0..200),
            cuts in prop::collection::vec(1usize..20, 1..8),
        ) {
            prop_assert_eq!(read(&stream, &cuts), read(&stream, &[usize::MAX / 2]));
        }
    }
}

use bytes::{BufMut, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::link::Failure;
use crate::wire::answer::AnswerEncoder;

/// What one entry of a made-up answer is.
#[derive(Clone, Debug)]
enum Made {
    Ok(Vec<u8>, Option<u32>),
    Absent,
    NotPlaced(u64),
    Failed,
    Retracted(Vec<u8>),
}

/// An answer with these entries, its records in the order that `order` gives, and what a lease then holds.
fn answer(made: &[Made], order: &[usize], capacity: usize) -> (Vec<u8>, Vec<Entry>, Vec<u8>) {
    let (mut lease, mut entries, mut at) = (vec![0xee; capacity], Vec::new(), 0usize);
    let mut offsets = Vec::new();
    for one in made {
        offsets.push(at as u64);
        let plain = |status, len| Entry { status, offset: 0, len, crc: None };
        entries.push(match one {
            Made::Ok(bytes, crc) => {
                lease[at..at + bytes.len()].copy_from_slice(bytes);
                let entry = Entry { status: Status::Ok, offset: at as u64, len: bytes.len() as u64, crc: *crc };
                at = (at + bytes.len()).next_multiple_of(ALIGN as usize);
                entry
            }
            Made::Absent => plain(Status::Absent, 0),
            Made::NotPlaced(len) => plain(Status::NotPlaced, *len),
            Made::Failed => plain(Status::Failed(Failure::Storage), 0),
            Made::Retracted(bytes) => {
                lease[at..at + bytes.len()].copy_from_slice(bytes);
                at = (at + bytes.len()).next_multiple_of(ALIGN as usize);
                plain(Status::Failed(Failure::Storage), 0)
            }
        });
    }
    let mut out = BytesMut::new();
    let mut encoder = AnswerEncoder::begin(made.len(), &mut out);
    for &index in order {
        let entry = index as u32;
        match &made[index] {
            Made::Ok(bytes, crc) => {
                encoder.ok(entry, *crc, entries[index].offset, bytes.len() as u64, &mut out);
                out.put_slice(bytes);
            }
            Made::Absent => encoder.absent(entry, 1, &mut out),
            Made::NotPlaced(len) => encoder.not_placed(entry, &[*len], &mut out),
            Made::Failed => encoder.failed(entry, 1, Failure::Storage, &mut out),
            Made::Retracted(bytes) => {
                encoder.ok(entry, None, offsets[index], bytes.len() as u64, &mut out);
                out.put_slice(bytes);
                encoder.retracted(entry, Failure::Storage, &mut out);
            }
        }
    }
    encoder.end(&mut out);
    (out.to_vec(), entries, lease)
}

fn read(pieces: &[&[u8]], entries: usize, capacity: usize) -> Result<(Vec<Entry>, Vec<u8>), WireError> {
    let (mut decoder, mut lease) = (AnswerDecoder::new(entries, capacity as u64), vec![0xee; capacity]);
    for piece in pieces {
        decoder.copy_into(piece, &mut lease)?;
    }
    Ok((decoder.finish()?, lease))
}

/// An answer of one header and these records.
fn with_records(entries: usize, records: impl FnOnce(&mut AnswerEncoder, &mut BytesMut)) -> Vec<u8> {
    let mut out = BytesMut::new();
    let mut encoder = AnswerEncoder::begin(entries, &mut out);
    records(&mut encoder, &mut out);
    out.to_vec()
}

/// The first error in an answer of these records, and how many payload bytes were given out before it.
fn refused(entries: usize, records: impl FnOnce(&mut AnswerEncoder, &mut BytesMut)) -> (WireError, u64) {
    let bytes = with_records(entries, records);
    let mut decoder = AnswerDecoder::new(entries, 256);
    let error = decoder.copy_into(&bytes, &mut [0; 256]).expect_err("must be refused");
    assert_eq!(decoder.step(&mut &b"more"[..]), Err(error), "an error is for good");
    (error, decoder.payload())
}

#[test]
fn runs_cover_many_entries() {
    let mut out = BytesMut::new();
    let mut encoder = AnswerEncoder::begin(9, &mut out);
    encoder.not_placed(4, &[1, 1 << 40, u64::MAX], &mut out);
    encoder.absent(0, 4, &mut out);
    encoder.failed(7, 2, Failure::Storage, &mut out);
    encoder.end(&mut out);
    let (entries, _) = read(&[&out], 9, 0).unwrap();
    let said: Vec<_> = entries.iter().map(|entry| (entry.status, entry.len)).collect();
    let (absent, failed) = ((Status::Absent, 0), (Status::Failed(Failure::Storage), 0));
    let wants = |len| (Status::NotPlaced, len);
    assert_eq!(said, [absent, absent, absent, absent, wants(1), wants(1 << 40), wants(u64::MAX), failed, failed]);
}

#[test]
fn bytes_outside_the_lease_or_over_others_are_never_given_out() {
    let (error, given) = refused(1, |e, out| e.ok(0, None, 192, 65, out));
    assert_eq!((error, given), (WireError::OutOfBounds { entry: 0, offset: 192, len: 65, capacity: 256 }, 0));
    let (error, _) = refused(1, |e, out| e.ok(0, None, u64::MAX - 63, 64, out));
    assert!(matches!(error, WireError::OutOfBounds { .. }));
    let (error, _) = refused(1, |e, out| e.ok(0, None, 8, 8, out));
    assert_eq!(error, WireError::Misaligned { entry: 0, offset: 8 });
    for (offset, len) in [(0, 65), (64, 1), (0, 256), (128, 1)] {
        let (error, given) = refused(2, |e, out| {
            e.ok(0, None, 64, 65, out);
            out.put_bytes(1, 65);
            e.ok(1, None, offset, len, out);
            out.put_bytes(2, len as usize);
        });
        assert_eq!((error, given), (WireError::Overlap { entry: 1 }, 65), "{len} at {offset}");
    }
}

#[test]
fn each_entry_is_answered_once() {
    let twice = |e: &mut AnswerEncoder, out: &mut BytesMut| {
        e.absent(1, 2, out);
        e.absent(2, 1, out);
    };
    assert_eq!(refused(3, twice).0, WireError::Repeated(2));
    let placed_twice = |e: &mut AnswerEncoder, out: &mut BytesMut| {
        e.ok(0, None, 0, 0, out);
        e.ok(0, None, 64, 1, out);
    };
    assert_eq!(refused(3, placed_twice).0, WireError::Repeated(0));
    let beyond = refused(3, |e, out| e.not_placed(2, &[1, 1], out)).0;
    assert_eq!(beyond, WireError::NoSuchEntry { first: 2, last: 3, entries: 3 });
    let far = refused(3, |e, out| e.ok(u32::MAX, None, 0, 0, out)).0;
    assert!(matches!(far, WireError::NoSuchEntry { .. }));
    // Only what was sent can be taken back, and only once.
    let never_sent = |e: &mut AnswerEncoder, out: &mut BytesMut| {
        e.absent(0, 3, out);
        e.retracted(1, Failure::Storage, out);
    };
    assert_eq!(refused(3, never_sent).0, WireError::NotSent(1));
    let taken_back_twice = |e: &mut AnswerEncoder, out: &mut BytesMut| {
        e.ok(2, None, 0, 0, out);
        e.retracted(2, Failure::Storage, out);
        e.retracted(2, Failure::Storage, out);
    };
    assert_eq!(refused(3, taken_back_twice).0, WireError::NotSent(2));
    assert_eq!(refused(3, |e, out| e.retracted(3, Failure::Storage, out)).0, WireError::NotSent(3));
    let missing = |e: &mut AnswerEncoder, out: &mut BytesMut| {
        e.absent(0, 1, out);
        e.absent(2, 1, out);
        out.put_slice(&[kind::END, 0, 0, 0, 3, 0, 0, 0]);
        out.put_u64_le(0);
    };
    assert_eq!(refused(3, missing).0, WireError::Unanswered(1));
}

#[test]
fn nonsense_is_named() {
    let raw = |bytes: &'static [u8]| refused(1, move |_, out| out.put_slice(bytes)).0;
    assert_eq!(raw(&[0]), WireError::Record(0));
    assert_eq!(raw(&[7]), WireError::Record(7));
    assert_eq!(raw(&[kind::ABSENT, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0]), WireError::Reserved);
    assert_eq!(raw(&[kind::ABSENT, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]), WireError::Reserved);
    assert!(matches!(raw(&[kind::ABSENT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), WireError::Range { .. }));
    assert_eq!(raw(&[kind::FAILED, 2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]), WireError::Failure(2));
    let flags = |e: &mut AnswerEncoder, out: &mut BytesMut| {
        e.ok(0, None, 0, 0, out);
        out[HEADER + 1] = 2;
    };
    assert_eq!(refused(1, flags).0, WireError::Flags(2));
    let totals = |e: &mut AnswerEncoder, out: &mut BytesMut| {
        e.absent(0, 1, out);
        out.put_slice(&[kind::END, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    };
    assert_eq!(refused(1, totals).0, WireError::Totals { what: "bytes", got: 0, said: 1 });
    let varint = |_: &mut AnswerEncoder, out: &mut BytesMut| {
        out.put_slice(&[kind::NOT_PLACED, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x80, 0]);
    };
    assert_eq!(refused(1, varint).0, WireError::Varint);

    let good = with_records(1, |e, out| e.absent(0, 1, out));
    let patched = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        read(&[&bytes], 1, 0).unwrap_err()
    };
    assert_eq!(patched(0, b'X'), WireError::Magic);
    assert_eq!(patched(4, 2), WireError::Version(2));
    assert_eq!(patched(7, 1), WireError::Flags(0x100));
    assert_eq!(patched(8, 2), WireError::Entries { got: 2, asked: 1 });
    assert_eq!(read(&[&good], 1, 0), Err(WireError::Truncated("answer")));
    let (whole, ..) = answer(&[Made::Absent], &[0], 0);
    assert_eq!(read(&[&whole, &[0]], 1, 0), Err(WireError::Trailing));
}

#[test]
fn what_may_be_ignored_is_but_not_for_ever() {
    let extra = |e: &mut AnswerEncoder, out: &mut BytesMut, len: usize| {
        out.put_slice(&[0x90, 1, 2, 3]);
        out.put_u32_le(len as u32);
        out.put_bytes(kind::END, len);
        e.absent(0, 1, out);
    };
    let mut bytes = with_records(1, |e, out| extra(e, out, 70_000));
    bytes.extend([kind::END, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(read(&[&bytes], 1, 0).is_ok());
    assert!(read(&bytes.chunks(7).collect::<Vec<_>>(), 1, 0).is_ok());
    let (error, _) = refused(1, |e, out| extra(e, out, MAX_IGNORABLE as usize));
    assert!(matches!(error, WireError::Range { .. }));
}

/// In the order of their offsets entries cost one interval, and holes are joined when they fill.
#[test]
fn neighbours_are_joined() {
    let mut taken = Intervals::default();
    for at in 0..1000 {
        assert!(taken.insert(at * 128, 100));
        assert_eq!(taken.0.len(), 1);
    }
    assert!(taken.insert(128 * 1002, 1) && taken.insert(128 * 1001, 1));
    assert_eq!(taken.0.len(), 3);
    assert!(taken.insert(128 * 1000, 128));
    assert_eq!(taken.0.len(), 2);
    assert!(!taken.insert(128 * 1001, 1));
    assert!(taken.insert(u64::MAX - 63, 63) && !taken.insert(u64::MAX - 63, 1));
}

fn any_made() -> impl Strategy<Value = Vec<Made>> {
    let crc = prop::option::of(any::<u32>());
    let one = prop_oneof![
        4 => (prop::collection::vec(any::<u8>(), 0..200), crc).prop_map(|(bytes, crc)| Made::Ok(bytes, crc)),
        1 => Just(Made::Absent),
        1 => any::<u64>().prop_map(Made::NotPlaced),
        1 => Just(Made::Failed),
        1 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Made::Retracted),
    ];
    prop::collection::vec(one, 1..20)
}

/// Made-up entries, and an order for their records.
fn any_answer() -> impl Strategy<Value = (Vec<Made>, Vec<usize>)> {
    any_made().prop_flat_map(|made| {
        let order = Just((0..made.len()).collect::<Vec<_>>()).prop_shuffle();
        (Just(made), order)
    })
}

/// Cuts `bytes` into pieces of these lengths, over and over.
fn cut<'a>(mut bytes: &'a [u8], lens: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for &len in lens.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (piece, rest) = bytes.split_at(len.min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

const CAPACITY: usize = 20 * 256;

proptest! {
    #[test]
    fn answers_come_back_however_they_are_cut(
        (made, order) in any_answer(),
        lens in prop::collection::vec(1usize..90, 1..8),
    ) {
        let (bytes, entries, lease) = answer(&made, &order, CAPACITY);
        prop_assert_eq!(&read(&[&bytes], made.len(), CAPACITY), &Ok((entries.clone(), lease.clone())));
        prop_assert_eq!(&read(&cut(&bytes, &lens), made.len(), CAPACITY), &Ok((entries, lease)));
        for end in 0..bytes.len() {
            prop_assert_eq!(read(&[&bytes[..end]], made.len(), CAPACITY), Err(WireError::Truncated("answer")));
        }
    }

    /// Whatever arrives: no panic, no byte out of bounds (the lease would panic), the same verdict however it is cut,
    /// and a table that keeps the rules.
    #[test]
    fn hostile_answers_do_no_harm(
        (made, order) in any_answer(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        lens in prop::collection::vec(1usize..90, 1..8),
    ) {
        let (mut bytes, ..) = answer(&made, &order, CAPACITY);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let whole = read(&[&bytes], made.len(), CAPACITY);
        prop_assert_eq!(&whole, &read(&cut(&bytes, &lens), made.len(), CAPACITY));
        if let Ok((entries, _)) = whole {
            prop_assert_eq!(crate::place::check_table(&entries, CAPACITY as u64), Ok(()));
        }
    }

    #[test]
    fn noise_does_no_harm(bytes in prop::collection::vec(prop_oneof![0u8..8, any::<u8>()], 0..400)) {
        let (header, ..) = answer(&[const { Made::Absent }; 4], &[0, 1, 2, 3], 0);
        let bytes = [&header[..HEADER], &bytes].concat();
        let _ = read(&[&bytes], 4, CAPACITY);
    }
}

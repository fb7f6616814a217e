use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::link::Version;
use crate::wire::FetchRequest;

fn body(capacity: u64, ordinals: &[u64]) -> BytesMut {
    let mut body = BytesMut::new();
    let remaining = std::time::Duration::from_secs(30);
    let request = FetchRequest { version: Version([7; 32]), capacity, remaining, fields: &[0, 2], ordinals };
    request.encode(&mut body).unwrap();
    body
}

fn head(op: Op, slot: u16) -> Head {
    let lease = Target { address: 0x7f00_0000_1000, key: 0x1071, capacity: 1 << 20 };
    let table = Target { address: 0x7f00_1000_0000, key: 0xb35, capacity: 64 << 10 };
    let lease = if matches!(op, Op::Fetch | Op::Echo) { lease } else { Target::default() };
    Head { op, slot, generation: 0x0102_0304, lease, table }
}

fn encoded(frame: Frame<'_>) -> Result<Vec<u8>, FrameError> {
    let mut out = vec![0xee; MAX_FRAME];
    let len = frame.encode(&mut out)?;
    out.truncate(len);
    Ok(out)
}

#[test]
fn frames_come_back() {
    let fetch = body(1 << 20, &[1, 2, 3, 900]);
    let nonce = 77u64.to_le_bytes();
    let all = [
        Frame { head: head(Op::Fetch, 31), body: &fetch },
        Frame { head: head(Op::Cancel, 31), body: &[] },
        Frame { head: head(Op::Heartbeat, CONTROL_SLOT), body: &[] },
        Frame { head: head(Op::Echo, CONTROL_SLOT), body: &nonce },
    ];
    for frame in all {
        let bytes = encoded(frame).unwrap();
        assert_eq!(bytes.len(), frame.len());
        assert_eq!(Frame::decode(&bytes), Ok(frame));
        assert_eq!(frame.nonce(), (frame.head.op == Op::Echo).then_some(77));
        for cut in 0..bytes.len() {
            assert!(Frame::decode(&bytes[..cut]).is_err());
        }
    }
}

#[test]
fn what_makes_no_sense_is_neither_sent_nor_taken() {
    let fetch = body(1 << 20, &[1]);
    let good = Frame { head: head(Op::Fetch, 0), body: &fetch };
    let bytes = encoded(good).unwrap();
    // Sealed again, since whoever means harm can compute a checksum.
    let with = |at: usize, new: &[u8]| {
        let mut bad = bytes.clone();
        bad[at..at + new.len()].copy_from_slice(new);
        bad[48..52].fill(0);
        let crc = crc32c::crc32c(&bad);
        bad[48..52].copy_from_slice(&crc.to_le_bytes());
        Frame::decode(&bad).map(|frame| frame.head).unwrap_err()
    };
    assert_eq!(with(0, &[2]), FrameError::Version(2));
    assert_eq!(with(1, &[0]), FrameError::Op(0));
    assert_eq!(with(1, &[9]), FrameError::Op(9));
    assert_eq!(with(1, &[2]), FrameError::BodyOf { op: Op::Cancel, len: fetch.len() });
    assert_eq!(with(2, &[0xff, 0xff]), FrameError::Slot { op: Op::Fetch, slot: CONTROL_SLOT });
    assert_eq!(with(1, &[4]), FrameError::Slot { op: Op::Echo, slot: 0 });
    assert!(matches!(with(16, &[0xff; 8]), FrameError::Memory { what: "a lease", capacity: u64::MAX, .. }));
    assert!(matches!(with(8, &[0xff; 8]), FrameError::Memory { what: "a lease", address: u64::MAX, .. }));
    assert!(matches!(with(24, &[0xff; 8]), FrameError::Memory { what: "a table", .. }));
    assert!(matches!(with(40, &[0; 4]), FrameError::Memory { what: "a table", capacity: 0, .. }));
    assert!(matches!(with(40, &[0xff; 4]), FrameError::Memory { what: "a table", .. }));
    assert_eq!(with(16, &[1]), FrameError::Capacity { body: 1 << 20, frame: (1 << 20) + 1 });
    assert_eq!(with(44, &[0; 4]), FrameError::Body { len: bytes.len(), body: 0 });
    assert_eq!(with(44, &[0xff; 4]), FrameError::Body { len: bytes.len(), body: u32::MAX });
    assert_eq!(with(52, &[1]), FrameError::Reserved);
    let mut torn = bytes.clone();
    torn[HEAD + 9] ^= 1;
    assert!(matches!(Frame::decode(&torn), Err(FrameError::Checksum { .. })));
    assert!(matches!(Frame::decode(&vec![1; MAX_FRAME + 1]), Err(FrameError::Length { .. })));

    let large = body(1 << 20, &(0..9000).map(|at| at * 3).collect::<Vec<_>>());
    let other = Head { lease: Target { capacity: 5, ..good.head.lease }, ..good.head };
    let idle = Head { lease: good.head.lease, ..head(Op::Heartbeat, CONTROL_SLOT) };
    for frame in [
        Frame { head: other, body: &fetch },
        Frame { head: idle, body: &[] },
        Frame { body: &[0; 59], ..good },
        Frame { body: &vec![0; MAX_FRAME], ..good },
    ] {
        assert!(encoded(frame).is_err(), "{:?}", frame.head);
    }
    assert!(encoded(Frame { body: &large, ..good }).is_ok(), "nine thousand ordinals that do not follow each other");
    assert!(matches!(good.encode(&mut [0; HEAD]), Err(FrameError::Length { max: HEAD, .. })));
}

#[test]
fn immediate_data_names_an_operation() {
    let imm = Imm::of_fetch(0x1234, 0xabcd_ef56, 1);
    assert_eq!(imm.encode(), 0x1234_5601);
    assert_eq!((Imm::decode(imm.encode()), imm.control()), (imm, None));
    for op in [Op::Cancel, Op::Heartbeat, Op::Echo] {
        assert_eq!(Imm::decode(Imm::of_control(op, 3).encode()).control(), Some(op));
    }
    // There is no fetch in the control slot, nor an operation 9.
    assert_eq!(Imm::decode(0xffff_0001).control(), None);
    assert_eq!(Imm::decode(0xffff_0009).control(), None);
}

#[test]
fn echoes_differ_by_nonce_and_place() {
    let (mut one, mut other) = ([0; 4099], [0; 4099]);
    fill_echo(1, &mut one);
    fill_echo(2, &mut other);
    assert!(one.chunks(8).zip(other.chunks(8)).all(|(one, other)| one.len() < 8 || one != other));
    let words: std::collections::BTreeSet<&[u8]> = one.chunks_exact(8).collect();
    assert_eq!(words.len(), 4099 / 8);
    // Kept: it is what another build computes.
    assert_eq!(one[..8], 0x910a_2dec_8902_5cc1_u64.to_le_bytes());
}

proptest! {
    /// Whatever arrives: no panic, nothing allocated, and what is accepted is what would be sent.
    #[test]
    fn hostile_frames_are_refused_or_sound(
        ordinals in prop::collection::vec(0u64..1 << 40, 1..20),
        kind in 0usize..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        seal: bool,
        junk in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let fetch = body(1 << 20, &ordinals);
        let frame = match kind {
            0 => Frame { head: head(Op::Fetch, 3), body: &fetch },
            1 => Frame { head: head(Op::Cancel, 3), body: &[] },
            2 => Frame { head: head(Op::Heartbeat, CONTROL_SLOT), body: &[] },
            _ => Frame { head: head(Op::Echo, CONTROL_SLOT), body: &[9; 8] },
        };
        let mut bytes = encoded(frame).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if seal {
            bytes[48..52].fill(0);
            let crc = crc32c::crc32c(&bytes);
            bytes[48..52].copy_from_slice(&crc.to_le_bytes());
        }
        for bytes in [bytes, junk] {
            if let Ok(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(encoded(frame).unwrap(), bytes.clone());
                prop_assert!(frame.head.lease.capacity <= MAX_LEASE);
            }
        }
    }
}

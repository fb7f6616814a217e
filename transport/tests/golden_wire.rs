//! The bytes of wire version 1, kept: what an earlier build wrote, every later one reads, and writes the same as long
//! as it speaks that version.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use forebay_transport::link::{Entry, Failure, Status, Version};
use forebay_transport::wire::answer::AnswerEncoder;
use forebay_transport::wire::{AnswerDecoder, FetchBody, FetchRequest, MAX_ORDINAL, problem};

/// The bytes of a file of hexadecimal digits with comments.
fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/golden/v1/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let digits = text.lines().flat_map(|line| line.split('#').next().unwrap_or_default().split_whitespace());
    digits.map(|byte| u8::from_str_radix(byte, 16).unwrap_or_else(|_| panic!("{path}: {byte}"))).collect()
}

#[test]
fn a_fetch_is_written_and_read_as_ever() {
    let version = Version(std::array::from_fn(|at| at as u8));
    let (fields, ordinals) = ([2, 0], [5, 6, 7, 8, 3, 3, 1_000_000, 0]);
    let remaining = Duration::from_secs(30);
    let mut written = BytesMut::new();
    let request = FetchRequest { version, capacity: 64 << 20, remaining, fields: &fields, ordinals: &ordinals };
    request.encode(&mut written).unwrap();
    assert_eq!(written, golden("fetch.hex"));

    let read = FetchBody::decode(written.freeze()).unwrap();
    assert_eq!((read.version, read.capacity, read.remaining), (version, 64 << 20, remaining));
    assert_eq!(read.fields, fields);
    assert_eq!(read.ordinals.iter().collect::<Vec<_>>(), ordinals);
}

#[test]
fn a_fetch_with_an_extension_is_read() {
    let read = FetchBody::decode(golden("fetch-extended.hex").into()).unwrap();
    assert_eq!((read.capacity, read.remaining), (u64::MAX, Duration::ZERO));
    assert_eq!(read.fields, [u16::MAX]);
    assert_eq!(read.ordinals.iter().collect::<Vec<_>>(), [MAX_ORDINAL - 1]);
}

#[test]
fn an_answer_is_written_and_read_as_ever() {
    let bytes = golden("group.hex");
    let hello = crc32c::crc32c(b"hello");
    let mut written = BytesMut::new();
    let mut encoder = AnswerEncoder::begin(9, &mut written);
    encoder.ok(2, Some(hello), 64, 5, &mut written);
    written.put_slice(b"hello");
    encoder.absent(1, 1, &mut written);
    encoder.ok(0, None, 0, 2, &mut written);
    written.put_slice(b"hi");
    // Not ours to write: what a later version may say.
    written.put_slice(&[0x90, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3]);
    encoder.failed(3, 1, Failure::Storage, &mut written);
    encoder.ok(4, Some(0), 0, 0, &mut written);
    encoder.not_placed(5, &[7, 300, 4 << 30], &mut written);
    encoder.ok(8, None, 128, 3, &mut written);
    written.put_slice(b"a\0\0");
    encoder.retracted(8, Failure::Storage, &mut written);
    encoder.end(&mut written);
    assert_eq!(written, bytes);

    let mut lease = [0xee; 256];
    let mut decoder = AnswerDecoder::new(9, 256);
    assert_eq!(decoder.copy_into(&bytes, &mut lease), Ok(true));
    let entry = |status, offset, len, crc| Entry { status, offset, len, crc };
    let expected = [
        entry(Status::Ok, 0, 2, None),
        entry(Status::Absent, 0, 0, None),
        entry(Status::Ok, 64, 5, Some(hello)),
        entry(Status::Failed(Failure::Storage), 0, 0, None),
        entry(Status::Ok, 0, 0, Some(0)),
        entry(Status::NotPlaced, 0, 7, None),
        entry(Status::NotPlaced, 0, 300, None),
        entry(Status::NotPlaced, 0, 4 << 30, None),
        entry(Status::Failed(Failure::Storage), 0, 0, None),
    ];
    assert_eq!(decoder.finish().unwrap(), expected);
    assert_eq!((&lease[..3], &lease[64..70]), (&b"hi\xee"[..], &b"hello\xee"[..]));
}

#[test]
fn a_problem_is_written_as_ever() {
    let path = format!("{}/tests/golden/v1/problem.json", env!("CARGO_MANIFEST_DIR"));
    let kept = std::fs::read_to_string(path).unwrap();
    let problem = problem::Kind::DatasetChanged.problem("shard a/000.tar changed on disk");
    assert_eq!(serde_json::to_string(&problem).unwrap(), kept.trim());
    assert_eq!(problem::parse(412, kept.as_bytes()), problem);
}

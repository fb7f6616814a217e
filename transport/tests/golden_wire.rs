//! The bytes of wire version 1, kept: what an earlier build wrote, every later one reads, and writes the same as long
//! as it speaks that version.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use forebay_transport::link::{Entry, Failure, Status, Version};
use forebay_transport::rdma::frame::{CONTROL_SLOT, Frame, Head, Op, Target, fill_echo};
use forebay_transport::rdma::hello::{Hello, Reason, Rejection, Ticket, Welcome};
use forebay_transport::rdma::table;
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

fn frame(op: Op, slot: u16, generation: u32, sizes: (u64, u64)) -> Head {
    let lease = Target { address: 0x7f00_0000_1000, key: 0x1071, capacity: sizes.0 };
    let table = Target { address: 0x7f00_1000_0000, key: 0xb35, capacity: sizes.1 };
    Head { op, slot, generation, lease, table }
}

#[test]
fn frames_over_rdma_are_written_and_read_as_ever() {
    let mut body = BytesMut::new();
    let (version, remaining) = (Version(std::array::from_fn(|at| at as u8)), Duration::from_secs(30));
    let request = FetchRequest { version, capacity: 1 << 20, remaining, fields: &[2], ordinals: &[5, 6] };
    request.encode(&mut body).unwrap();
    let nonce = 77u64.to_le_bytes();
    let fetch = Frame { head: frame(Op::Fetch, 3, 0x0102_0304, (1 << 20, 64 << 10)), body: &body };
    let echo = Frame { head: frame(Op::Echo, CONTROL_SLOT, 1, (64, 4 << 10)), body: &nonce };
    for (frame, name) in [(fetch, "rdma-fetch.hex"), (echo, "rdma-echo.hex")] {
        let (mut out, kept) = ([0; 4096], golden(name));
        let len = frame.encode(&mut out).unwrap();
        assert_eq!(out[..len], kept, "{name}");
        assert_eq!(Frame::decode(&kept), Ok(frame));
    }
    let mut echoed = [0; 12];
    fill_echo(77, &mut echoed);
    assert_eq!(echoed, [0x81, 0xf0, 0x1f, 0x7c, 0xe0, 0xcb, 0x58, 0x62, 0x54, 0x9e, 0x96, 0x3a]);
}

#[test]
fn tables_over_rdma_are_written_and_read_as_ever() {
    let head = table::Head { slot: 3, generation: 0x0102_0304 };
    let entry = |status, offset, len, crc| Entry { status, offset, len, crc };
    let entries = [
        entry(Status::Ok, 0, 100, Some(0x9a71_bb4c)),
        entry(Status::Ok, 128, 5, None),
        entry(Status::Absent, 0, 0, None),
        entry(Status::NotPlaced, 0, 4 << 30, None),
        entry(Status::Failed(Failure::Storage), 0, 0, None),
    ];
    let (mut out, kept) = ([0; 4096], golden("rdma-table.hex"));
    let len = table::encode_entries(head, &entries, &mut out).unwrap();
    assert_eq!(out[..len], kept);
    let (expected, mut read) = (table::Expected { head, entries: 5, capacity: 133 }, Vec::new());
    assert_eq!(table::decode(&kept, &expected, &mut read), Ok(table::Answer::Entries));
    assert_eq!(read, entries);

    let kept = golden("rdma-problem.hex");
    let len = table::encode_problem(head, (503, Some(2)), b"{}", &mut out).unwrap();
    assert_eq!(out[..len], kept);
    let problem = table::Answer::Problem { status: 503, retry_after: Some(2), document: b"{}" };
    assert_eq!(table::decode(&kept, &expected, &mut read), Ok(problem));
}

#[test]
fn connecting_over_rdma_is_said_as_ever() {
    let kept = golden("rdma-hello.hex");
    let hello = Hello::new(Ticket::new(std::array::from_fn(|at| at as u8)), 32);
    assert_eq!(hello.encode(), kept[..48]);
    assert_eq!(Hello::decode(&kept).map(|hello| hello.encode().to_vec()), Ok(kept[..48].to_vec()));
    let kept = golden("rdma-welcome.hex");
    let heartbeat = Duration::from_millis(500);
    let welcome = Welcome { version: 1, credits: 32, frame: 32 << 10, table: 64 << 10, heartbeat };
    assert_eq!((&welcome.encode()[..], Welcome::decode(&kept)), (&kept[..], Ok(welcome)));
    let kept = golden("rdma-rejection.hex");
    let rejection = Rejection::new(Reason::ExpiredTicket);
    assert_eq!((&rejection.encode()[..], Rejection::decode(&kept)), (&kept[..], Ok(rejection)));
}

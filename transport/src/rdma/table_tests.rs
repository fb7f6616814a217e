use proptest::prelude::*;

use super::*;

const HEAD_OF: Head = Head { slot: 7, generation: 0x0102_0304 };

fn entry(status: Status, offset: u64, len: u64, crc: Option<u32>) -> Entry {
    Entry { status, offset, len, crc }
}

fn some() -> Vec<Entry> {
    vec![
        entry(Status::Ok, 0, 100, Some(0)),
        entry(Status::Ok, 128, 5, None),
        entry(Status::Ok, 0, 0, Some(9)),
        entry(Status::Absent, 0, 0, None),
        entry(Status::Failed(Failure::Storage), 0, 0, None),
        entry(Status::NotPlaced, 0, 4 << 30, None),
    ]
}

fn expected(entries: usize, capacity: u64) -> Expected {
    Expected { head: HEAD_OF, entries, capacity }
}

/// The checksum of a table that was changed, over as much of it as it says that it has.
fn seal_again(table: &mut [u8]) {
    let count = u32_at(table, 12) as usize;
    let said =
        if table[5] == status::PROBLEM { HEAD + count } else { HEAD.saturating_add(count.saturating_mul(ENTRY)) };
    let len = said.min(table.len());
    table[28..32].fill(0);
    let crc = crc32c::crc32c(&table[..len]);
    table[28..32].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn entries_come_back() {
    let mut out = [0xee; 4096];
    let len = encode_entries(HEAD_OF, &some(), &mut out).unwrap();
    assert_eq!((len, entries_in(len)), (HEAD + 6 * ENTRY, 6));
    let mut entries = vec![entry(Status::Absent, 0, 0, None)];
    // What lies behind the table is of no interest.
    assert_eq!(decode(&out, &expected(6, 133), &mut entries), Ok(Answer::Entries));
    assert_eq!(entries[1..], some());
    for cut in 0..len {
        assert!(decode(&out[..cut], &expected(6, 133), &mut Vec::new()).is_err());
    }
    assert_eq!(entries_in(DEFAULT_TABLE), 2729);
}

#[test]
fn problems_come_back() {
    let mut out = [0xee; 200];
    let document = br#"{"type":"urn:forebay:problem:busy"}"#;
    let problem = |bytes: &[u8], mut entries: Vec<Entry>| {
        let answer = decode(bytes, &expected(6, 0), &mut entries).map(|answer| match answer {
            Answer::Problem { status, retry_after, document } => (status, retry_after, document.to_vec()),
            Answer::Entries => panic!("entries"),
        });
        assert!(entries.is_empty());
        answer.unwrap()
    };
    let len = encode_problem(HEAD_OF, (503, Some(2)), document, &mut out).unwrap();
    assert_eq!(len, HEAD + document.len());
    assert_eq!(problem(&out, Vec::new()), (503, Some(2), document.to_vec()));
    // One that does not fit is told by its status.
    let len = encode_problem(HEAD_OF, (412, None), &[b'x'; 169], &mut out).unwrap();
    assert_eq!((len, problem(&out, Vec::new())), (HEAD, (412, None, Vec::new())));
    assert_eq!(encode_problem(HEAD_OF, (200, None), document, &mut out), Err(TableError::NoProblem(200)));
    assert!(matches!(encode_problem(HEAD_OF, (500, None), document, &mut [0; 31]), Err(TableError::Room { .. })));
}

#[test]
fn tables_that_are_not_to_be_believed_say_why() {
    let mut good = vec![0; 4096];
    let len = encode_entries(HEAD_OF, &some(), &mut good).unwrap();
    good.truncate(len);
    let with = |at: usize, new: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + new.len()].copy_from_slice(new);
        seal_again(&mut bad);
        let mut entries = Vec::new();
        let error = decode(&bad, &expected(6, 133), &mut entries).unwrap_err();
        assert!(entries.is_empty());
        error
    };
    let entry_at = |at: usize| HEAD + at * ENTRY;
    assert_eq!(with(0, b"X"), TableError::Magic);
    assert_eq!(with(4, &[2]), TableError::Version(2));
    assert_eq!(with(5, &[2]), TableError::Status(2));
    assert!(matches!(with(6, &[8]), TableError::Stranger { .. }), "another slot");
    assert!(matches!(with(11, &[8]), TableError::Stranger { .. }), "another generation");
    assert_eq!(with(12, &[5]), TableError::Count { got: 5, asked: 6 });
    assert!(matches!(with(12, &[0xff; 4]), TableError::Room { need, .. } if need > 1 << 36));
    assert_eq!(with(16, &[1]), TableError::Reserved);
    assert_eq!(with(20, &[1]), TableError::Reserved);
    assert_eq!(with(5, &[1]), TableError::NoProblem(0));
    assert!(matches!(with(entry_at(1) + 8, &[6]), TableError::Place(_)), "past the lease's end");
    assert!(matches!(with(entry_at(0), &[128]), TableError::Place(_)), "over another");
    assert!(matches!(with(entry_at(2), &[0xc0; 8]), TableError::Place(_)), "an empty one, far out");
    assert_eq!(with(entry_at(1), &[129]), TableError::Misaligned { entry: 1, offset: 129 });
    assert!(matches!(with(entry_at(1) + 20, &[0]), TableError::Entry { entry: 1, kind: 0, .. }));
    assert!(matches!(with(entry_at(1) + 20, &[5]), TableError::Entry { .. }), "tables take nothing back");
    assert!(matches!(with(entry_at(1) + 21, &[2]), TableError::Entry { flags: 2, .. }));
    assert!(matches!(with(entry_at(4) + 22, &[2]), TableError::Entry { reason: 2, .. }));
    assert!(matches!(with(entry_at(0) + 22, &[1]), TableError::Entry { reason: 1, .. }));
    assert_eq!(with(entry_at(1) + 16, &[1]), TableError::Surplus { entry: 1 });
    assert_eq!(with(entry_at(3) + 8, &[1]), TableError::Surplus { entry: 3 });
    assert_eq!(with(entry_at(5), &[64]), TableError::Surplus { entry: 5 });
    let mut torn = good.clone();
    torn[entry_at(2)] ^= 64;
    assert!(matches!(decode(&torn, &expected(6, 133), &mut Vec::new()), Err(TableError::Checksum { .. })));
    assert!(matches!(
        encode_entries(HEAD_OF, &some(), &mut [0; HEAD + 6 * ENTRY - 1]),
        Err(TableError::Room { need, .. }) if need == len as u64
    ));
}

/// Entries may lie in any order, as long as they share nothing.
#[test]
fn entries_in_another_order_are_as_good() {
    let mut out = [0; 256];
    let back = [entry(Status::Ok, 128, 100, None), entry(Status::Ok, 0, 65, None)];
    encode_entries(HEAD_OF, &back, &mut out).unwrap();
    let mut entries = Vec::new();
    assert_eq!(decode(&out, &expected(2, 228), &mut entries), Ok(Answer::Entries));
    assert_eq!(entries, back);
    assert!(matches!(decode(&out, &expected(2, 227), &mut entries), Err(TableError::Place(_))));
    assert_eq!(entries.len(), 2, "what was there stays");
}

fn any_entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        (0u64..40, 0u64..200, any::<Option<u32>>()).prop_map(|(at, len, crc)| entry(Status::Ok, at * 64, len, crc)),
        Just(entry(Status::Absent, 0, 0, None)),
        any::<u64>().prop_map(|len| entry(Status::NotPlaced, 0, len, None)),
        Just(entry(Status::Failed(Failure::Storage), 0, 0, None)),
    ]
}

proptest! {
    /// Whatever was written is read as it was, or refused for where it lies; whatever else arrives is refused or in bounds, and
    /// nothing is allocated that was not asked for.
    #[test]
    fn hostile_tables_are_refused_or_in_bounds(
        sent in prop::collection::vec(any_entry(), 0..12),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        capacity in 0u64..3000,
        junk in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut table = vec![0; HEAD + sent.len() * ENTRY];
        encode_entries(HEAD_OF, &sent, &mut table).unwrap();
        let expected = expected(sent.len(), capacity);
        let mut entries = Vec::new();
        match decode(&table, &expected, &mut entries) {
            Ok(_) => prop_assert_eq!(&entries, &sent),
            Err(error) => prop_assert!(matches!(error, TableError::Place(_)), "{}", error),
        }
        prop_assert_eq!(check_table(&sent, capacity).is_ok(), entries.len() == sent.len() && (entries == sent));
        for (at, byte) in changes {
            let at = at.index(table.len());
            table[at] = byte;
        }
        seal_again(&mut table);
        for bytes in [table, junk] {
            let mut entries = Vec::new();
            if decode(&bytes, &expected, &mut entries) == Ok(Answer::Entries) {
                prop_assert_eq!(entries.len(), expected.entries);
                prop_assert_eq!(check_table(&entries, capacity), Ok(()));
            }
            prop_assert!(entries.capacity() <= (2 * expected.entries).max(4));
        }
    }
}

//! The one place where arrived bytes are checked, for every fabric.

use forebay_transport::link::{Completion, Entry, Failure, Status};

/// Marks every entry whose bytes do not match their CRC-32C as failed. The result is how many came without one.
pub(crate) fn verify(completion: &mut Completion) -> u64 {
    let lease: &[u8] = &completion.lease;
    let Ok(entries) = &mut completion.result else { return 0 };
    let mut without = 0;
    for entry in entries {
        without += u64::from(entry.status == Status::Ok && entry.crc.is_none() && entry.len > 0);
        if !matches(entry, lease) {
            entry.status = Status::Failed(Failure::Corrupt);
        }
    }
    without
}

/// Whether an entry's bytes are those that were indexed. An entry without a CRC, or without bytes, has nothing to differ.
fn matches(entry: &Entry, lease: &[u8]) -> bool {
    let (Status::Ok, Some(crc)) = (entry.status, entry.crc) else { return true };
    let bytes = usize::try_from(entry.offset)
        .ok()
        .zip(usize::try_from(entry.len).ok())
        .and_then(|(offset, len)| lease.get(offset..offset.checked_add(len)?));
    bytes.is_some_and(|bytes| crc32c::crc32c(bytes) == crc)
}

#[cfg(test)]
mod tests {
    use forebay_transport::link::Tag;
    use forebay_transport::pool::{Account, Slab, SlabConfig};

    use super::*;

    #[test]
    fn what_does_not_match_is_marked() {
        let slab = Slab::new(SlabConfig::new(8192)).unwrap();
        let mut lease = slab.try_lease(&Account::new("test", 8192), 100).unwrap();
        lease.as_mut_slice()[..5].copy_from_slice(b"hello");
        let crc = Some(crc32c::crc32c(b"hello"));
        let ok = Entry { status: Status::Ok, offset: 0, len: 5, crc };
        let entries = vec![
            ok,
            Entry { offset: 1, ..ok },
            Entry { crc: None, offset: 1, ..ok },
            Entry { offset: 98, ..ok },
            Entry { offset: u64::MAX, ..ok },
            Entry { status: Status::Absent, ..ok },
        ];
        let mut completion = Completion { tag: Tag(0), lease, ordinals: Vec::new(), result: Ok(entries) };
        assert_eq!(verify(&mut completion), 1);
        let found: Vec<_> = completion.result.unwrap().iter().map(|entry| entry.status).collect();
        let corrupt = Status::Failed(Failure::Corrupt);
        assert_eq!(found, [Status::Ok, corrupt, Status::Ok, corrupt, corrupt, Status::Absent]);
    }
}

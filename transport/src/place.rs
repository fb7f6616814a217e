//! Where a group's entries lie in a lease. Pure, and the same for every fabric.
//!
//! The rules: entries lie anywhere in bounds, disjoint; what is placed is a prefix of the request, whole samples at a
//! time, because a sample is what is asked for again. Nobody needs to know lengths beforehand.

use crate::link::{Entry, Status};

/// Hands out offsets, sample by sample, until one does not fit. Constant memory: a server places a group of any size
/// as it walks through it.
#[derive(Clone, Copy, Debug)]
pub struct Placer {
    capacity: u64,
    align: u64,
    /// Where the next entry may begin: aligned, or beyond the capacity.
    cursor: u64,
    full: bool,
}

impl Placer {
    /// A placer for a lease of `capacity` bytes. Entries begin at multiples of `align`.
    ///
    /// # Panics
    /// When `align` is not a power of two.
    pub fn new(capacity: u64, align: u64) -> Placer {
        assert!(align.is_power_of_two(), "alignment is a power of two");
        Placer { capacity, align, cursor: 0, full: false }
    }

    /// Whether a sample did not fit: nothing after it is placed.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Places all fields of the next sample (`None`: a field it does not have), or none of them and nothing from now
    /// on. `offsets` gets one offset for each field: 0 for absent and for empty ones, which take no room.
    pub fn sample(&mut self, lens: &[Option<u64>], offsets: &mut Vec<u64>) -> bool {
        let (mut cursor, before) = (self.cursor, offsets.len());
        for len in lens {
            let placed = if self.full { None } else { self.entry(len.unwrap_or(0), &mut cursor) };
            let Some(offset) = placed else {
                self.full = true;
                offsets.truncate(before);
                return false;
            };
            offsets.push(offset);
        }
        self.cursor = cursor;
        !self.full
    }

    fn entry(&self, len: u64, cursor: &mut u64) -> Option<u64> {
        if len == 0 {
            return Some(0);
        }
        let offset = *cursor;
        let end = offset.checked_add(len).filter(|&end| end <= self.capacity)?;
        // Beyond the last multiple there is no room for anything: `u64::MAX` says so, since `end` cannot follow it.
        *cursor = end.checked_next_multiple_of(self.align).unwrap_or(u64::MAX);
        Some(offset)
    }
}

/// Places a whole group: for each entry its offset, or `None` from the first sample on that does not fit. `lens` has
/// `fields_per_sample` entries for each sample, in request order; `None` is a field that a sample does not have.
///
/// # Panics
/// When `align` is not a power of two or `lens` is not whole samples.
pub fn place(lens: &[Option<u64>], fields_per_sample: usize, capacity: u64, align: u64) -> Vec<Option<u64>> {
    assert!(fields_per_sample > 0 && lens.len().is_multiple_of(fields_per_sample), "entries come in whole samples");
    let mut placer = Placer::new(capacity, align);
    let mut offsets = Vec::with_capacity(lens.len());
    for sample in lens.chunks_exact(fields_per_sample) {
        if !placer.sample(sample, &mut offsets) {
            break;
        }
    }
    let mut placed: Vec<Option<u64>> = offsets.into_iter().map(Some).collect();
    placed.resize(lens.len(), None);
    placed
}

/// The capacity that entries of these lengths need to be placed all together; `None` when it is beyond `u64`.
pub fn needed(lens: impl IntoIterator<Item = u64>, align: u64) -> Option<u64> {
    let (mut cursor, mut end) = (0u64, 0u64);
    for len in lens.into_iter().filter(|&len| len > 0) {
        end = cursor.checked_add(len)?;
        cursor = end.checked_next_multiple_of(align).unwrap_or(u64::MAX);
    }
    Some(end)
}

/// Why a table of entries that came from a peer cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    #[error("entry {entry} lies at {offset}, {len} bytes long, outside a lease of {capacity} bytes")]
    OutOfBounds { entry: usize, offset: u64, len: u64, capacity: u64 },
    #[error("entries {first} and {second} overlap")]
    Overlap { first: usize, second: usize },
}

/// Whether every placed entry of a table lies within a lease of `capacity` bytes and overlaps no other. That a prefix
/// is placed is not required. Time O(n log n); memory for n indices and no more, whatever the table says.
pub fn check_table(entries: &[Entry], capacity: u64) -> Result<(), TableError> {
    let mut placed = Vec::with_capacity(entries.len());
    for (entry, &Entry { status, offset, len, .. }) in entries.iter().enumerate() {
        if status != Status::Ok {
            continue;
        }
        if offset.checked_add(len).is_none_or(|end| end > capacity) {
            return Err(TableError::OutOfBounds { entry, offset, len, capacity });
        }
        // An empty entry has no byte to share.
        if len > 0 {
            placed.push(entry);
        }
    }
    placed.sort_unstable_by_key(|&entry| entries[entry].offset);
    for pair in placed.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        if entries[first].offset + entries[first].len > entries[second].offset {
            return Err(TableError::Overlap { first, second });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(lens: &[Option<u64>], placed: &[Option<u64>]) -> Vec<Entry> {
        let entry = |(len, placed): (&Option<u64>, &Option<u64>)| match (len, placed) {
            (Some(len), Some(offset)) => Entry { status: Status::Ok, offset: *offset, len: *len, crc: None },
            (Some(len), None) => Entry { status: Status::NotPlaced, offset: 0, len: *len, crc: None },
            (None, _) => Entry { status: Status::Absent, offset: 0, len: 0, crc: None },
        };
        lens.iter().zip(placed).map(entry).collect()
    }

    #[test]
    fn a_sample_is_placed_whole_or_not_at_all() {
        let lens = [Some(10), Some(100), Some(10), None, Some(1), Some(1)];
        // The third sample would fit by itself, but what is placed is a prefix.
        assert_eq!(place(&lens, 2, 165, 64), [Some(0), Some(64), None, None, None, None]);
        assert_eq!(place(&lens, 2, 202, 64), [Some(0), Some(64), Some(192), Some(0), None, None]);
        assert_eq!(place(&lens, 2, 321, 64), [Some(0), Some(64), Some(192), Some(0), Some(256), Some(320)]);
        assert_eq!(needed([10, 100, 10, 1, 1], 64), Some(321));
    }

    #[test]
    fn what_fits_exactly_is_placed() {
        assert_eq!(place(&[Some(100)], 1, 100, 64), [Some(0)]);
        assert_eq!(place(&[Some(100)], 1, 99, 64), [None]);
        assert_eq!(place(&[Some(u64::MAX)], 1, u64::MAX, 64), [Some(0)]);
        assert_eq!(place(&[Some(u64::MAX - 1), Some(1)], 1, u64::MAX, 64), [Some(0), None]);
        assert_eq!(needed([u64::MAX - 1, 1], 64), None);
    }

    #[test]
    fn empty_entries_need_no_room() {
        assert_eq!(place(&[Some(0), None], 2, 0, 64), [Some(0), Some(0)]);
        assert_eq!(place(&[Some(64), Some(0), Some(0)], 1, 64, 64), [Some(0), Some(0), Some(0)]);
        assert_eq!(place(&[Some(65), Some(0)], 1, 64, 64), [None, None]);
        assert_eq!(needed([], 64), Some(0));
    }

    #[test]
    fn tables_of_peers_are_checked() {
        let ok = |offset, len| Entry { status: Status::Ok, offset, len, crc: None };
        assert_eq!(check_table(&[ok(64, 64), ok(0, 64), ok(10, 0)], 128), Ok(()));
        assert_eq!(check_table(&[ok(64, 64), ok(0, 65)], 128), Err(TableError::Overlap { first: 1, second: 0 }));
        assert!(matches!(check_table(&[ok(64, 65)], 128), Err(TableError::OutOfBounds { entry: 0, .. })));
        assert!(matches!(check_table(&[ok(u64::MAX, 2)], u64::MAX), Err(TableError::OutOfBounds { .. })));
        // Only what is placed is judged.
        let wants = Entry { status: Status::NotPlaced, offset: 0, len: u64::MAX, crc: None };
        assert_eq!(check_table(&[wants, wants], 0), Ok(()));
    }

    fn any_len() -> impl Strategy<Value = Option<u64>> {
        prop_oneof![
            1 => Just(None),
            6 => (0u64..300).prop_map(Some),
            1 => any::<u64>().prop_map(Some),
            1 => (u64::MAX - 200..=u64::MAX).prop_map(Some),
        ]
    }

    proptest! {
        #[test]
        fn placement_keeps_its_rules(
            lens in prop::collection::vec(any_len(), 0..40),
            fields in 1usize..4,
            capacity in prop_oneof![0u64..4000, u64::MAX - 300..=u64::MAX],
            align in prop::sample::select(vec![1u64, 2, 64, 4096]),
        ) {
            let lens = &lens[..lens.len() / fields * fields];
            let placed = place(lens, fields, capacity, align);
            prop_assert_eq!(placed.len(), lens.len());
            prop_assert_eq!(check_table(&table(lens, &placed), capacity), Ok(()));
            prop_assert!(placed.iter().flatten().all(|offset| offset % align == 0));
            // A prefix, of whole samples.
            let count = placed.iter().take_while(|offset| offset.is_some()).count();
            prop_assert!(count % fields == 0 && placed[count..].iter().all(|offset| offset.is_none()));
            // And no shorter a prefix than need be.
            if count < lens.len() {
                let tried = lens[..count + fields].iter().flatten().copied();
                prop_assert!(needed(tried, align).is_none_or(|needed| needed > capacity));
            }
        }
    }
}

//! Which reads to make for which extents. Pure.

use std::ops::Range;

use super::Read;
use crate::catalog::Extent;

/// The default of the widest gap that is read along: reading 16 KiB costs about as much as asking once more.
pub const DEFAULT_GAP: u64 = 16 << 10;

/// The reads that bring `extents` (in the order in which they are wanted) into one lease, and where each extent then
/// lies in it.
///
/// Neighbours in the list that lie in one shard, in whichever order, at most `gap` bytes apart, become one read; the
/// gap is read along, and bytes wanted twice by one read are read once. The reads lie one behind the other in the
/// lease, in the order of the extents. `reads` and `at` are emptied and filled (one of `at` for each extent), so that
/// their memory is used again. Returns the bytes of lease needed, or `None` when sums overflow: then no lease could
/// hold them.
pub fn coalesce(extents: &[Extent], gap: u64, reads: &mut Vec<Read>, at: &mut Vec<usize>) -> Option<usize> {
    reads.clear();
    at.clear();
    let mut whole = 0usize;
    let mut rest = extents;
    while let Some(first) = rest.first() {
        let (range, count) = run(rest, gap)?;
        let read = Read {
            shard: first.shard,
            offset: range.start,
            len: usize::try_from(range.end - range.start).ok()?,
            at: whole,
        };
        for extent in &rest[..count] {
            // At most `read.len`, so it fits.
            at.push(whole.checked_add((extent.offset - range.start) as usize)?);
        }
        whole = whole.checked_add(read.len)?;
        reads.push(read);
        rest = &rest[count..];
    }
    Some(whole)
}

/// The same, with every read widened to whole blocks of `align` bytes (a power of two) and put at a multiple of that, for
/// stores that have nothing to copy then ([`Store::align`](super::Store::align)). No read goes beyond what `size` says its shard
/// has. Returns `None` too when that takes more than `most` bytes of lease.
pub fn coalesce_aligned(
    extents: &[Extent],
    gap: u64,
    (align, most): (usize, usize),
    size: impl Fn(u32) -> u64,
    reads: &mut Vec<Read>,
    at: &mut Vec<usize>,
) -> Option<usize> {
    reads.clear();
    at.clear();
    let block = align as u64;
    let (mut whole, mut end) = (0usize, 0);
    let mut rest = extents;
    while let Some(first) = rest.first() {
        // Blocks that two neighbours share are read along, too.
        let (range, count) = run(rest, gap.max(block))?;
        let start = range.start & !(block - 1);
        let stop = range.end.checked_next_multiple_of(block)?.min(size(first.shard)).max(range.end);
        let len = usize::try_from(stop - start).ok()?;
        for extent in &rest[..count] {
            at.push(whole.checked_add((extent.offset - start) as usize)?);
        }
        reads.push(Read { shard: first.shard, offset: start, len, at: whole });
        end = whole.checked_add(len)?;
        whole = end.checked_next_multiple_of(align)?;
        if end > most {
            return None;
        }
        rest = &rest[count..];
    }
    Some(end)
}

/// The bytes that the first extents have in common with the gaps between them, and how many extents those are.
fn run(extents: &[Extent], gap: u64) -> Option<(Range<u64>, usize)> {
    let (first, others) = extents.split_first()?;
    let mut range = bytes(first)?;
    let mut count = 1;
    for extent in others {
        let next = bytes(extent)?;
        let between = next.start.saturating_sub(range.end).max(range.start.saturating_sub(next.end));
        if extent.shard != first.shard || between > gap {
            break;
        }
        range = range.start.min(next.start)..range.end.max(next.end);
        count += 1;
    }
    Some((range, count))
}

fn bytes(extent: &Extent) -> Option<Range<u64>> {
    Some(extent.offset..extent.offset.checked_add(extent.len)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(shard: u32, offset: u64, len: u64) -> Extent {
        Extent { shard, offset, len, crc: None }
    }

    fn of(extents: &[Extent], gap: u64) -> Option<(Vec<Read>, Vec<usize>, usize)> {
        let (mut reads, mut at) = (Vec::new(), Vec::new());
        let whole = coalesce(extents, gap, &mut reads, &mut at)?;
        Some((reads, at, whole))
    }

    #[test]
    fn nothing_needs_nothing() {
        assert_eq!(of(&[], 10), Some((vec![], vec![], 0)));
    }

    #[test]
    fn a_gap_is_read_along_up_to_the_limit() {
        let extents = [extent(0, 100, 10), extent(0, 120, 5)];
        assert_eq!(of(&extents, 10), Some((vec![Read { shard: 0, offset: 100, len: 25, at: 0 }], vec![0, 20], 25)));
        let (reads, at, whole) = of(&extents, 9).unwrap();
        assert_eq!((reads.len(), at, whole), (2, vec![0, 10], 15));
    }

    #[test]
    fn backwards_and_twice_is_read_once() {
        let extents = [extent(0, 50, 10), extent(0, 0, 45), extent(0, 50, 10), extent(1, 50, 10)];
        let (reads, at, whole) = of(&extents, 5).unwrap();
        assert_eq!(
            reads,
            [Read { shard: 0, offset: 0, len: 60, at: 0 }, Read { shard: 1, offset: 50, len: 10, at: 60 }]
        );
        assert_eq!((at, whole), (vec![50, 0, 50, 60], 70));
    }

    #[test]
    fn sums_that_overflow_are_refused() {
        assert_eq!(of(&[extent(0, u64::MAX, 1)], 0), None);
        assert_eq!(of(&[extent(0, 0, 1), extent(0, 2, u64::MAX)], 5), None);
        assert_eq!(of(&[extent(0, 0, u64::MAX), extent(1, 0, 1)], 0), None);
        assert_eq!(of(&[extent(0, 0, u64::MAX), extent(1, 0, 0)], u64::MAX).unwrap().0.len(), 2);
    }

    #[test]
    fn aligned_reads_are_whole_blocks_at_whole_blocks() {
        let extents = [extent(0, 100, 10), extent(0, 600, 5), extent(1, 512, 512), extent(1, 5000, 20)];
        let (mut reads, mut at) = (Vec::new(), Vec::new());
        let whole = coalesce_aligned(&extents, 0, (512, 1 << 20), |_| 5050, &mut reads, &mut at);
        let read = |shard, offset, len, at| Read { shard, offset, len, at };
        // The last block of the second shard has no more than 5050 - 4608 bytes.
        let expected = [read(0, 0, 1024, 0), read(1, 512, 512, 1024), read(1, 4608, 442, 1536)];
        assert_eq!((&reads[..], &at[..], whole), (&expected[..], &[100, 600, 1024, 1928][..], Some(1978)));
        assert_eq!(coalesce_aligned(&extents, 0, (512, 1977), |_| 5050, &mut reads, &mut at), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn every_extent_is_where_aligned_reads_put_it(
            extents in prop::collection::vec((0u32..3, 0u64..9000, 0u64..700), 0..40),
            gap in 0u64..400, block in 0u32..12,
        ) {
            let extents: Vec<_> = extents.into_iter().map(|(shard, offset, len)| extent(shard, offset, len)).collect();
            let (mut reads, mut at, align) = (Vec::new(), Vec::new(), 1 << block);
            let whole = coalesce_aligned(&extents, gap, (align, 1 << 20), |_| 9700, &mut reads, &mut at).unwrap();
            let mut lease = vec![None; whole];
            for read in &reads {
                prop_assert!(read.at.is_multiple_of(align) && read.offset.is_multiple_of(align as u64));
                let end = read.offset + read.len as u64;
                prop_assert!(end.is_multiple_of(align as u64) || end == 9700);
                for n in 0..read.len {
                    prop_assert_eq!(lease[read.at + n].replace((read.shard, read.offset + n as u64)), None);
                }
            }
            prop_assert_eq!(at.len(), extents.len());
            for (extent, &at) in extents.iter().zip(&at) {
                let found = &lease[at..][..extent.len as usize];
                prop_assert!(found.iter().zip(extent.offset..).all(|(found, offset)| *found == Some((extent.shard, offset))));
            }
        }

        #[test]
        fn every_extent_is_where_it_is_said_to_be(
            extents in prop::collection::vec((0u32..3, 0u64..2000, 0u64..300), 0..40),
            gap in 0u64..400,
        ) {
            let extents: Vec<_> = extents.into_iter().map(|(shard, offset, len)| extent(shard, offset, len)).collect();
            let (reads, at, whole) = of(&extents, gap).unwrap();
            // A byte of a shard, and what a lease looks like once it is read.
            let byte = |shard: u32, offset: u64| (shard as u64 * 31 + offset * 7 + offset / 256) as u8;
            let mut lease = Vec::new();
            for read in &reads {
                prop_assert_eq!(read.at, lease.len());
                lease.extend((read.offset..read.offset + read.len as u64).map(|offset| byte(read.shard, offset)));
            }
            prop_assert_eq!(lease.len(), whole);
            prop_assert_eq!(at.len(), extents.len());
            for (extent, &at) in extents.iter().zip(&at) {
                let expected = (extent.offset..extent.offset + extent.len).map(|offset| byte(extent.shard, offset));
                prop_assert!(lease[at..].iter().copied().take(extent.len as usize).eq(expected));
            }
            // Never more than what is wanted and the gaps between; no more reads than extents.
            let wanted: u64 = extents.iter().map(|extent| extent.len).sum();
            let gaps = gap * extents.len().saturating_sub(reads.len()) as u64;
            prop_assert!(whole as u64 <= wanted + gaps);
            prop_assert!(reads.len() <= extents.len());
            if gap == 0 {
                prop_assert!(whole as u64 <= wanted);
            }
        }
    }
}

//! Which part of a wanted read to ask the kernel for next, and into which memory. Pure.

/// The longest operation: a longer read is several of them, so that none holds the ring's thread for long.
pub(super) const LONGEST: usize = 1 << 20;
/// The bytes of one piece of bounce memory: the longest read that is not done in place.
pub(super) const BOUNCE: usize = 128 << 10;
/// From so many bytes in place on, another operation for what is beside them is cheaper than copying all.
const WORTH: usize = 128 << 10;

/// What a file opened with `O_DIRECT` demands of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Offsets in the file and lengths are multiples of this many bytes, a power of two.
    pub block: usize,
    /// Addresses in memory are multiples of this many bytes, a power of two.
    pub memory: usize,
}

impl Alignment {
    /// Whether the bounce memory and its arithmetic can serve it.
    pub(super) fn is_sound(self) -> bool {
        let fits = |bytes: usize, most: usize| bytes.is_power_of_two() && bytes <= most;
        fits(self.block, BOUNCE / 2) && fits(self.memory, 4096)
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The next `len` bytes go where they are wanted.
    Place { len: usize },
    /// `len` bytes from `offset` on, which is at or before the wanted one, go to bounce memory; the next `take` bytes wanted
    /// are then those behind the first `skip`. What lies beyond the file's end does not come.
    Bounce { offset: u64, len: usize, skip: usize, take: usize },
}

impl Step {
    /// How many of the wanted bytes it brings.
    pub(super) fn brings(self) -> usize {
        match self {
            Step::Place { len } => len,
            Step::Bounce { take, .. } => take,
        }
    }
}

/// The next operation for `len` > 0 bytes at `offset` that are wanted at `address`. `offset + len` is no more than a file
/// can have, and `direct` is sound.
pub(super) fn step(direct: Option<Alignment>, offset: u64, len: usize, address: usize) -> Step {
    let Some(Alignment { block, memory }) = direct else {
        return Step::Place { len: len.min(LONGEST) };
    };
    let mask = block as u64 - 1;
    let start = offset & !mask;
    let skip = (offset - start) as usize;
    if skip == 0 && address.is_multiple_of(memory) {
        let whole = len & !(block - 1);
        if whole > 0 && (whole == len || whole >= WORTH) {
            return Step::Place { len: whole.min(LONGEST) };
        }
    }
    // Only up to the next block where from there on much can be done in place.
    let head = block - skip;
    let alone = skip > 0 && len >= head + WORTH && (address + head).is_multiple_of(memory);
    let wanted = if alone { head } else { len };
    let read = (skip + wanted).next_multiple_of(block).min(BOUNCE);
    Step::Bounce { offset: start, len: read, skip, take: wanted.min(read - skip) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECTOR: Option<Alignment> = Some(Alignment { block: 512, memory: 4 });

    #[test]
    fn without_demands_everything_goes_in_place() {
        assert_eq!(step(None, 3, 1000, 5), Step::Place { len: 1000 });
        assert_eq!(step(None, 3, 3 << 20, 5), Step::Place { len: LONGEST });
    }

    #[test]
    fn what_is_aligned_goes_in_place() {
        assert_eq!(step(SECTOR, 1024, 2048, 8), Step::Place { len: 2048 });
        assert_eq!(step(SECTOR, 1024, 3 << 20, 8), Step::Place { len: LONGEST });
    }

    #[test]
    fn a_short_tail_takes_the_whole_with_it_and_a_long_read_only_itself() {
        assert_eq!(step(SECTOR, 1024, 2049, 8), Step::Bounce { offset: 1024, len: 2560, skip: 0, take: 2049 });
        assert_eq!(step(SECTOR, 1024, (200 << 10) + 1, 8), Step::Place { len: 200 << 10 });
    }

    #[test]
    fn a_head_is_read_alone_where_the_rest_fits_in_place() {
        let head = Step::Bounce { offset: 0, len: 512, skip: 100, take: 412 };
        assert_eq!(step(SECTOR, 100, 200 << 10, 0), head);
        // 413 bytes on, nothing is aligned.
        let all = Step::Bounce { offset: 0, len: BOUNCE, skip: 100, take: BOUNCE - 100 };
        assert_eq!(step(SECTOR, 100, 200 << 10, 1), all);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn steps_bring_each_byte_once_and_obey(
            offset in 0u64..1 << 40, len in 1usize..3 << 20, address in 4096usize..1 << 40,
            block in 9u32..17, memory in 0u32..13, even in any::<bool>(),
        ) {
            let direct = Alignment { block: 1 << block, memory: 1 << memory };
            prop_assert_eq!(direct.is_sound(), block < 17);
            // As a caller that lays things out for it would, or not.
            let offset = if even { offset >> 20 << 20 } else { offset };
            let address = if even { address >> 12 << 12 } else { address };
            let (mut done, mut steps) = (0, 0);
            while done < len {
                let step = step(Some(direct), offset + done as u64, len - done, address + done);
                match step {
                    Step::Place { len } => {
                        prop_assert!((offset + done as u64).is_multiple_of(1 << block) && len.is_multiple_of(1 << block));
                        prop_assert!((address + done).is_multiple_of(1 << memory) && len <= LONGEST);
                    }
                    Step::Bounce { offset: from, len: read, skip, take } => {
                        prop_assert!(from.is_multiple_of(1 << block) && read.is_multiple_of(1 << block) && read <= BOUNCE);
                        prop_assert_eq!(from + skip as u64, offset + done as u64);
                        prop_assert!(skip + take <= read && read - skip - take < 1 << block);
                    }
                }
                prop_assert!(step.brings() > 0);
                done += step.brings();
                steps += 1;
            }
            prop_assert_eq!(done, len);
            prop_assert!(steps <= len / (BOUNCE / 2) + 3);
            if even && len.is_multiple_of(1 << block) {
                prop_assert_eq!(steps, len.div_ceil(LONGEST));
            }
        }
    }
}

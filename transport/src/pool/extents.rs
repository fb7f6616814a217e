//! Which frames of a slab are free: a bitmap, first fit. Pure.
//!
//! A bitmap allocates nothing after start, has a bounded worst case (the number of frames is), and joins
//! neighbours by itself when they are freed.

/// A map of `frames` frames, a set bit for each that is taken.
pub(super) struct Extents {
    words: Vec<u64>,
    frames: usize,
    free: usize,
}

impl Extents {
    pub(super) fn new(frames: usize) -> Extents {
        let mut words = vec![0; frames.div_ceil(64)];
        if !frames.is_multiple_of(64) {
            // The last word's tail does not exist: taken for ever.
            *words.last_mut().expect("frames > 0") = !0 << (frames % 64);
        }
        Extents { words, frames, free: frames }
    }

    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// Takes the first run of `count` free frames, if there is one.
    pub(super) fn take(&mut self, count: usize) -> Option<usize> {
        if count == 0 || count > self.free {
            return None;
        }
        let (first, _) = self.runs().find(|&(_, len)| len >= count)?;
        self.set(first, count, true);
        self.free -= count;
        Some(first)
    }

    /// Gives `count` frames from `first` back. They must have been taken.
    pub(super) fn give(&mut self, first: usize, count: usize) {
        self.set(first, count, false);
        self.free += count;
    }

    /// The longest run of free frames.
    pub(super) fn longest(&self) -> usize {
        self.runs().map(|(_, len)| len).max().unwrap_or(0)
    }

    /// Every maximal run of free frames as (first, length), from low to high.
    fn runs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = self.next(at, false)?;
            let end = self.next(first, true).unwrap_or(self.frames);
            at = end;
            Some((first, end - first))
        })
    }

    /// The first frame at or after `from` that is taken, or free.
    fn next(&self, from: usize, taken: bool) -> Option<usize> {
        let mut word = from / 64;
        let mut mask = !0u64 << (from % 64);
        while word < self.words.len() {
            let bits = (if taken { self.words[word] } else { !self.words[word] }) & mask;
            if bits != 0 {
                let frame = word * 64 + bits.trailing_zeros() as usize;
                return (frame < self.frames).then_some(frame);
            }
            mask = !0;
            word += 1;
        }
        None
    }

    fn set(&mut self, first: usize, count: usize, taken: bool) {
        let mut frame = first;
        let end = first + count;
        assert!(end <= self.frames, "frames outside the slab");
        while frame < end {
            let bit = frame % 64;
            let run = (64 - bit).min(end - frame);
            let mask = if run == 64 { !0 } else { ((1u64 << run) - 1) << bit };
            let word = &mut self.words[frame / 64];
            // Also in release: two leases of one frame are worse than the end of the program.
            assert!(*word & mask == if taken { 0 } else { mask }, "frames taken or given twice");
            if taken {
                *word |= mask
            } else {
                *word &= !mask
            }
            frame += run;
        }
    }
}

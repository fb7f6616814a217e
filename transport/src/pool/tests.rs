#[cfg(forebay_asan)]
mod canary;
mod random;
mod waiting;

use proptest::prelude::*;

use super::extents::Extents;
use super::*;

pub(super) const FRAME: usize = 4096;

pub(super) fn slab(frames: usize) -> Slab {
    Slab::new(SlabConfig { capacity: frames * FRAME, lock: false }).unwrap()
}

pub(super) fn anyone() -> Account {
    Account::new("anyone", usize::MAX)
}

// Extents

/// What the bitmap is to be: one bool per frame.
fn naive_take(model: &mut [bool], count: usize) -> Option<usize> {
    let first = (0..model.len().checked_sub(count)? + 1).find(|&at| !model[at..at + count].contains(&true))?;
    model[first..first + count].fill(true);
    Some(first)
}

fn naive_longest(model: &[bool]) -> usize {
    model.split(|&taken| taken).map(<[bool]>::len).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn extents_are_a_first_fit_over_bools(
        frames in 1usize..300,
        steps in prop::collection::vec((any::<bool>(), 1usize..90), 1..120),
    ) {
        let mut extents = Extents::new(frames);
        let mut model = vec![false; frames];
        let mut taken: Vec<(usize, usize)> = Vec::new();
        for (take, n) in steps {
            if take {
                let got = extents.take(n);
                prop_assert_eq!(got, naive_take(&mut model, n));
                taken.extend(got.map(|first| (first, n)));
            } else if !taken.is_empty() {
                let (first, count) = taken.swap_remove(n % taken.len());
                // In two steps, as a lease that shrinks first does.
                let keep = n % count;
                extents.give(first + keep, count - keep);
                if keep > 0 {
                    extents.give(first, keep);
                }
                model[first..first + count].fill(false);
            }
            prop_assert_eq!(extents.free(), model.iter().filter(|&&taken| !taken).count());
            prop_assert_eq!(extents.longest(), naive_longest(&model));
        }
        taken.into_iter().for_each(|(first, count)| extents.give(first, count));
        prop_assert_eq!((extents.free(), extents.longest()), (frames, frames));
    }
}

#[test]
fn extents_take_nothing_of_nothing() {
    let mut extents = Extents::new(64);
    assert_eq!(extents.take(0), None);
    assert_eq!(extents.take(65), None);
    assert_eq!(extents.take(usize::MAX), None);
    assert_eq!(extents.take(64), Some(0));
    assert_eq!(extents.longest(), 0);
}

#[test]
#[should_panic(expected = "taken or given twice")]
fn extents_notice_frames_given_twice() {
    let mut extents = Extents::new(8);
    extents.take(2).unwrap();
    extents.give(0, 2);
    extents.give(1, 1);
}

// Slab and leases

#[test]
fn a_slab_is_refused_when_it_cannot_be() {
    assert!(matches!(Slab::new(SlabConfig::new(0)), Err(SlabError::Empty)));
    for capacity in [usize::MAX, usize::MAX - 4095, 1 << 50] {
        assert!(matches!(Slab::new(SlabConfig::new(capacity)), Err(SlabError::TooLarge { .. })), "{capacity}");
    }
}

#[test]
fn a_slab_has_at_least_what_was_asked_for() {
    for capacity in [1, FRAME - 1, FRAME + 1, (256 << 20) + 1, (512 << 20) - 1] {
        let slab = Slab::new(SlabConfig { capacity, lock: false }).unwrap();
        assert!(slab.capacity() >= capacity && slab.capacity() - capacity < slab.frame());
        assert!(slab.region().1 >= slab.capacity());
        let mut lease = slab.try_lease(&anyone(), capacity).unwrap();
        *lease.as_mut_slice().last_mut().unwrap() = 1;
    }
}

#[test]
fn absurd_lengths_are_refused_not_wrapped() {
    let slab = slab(2);
    for len in [usize::MAX, usize::MAX - FRAME, slab.capacity() + 1] {
        assert!(slab.try_lease(&anyone(), len).is_none());
        assert!(!slab.can_lend(&anyone(), len));
    }
    assert_eq!(anyone().held(), 0);
}

#[test]
fn a_limit_counts_in_whole_frames() {
    let slab = slab(4);
    let small = Account::new("small", 1);
    let lease = slab.try_lease(&small, 1).expect("a limit of 1 byte lends 1 byte");
    assert_eq!(small.held(), FRAME);
    assert!(slab.try_lease(&small, 0).is_none());
    drop(lease);
    let none = Account::new("none", 0);
    assert!(slab.try_lease(&none, 0).is_none() && !slab.can_lend(&none, 0));
    assert_eq!((small.held(), none.held()), (0, 0));
}

#[test]
#[should_panic(expected = "can never be had")]
fn waiting_for_what_can_never_be_had_panics() {
    drop(slab(2).lease(&Account::new("none", 0), 0));
}

#[test]
fn a_lease_of_nothing_holds_a_frame() {
    let slab = slab(1);
    let mut lease = slab.try_lease(&anyone(), 0).unwrap();
    assert!(lease.is_empty() && lease.as_mut_slice().is_empty());
    assert!(slab.try_lease(&anyone(), 0).is_none());
    let view = lease.freeze();
    assert!(view.slice(0, 0).is_empty());
    drop(view);
    assert_eq!(slab.usage().leases, 0);
}

#[test]
#[should_panic(expected = "lies within")]
fn a_part_beyond_the_end_panics() {
    let view = slab(1).try_lease(&anyone(), 10).unwrap().freeze();
    view.slice(usize::MAX, 2);
}

#[test]
#[should_panic(expected = "cannot grow")]
fn a_lease_does_not_grow() {
    slab(1).try_lease(&anyone(), 10).unwrap().shrink(11);
}

#[test]
fn views_outlive_every_other_handle() {
    let slab = slab(1);
    let account = anyone();
    let mut lease = slab.try_lease(&account, 3).unwrap();
    lease.as_mut_slice().copy_from_slice(b"abc");
    let view = lease.freeze();
    let bytes = view.slice(1, 2).into_bytes();
    drop((view, slab));
    assert_eq!(&bytes[..], b"bc");
    assert_eq!(account.held(), FRAME);
    drop(bytes);
    assert_eq!(account.held(), 0);
}

#[test]
fn bytes_give_the_memory_back() {
    let slab = slab(1);
    let bytes = slab.try_lease(&anyone(), 10).unwrap().freeze().into_bytes();
    let part = bytes.slice(2..4);
    drop(bytes);
    assert_eq!(slab.usage().free, 0);
    drop(part);
    assert_eq!(slab.usage().free, FRAME);
}

#[test]
fn quarantine_without_release_is_lost_and_counted() {
    let slab = slab(4);
    let account = anyone();
    let mut lease = slab.try_lease(&account, 3 * FRAME).unwrap();
    lease.shrink(2 * FRAME - 5);
    let quarantined = lease.quarantine();
    assert_eq!(quarantined.len(), 2 * FRAME - 5);
    #[allow(unused_must_use)]
    drop(quarantined);
    let usage = slab.usage();
    assert_eq!((usage.quarantined, usage.free, usage.leases), (2 * FRAME, 2 * FRAME, 1));
    assert_eq!(account.held(), 2 * FRAME);
}

#[test]
fn quarantine_released_comes_back() {
    let slab = slab(1);
    let mut lease = slab.try_lease(&anyone(), 10).unwrap();
    lease.as_mut_slice().fill(7);
    let lease = lease.quarantine().release();
    assert_eq!(&lease[..], &[7; 10]);
    assert_eq!(slab.usage().quarantined, 0);
    drop(lease);
    assert_eq!(slab.usage().free, FRAME);
}

// Ledger

#[test]
fn the_ledger_refuses_with_the_sum_that_shows_why() {
    let mut ledger = Ledger::new(100);
    ledger.claim("pool", 60).unwrap();
    ledger.claim("windows", 40).unwrap();
    assert_eq!(ledger.remaining(), 0);
    let refused = ledger.claim("acknowledgements", 1).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the memory budget is 100 bytes, but pool 60 + windows 40 + acknowledgements 1 = 101 bytes"
    );
    assert!(ledger.claim("absurd", u64::MAX).unwrap_err().to_string().ends_with(&format!("= {} bytes", u64::MAX)));
    assert_eq!(ledger.claims().len(), 2, "what was refused is not entered");
}

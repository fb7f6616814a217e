use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use proptest::prelude::*;

use super::extents::Extents;
use super::*;

const FRAME: usize = 4096;

fn slab(frames: usize) -> Slab {
    Slab::new(SlabConfig { capacity: frames * FRAME, lock: false }).unwrap()
}

fn anyone() -> Account {
    Account::new("anyone", usize::MAX)
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn taken(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

fn counted() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count::default());
    (count.clone(), count.into())
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(waker)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
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
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn extents_are_a_first_fit_over_bools(frames in 1usize..300, steps in prop::collection::vec((any::<bool>(), 1usize..90), 1..120)) {
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

#[derive(Clone, Debug)]
enum Step {
    Lease { account: usize, len: usize },
    Shrink { which: usize, to: usize },
    Freeze { which: usize },
    Slice { which: usize, offset: usize, len: usize },
    DropLease { which: usize },
    DropView { which: usize },
    Quarantine { which: usize },
    Release { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let n = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 16));
    prop_oneof![
        4 => (0usize..2, 0usize..6 * FRAME).prop_map(|(account, len)| Step::Lease { account, len }),
        1 => (n(), n()).prop_map(|(which, to)| Step::Shrink { which, to }),
        2 => n().prop_map(|which| Step::Freeze { which }),
        2 => (n(), n(), n()).prop_map(|(which, offset, len)| Step::Slice { which, offset, len }),
        1 => n().prop_map(|which| Step::DropLease { which }),
        2 => n().prop_map(|which| Step::DropView { which }),
        1 => n().prop_map(|which| Step::Quarantine { which }),
        1 => n().prop_map(|which| Step::Release { which }),
    ]
}

/// Something held, and the frames it holds of the account.
struct Holding<T> {
    it: T,
    pattern: u8,
    group: usize,
}

/// Frames and account of each group: a lease, or all views of it.
type Groups = Vec<(usize, usize)>;

fn frames(len: usize) -> usize {
    len.div_ceil(FRAME).max(1)
}

fn pick<T>(list: &[T], which: usize) -> Option<usize> {
    (!list.is_empty()).then(|| which % list.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn whatever_is_done_with_it_memory_adds_up_and_is_not_shared(steps in prop::collection::vec(step(), 1..150)) {
        let slab = slab(24);
        // The second limit is no whole number of frames: it counts as 9.
        let limits = [24, 9];
        let accounts = [anyone(), Account::new("limited", 8 * FRAME + 1)];
        let mut groups: Groups = Vec::new();
        let (mut leases, mut views, mut quarantined) = (Vec::new(), Vec::new(), Vec::new());
        for (n, step) in steps.into_iter().enumerate() {
            let pattern = n as u8;
            match step {
                Step::Lease { account, len } => {
                    let held: usize = groups.iter().filter(|group| group.1 == account).map(|group| group.0).sum();
                    let longest = slab.usage().longest_free / FRAME;
                    let lease = slab.try_lease(&accounts[account], len);
                    let fits = frames(len) <= longest && held + frames(len) <= limits[account];
                    prop_assert_eq!(lease.is_some(), fits, "{} frames held of {}, {} of {} wanted", held, limits[account], frames(len), longest);
                    if let Some(mut lease) = lease {
                        prop_assert_eq!(lease.len(), len);
                        lease.as_mut_slice().fill(pattern);
                        groups.push((frames(len), account));
                        leases.push(Holding { it: lease, pattern, group: groups.len() - 1 });
                    }
                }
                Step::Shrink { which, to } => if let Some(at) = pick(&leases, which) {
                    let lease: &mut Holding<Lease> = &mut leases[at];
                    let to = to % (lease.it.len() + 1);
                    lease.it.shrink(to);
                    groups[lease.group].0 = frames(to);
                }
                Step::Freeze { which } => if let Some(at) = pick(&leases, which) {
                    let Holding { it, pattern, group } = leases.swap_remove(at);
                    views.push(Holding { it: it.freeze(), pattern, group });
                }
                Step::Slice { which, offset, len } => if let Some(at) = pick(&views, which) {
                    let Holding { it, pattern, group } = &views[at];
                    let offset = offset % (it.len() + 1);
                    let part = it.slice(offset, len % (it.len() - offset + 1));
                    views.push(Holding { it: part, pattern: *pattern, group: *group });
                }
                Step::DropLease { which } => if let Some(at) = pick(&leases, which) {
                    groups[leases.swap_remove(at).group].0 = 0;
                }
                Step::DropView { which } => if let Some(at) = pick(&views, which) {
                    let group = views.swap_remove(at).group;
                    if !views.iter().any(|view| view.group == group) {
                        groups[group].0 = 0;
                    }
                }
                Step::Quarantine { which } => if let Some(at) = pick(&leases, which) {
                    let Holding { it, pattern, group } = leases.swap_remove(at);
                    quarantined.push(Holding { it: it.quarantine(), pattern, group });
                }
                Step::Release { which } => if let Some(at) = pick(&quarantined, which) {
                    let Holding { it, pattern, group }: Holding<Quarantined> = quarantined.swap_remove(at);
                    leases.push(Holding { it: it.release(), pattern, group });
                }
            }
            for lease in &leases {
                prop_assert!(lease.it.iter().all(|&byte| byte == lease.pattern));
            }
            for view in &views {
                prop_assert!(view.it.iter().all(|&byte| byte == view.pattern));
            }
            let usage = slab.usage();
            let held: usize = groups.iter().map(|group| group.0 * FRAME).sum();
            prop_assert_eq!(usage.free + held, usage.capacity);
            prop_assert_eq!(usage.leases, groups.iter().filter(|group| group.0 > 0).count());
            let apart: usize = quarantined.iter().map(|holding| groups[holding.group].0 * FRAME).sum();
            prop_assert_eq!(usage.quarantined, apart);
            for (n, account) in accounts.iter().enumerate() {
                let held: usize = groups.iter().filter(|group| group.1 == n).map(|group| group.0 * FRAME).sum();
                prop_assert_eq!(account.held(), held);
            }
        }
        drop((leases, views));
        quarantined.into_iter().for_each(|holding| drop(holding.it.release()));
        let whole = slab.capacity();
        prop_assert_eq!(slab.usage(), Usage { capacity: whole, free: whole, longest_free: whole, quarantined: 0, leases: 0 });
        prop_assert_eq!((accounts[0].held(), accounts[1].held()), (0, 0));
    }
}

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

// Waiting

#[test]
fn what_came_back_before_the_poll_is_noticed() {
    let slab = slab(1);
    let (woken, waker) = counted();
    let mut cx = Context::from_waker(&waker);
    let lease = slab.try_lease(&anyone(), 1).unwrap();
    let mut seen = 0;
    assert!(slab.try_lease(&anyone(), 1).is_none());
    drop(lease);
    assert_eq!(slab.poll_returned(&mut cx, &mut seen), Poll::Ready(()));
    assert_eq!(slab.poll_returned(&mut cx, &mut seen), Poll::Pending);
    let lease = slab.try_lease(&anyone(), 1).unwrap();
    assert_eq!(slab.poll_returned(&mut cx, &mut seen), Poll::Pending);
    drop(lease);
    assert_eq!(woken.taken(), 1, "kept once, whatever it was polled");
    assert_eq!(slab.poll_returned(&mut cx, &mut seen), Poll::Ready(()));
}

#[test]
fn shrinking_wakes_too() {
    let slab = slab(2);
    let account = anyone();
    let mut lease = slab.try_lease(&account, 2 * FRAME).unwrap();
    let (woken, waker) = counted();
    let mut waiting = pin!(slab.lease(&account, 1));
    assert!(poll(waiting.as_mut(), &waker).is_none());
    lease.shrink(FRAME);
    assert_eq!(woken.taken(), 1);
    assert!(poll(waiting.as_mut(), &waker).is_some());
}

#[test]
fn a_large_lease_is_not_starved() {
    let slab = slab(4);
    let account = anyone();
    let mut held: Vec<_> = (0..4).map(|_| slab.try_lease(&account, 1).unwrap()).collect();
    let (large_woken, large_waker) = counted();
    let (small_woken, small_waker) = counted();
    let mut large = pin!(slab.lease(&account, 3 * FRAME));
    assert!(poll(large.as_mut(), &large_waker).is_none());
    let other = anyone();
    let mut small = pin!(slab.lease(&other, 1));
    assert!(poll(small.as_mut(), &small_waker).is_none());
    held.pop();
    held.pop();
    assert!(poll(small.as_mut(), &small_waker).is_none(), "there is a frame, but it is not its turn");
    assert_eq!((large_woken.taken(), small_woken.taken()), (0, 0), "nobody is woken in vain");
    held.pop();
    assert_eq!((large_woken.taken(), small_woken.taken()), (1, 0));
    let lease = poll(large.as_mut(), &large_waker).unwrap();
    drop(held);
    assert_eq!(small_woken.taken(), 1);
    drop((poll(small.as_mut(), &small_waker).unwrap(), lease));
    assert_eq!(slab.usage().free, slab.capacity());
}

#[test]
fn nobody_waits_behind_anothers_limit() {
    let slab = slab(4);
    let (full, other) = (Account::new("full", FRAME), anyone());
    let held = slab.try_lease(&full, 1).unwrap();
    let (full_woken, full_waker) = counted();
    let mut waiting = pin!(slab.lease(&full, 1));
    assert!(poll(waiting.as_mut(), &full_waker).is_none());
    let (_, waker) = counted();
    assert!(poll(pin!(slab.lease(&other, FRAME)), &waker).is_some());
    assert_eq!(full_woken.taken(), 0);
    drop(held);
    assert_eq!(full_woken.taken(), 1);
    assert!(poll(waiting.as_mut(), &full_waker).is_some());
}

#[test]
fn one_who_leaves_passes_the_turn_on() {
    let slab = slab(1);
    let account = anyone();
    let held = slab.try_lease(&account, 1).unwrap();
    let (first_woken, first_waker) = counted();
    let (second_woken, second_waker) = counted();
    let mut first = Box::pin(slab.lease(&account, 1));
    let mut second = pin!(slab.lease(&account, 1));
    assert!(poll(first.as_mut(), &first_waker).is_none());
    assert!(poll(second.as_mut(), &second_waker).is_none());
    drop(held);
    assert_eq!((first_woken.taken(), second_woken.taken()), (1, 0));
    drop(first);
    assert_eq!(second_woken.taken(), 1);
    assert!(poll(second.as_mut(), &second_waker).is_some());
}

#[test]
fn an_account_that_fills_up_lets_the_next_go() {
    // The first waits for a run of 3; its account then fills up by another way: the second's frame is free.
    let slab = slab(4);
    let (first_account, other) = (Account::new("first", 3 * FRAME), anyone());
    let mut held: Vec<_> = (0..4).map(|_| slab.try_lease(&other, 1).unwrap()).collect();
    let (_, first_waker) = counted();
    let (second_woken, second_waker) = counted();
    let mut first = pin!(slab.lease(&first_account, 3 * FRAME));
    assert!(poll(first.as_mut(), &first_waker).is_none());
    let mut second = pin!(slab.lease(&other, 1));
    assert!(poll(second.as_mut(), &second_waker).is_none());
    held.truncate(2);
    assert_eq!(second_woken.taken(), 0);
    let _by_another_way = slab.try_lease(&first_account, 1).unwrap();
    assert_eq!(second_woken.taken(), 1);
    assert!(poll(second.as_mut(), &second_waker).is_some());
}

#[test]
fn a_dropped_wait_leaves_nothing_behind() {
    let slab = slab(1);
    let account = anyone();
    let _held = slab.try_lease(&account, 1).unwrap();
    let (count, waker) = counted();
    for _ in 0..100 {
        assert!(poll(pin!(slab.lease(&account, 1)), &waker).is_none());
    }
    drop(waker);
    assert_eq!(Arc::strong_count(&count), 1, "no waker is kept");
}

/// A waker that owns a lease, as the waker of a task whose future owns one does.
struct Owner(#[allow(dead_code)] std::sync::Mutex<Option<Lease>>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_may_own_the_lease_that_its_drop_gives_back() {
    let slab = slab(2);
    let account = anyone();
    let owner = || Arc::new(Owner(std::sync::Mutex::new(slab.try_lease(&account, 1)))).into();
    let (first, second): (Waker, Waker) = (owner(), owner());
    let mut waiting = Box::pin(slab.lease(&account, 2 * FRAME));
    assert!(poll(waiting.as_mut(), &first).is_none());
    drop(first);
    // Replaces the first waker, whose drop gives a lease back: no deadlock.
    assert!(poll(waiting.as_mut(), &second).is_none());
    drop(second);
    drop(waiting);
    assert_eq!(slab.usage().free, slab.capacity());
}

#[test]
fn threads_that_lease_and_wait_never_share_and_never_hang() {
    let slab = slab(8);
    let account = Account::new("shared", 7 * FRAME);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (slab, account) = (&slab, &account);
            scope.spawn(move || {
                for round in 0..300usize {
                    let len = (round * 7919 + thread as usize * 104_729) % (5 * FRAME);
                    let mut lease = block_on(slab.lease(account, len));
                    lease.as_mut_slice().fill(thread);
                    let view = lease.freeze();
                    let part = view.slice(len / 2, len - len / 2);
                    drop(view);
                    assert!(part.iter().all(|&byte| byte == thread));
                }
            });
        }
    });
    assert_eq!((slab.usage().free, account.held()), (slab.capacity(), 0));
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Some(output) = poll(future.as_mut(), &waker) {
            return output;
        }
        let parked = std::time::Instant::now();
        std::thread::park_timeout(std::time::Duration::from_secs(20));
        assert!(parked.elapsed().as_secs() < 20, "a wake-up was lost");
    }
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

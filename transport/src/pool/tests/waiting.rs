//! Who is woken, when, and in which order.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::super::*;
use super::{FRAME, anyone, slab};

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
fn who_polls_often_is_kept_once_and_all_are_woken() {
    let slab = slab(1);
    let lease = slab.try_lease(&anyone(), 1).unwrap();
    let counted = [counted(), counted()];
    let mut seen = 0;
    for _ in 0..3 {
        for (_, waker) in &counted {
            assert_eq!(slab.poll_returned(&mut Context::from_waker(waker), &mut seen), Poll::Pending);
        }
    }
    assert_eq!(slab.pollers(), 2);
    drop(lease);
    assert_eq!(counted.map(|(woken, _)| woken.taken()), [1, 1]);
    assert_eq!(slab.pollers(), 0);
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
fn one_who_is_served_passes_the_turn_on() {
    let slab = slab(2);
    let account = anyone();
    let held = slab.try_lease(&account, 2 * FRAME).unwrap();
    let (_, first_waker) = counted();
    let (second_woken, second_waker) = counted();
    let mut first = pin!(slab.lease(&account, 1));
    let mut second = pin!(slab.lease(&account, 1));
    assert!(poll(first.as_mut(), &first_waker).is_none());
    assert!(poll(second.as_mut(), &second_waker).is_none());
    drop(held);
    let _kept = poll(first.as_mut(), &first_waker).unwrap();
    assert_eq!(second_woken.taken(), 1, "what came back is enough for both");
    assert!(poll(second.as_mut(), &second_waker).is_some());
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

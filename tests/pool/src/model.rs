//! Models of what threads may do to the pool at the same time. The checker runs each in every order that matters; it
//! finds two who touch a page without order between them, a wake-up that is lost (as a deadlock), and what is never
//! dropped.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use loom::future::block_on;
use loom::thread;

use crate::pool::{Account, Lease, Slab, SlabConfig};

const FRAME: usize = 4096;

/// `bound`: how often the checker interrupts a thread that could go on. Three finds nearly every error there is.
fn check(bound: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(model);
}

fn slab(frames: usize) -> (Slab, Account) {
    let slab = Slab::new(SlabConfig { capacity: frames * FRAME, lock: false }).unwrap();
    (slab, Account::new("anyone", usize::MAX))
}

fn all_back(slab: &Slab, account: &Account) {
    let usage = slab.usage();
    assert_eq!((usage.free, usage.leases, account.held()), (usage.capacity, 0, 0));
}

/// As a loop that drives something waits: try, then ask to be told.
async fn by_polling(slab: &Slab, account: &Account, len: usize) -> Lease {
    let mut seen = 0;
    poll_fn(|cx| {
        loop {
            if let Some(lease) = slab.try_lease(account, len) {
                return Poll::Ready(lease);
            }
            if slab.poll_returned(cx, &mut seen).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await
}

#[test]
fn the_last_view_gives_back_after_all_have_read() {
    check(3, || {
        let (slab, account) = slab(1);
        let mut lease = slab.try_lease(&account, 8).unwrap();
        lease.as_mut_slice().fill(7);
        let view = lease.freeze();
        let other = view.clone();
        let readers = [view, other].map(|view| {
            thread::spawn(move || {
                let part = view.slice(2, 4);
                drop(view);
                assert_eq!(part[..], [7; 4]);
            })
        });
        // Whenever it can be had, writing to it is ordered behind every read.
        if let Some(mut lease) = slab.try_lease(&account, 8) {
            lease.as_mut_slice().fill(9);
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        all_back(&slab, &account);
    });
}

#[test]
fn clones_across_threads_count() {
    check(3, || {
        let (slab, account) = slab(1);
        let view = slab.try_lease(&account, 8).unwrap().freeze();
        let shared = loom::sync::Arc::new(view);
        let threads = [0, 1].map(|_| {
            let shared = shared.clone();
            thread::spawn(move || {
                let view = (*shared).clone();
                drop(shared);
                assert_eq!(view.len(), 8);
            })
        });
        drop(shared);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        all_back(&slab, &account);
    });
}

#[test]
fn what_comes_back_while_polling_is_noticed() {
    check(3, || {
        let (slab, account) = slab(1);
        let mut held = slab.try_lease(&account, 8).unwrap();
        held.as_mut_slice().fill(1);
        let giver = thread::spawn(move || drop(held));
        let mut lease = block_on(by_polling(&slab, &account, 8));
        lease.as_mut_slice().fill(2);
        drop(lease);
        giver.join().unwrap();
        all_back(&slab, &account);
    });
}

#[test]
fn two_who_wait_are_both_served() {
    check(2, || {
        let (slab, account) = slab(1);
        let held = slab.try_lease(&account, 8).unwrap();
        let other = {
            let (slab, account) = (slab.clone(), account.clone());
            thread::spawn(move || {
                let mut lease = block_on(slab.lease(&account, 8));
                lease.as_mut_slice().fill(1);
            })
        };
        let giver = thread::spawn(move || drop(held));
        let mut lease = block_on(slab.lease(&account, 8));
        lease.as_mut_slice().fill(2);
        drop(lease);
        other.join().unwrap();
        giver.join().unwrap();
        all_back(&slab, &account);
    });
}

#[test]
fn what_is_enough_for_two_serves_two() {
    check(2, || {
        let (slab, account) = slab(2);
        let held = slab.try_lease(&account, 2 * FRAME).unwrap();
        let other = {
            let (slab, account) = (slab.clone(), account.clone());
            thread::spawn(move || block_on(slab.lease(&account, 8)))
        };
        let giver = thread::spawn(move || drop(held));
        let lease = block_on(slab.lease(&account, 8));
        // Neither gives anything back before the other has its own.
        drop((other.join().unwrap(), lease));
        giver.join().unwrap();
        all_back(&slab, &account);
    });
}

#[test]
fn polling_and_queueing_do_not_starve_each_other() {
    check(2, || {
        let (slab, account) = slab(1);
        let held = slab.try_lease(&account, 8).unwrap();
        let other = {
            let (slab, account) = (slab.clone(), account.clone());
            thread::spawn(move || drop(block_on(by_polling(&slab, &account, 8))))
        };
        let giver = thread::spawn(move || drop(held));
        drop(block_on(slab.lease(&account, 8)));
        other.join().unwrap();
        giver.join().unwrap();
        all_back(&slab, &account);
    });
}

#[test]
fn one_who_gives_up_takes_nobodys_turn() {
    check(2, || {
        let (slab, account) = slab(1);
        let held = slab.try_lease(&account, 8).unwrap();
        let hasty = {
            let (slab, account) = (slab.clone(), account.clone());
            thread::spawn(move || {
                block_on(async {
                    let mut waiting = pin!(slab.lease(&account, 8));
                    // One poll; then it is dropped, with the lease if it got one.
                    poll_fn(|cx| Poll::Ready(drop(waiting.as_mut().poll(cx)))).await;
                })
            })
        };
        let giver = thread::spawn(move || drop(held));
        drop(block_on(slab.lease(&account, 8)));
        hasty.join().unwrap();
        giver.join().unwrap();
        all_back(&slab, &account);
    });
}

#[test]
fn a_failed_attempt_does_not_send_another_to_sleep() {
    check(3, || {
        let (slab, _) = slab(2);
        let anyone = Account::new("anyone", usize::MAX);
        let held = slab.try_lease(&anyone, 8).unwrap();
        let account = Account::new("limited", 2 * FRAME);
        let greedy = {
            let (slab, account) = (slab.clone(), account.clone());
            // Within its limit, but there is no such run: for a moment it might have booked the limit.
            thread::spawn(move || assert!(slab.try_lease(&account, 2 * FRAME).is_none()))
        };
        // There is a frame, and nothing will come back: this must not wait.
        let lease = block_on(slab.lease(&account, 8));
        greedy.join().unwrap();
        drop((lease, held));
        all_back(&slab, &account);
    });
}

#[test]
fn a_limit_holds_and_wakes() {
    check(2, || {
        let (slab, _) = slab(2);
        let account = Account::new("limited", FRAME);
        let other = {
            let (slab, account) = (slab.clone(), account.clone());
            thread::spawn(move || {
                let lease = block_on(slab.lease(&account, 8));
                assert_eq!(account.held(), FRAME);
                drop(lease);
            })
        };
        let lease = block_on(slab.lease(&account, 8));
        assert_eq!(account.held(), FRAME);
        drop(lease);
        other.join().unwrap();
        all_back(&slab, &account);
    });
}

#[test]
fn what_a_lease_shrinks_by_is_anothers() {
    check(3, || {
        let (slab, account) = slab(2);
        let mut lease = slab.try_lease(&account, 2 * FRAME).unwrap();
        lease.as_mut_slice().fill(1);
        let other = {
            let (slab, account) = (slab.clone(), account.clone());
            thread::spawn(move || {
                let mut lease = block_on(slab.lease(&account, 8));
                lease.as_mut_slice().fill(2);
                assert_eq!(lease[..], [2; 8]);
            })
        };
        lease.shrink(FRAME);
        lease.as_mut_slice().fill(3);
        assert!(lease.iter().all(|&byte| byte == 3));
        let aside = lease.quarantine();
        other.join().unwrap();
        drop(aside.release());
        all_back(&slab, &account);
    });
}

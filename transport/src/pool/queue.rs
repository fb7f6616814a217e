//! Whose turn it is when memory comes back: first come, first served, except that nobody waits behind another's limit.
//!
//! Without turns, small leases would take every run before it grows long enough for a large one.

use std::collections::VecDeque;
use std::task::Waker;

use super::account::Account;

/// Those who wait for a lease. Lives under the slab's lock; what it returns is to be woken or dropped outside of it,
/// because dropping a waker can drop a task, and with it leases.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiter>,
    tickets: u64,
    passes: u64,
}

pub(super) struct Waiter {
    ticket: u64,
    account: Account,
    frames: usize,
    waker: Waker,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn enter(&mut self, account: Account, frames: usize, waker: Waker) -> u64 {
        self.tickets += 1;
        self.waiting.push_back(Waiter { ticket: self.tickets, account, frames, waker });
        self.tickets
    }

    /// Changes whom to wake; returns the waker that was there before.
    pub(super) fn renew(&mut self, ticket: u64, waker: &Waker) -> Option<Waker> {
        let at = self.position(ticket)?;
        let old = &mut self.waiting[at].waker;
        (!old.will_wake(waker)).then(|| std::mem::replace(old, waker.clone()))
    }

    pub(super) fn leave(&mut self, ticket: u64) -> Option<Waiter> {
        let at = self.position(ticket)?;
        self.waiting.remove(at)
    }

    /// Whether `account` must let somebody go first who came before `ticket` (or before now, without one): one of the
    /// same account, or one who waits for memory rather than for an account's limit.
    pub(super) fn must_wait(&self, ticket: Option<u64>, account: &Account, frame: usize) -> bool {
        self.waiting
            .iter()
            .take_while(|waiter| Some(waiter.ticket) != ticket)
            .any(|waiter| waiter.account.is(account) || waiter.account.has_room(waiter.frames * frame, frame))
    }

    /// Whom to wake after anything changed: the first who could take what it waits for, if it is its turn. When that
    /// one has taken, or left, it is asked again for the next.
    pub(super) fn next(&mut self, frame: usize, fits: impl Fn(usize) -> bool) -> Option<Waker> {
        self.passes += 1;
        for waiter in &self.waiting {
            if waiter.account.is_marked_full(self.passes) {
                continue;
            }
            if !waiter.account.has_room(waiter.frames * frame, frame) {
                waiter.account.mark_full(self.passes);
                continue;
            }
            return fits(waiter.frames).then(|| waiter.waker.clone());
        }
        None
    }

    fn position(&self, ticket: u64) -> Option<usize> {
        // Tickets only grow, and enter at the back.
        self.waiting.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }
}

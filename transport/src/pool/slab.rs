//! The slab: which frames are lent, to whom, and who waits for some. The bytes themselves are `lease`'s business.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

use super::account::Account;
use super::extents::Extents;
use super::lease::Lease;
use super::queue::Queue;
use super::region::{self, Region};
use super::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering};

/// How a slab is made.
#[derive(Clone, Copy, Debug)]
pub struct SlabConfig {
    /// Bytes of memory. No default: it is the largest thing a process of ours holds. Rounded up to whole frames.
    pub capacity: usize,
    /// Whether to lock the memory (`mlock`). Default true; failure is reported by [`Slab::is_locked`], not an error.
    pub lock: bool,
}

impl SlabConfig {
    pub fn new(capacity: usize) -> SlabConfig {
        SlabConfig { capacity, lock: true }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlabError {
    #[error("a pool of 0 bytes cannot hold a sample")]
    Empty,
    /// Refused before it is tried: locking it would have the kernel kill this process, or another.
    #[error("a pool of {capacity} bytes does not fit in this machine's {memory} bytes of memory")]
    TooLarge { capacity: usize, memory: u64 },
    #[error("cannot map {capacity} bytes for the pool: {source}")]
    Map { capacity: usize, source: std::io::Error },
}

/// The fewest bytes a frame has: a page.
const MIN_FRAME: usize = 4096;
/// The most frames a slab has, so that its map and its control blocks stay small whatever its capacity.
const MAX_FRAMES: usize = 1 << 16;

/// One process's memory for samples. Cloning makes another handle to the same slab.
#[derive(Clone)]
pub struct Slab {
    inner: Arc<Inner>,
}

struct Inner {
    region: Region,
    frame: usize,
    frames: usize,
    slots: Box<[Slot]>,
    state: Mutex<State>,
}

/// The control block of a lease. Preallocated, so that lending memory allocates none.
struct Slot {
    /// The lease, or the views of it. 0 while the slot is free.
    refs: AtomicU32,
}

struct State {
    extents: Extents,
    /// Which slots are free.
    idle: Vec<u32>,
    /// By slot: the frames held, and for whom.
    held: Vec<Held>,
    quarantined: usize,
    /// How often memory came back. Never wraps in practice.
    returns: u64,
    /// Whom to wake at the next return, whatever it brings: mostly one. The others are beside it, so that neither a return
    /// nor polling again allocates.
    poller: Option<Waker>,
    pollers: Vec<Waker>,
    queue: Queue,
}

#[derive(Default)]
struct Held {
    first: usize,
    count: usize,
    account: Option<Account>,
}

/// What a slab's memory is doing, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub capacity: usize,
    pub free: usize,
    /// The longest contiguous free run: the largest lease that could be had now.
    pub longest_free: usize,
    /// Of what is not free: in quarantine.
    pub quarantined: usize,
    /// Leases (each with its views) alive, those in quarantine included.
    pub leases: usize,
}

impl Slab {
    pub fn new(config: SlabConfig) -> Result<Slab, SlabError> {
        let SlabConfig { capacity, lock } = config;
        if capacity == 0 {
            return Err(SlabError::Empty);
        }
        let memory = region::physical_memory();
        if capacity as u64 > memory {
            return Err(SlabError::TooLarge { capacity, memory });
        }
        let frame = capacity.div_ceil(MAX_FRAMES).next_power_of_two().max(MIN_FRAME);
        let frames = capacity.div_ceil(frame);
        let region = frames.checked_mul(frame).ok_or(std::io::ErrorKind::OutOfMemory.into());
        let region = region.and_then(|whole| Region::new(whole, lock));
        let region = region.map_err(|source| SlabError::Map { capacity, source })?;
        region.guard(0, frame * frames);
        // As many slots as frames: each lease holds a frame at least, so a free frame implies a free slot.
        let state = State {
            extents: Extents::new(frames),
            idle: (0..frames as u32).rev().collect(),
            held: (0..frames).map(|_| Held::default()).collect(),
            quarantined: 0,
            returns: 0,
            poller: None,
            pollers: Vec::new(),
            queue: Queue::default(),
        };
        let slots = (0..frames).map(|_| Slot { refs: AtomicU32::new(0) }).collect();
        Ok(Slab { inner: Arc::new(Inner { region, frame, frames, slots, state: Mutex::new(state) }) })
    }

    /// Bytes that can be lent: the largest lease there can be.
    pub fn capacity(&self) -> usize {
        self.inner.frame * self.inner.frames
    }

    /// The unit of lending, in bytes: a lease takes whole frames.
    pub fn frame(&self) -> usize {
        self.inner.frame
    }

    /// Whether the memory is locked, so that it is never paged out.
    pub fn is_locked(&self) -> bool {
        self.inner.region.locked
    }

    /// Whether the memory lies on huge pages that were reserved for it.
    pub fn is_huge(&self) -> bool {
        self.inner.region.huge
    }

    /// Where the memory lies, for registering it with devices: base address and length. The bytes are not the caller's
    /// to touch.
    pub fn region(&self) -> (NonNull<u8>, usize) {
        (self.inner.region.base(), self.inner.region.len())
    }

    pub fn usage(&self) -> Usage {
        let state = self.inner.lock();
        Usage {
            capacity: self.capacity(),
            free: state.extents.free() * self.inner.frame,
            longest_free: state.extents.longest() * self.inner.frame,
            quarantined: state.quarantined * self.inner.frame,
            leases: self.inner.slots.len() - state.idle.len(),
        }
    }

    /// Whether a lease of `len` bytes can ever be had by `account`: when everything of the slab and of the account is
    /// free.
    pub fn can_lend(&self, account: &Account, len: usize) -> bool {
        len <= self.capacity() && self.inner.count(len) * self.inner.frame <= account.most(self.inner.frame)
    }

    /// A lease of `len` bytes for `account`, if there is a contiguous run for it and the account's limit allows it. It
    /// does not heed whoever waits in [`lease`](Slab::lease).
    /// The bytes are whatever was there before. `len` 0 is lent as one frame of which nothing is visible.
    pub fn try_lease(&self, account: &Account, len: usize) -> Option<Lease> {
        if len > self.capacity() {
            return None;
        }
        let inner = &self.inner;
        let mut state = inner.lock();
        let (slot, first) = inner.take(&mut state, account, inner.count(len))?;
        let next = inner.next(&mut state);
        drop(state);
        next.into_iter().for_each(Waker::wake);
        Some(Lease::new(self.clone(), slot, first * inner.frame, len))
    }

    /// Ready when memory has come back since `seen` was last updated by this call; else the waker is kept and woken
    /// when it does. Start with `seen` = 0; call it again after each failed [`try_lease`](Slab::try_lease): what
    /// comes back between the two is then noticed. It may be ready although nothing that helps came back.
    ///
    /// A waker is kept until the next return, whatever becomes of its task: this is for the few long-lived tasks that
    /// drive something. Whoever waits for one lease uses [`lease`](Slab::lease).
    pub fn poll_returned(&self, cx: &mut Context<'_>, seen: &mut u64) -> Poll<()> {
        let mut state = self.inner.lock();
        if state.returns != *seen {
            *seen = state.returns;
            return Poll::Ready(());
        }
        // A clone is compared with clones: a waker and its clone may have tables of their own, and are then not known for
        // the same.
        let waker = cx.waker().clone();
        let known = state.poller.iter().chain(&state.pollers).any(|known| known.will_wake(&waker));
        let surplus = match (known, &state.poller) {
            (true, _) => Some(waker),
            (false, None) => state.poller.replace(waker),
            (false, Some(_)) => {
                state.pollers.push(waker);
                None
            }
        };
        drop(state);
        // Dropping a waker can drop a task, and with it leases.
        drop(surplus);
        Poll::Pending
    }

    /// A lease of `len` bytes, waiting for memory as long as it takes. Bound the wait from outside; dropping the future
    /// gives up its place. Those who wait are served in the order of their first poll, so that a large lease is not
    /// starved by small ones, except that nobody waits because another account is at its limit. Keep polling the
    /// future, or drop it: whoever came later may wait behind it.
    ///
    /// # Panics
    /// When `len` is more than the slab or the account can ever lend: check with [`can_lend`](Slab::can_lend) first.
    pub fn lease<'a>(&'a self, account: &'a Account, len: usize) -> impl Future<Output = Lease> + Send + 'a {
        assert!(self.can_lend(account, len), "a lease of {len} bytes can never be had");
        Leasing { slab: self, account, len, ticket: None }
    }

    /// How many are to be woken at the next return.
    #[cfg(test)]
    pub(super) fn pollers(&self) -> usize {
        let state = self.inner.lock();
        state.pollers.len() + usize::from(state.poller.is_some())
    }

    // For `lease`:

    pub(super) fn memory(&self) -> &Region {
        &self.inner.region
    }

    pub(super) fn refs(&self, slot: u32) -> &AtomicU32 {
        &self.inner.slots[slot as usize].refs
    }

    /// The last reference to `slot` is gone.
    pub(super) fn give(&self, slot: u32) {
        let inner = &self.inner;
        let mut state = inner.lock();
        let held = std::mem::take(&mut state.held[slot as usize]);
        inner.give(&mut state, held.first, held.count);
        state.idle.push(slot);
        inner.returned(state, held.account.as_ref(), held.count);
    }

    /// Gives back all frames of `slot` but those of the first `len` bytes.
    pub(super) fn shrink(&self, slot: u32, len: usize) {
        let inner = &self.inner;
        let mut state = inner.lock();
        let held = &mut state.held[slot as usize];
        let keep = inner.count(len);
        let surplus = held.count - keep;
        if surplus > 0 {
            held.count = keep;
            let first = held.first + keep;
            let account = held.account.clone();
            inner.give(&mut state, first, surplus);
            inner.returned(state, account.as_ref(), surplus);
        }
    }

    /// Counts the frames of `slot` as quarantined, or no longer so.
    pub(super) fn quarantine(&self, slot: u32, enter: bool) {
        let mut state = self.inner.lock();
        let count = state.held[slot as usize].count;
        if enter {
            state.quarantined += count;
        } else {
            state.quarantined -= count;
        }
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("usage", &self.usage()).finish()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in the critical sections panics half-way through a change, unless an invariant is broken already.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// How many frames `len` bytes take.
    fn count(&self, len: usize) -> usize {
        len.div_ceil(self.frame).max(1)
    }

    /// Lends `count` frames: a slot, and the first of them.
    fn take(&self, state: &mut State, account: &Account, count: usize) -> Option<(u32, usize)> {
        let bytes = count * self.frame;
        if !account.charge(bytes, self.frame) {
            return None;
        }
        let Some(first) = state.extents.take(count) else {
            account.refund(bytes);
            return None;
        };
        let slot = state.idle.pop().expect("a slot for each frame");
        state.held[slot as usize] = Held { first, count, account: Some(account.clone()) };
        self.region.expose(first * self.frame, bytes);
        // Relaxed suffices: the slot's last user gave it back, and this one took it, under the lock.
        self.slots[slot as usize].refs.store(1, Ordering::Relaxed);
        Some((slot, first))
    }

    fn give(&self, state: &mut State, first: usize, count: usize) {
        self.region.guard(first * self.frame, count * self.frame);
        state.extents.give(first, count);
    }

    /// Tells whoever waits that `count` frames of `account` are free again.
    fn returned(&self, mut state: MutexGuard<'_, State>, account: Option<&Account>, count: usize) {
        // Before the waiters learn of it: they must find the account refunded.
        if let Some(account) = account {
            account.refund(count * self.frame);
        }
        state.returns += 1;
        let poller = state.poller.take();
        let pollers = std::mem::take(&mut state.pollers);
        let next = self.next(&mut state);
        drop(state);
        next.into_iter().chain(poller).chain(pollers).for_each(Waker::wake);
    }

    /// Whose turn it is now. To be asked after every change of what is free or held or waited for.
    fn next(&self, state: &mut State) -> Option<Waker> {
        if state.queue.is_empty() {
            return None;
        }
        let State { queue, extents, .. } = state;
        queue.next(self.frame, |count| extents.longest() >= count)
    }
}

/// The future of [`Slab::lease`].
struct Leasing<'a> {
    slab: &'a Slab,
    account: &'a Account,
    len: usize,
    /// Its place in the queue, once it has waited.
    ticket: Option<u64>,
}

impl Future for Leasing<'_> {
    type Output = Lease;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Lease> {
        let this = &mut *self;
        let inner = &this.slab.inner;
        let count = inner.count(this.len);
        let mut state = inner.lock();
        let turn = !state.queue.must_wait(this.ticket, this.account, inner.frame);
        let taken = if turn { inner.take(&mut state, this.account, count) } else { None };
        let Some((slot, first)) = taken else {
            let old = match this.ticket {
                Some(ticket) => state.queue.renew(ticket, cx.waker()),
                None => {
                    this.ticket = Some(state.queue.enter(this.account.clone(), count, cx.waker().clone()));
                    None
                }
            };
            drop(state);
            drop(old);
            return Poll::Pending;
        };
        let waiter = this.ticket.take().and_then(|ticket| state.queue.leave(ticket));
        let next = inner.next(&mut state);
        drop(state);
        drop(waiter);
        next.into_iter().for_each(Waker::wake);
        Poll::Ready(Lease::new(this.slab.clone(), slot, first * inner.frame, this.len))
    }
}

impl Drop for Leasing<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let inner = &self.slab.inner;
        let mut state = inner.lock();
        let waiter = state.queue.leave(ticket);
        // The turn this one was woken for, if it was, goes to the next.
        let next = inner.next(&mut state);
        drop(state);
        drop(waiter);
        next.into_iter().for_each(Waker::wake);
    }
}

//! Slab, lease, view: who may touch which bytes, enforced by types.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

use super::extents::Extents;
use super::region::Region;
use super::sync::{Arc, AtomicU32, AtomicUsize, Mutex, Ordering, fence};

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
    waiters: Vec<Waker>,
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
    /// Leases (each with its views) alive.
    pub leases: usize,
}

impl Slab {
    pub fn new(config: SlabConfig) -> Result<Slab, SlabError> {
        let SlabConfig { capacity, lock } = config;
        if capacity == 0 {
            return Err(SlabError::Empty);
        }
        let region = Region::new(capacity, lock).map_err(|source| SlabError::Map { capacity, source })?;
        let frame = capacity.div_ceil(MAX_FRAMES).next_power_of_two().max(MIN_FRAME);
        // The mapping may be a little longer than asked for (huge pages); what is left of a frame at its end is unused.
        let frames = capacity.div_ceil(frame).min(region.len() / frame).max(1);
        let slots = frames;
        let state = State {
            extents: Extents::new(frames),
            idle: (0..slots as u32).rev().collect(),
            held: (0..slots).map(|_| Held::default()).collect(),
            quarantined: 0,
            returns: 0,
            waiters: Vec::new(),
        };
        let slots = (0..slots).map(|_| Slot { refs: AtomicU32::new(0) }).collect();
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

    /// A lease of `len` bytes for `account`, if there is a contiguous run for it and the account's limit allows it.
    /// The bytes are whatever was there before. `len` 0 is lent as one frame of which nothing is visible.
    pub fn try_lease(&self, account: &Account, len: usize) -> Option<Lease> {
        let inner = &self.inner;
        let count = len.div_ceil(inner.frame).max(1);
        if !account.charge(count * inner.frame) {
            return None;
        }
        let mut state = inner.lock();
        // A free frame implies a free slot: there are as many slots as frames, and each lease holds a frame at least.
        let Some(first) = state.extents.take(count) else {
            drop(state);
            account.refund(count * inner.frame);
            return None;
        };
        let slot = state.idle.pop().expect("a slot for each frame");
        state.held[slot as usize] = Held { first, count, account: Some(account.clone()) };
        drop(state);
        inner.slots[slot as usize].refs.store(1, Ordering::Relaxed);
        Some(Lease { view: View { slab: self.clone(), slot, start: first * inner.frame, len } })
    }

    /// Ready when memory has come back since `seen` was last updated by this call; else the waker is kept and woken when
    /// it does. Start with `seen` = 0; call it again after each failed [`try_lease`](Slab::try_lease).
    pub fn poll_returned(&self, cx: &mut Context<'_>, seen: &mut u64) -> Poll<()> {
        let mut state = self.inner.lock();
        if state.returns != *seen {
            *seen = state.returns;
            return Poll::Ready(());
        }
        if !state.waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.waiters.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// A lease of `len` bytes, waiting for memory as long as it takes. Bound the wait from outside.
    ///
    /// # Panics
    /// When `len` is more than the slab or the account can ever lend: check against their limits first.
    pub async fn lease(&self, account: &Account, len: usize) -> Lease {
        assert!(len <= self.capacity() && len <= account.limit(), "a lease of {len} bytes can never be had");
        let mut seen = 0;
        std::future::poll_fn(|cx| {
            loop {
                if let Some(lease) = self.try_lease(account, len) {
                    return Poll::Ready(lease);
                }
                match self.poll_returned(cx, &mut seen) {
                    Poll::Ready(()) => continue,
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("usage", &self.usage()).finish()
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing in the critical sections can panic half-way through a change.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The last reference to `slot` is gone.
    fn give(&self, slot: u32) {
        let mut state = self.lock();
        let held = std::mem::take(&mut state.held[slot as usize]);
        state.extents.give(held.first, held.count);
        state.idle.push(slot);
        self.returned(state, held.account.as_ref(), held.count);
    }

    /// Tells whoever waits that `count` frames of `account` are free again.
    fn returned(&self, mut state: std::sync::MutexGuard<'_, State>, account: Option<&Account>, count: usize) {
        // Before the waiters learn of it: they must find the account refunded.
        if let Some(account) = account {
            account.refund(count * self.frame);
        }
        state.returns += 1;
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// Exclusive use of one slice of the slab. Not `Clone`: whoever has it is the only one to read or write the bytes.
/// Dropping it gives the memory back.
pub struct Lease {
    /// The only view there is, while the lease lives.
    view: View,
}

impl Lease {
    pub fn len(&self) -> usize {
        self.view.len
    }

    pub fn is_empty(&self) -> bool {
        self.view.len == 0
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let view = &self.view;
        // SAFETY: `start..start + len` lies within the frames that this lease's slot holds; no other lease holds them, no
        // view but the private one exists, and `&mut self` excludes any other access for the slice's lifetime. The bytes
        // are initialised: the mapping was zeroed.
        unsafe { std::slice::from_raw_parts_mut(view.pointer().as_ptr(), view.len) }
    }

    /// Where the bytes lie, for devices that write them. Writing through it needs the lease's ownership.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.view.pointer().as_ptr()
    }

    /// Keeps the first `len` bytes and gives the frames behind them back at once.
    ///
    /// # Panics
    /// When `len` is more than the lease has.
    pub fn shrink(&mut self, len: usize) {
        assert!(len <= self.view.len, "a lease cannot grow");
        self.view.len = len;
        let inner = &self.view.slab.inner;
        let mut state = inner.lock();
        let held = &mut state.held[self.view.slot as usize];
        let keep = len.div_ceil(inner.frame).max(1);
        let surplus = held.count - keep;
        if surplus > 0 {
            held.count = keep;
            let first = held.first + keep;
            let account = held.account.clone();
            state.extents.give(first, surplus);
            inner.returned(state, account.as_ref(), surplus);
        }
    }

    /// Ends writing: from now on the bytes can be shared, and no longer changed.
    pub fn freeze(self) -> View {
        self.view
    }

    /// Sets the lease aside because something may still write to it.
    pub fn quarantine(self) -> Quarantined {
        let inner = &self.view.slab.inner;
        let mut state = inner.lock();
        let count = state.held[self.view.slot as usize].count;
        state.quarantined += count;
        drop(state);
        Quarantined { lease: std::mem::ManuallyDrop::new(self) }
    }
}

impl Deref for Lease {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.view
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} bytes)", self.view.len)
    }
}

/// A lease that something may still write to. Its bytes cannot be touched, and dropping it does *not* give the memory
/// back: only [`release`](Quarantined::release) does, by whoever knows that the writer is gone.
#[must_use = "dropped without release, the memory is lost for good"]
pub struct Quarantined {
    lease: std::mem::ManuallyDrop<Lease>,
}

impl Quarantined {
    pub fn len(&self) -> usize {
        self.lease.view.len
    }

    pub fn is_empty(&self) -> bool {
        self.lease.view.len == 0
    }

    /// Nothing can write to the memory any more.
    pub fn release(self) -> Lease {
        let lease = std::mem::ManuallyDrop::into_inner(self.lease);
        let inner = &lease.view.slab.inner;
        let mut state = inner.lock();
        let count = state.held[lease.view.slot as usize].count;
        state.quarantined -= count;
        drop(state);
        lease
    }
}

impl fmt::Debug for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quarantined({} bytes)", self.lease.view.len)
    }
}

/// Shared, read-only use of a frozen lease, or of a part of one. Clones and parts keep the whole lease's memory; dropping
/// the last gives it back.
pub struct View {
    slab: Slab,
    slot: u32,
    /// Byte offset in the slab.
    start: usize,
    len: usize,
}

impl View {
    /// The part `offset..offset + len` of this view.
    ///
    /// # Panics
    /// When the part is out of bounds.
    pub fn slice(&self, offset: usize, len: usize) -> View {
        assert!(offset <= self.len && len <= self.len - offset, "a part of a view lies within it");
        let mut part = self.clone();
        part.start += offset;
        part.len = len;
        part
    }

    /// The same bytes as [`bytes::Bytes`], without a copy: the memory goes back when the last of them is dropped.
    pub fn into_bytes(self) -> bytes::Bytes {
        bytes::Bytes::from_owner(self)
    }

    fn pointer(&self) -> NonNull<u8> {
        // SAFETY: `start` is within the region: it was the start of frames held, or of a part of them.
        unsafe { self.slab.inner.region.base().add(self.start) }
    }

    fn refs(&self) -> &AtomicU32 {
        &self.slab.inner.slots[self.slot as usize].refs
    }
}

impl Deref for View {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the frames that this view's slot holds, and they are not given back while this
        // view counts in its `refs`. A view that others can reach comes from `freeze`, which consumed the lease, so that
        // nobody can write any more; the one inside a lease is reached only through the lease's own borrow.
        unsafe { std::slice::from_raw_parts(self.pointer().as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for View {
    fn clone(&self) -> View {
        // Relaxed suffices: a new reference is made from one that is alive (as in `Arc`).
        let before = self.refs().fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "too many views of one lease");
        View { slab: self.slab.clone(), slot: self.slot, start: self.start, len: self.len }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Release: this view's reads happen before the memory is lent again. Acquire: so do those of all others.
        if self.refs().fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            self.slab.inner.give(self.slot);
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} bytes)", self.len)
    }
}

/// Whoever holds leases, with a limit of its own: a loader, a connection. Cloning makes another handle.
#[derive(Clone)]
pub struct Account {
    inner: Arc<AccountInner>,
}

struct AccountInner {
    name: String,
    limit: usize,
    held: AtomicUsize,
}

impl Account {
    /// An account that may hold up to `limit` bytes (whole frames).
    pub fn new(name: impl Into<String>, limit: usize) -> Account {
        Account { inner: Arc::new(AccountInner { name: name.into(), limit, held: AtomicUsize::new(0) }) }
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub fn limit(&self) -> usize {
        self.inner.limit
    }

    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.inner.held.load(Ordering::Relaxed)
    }

    fn charge(&self, bytes: usize) -> bool {
        let fits = |held: usize| held.checked_add(bytes).filter(|&sum| sum <= self.inner.limit);
        self.inner.held.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits).is_ok()
    }

    fn refund(&self, bytes: usize) {
        self.inner.held.fetch_sub(bytes, Ordering::AcqRel);
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({}: {} of {} bytes)", self.name(), self.held(), self.limit())
    }
}

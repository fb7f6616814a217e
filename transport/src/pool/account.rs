//! Who holds how much of a slab.

use std::fmt;

use super::sync::{Arc, AtomicU64, AtomicUsize, Ordering};

/// Whoever holds leases, with a limit of its own: a loader, a connection. Cloning makes another handle.
///
/// An account is for one slab: what it gives back to another wakes nobody who waits on this one.
#[derive(Clone)]
pub struct Account {
    inner: Arc<AccountInner>,
}

struct AccountInner {
    name: String,
    limit: usize,
    held: AtomicUsize,
    /// The last pass over the slab's queue that found this account full. Used under the slab's lock.
    full_in: AtomicU64,
}

impl Account {
    /// An account that may hold up to `limit` bytes. Leases are whole frames, so the limit counts rounded up to whole
    /// frames of the slab: a lease of `limit` bytes can always be had by an account that holds nothing. An account
    /// with a limit of 0 can hold nothing.
    pub fn new(name: impl Into<String>, limit: usize) -> Account {
        let (held, full_in) = (AtomicUsize::new(0), AtomicU64::new(0));
        Account { inner: Arc::new(AccountInner { name: name.into(), limit, held, full_in }) }
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub fn limit(&self) -> usize {
        self.inner.limit
    }

    /// Bytes held now, in whole frames: leases, what views keep of them, and what is in quarantine.
    pub fn held(&self) -> usize {
        self.inner.held.load(Ordering::Relaxed)
    }

    /// The most this account may hold of a slab whose frames have `frame` bytes.
    pub(super) fn most(&self, frame: usize) -> usize {
        self.inner.limit.div_ceil(frame).saturating_mul(frame)
    }

    pub(super) fn has_room(&self, bytes: usize, frame: usize) -> bool {
        self.held().checked_add(bytes).is_some_and(|sum| sum <= self.most(frame))
    }

    /// Books `bytes`, unless the limit forbids it. Called under the slab's lock, so that nobody sees a booking that is
    /// taken back: it could send another to sleep for memory that is free.
    pub(super) fn charge(&self, bytes: usize, frame: usize) -> bool {
        let most = self.most(frame);
        let fits = |held: usize| held.checked_add(bytes).filter(|&sum| sum <= most);
        self.inner.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    pub(super) fn refund(&self, bytes: usize) {
        self.inner.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn is(&self, other: &Account) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(super) fn mark_full(&self, pass: u64) {
        self.inner.full_in.store(pass, Ordering::Relaxed);
    }

    pub(super) fn is_marked_full(&self, pass: u64) -> bool {
        self.inner.full_in.load(Ordering::Relaxed) == pass
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({}: {} of {} bytes)", self.name(), self.held(), self.limit())
    }
}

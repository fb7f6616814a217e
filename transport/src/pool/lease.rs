//! Lease, view, quarantine: who may touch which bytes, enforced by types.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

use super::slab::Slab;
use super::sync::{AtomicU32, Ordering, fence};

/// Exclusive use of one slice of the slab. Not `Clone`: whoever has it is the only one to read or write the bytes.
/// Dropping it gives the memory back.
pub struct Lease {
    /// The only view there is, while the lease lives.
    view: View,
}

impl Lease {
    /// Of the first `len` bytes of the frames that lie from `start` on and were just taken for `slot`.
    pub(super) fn new(slab: Slab, slot: u32, start: usize, len: usize) -> Lease {
        Lease { view: View { slab, slot, start, len } }
    }

    pub fn len(&self) -> usize {
        self.view.len
    }

    pub fn is_empty(&self) -> bool {
        self.view.len == 0
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let view = &self.view;
        view.slab.memory().writes(view.start, view.len);
        // SAFETY: `start..start + len` lies within the frames that this lease's slot holds; no other lease holds
        // them, no view but the private one exists, and `&mut self` excludes any other access for the slice's
        // lifetime. The bytes are initialised: the mapping was zeroed.
        unsafe { std::slice::from_raw_parts_mut(view.pointer().as_ptr(), view.len) }
    }

    /// Where the bytes lie, for devices that write them. Writing through it needs the lease's ownership.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.view.pointer().as_ptr()
    }

    /// Whose memory it is.
    pub(crate) fn slab(&self) -> &Slab {
        &self.view.slab
    }

    /// Keeps the first `len` bytes and gives the frames behind them back at once.
    ///
    /// # Panics
    /// When `len` is more than the lease has.
    pub fn shrink(&mut self, len: usize) {
        assert!(len <= self.view.len, "a lease cannot grow");
        // First, so that nothing behind it can be reached when it is given back.
        self.view.len = len;
        self.view.slab.shrink(self.view.slot, len);
    }

    /// Ends writing: from now on the bytes can be shared, and no longer changed.
    pub fn freeze(self) -> View {
        self.view
    }

    /// Sets the lease aside because something may still write to it.
    pub fn quarantine(self) -> Quarantined {
        self.view.slab.quarantine(self.view.slot, true);
        Quarantined { lease: ManuallyDrop::new(self) }
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
/// back: only [`release`](Quarantined::release) does, by whoever knows that the writer is gone. Until then its bytes
/// count as quarantined, and against their account; the slab stays mapped even when every other handle is gone.
#[must_use = "dropped without release, the memory is lost for good"]
pub struct Quarantined {
    lease: ManuallyDrop<Lease>,
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
        let lease = ManuallyDrop::into_inner(self.lease);
        lease.view.slab.quarantine(lease.view.slot, false);
        lease
    }
}

impl fmt::Debug for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quarantined({} bytes)", self.lease.view.len)
    }
}

/// Shared, read-only use of a frozen lease, or of a part of one. Clones and parts keep the whole lease's memory;
/// dropping the last gives it back.
pub struct View {
    slab: Slab,
    slot: u32,
    /// Byte offset in the slab.
    start: usize,
    len: usize,
}

/// So many views of one lease are more than anything but a leak makes. Far enough below the counter's end that threads
/// that find it exceeded at the same time do not reach it.
const MOST_VIEWS: u32 = u32::MAX / 2;

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
        // SAFETY: `start` is within the region or at its end: it was the start of frames held, or of a part of them.
        unsafe { self.slab.memory().base().add(self.start) }
    }

    fn refs(&self) -> &AtomicU32 {
        self.slab.refs(self.slot)
    }
}

impl Deref for View {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.slab.memory().reads(self.start, self.len);
        // SAFETY: the range lies within the frames that this view's slot holds, and they are not given back while
        // this view counts in its `refs`. A view that others can reach comes from `freeze`, which consumed the lease,
        // so that nobody can write any more; the one inside a lease is reached only through the lease's own borrow.
        // The bytes are initialised: the mapping was zeroed.
        unsafe { std::slice::from_raw_parts(self.pointer().as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for View {
    /// # Panics
    /// When there are 2^31 views of one lease: they have been leaked.
    fn clone(&self) -> View {
        // Relaxed suffices: a new reference is made from one that is alive (as in `Arc`).
        let before = self.refs().fetch_add(1, Ordering::Relaxed);
        if before >= MOST_VIEWS {
            // Taken back, so that a caller who catches the panic, time and again, does not make the counter wrap.
            self.refs().fetch_sub(1, Ordering::Relaxed);
            panic!("too many views of one lease");
        }
        View { slab: self.slab.clone(), slot: self.slot, start: self.start, len: self.len }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Release: this view's reads happen before the memory is lent again. Acquire: so do those of all others.
        if self.refs().fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            self.slab.give(self.slot);
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} bytes)", self.len)
    }
}

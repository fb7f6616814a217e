//! The memory itself: one anonymous mapping, on huge pages where there are any, locked where that is allowed.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

/// A private anonymous mapping of this process, zeroed, writable, unmapped on drop.
pub(super) struct Region {
    base: NonNull<u8>,
    len: usize,
    pub(super) huge: bool,
    pub(super) locked: bool,
}

// SAFETY: the mapping is plain memory without thread affinity; who may touch which part of it is the business of
// `slab`, which hands each byte to one lease at a time.
unsafe impl Send for Region {}
// SAFETY: as above; `Region` itself reads and writes nothing after construction.
unsafe impl Sync for Region {}

const HUGE: usize = 2 << 20;

impl Region {
    /// Maps at least `len` bytes (rounded up to whole pages). Locking is tried, and its failure is no error: the
    /// memory is then as good, but may be paged out and cannot be registered with a device.
    pub(super) fn new(len: usize, lock: bool) -> io::Result<Region> {
        let whole = len.checked_next_multiple_of(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let (base, len, huge) = match map(whole, libc::MAP_HUGETLB) {
            Ok(base) => (base, whole, true),
            Err(_) => {
                let len = len.next_multiple_of(4096);
                (map(len, 0)?, len, false)
            }
        };
        if !huge {
            // SAFETY: the range is the mapping just made. Only a hint: the result does not matter.
            unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: the range is the mapping just made; mlock does not touch its contents.
        let locked = lock && unsafe { libc::mlock(base.as_ptr().cast(), len) } == 0;
        Ok(Region { base, len, huge, locked })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mapping made in `new`, which nobody else unmaps. No lease or view is
        // left: each holds a reference to the slab that owns this region.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn map(len: usize, flags: i32) -> io::Result<NonNull<u8>> {
    // SAFETY: an anonymous mapping at an address of the kernel's choosing touches no existing memory.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

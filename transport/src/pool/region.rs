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
// `slab` and `lease`, which hand each byte to one lease at a time.
unsafe impl Send for Region {}
// SAFETY: as above; `Region` itself reads and writes nothing after construction.
unsafe impl Sync for Region {}

#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;

impl Region {
    /// Maps at least `len` bytes. Locking is tried, and its failure is no error: the memory is then as good, but may be
    /// paged out and cannot be registered with a device.
    pub(super) fn new(len: usize, lock: bool) -> io::Result<Region> {
        let (base, len, huge) = match map_huge(len) {
            Some((base, len)) => (base, len, true),
            None => (map(len, 0)?, len, false),
        };
        #[cfg(target_os = "linux")]
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

    /// The bytes are about to be read by whoever holds them: for the model checker.
    pub(super) fn reads(&self, _start: usize, _len: usize) {}

    /// The bytes are about to be written by whoever holds them: for the model checker.
    pub(super) fn writes(&self, _start: usize, _len: usize) {}

    /// Nobody holds these bytes: under AddressSanitizer, touching them ends the program.
    pub(super) fn guard(&self, start: usize, len: usize) {
        shadow::poison(self.base, start, len);
    }

    /// Somebody holds these bytes.
    pub(super) fn expose(&self, start: usize, len: usize) {
        shadow::unpoison(self.base, start, len);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Other mappings may come to lie here.
        self.expose(0, self.len);
        // SAFETY: base and len are those of the mapping made in `new`, which nobody else unmaps. No lease or view is
        // left: each holds a reference to the slab that owns this region.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Bytes of memory this machine has; the largest there can be when it does not say.
pub(super) fn physical_memory() -> u64 {
    // SAFETY: sysconf reads a value and touches no memory of ours.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    match (u64::try_from(pages), u64::try_from(page)) {
        (Ok(pages), Ok(page)) => pages.saturating_mul(page),
        _ => u64::MAX,
    }
}

/// On huge pages that the machine's owner has set aside. Their size is asked for by name: the default may be another,
/// and a mapping of those can only be unmapped in their multiples.
#[cfg(target_os = "linux")]
fn map_huge(len: usize) -> Option<(NonNull<u8>, usize)> {
    let whole = len.checked_next_multiple_of(HUGE)?;
    map(whole, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB).ok().map(|base| (base, whole))
}

#[cfg(not(target_os = "linux"))]
fn map_huge(_len: usize) -> Option<(NonNull<u8>, usize)> {
    None
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

/// AddressSanitizer does not know that a frame can be freed inside a mapping: it is told.
#[cfg(forebay_asan)]
mod shadow {
    use std::ffi::c_void;
    use std::ptr::NonNull;

    unsafe extern "C" {
        fn __asan_poison_memory_region(start: *const c_void, len: usize);
        fn __asan_unpoison_memory_region(start: *const c_void, len: usize);
    }

    pub(super) fn poison(base: NonNull<u8>, start: usize, len: usize) {
        // SAFETY: only the sanitizer's notes about the bytes change, not the bytes.
        unsafe { __asan_poison_memory_region(base.as_ptr().wrapping_add(start).cast(), len) }
    }

    pub(super) fn unpoison(base: NonNull<u8>, start: usize, len: usize) {
        // SAFETY: as above.
        unsafe { __asan_unpoison_memory_region(base.as_ptr().wrapping_add(start).cast(), len) }
    }
}

#[cfg(not(forebay_asan))]
mod shadow {
    use std::ptr::NonNull;

    pub(super) fn poison(_base: NonNull<u8>, _start: usize, _len: usize) {}
    pub(super) fn unpoison(_base: NonNull<u8>, _start: usize, _len: usize) {}
}

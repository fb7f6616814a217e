//! Stands in for `region` under the model checker: ordinary memory, and for each page a cell that the checker
//! watches, so that two who touch a page without one happening before the other are found.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

use loom::cell::UnsafeCell;

const PAGE: usize = 4096;

pub(super) struct Region {
    base: NonNull<u8>,
    layout: Layout,
    pages: Vec<UnsafeCell<()>>,
    pub(super) huge: bool,
    pub(super) locked: bool,
}

// SAFETY: plain memory without thread affinity; the cells are what the checker checks.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub(super) fn new(len: usize, _lock: bool) -> io::Result<Region> {
        let layout = Layout::from_size_align(len, PAGE).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the slab never asks for 0 bytes.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = (0..len.div_ceil(PAGE)).map(|_| UnsafeCell::new(())).collect();
        Ok(Region { base, layout, pages, huge: false, locked: false })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(super) fn reads(&self, start: usize, len: usize) {
        self.pages[start / PAGE..(start + len).div_ceil(PAGE)].iter().for_each(|page| page.with(|_| ()));
    }

    pub(super) fn writes(&self, start: usize, len: usize) {
        self.pages[start / PAGE..(start + len).div_ceil(PAGE)].iter().for_each(|page| page.with_mut(|_| ()));
    }

    pub(super) fn guard(&self, _start: usize, _len: usize) {}
    pub(super) fn expose(&self, _start: usize, _len: usize) {}
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and nobody else frees it.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

pub(super) fn physical_memory() -> u64 {
    u64::MAX
}

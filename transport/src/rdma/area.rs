//! What both ends of a connection keep beside the pool: places of one size for frames, tables and other small things, each used
//! by one piece of work at a time; and the pool, as it is registered with each device.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::Error;
use super::frame::Target;
use super::memory::{Domain, Piece, Registration, Rights};
use crate::pool::{Account, Lease, Slab, SlabConfig};

/// Places for small things, in registered memory of their own.
pub(super) struct Area {
    /// Its bytes are reached by `base` alone.
    _lease: Lease,
    base: *mut u8,
    places: usize,
    size: usize,
    registration: Arc<Registration>,
}

// SAFETY: `base` is the lease's, which may be sent.
unsafe impl Send for Area {}

impl Area {
    /// `places` of `size` bytes each, at addresses that are multiples of 64.
    pub(super) fn new(domain: &Arc<Domain>, places: usize, size: usize, rights: Rights) -> Result<Area, Error> {
        let none = |why: &dyn std::fmt::Display| Error::System {
            what: format!("memory for {places} places of {size} bytes: {why}"),
            source: io::ErrorKind::OutOfMemory.into(),
        };
        let size = size.next_multiple_of(64);
        let capacity = places * size;
        // Registering keeps it in place.
        let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(capacity) }).map_err(|error| none(&error))?;
        let lease = slab.try_lease(&Account::new("area", usize::MAX), capacity);
        let mut lease = lease.ok_or_else(|| none(&"none is free"))?;
        let registration = Registration::new(domain, &slab, rights)?;
        Ok(Area { base: lease.as_mut_ptr(), _lease: lease, places, size, registration })
    }

    fn place(&self, at: usize) -> *mut [u8] {
        assert!(at < self.places, "place {at} of {}", self.places);
        std::ptr::slice_from_raw_parts_mut(self.base.wrapping_add(at * self.size), self.size)
    }

    /// A place's bytes, to be written.
    ///
    /// # Safety
    /// No work that reads or writes the place is under way, and no peer can write to it.
    pub(super) unsafe fn bytes_mut(&mut self, at: usize) -> &mut [u8] {
        // SAFETY: within the lease, which is ours alone; initialised, since a slab is; and nobody else uses it, as promised.
        unsafe { &mut *self.place(at) }
    }

    /// A place's first bytes, `len` of them or as many as there are.
    ///
    /// # Safety
    /// No work that writes the place is under way, and no peer can write to it.
    pub(super) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: as above.
        let bytes = unsafe { &*self.place(at) };
        &bytes[..len.min(bytes.len())]
    }

    /// Copies a place's first bytes, `len` of them or as many as there are, into `out`. A peer may write to them meanwhile: then
    /// what is copied is anything.
    pub(super) fn copy(&self, at: usize, len: usize, out: &mut Vec<u8>) {
        let len = len.min(self.size);
        out.clear();
        out.reserve(len);
        // SAFETY: within the lease, and there is room for so many, which are then initialised. No reference to the source is
        // made, for what writes there is no part of this program.
        unsafe {
            std::ptr::copy_nonoverlapping(self.place(at).cast::<u8>().cast_const(), out.as_mut_ptr(), len);
            out.set_len(len);
        }
    }

    /// A place's first bytes, `len` of them or as many as there are, as work names them.
    pub(super) fn piece(&self, at: usize, len: usize) -> Piece {
        let place = self.place(at).cast::<u8>();
        let bytes = std::ptr::slice_from_raw_parts(place.cast_const(), len.min(self.size));
        self.registration.piece(bytes).expect("the area is registered")
    }

    /// A place as a peer names it.
    pub(super) fn target(&self, at: usize) -> Target {
        let key = self.registration.remote_key();
        Target { address: self.place(at).cast::<u8>() as u64, key, capacity: self.size as u64 }
    }
}

/// The pool, as it is registered with each device that it was needed with.
pub(super) struct Pinned {
    pool: Slab,
    rights: Rights,
    by_device: Mutex<HashMap<String, OnDevice>>,
}

/// One device's domain, and the pool in it.
type OnDevice = (Arc<Domain>, Arc<Registration>);

impl Pinned {
    pub(super) fn new(pool: &Slab, rights: Rights) -> Pinned {
        Pinned { pool: pool.clone(), rights, by_device: Mutex::default() }
    }

    pub(super) fn pool(&self) -> &Slab {
        &self.pool
    }

    /// With the device of that name. The first time it takes a while, on a thread of its own.
    pub(super) async fn with(self: &Arc<Self>, device: String) -> Result<OnDevice, Error> {
        if let Some(known) = self.by_device().get(&device) {
            return Ok(known.clone());
        }
        let this = self.clone();
        let made = tokio::task::spawn_blocking(move || {
            let domain = Domain::open(&device)?;
            let registration = Registration::new(&domain, &this.pool, this.rights)?;
            // Of two at once the first is kept.
            Ok(this.by_device().entry(device).or_insert((domain, registration)).clone())
        });
        made.await.unwrap_or_else(|error| {
            Err(Error::System { what: "registering memory".to_owned(), source: io::Error::other(error) })
        })
    }

    fn by_device(&self) -> MutexGuard<'_, HashMap<String, OnDevice>> {
        // Nothing done under the lock leaves half a change behind.
        self.by_device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

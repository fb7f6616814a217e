//! Memory that a device may touch: domains, registrations of slabs, and windows onto them.
//!
//! Each keeps what it was made of, so that all are freed in the right order. Nothing here reads or writes the memory.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_alloc_mw, ibv_dealloc_mw, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_mw_type, ibv_pd};

use super::device::{Context, Error, system};
use crate::pool::Slab;

/// What belongs together on one device: queues reach registrations of their own domain, and no others.
pub(super) struct Domain {
    pub(super) context: Context,
    pub(super) raw: NonNull<ibv_pd>,
    name: String,
}

// SAFETY: rdma-core's calls may be made from any thread, and from several at once.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A new one on the device that the system names so.
    pub(super) fn open(name: &str) -> Result<Arc<Domain>, Error> {
        let context = Context::open_named(name)?;
        // SAFETY: the context is open, and lives as long as what is made of it.
        let raw = NonNull::new(unsafe { (context.verbs.alloc_pd)(context.raw.as_ptr()) });
        let raw = raw.ok_or_else(|| system(&format!("a protection domain of {name}")))?;
        Ok(Arc::new(Domain { context, raw, name: name.to_owned() }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once, and nothing that was made of it lives: all of it keeps the domain.
        let _ = unsafe { (self.context.verbs.dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Who may do what to registered memory, besides the device sending from it and receiving into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    /// Nobody else.
    Local,
    /// Who has its remote key may write, and not read.
    RemoteWrite,
    /// Who has the key of a [`Window`] may write there, and not read. The registration's own remote key is good for nothing.
    Windows,
}

impl Rights {
    fn access(self) -> ibv_access_flags {
        let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        match self {
            Rights::Local => local,
            Rights::RemoteWrite => local | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
            Rights::Windows => local | ibv_access_flags::IBV_ACCESS_MW_BIND,
        }
    }
}

/// A slab that a device may reach. The slab stays mapped as long as this lives.
pub(super) struct Registration {
    domain: Arc<Domain>,
    slab: ManuallyDrop<Slab>,
    raw: NonNull<ibv_mr>,
    rights: Rights,
}

// SAFETY: rdma-core's calls may be made from any thread, and what the registration says of itself does not change.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

/// Registered memory, as the device that has it registered knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) key: u32,
}

impl Registration {
    /// Pins all of the slab's memory, which takes a second for some gigabytes.
    pub(super) fn new(domain: &Arc<Domain>, slab: &Slab, rights: Rights) -> Result<Arc<Registration>, Error> {
        let (base, len) = slab.region();
        // The bits fit: there are 21 of them.
        let access = rights.access().0 as i32;
        // SAFETY: the range is the slab's mapping, which stays as long as the slab; the slab is kept below. What the device
        // writes there is for whoever posts work or gives a key away to answer for.
        let raw = unsafe { (domain.context.verbs.reg_mr)(domain.raw.as_ptr(), base.as_ptr().cast(), len, access) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let error = system(&format!("registering {len} bytes with {}", domain.name));
            let limited = matches!(&error, Error::System { source, .. } if source.raw_os_error() == Some(libc::ENOMEM));
            if limited { Error::Limit { bytes: len, device: domain.name.clone() } } else { error }
        })?;
        Ok(Arc::new(Registration { domain: domain.clone(), slab: ManuallyDrop::new(slab.clone()), raw, rights }))
    }

    /// `bytes` as work names them; `None` if they are not of this slab, or have 4 GiB or more.
    pub(super) fn piece(&self, bytes: *const [u8]) -> Option<Piece> {
        let (base, len) = self.slab.region();
        let from = (bytes.cast::<u8>() as usize).checked_sub(base.as_ptr() as usize)?;
        if bytes.len() > len.checked_sub(from)? {
            return None;
        }
        // SAFETY: the registration lives, and its keys do not change.
        let key = unsafe { self.raw.as_ref() }.lkey;
        Some(Piece { address: bytes.cast::<u8>() as u64, len: u32::try_from(bytes.len()).ok()?, key })
    }

    #[cfg(test)]
    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Whether it is this slab's.
    pub(super) fn is_of(&self, slab: &Slab) -> bool {
        self.slab.region() == slab.region()
    }

    /// What a peer names it by. Good for nothing unless its rights are [`Rights::RemoteWrite`].
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: the registration lives, and its keys do not change.
        unsafe { self.raw.as_ref() }.rkey
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered once, ended once. Windows that are bound to it keep it, so that none is.
        let ended = unsafe { (self.domain.context.verbs.dereg_mr)(self.raw.as_ptr()) };
        if ended == 0 {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.slab) };
        }
        // Otherwise the device still reaches the memory, which must then stay where it is: for good.
    }
}

/// A key to a part of registered memory, of the second type: bound by a queue's work, and good for that queue's peer only.
pub(super) struct Window {
    domain: Arc<Domain>,
    raw: NonNull<ibv_mw>,
    /// The key of the last binding, or the one it was made with.
    key: u32,
    /// What it is bound to, which may go no sooner than that has ended.
    bound: Option<Arc<Registration>>,
}

// SAFETY: rdma-core's calls may be made from any thread; binding is by `&mut`.
unsafe impl Send for Window {}

impl Window {
    pub(super) fn new(domain: &Arc<Domain>) -> Result<Window, Error> {
        // SAFETY: the domain lives, and is kept below.
        let raw = unsafe { ibv_alloc_mw(domain.raw.as_ptr(), ibv_mw_type::IBV_MW_TYPE_2) };
        let raw = raw.and_then(NonNull::new).ok_or_else(|| system(&format!("a memory window of {}", domain.name)))?;
        // SAFETY: just made.
        let key = unsafe { raw.as_ref() }.rkey;
        Ok(Window { domain: domain.clone(), raw, key, bound: None })
    }

    /// What the next binding is to be told: this window, its new key, and where. `None` if `bytes` are not of the
    /// registration, or that has no windows, or the last binding was not [ended](Window::ended).
    pub(super) fn binding(&mut self, registration: &Arc<Registration>, bytes: *const [u8]) -> Option<Binding> {
        let piece = registration.piece(bytes)?;
        let ours = Arc::ptr_eq(&registration.domain, &self.domain) && registration.rights == Rights::Windows;
        if !ours || self.bound.is_some() {
            return None;
        }
        // The lowest eight bits are the owner's, so that an old key does not open a new binding.
        self.key = self.key & !0xff | self.key.wrapping_add(1) & 0xff;
        self.bound = Some(registration.clone());
        let write = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let info = ibv_mw_bind_info {
            mr: registration.raw.as_ptr(),
            addr: piece.address,
            length: piece.len.into(),
            mw_access_flags: write,
        };
        Some(Binding { window: self.raw, key: self.key, info })
    }

    /// What the peer names the bound memory by.
    pub(super) fn key(&self) -> u32 {
        self.key
    }

    pub(super) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// The binding was made, and then invalidated: it may be bound anew.
    pub(super) fn ended(&mut self) {
        // The next binding is recognised by this one's key, which for this type is for us to keep up to date.
        // SAFETY: the window lives, and who posts work with it has `&mut`.
        unsafe { self.raw.as_mut() }.rkey = self.key;
        self.bound = None;
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once. If it is bound that ends with it.
        let _ = unsafe { ibv_dealloc_mw(self.raw.as_ptr()) };
    }
}

/// What binding a window needs to know.
pub(super) struct Binding {
    pub(super) window: NonNull<ibv_mw>,
    pub(super) key: u32,
    pub(super) info: ibv_mw_bind_info,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, len) = self.slab.region();
        write!(f, "Registration({len} bytes with {}, {:?})", self.domain.name, self.rights)
    }
}

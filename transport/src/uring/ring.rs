//! The ring itself: set up with what this kernel has, filled and reaped by the one thread that made it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};

use super::table::Change;
use super::{Registered, Target, Unavailable};
use crate::pool::Slab;

/// The most bytes that the kernel registers as one buffer.
const LARGEST_BUFFER: usize = 1 << 30;
/// The token of the read that ends when somebody wakes the ring.
pub(super) const WOKEN: u64 = u64::MAX;

/// A submission and a completion queue. Not for more than one thread: the kernel refuses others than the one that made it.
pub(super) struct Ring {
    ring: IoUring,
    /// Registered memory: where each buffer begins, and its length.
    buffers: Vec<(usize, usize)>,
    /// Whose memory is registered, and therefore must stay where it is.
    _slabs: Vec<Slab>,
    bell: File,
}

/// Memory and file of a read.
pub(super) struct Reading {
    pub target: Target,
    pub offset: u64,
    pub start: *mut u8,
    pub len: usize,
    /// Leave it to the kernel's worker threads from the start.
    pub aside: bool,
}

impl Ring {
    /// A ring for `depth` reads at a time, `files` files known by number, and reads into `slabs`.
    ///
    /// # Errors
    /// When there can be none; not when something cannot be registered.
    pub(super) fn new(depth: u32, files: u32, slabs: Vec<Slab>) -> Result<(Ring, Registered), Unavailable> {
        // Room for a change of the table beside each read, and for the bell.
        let ring = set_up((2 * depth + 2).next_power_of_two())?;
        let parameters = ring.params();
        if !parameters.is_feature_nodrop() || !parameters.is_feature_ext_arg() {
            return Err(Unavailable::TooOld);
        }
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(Unavailable::of)?;
        if ![opcode::Read::CODE, opcode::ReadFixed::CODE, opcode::PollAdd::CODE]
            .iter()
            .all(|&code| probe.is_supported(code))
        {
            return Err(Unavailable::TooOld);
        }
        let (buffers, registration) = register_buffers(&ring, &slabs);
        let numbered = files > 0
            && probe.is_supported(opcode::FilesUpdate::CODE)
            && ring.submitter().register_files_sparse(files).is_ok();
        let registered = Registered { memory: registration, files: if numbered { files } else { 0 } };
        // SAFETY: no memory is involved.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(Unavailable::Other(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just made, and nobody else has it.
        let bell = unsafe { File::from_raw_fd(bell) };
        let mut ring = Ring { ring, buffers, _slabs: slabs, bell };
        ring.listen();
        Ok((ring, registered))
    }

    /// Writing eight bytes of a number that is not 0 to it wakes the ring.
    pub(super) fn bell(&self) -> io::Result<File> {
        self.bell.try_clone()
    }

    /// Puts a read in the queue.
    ///
    /// # Safety
    /// Until its completion has come out of [`wait`](Ring::wait), the memory is valid, nobody but the kernel touches it, and
    /// the file stays open. If none comes, that is for good.
    pub(super) unsafe fn read(&mut self, token: u64, reading: &Reading) {
        let &Reading { target, offset, start, len, aside } = reading;
        let len = u32::try_from(len).expect("operations are short");
        let address = start.addr();
        let buffer = self
            .buffers
            .iter()
            .position(|&(base, size)| address.checked_sub(base).is_some_and(|before| before + len as usize <= size));
        let entry = match (buffer, target) {
            (Some(buffer), Target::Slot(slot)) => {
                opcode::ReadFixed::new(Fixed(slot), start, len, buffer as u16).offset(offset).build()
            }
            (Some(buffer), Target::Descriptor(fd)) => {
                opcode::ReadFixed::new(Fd(fd), start, len, buffer as u16).offset(offset).build()
            }
            (None, Target::Slot(slot)) => opcode::Read::new(Fixed(slot), start, len).offset(offset).build(),
            (None, Target::Descriptor(fd)) => opcode::Read::new(Fd(fd), start, len).offset(offset).build(),
        };
        let flags = if aside { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        // SAFETY: the caller's promise.
        unsafe { self.push(&entry.flags(flags).user_data(token)) };
    }

    /// Puts a change of the table of files in the queue.
    ///
    /// # Safety
    /// The descriptor that it points to is valid, and unchanged, until the completion has come; it is open, or -1.
    pub(super) unsafe fn change(&mut self, token: u64, change: Change) {
        let entry = opcode::FilesUpdate::new(change.descriptor, 1).offset(change.slot as i32).build();
        // SAFETY: the caller's promise.
        unsafe { self.push(&entry.user_data(token)) };
    }

    /// # Safety
    /// What the entry points to is valid until its completion has come.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the caller's promise.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // Full: the kernel takes what is there. Errors come again in `wait`.
            if self.ring.submit().is_err() {
                std::thread::yield_now();
            }
        }
    }

    /// Has the bell heard, once.
    fn listen(&mut self) {
        let entry = opcode::PollAdd::new(Fd(self.bell.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: no memory is involved.
        unsafe { self.push(&entry.user_data(WOKEN)) };
    }

    /// Hands the queue to the kernel and waits for a completion, at most for `patience`. Appends each one's token and result.
    /// When it was the bell, it is listened to again.
    ///
    /// # Errors
    /// When the kernel no longer serves the ring.
    pub(super) fn wait(&mut self, patience: Duration, ended: &mut Vec<(u64, i32)>) -> io::Result<()> {
        let until = Timespec::from(patience);
        let waited = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&until));
        match waited.map_err(|error| (error.raw_os_error(), error)) {
            // Time is up; a signal; the kernel has no room until completions are reaped, or no memory for now.
            Ok(_) | Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {}
            Err((_, error)) => return Err(error),
        }
        let from = ended.len();
        ended.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        if ended[from..].iter().any(|&(token, _)| token == WOKEN) {
            // Sets its count back. Never fails after it was heard, and if it did, it would be heard again.
            let _ = self.bell.read(&mut [0; 8]);
            self.listen();
        }
        Ok(())
    }
}

/// With the flags for a ring of one thread's own, or what of them this kernel knows.
fn set_up(entries: u32) -> Result<IoUring, Unavailable> {
    let invalid = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    let first = IoUring::builder().dontfork().setup_single_issuer().setup_defer_taskrun().build(entries);
    let second = match first {
        Err(error) if invalid(&error) => IoUring::builder().dontfork().setup_coop_taskrun().build(entries),
        other => other,
    };
    let third = match second {
        Err(error) if invalid(&error) => IoUring::builder().dontfork().build(entries),
        other => other,
    };
    third.map_err(Unavailable::of)
}

/// Where each registered buffer begins, and its length.
type Buffers = Vec<(usize, usize)>;

/// Registers the slabs' memory: all of it, or none.
fn register_buffers(ring: &IoUring, slabs: &[Slab]) -> (Buffers, Result<u64, io::Error>) {
    let mut buffers = Vec::new();
    for slab in slabs {
        let (base, len) = slab.region();
        let parts = (0..len).step_by(LARGEST_BUFFER);
        buffers.extend(parts.map(|at| (base.as_ptr().addr() + at, LARGEST_BUFFER.min(len - at))));
    }
    let bytes = buffers.iter().map(|&(_, len)| len as u64).sum();
    if buffers.is_empty() {
        return (buffers, Ok(0));
    }
    let vectors: Vec<_> = buffers
        .iter()
        .map(|&(base, len)| libc::iovec { iov_base: std::ptr::without_provenance_mut(base), iov_len: len })
        .collect();
    // SAFETY: the memory is mapped as long as the slabs live, which the ring keeps. Registering pins it and touches no
    // byte; who may read into which part is the business of each read.
    match unsafe { ring.submitter().register_buffers(&vectors) } {
        Ok(()) => (buffers, Ok(bytes)),
        Err(error) => (Vec::new(), Err(error)),
    }
}

//! Reads from files into leases by io_uring: the only place that names it.
//!
//! | file | holds | must not hold |
//! | --- | --- | --- |
//! | `mod` | [`Engine`]: the handle, what goes in and what comes out | |
//! | `work` | the ring's thread: batches, operations, deadlines, quarantine | set-up |
//! | `ring` | set-up, registration, the queues | what a batch is |
//! | `table` | the files that the ring knows by number | system calls |
//! | `steps` | which operations make up a read (pure) | |
//!
//! An engine is one ring and the thread that owns it. A [`Job`] is moved into it with its lease, so that nobody can touch, drop
//! or lend again what the kernel may still write to; it comes out as [`Done`] when the kernel is through with it.

mod error;
mod ring;
mod steps;
mod table;
#[cfg(test)]
mod tests;
mod work;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub use crate::pool::MEMLOCK;
use crate::pool::{Lease, Slab, SlabConfig};
use crate::reply::{Answer, Replies, Reply};
pub use error::{Failed, StartError, Unavailable};
pub use steps::Alignment;
use steps::BOUNCE;

/// Something with a descriptor.
pub trait Descriptor: AsFd + Send + Sync {}

impl<T: AsFd + Send + Sync> Descriptor for T {}

/// A file that stays open as long as the engine reads from it.
pub type Handle = Arc<dyn Descriptor>;

/// How an operation names its file: as the ring does, or as the process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Slot(u32),
    Descriptor(RawFd),
}

/// How an engine is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Operations that the kernel has at a time, of up to 1 MiB each. Default 32; 1 to 1024.
    pub depth: u32,
    /// Files that the ring knows by number, so that an operation costs no reference counting. Default 1024; 0 for none. A
    /// file nobody else has open is closed soon, if not at once.
    pub files: u32,
    /// Memory to register, so that an operation need not pin its pages: it counts against `RLIMIT_MEMLOCK` for whoever is
    /// not root. Reads may go to leases of other slabs too. Default none.
    pub register: Option<Slab>,
    /// Whether files opened with `O_DIRECT` will be read: bounce memory is then kept for reads that are not aligned, 128 KiB
    /// for every second operation (2 MiB by default), besides the pool. Default false.
    pub direct: bool,
    /// How long an operation may take, and how long batches may wait while no operation ends at all. Default 30 s.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config { depth: 32, files: 1024, register: None, direct: false, patience: Duration::from_secs(30) }
    }
}

/// What the kernel let the ring register.
#[derive(Debug)]
pub struct Registered {
    /// Bytes of memory, or why none: [`io::ErrorKind::OutOfMemory`] when `RLIMIT_MEMLOCK` is too small.
    pub memory: Result<u64, io::Error>,
    /// Files.
    pub files: u32,
}

/// A file of a job.
#[derive(Clone)]
pub struct Source {
    pub file: Handle,
    /// What it demands; `None` unless it was opened with `O_DIRECT`.
    pub direct: Option<Alignment>,
}

/// One contiguous read of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index in the job's sources.
    pub source: u32,
    /// Byte offset in the file.
    pub offset: u64,
    /// Bytes to read.
    pub len: usize,
    /// Where in the lease they go.
    pub at: usize,
}

/// A batch of reads into one lease, done in their order as far as the kernel keeps it: sort them by place.
pub struct Job {
    pub sources: Vec<Source>,
    pub parts: Vec<Part>,
    pub lease: Lease,
}

/// The end of a job.
pub struct Done {
    /// `None` only with [`Failed::Overdue`] while the kernel may still write to it. It is then in quarantine, and goes back
    /// to its slab by itself once the kernel has ended what it does; if that never happens, never.
    pub lease: Option<Lease>,
    /// As they were given.
    pub sources: Vec<Source>,
    pub parts: Vec<Part>,
    /// One failure fails the job: what lies in the lease is then not to be used.
    pub result: Result<(), Failed>,
}

/// A ring and its thread. Dropping the handle closes it.
pub struct Engine {
    shared: Arc<Shared>,
    registered: Registered,
    bounce: usize,
}

struct Shared {
    replies: Replies<Done>,
    inbox: Mutex<Inbox>,
    bell: File,
}

#[derive(Default)]
struct Inbox {
    jobs: Vec<(Job, Reply<Done>)>,
    /// The thread waits for the kernel, and does not look here before the bell rings.
    asleep: bool,
    /// Files have been closed.
    sweep: bool,
    closed: bool,
}

impl Engine {
    /// Sets the ring up and starts its thread.
    ///
    /// # Errors
    /// When this process gets no ring. That something could not be registered is no error: see
    /// [`registered`](Engine::registered).
    pub fn start(config: Config) -> Result<Engine, StartError> {
        let depth = config.depth.clamp(1, 1024);
        let pieces = if config.direct { (depth as usize).div_ceil(2) } else { 0 };
        let bounce = match pieces {
            0 => None,
            pieces => Some(Slab::new(SlabConfig { capacity: pieces * BOUNCE, lock: false })?),
        };
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let work = work::Settings { depth, bounce, pieces, config };
        // The kernel takes operations from the thread that made the ring, and from no other.
        let thread = std::thread::Builder::new().name("io-ring".into());
        thread.spawn(move || work::run(work, &tell)).map_err(StartError::Thread)?;
        let started = told.recv().unwrap_or(Err(Unavailable::Other(io::ErrorKind::BrokenPipe.into())));
        let (shared, registered) = started?;
        Ok(Engine { shared, registered, bounce: pieces * BOUNCE })
    }

    /// Whether this process gets a ring at all.
    pub fn probe() -> Result<(), Unavailable> {
        ring::Ring::new(1, 0, Vec::new()).map(|_| ())
    }

    /// What could be registered.
    pub fn registered(&self) -> &Registered {
        &self.registered
    }

    /// Bytes of memory for data that the engine holds besides the leases it is given.
    pub fn bounce(&self) -> usize {
        self.bounce
    }

    /// Reads. The answer is the job's end, and always comes; dropping it gives the job up: what the kernel has
    /// not been asked for by then is not read, and the lease goes back to its slab when the kernel is through with it.
    pub fn read(&self, job: Job) -> Answer<Done> {
        let (reply, done) = self.shared.replies.pair();
        if let Some(failed) = refusal(&job) {
            end(job, reply, Err(failed));
            return done;
        }
        let mut inbox = self.shared.inbox();
        if inbox.closed {
            drop(inbox);
            end(job, reply, Err(Failed::Closed));
            return done;
        }
        inbox.jobs.push((job, reply));
        self.shared.wake(inbox);
        done
    }

    /// To be told after closing files that were read from, so that the ring closes them too.
    pub fn sweep(&self) {
        let mut inbox = self.shared.inbox();
        inbox.sweep = true;
        self.shared.wake(inbox);
    }

    /// Ends it, without waiting: jobs of which the kernel has nothing yet end with [`Failed::Closed`], the others when the
    /// kernel is through with what it has.
    pub fn close(&self) {
        let mut inbox = self.shared.inbox();
        inbox.closed = true;
        self.shared.wake(inbox);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wake(&self, mut inbox: MutexGuard<'_, Inbox>) {
        let asleep = std::mem::take(&mut inbox.asleep);
        drop(inbox);
        if asleep {
            // It can only fail by being rung 2^64 times unheard.
            let _ = (&self.bell).write(&1u64.to_ne_bytes());
        }
    }
}

/// Why a job cannot be done, if it cannot. Nothing after this looks at bounds again.
fn refusal(job: &Job) -> Option<Failed> {
    let unsound = |source: &Source| source.direct.is_some_and(|direct| !direct.is_sound());
    let wrong = |part: &Part| {
        let placed = part.at.checked_add(part.len).is_some_and(|end| end <= job.lease.len());
        // The kernel's offsets are signed, and what is widened to blocks must fit too.
        let there = part.offset.checked_add(part.len as u64).is_some_and(|end| end < 1 << 62);
        let source = job.sources.get(part.source as usize);
        !placed || !there || source.is_none_or(unsound)
    };
    job.parts.iter().position(wrong).map(|part| Failed::OutOfBounds { part })
}

/// Ends a job of which the kernel has nothing.
fn end(job: Job, reply: Reply<Done>, result: Result<(), Failed>) {
    let Job { sources, parts, lease } = job;
    // When nobody waits any more, what comes back here is dropped, and the lease with it.
    drop(reply.send(Done { lease: Some(lease), sources, parts, result }));
}

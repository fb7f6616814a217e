//! Shards that are files of this machine, read by io_uring; what the page cache has, without it.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};

use forebay_transport::pool::{Account, Lease, Slab};
use forebay_transport::uring::{Alignment, Config, Engine, Failed, Handle, Job, MEMLOCK, Part, Source, StartError};
use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tokio::sync::{Semaphore, oneshot};

use super::files::{self, Files, Shard, bounds, by_place, changed, most_files};
use super::local::{LocalConfig, Refusal};
use super::{Read, ReadDone, ReadError, Reading, Space, Store};
use crate::catalog::ShardFile;

/// The most shards that a batch reads from at the same time.
const SHARDS: usize = 64;
/// The most books that are kept. What more batches than that need, they allocate.
const BOOKS: usize = 64;
/// So many bytes are copied out of the page cache before other tasks have a turn.
const TURN: usize = 1 << 20;

/// The ring of this process, for all its stores.
pub(super) struct Rings {
    engine: Arc<Engine>,
    slab: Slab,
    direct: bool,
    files: usize,
}

impl Rings {
    pub(super) fn start(config: &LocalConfig, slab: &Slab, direct: bool) -> Result<Rings, Refusal> {
        let LocalConfig { depth, patience, pread, .. } = *config;
        let engine =
            Engine::start(Config { depth, register: Some(slab.clone()), direct, patience, ..Config::default() });
        Ok(Rings { engine: Arc::new(engine.map_err(refusal)?), slab: slab.clone(), direct, files: pread.files })
    }

    pub(super) fn open(&self, shards: Vec<ShardFile>) -> io::Result<Arc<dyn Store>> {
        let Rings { engine, slab, direct, files } = self;
        Ok(match direct {
            true => Arc::new(UringStore::<DirectFile>::new(shards, engine.clone(), slab.clone(), *files)?),
            false => Arc::new(UringStore::<CachedFile>::new(shards, engine.clone(), slab.clone(), *files)?),
        })
    }

    /// Why the slab is not registered, if it is not.
    pub(super) fn unregistered(&self) -> Option<Refusal> {
        let error = self.engine.registered().memory.as_ref().err()?;
        let reason = match error.raw_os_error() {
            Some(libc::ENOMEM) => {
                let needed = (self.slab.region().1 + self.engine.bounce()) >> 10;
                format!("RLIMIT_MEMLOCK is too small ({needed} KiB are needed for it alone)")
            }
            _ => error.to_string(),
        };
        Some(Refusal { reason, remedy: MEMLOCK.into() })
    }

    pub(super) fn registered(&self) -> u64 {
        self.engine.registered().memory.as_ref().map_or(0, |&bytes| bytes)
    }

    pub(super) fn bounce(&self) -> u64 {
        self.engine.bounce() as u64
    }
}

/// Whether this process gets a ring.
pub(super) fn probe() -> Result<(), Refusal> {
    Engine::probe().map_err(|unavailable| refusal(unavailable.into()))
}

fn refusal(error: StartError) -> Refusal {
    let remedy = match &error {
        StartError::Unavailable(unavailable) => unavailable.remedy().into(),
        _ => "more memory, or a larger limit on threads".into(),
    };
    Refusal { reason: error.to_string(), remedy }
}

/// A file that the page cache may have.
struct CachedFile(File);

/// A file that is read past the page cache, unless its file system cannot.
struct DirectFile {
    file: File,
    demands: Option<Alignment>,
}

/// How a store's files are opened, and what that means for reading them.
trait Opened: Shard + AsFd + 'static {
    fn demands(&self) -> Option<Alignment>;
    /// What reads of this shard had best be multiples of.
    fn align(shard: &ShardFile) -> usize;
}

impl Shard for CachedFile {
    fn open(shard: &ShardFile) -> io::Result<CachedFile> {
        Ok(CachedFile(blocking(files::open(shard, 0)?)?))
    }

    fn file(&self) -> &File {
        &self.0
    }
}

impl Opened for CachedFile {
    fn demands(&self) -> Option<Alignment> {
        None
    }

    fn align(_: &ShardFile) -> usize {
        1
    }
}

impl Shard for DirectFile {
    fn open(shard: &ShardFile) -> io::Result<DirectFile> {
        match files::open(shard, libc::O_DIRECT) {
            Ok(file) => {
                let demands = demands(&file, c"", AtFlags::EMPTY_PATH);
                Ok(DirectFile { file: blocking(file)?, demands })
            }
            // The file system has no such thing.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                tracing::debug!(shard = shard.name, "no O_DIRECT here: read through the page cache");
                Ok(DirectFile { file: blocking(files::open(shard, 0)?)?, demands: None })
            }
            Err(error) => Err(error),
        }
    }

    fn file(&self) -> &File {
        &self.file
    }
}

impl Opened for DirectFile {
    fn demands(&self) -> Option<Alignment> {
        self.demands
    }

    fn align(shard: &ShardFile) -> usize {
        let demands = shard.place.file().and_then(|path| demands(CWD, path, AtFlags::empty()));
        demands.map_or(1, |demands| demands.block.max(demands.memory))
    }
}

impl AsFd for CachedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for DirectFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A file was opened so that opening never waits. With the ring, that flag would mean not to wait for storage either.
fn blocking(file: File) -> io::Result<File> {
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// What a file demands of reads with `O_DIRECT`, which kernels tell from 6.1 on. Before, what every disk is content with.
/// `None` when it cannot be read so.
fn demands(dir: impl AsFd, path: impl rustix::path::Arg, flags: AtFlags) -> Option<Alignment> {
    let asked = StatxFlags::from_bits_retain(libc::STATX_DIOALIGN);
    let Ok(found) = statx(dir, path, flags, asked) else { return Some(SAFE) };
    if found.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Some(SAFE);
    }
    let (block, memory) = (found.stx_dio_offset_align as usize, found.stx_dio_mem_align as usize);
    if block == 0 || memory == 0 {
        return None;
    }
    Some(Alignment { block: block.next_power_of_two(), memory: memory.next_power_of_two() })
}

/// A page: no disk has larger blocks that a program sees.
const SAFE: Alignment = Alignment { block: 4096, memory: 4096 };

/// A store of files of this machine.
///
/// What the page cache has is copied by whoever asks, at once; the rest goes to the ring. Every batch checks, after its
/// reads, that each file it read from is the one that was indexed. Dropping the store closes it.
struct UringStore<T: Opened> {
    shared: Arc<Shared<T>>,
    /// To the thread that opens files. Gone once the store is closed.
    opener: Mutex<Option<mpsc::Sender<Opening<T>>>>,
}

struct Opening<T> {
    shard: u32,
    reply: oneshot::Sender<Result<Arc<T>, ReadError>>,
}

struct Shared<T: Opened> {
    /// Before the engine, which is told when they are closed: fields are dropped in their order.
    files: Files<T>,
    engine: Sharing,
    /// What an empty lease is taken from, for one that is set aside.
    slab: Slab,
    account: Account,
    /// Descriptors that batches may hold besides those kept open.
    held: Semaphore,
    /// The most of them that one batch holds.
    most: usize,
    /// The file system says what it has cached.
    tells: AtomicBool,
    align: usize,
    /// What batches keep their books in, while none does.
    books: Mutex<Vec<Books<T>>>,
}

/// What a batch notes down. It is empty but for its memory when it is not in use.
struct Books<T> {
    /// The reads by their places.
    order: Vec<u32>,
    /// The files that they read from, each with its shard.
    opened: Vec<(u32, Arc<T>)>,
    /// What the ring is asked for.
    parts: Vec<Part>,
    sources: Vec<Source>,
}

impl<T> Default for Books<T> {
    fn default() -> Books<T> {
        Books { order: Vec::new(), opened: Vec::new(), parts: Vec::new(), sources: Vec::new() }
    }
}

/// The engine, as long as one store needs it.
struct Sharing(Arc<Engine>);

impl Drop for Sharing {
    fn drop(&mut self) {
        self.0.sweep();
    }
}

impl<T: Opened> UringStore<T> {
    fn new(shards: Vec<ShardFile>, engine: Arc<Engine>, slab: Slab, kept: usize) -> io::Result<UringStore<T>> {
        let most = most_files();
        let held = (most / 2).clamp(1, 16 * SHARDS);
        let align = shards.first().map_or(1, T::align);
        let shared = Arc::new(Shared {
            files: Files::new(shards, kept.min(most - most / 2)),
            engine: Sharing(engine),
            slab,
            account: Account::new("stand-ins", usize::MAX),
            held: Semaphore::new(held),
            most: held.div_ceil(4).min(SHARDS),
            tells: AtomicBool::new(true),
            align,
            books: Mutex::default(),
        });
        let (opener, openings) = mpsc::channel::<Opening<T>>();
        // Opening may wait for a disk, or for a file server: on a thread where nobody else waits with it.
        let opening = shared.clone();
        std::thread::Builder::new().name("open".into()).spawn(move || {
            for Opening { shard, reply } in openings {
                if !reply.is_closed() {
                    drop(reply.send(opening.files.open(shard)));
                }
            }
        })?;
        Ok(UringStore { shared, opener: Mutex::new(Some(opener)) })
    }

    /// Ends the store, without waiting: what the ring has of it ends as it does, all else with [`ReadError::Closed`].
    fn close(&self) {
        self.shared.held.close();
        *self.opener.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
    }

    async fn open(&self, shard: u32) -> Result<Arc<T>, ReadError> {
        if let Some(file) = self.shared.files.known(shard) {
            return Ok(file);
        }
        let (reply, opened) = oneshot::channel();
        let asked = match &*self.opener.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some(opener) => opener.send(Opening { shard, reply }).is_ok(),
            None => false,
        };
        if !asked {
            return Err(ReadError::Closed);
        }
        opened.await.unwrap_or(Err(ReadError::Closed))
    }

    async fn read(&self, reads: Vec<Read>, lease: Lease) -> ReadDone {
        let mut books = self.shared.books().pop().unwrap_or_default();
        let mut order = std::mem::take(&mut books.order);
        let (lease, result) = self.fill(&reads, lease, &mut order, &mut books).await;
        books.order = order;
        self.shared.put_away(books);
        ReadDone { lease, reads, result }
    }

    async fn fill(
        &self,
        reads: &[Read],
        mut lease: Lease,
        order: &mut Vec<u32>,
        books: &mut Books<T>,
    ) -> (Lease, Result<(), ReadError>) {
        for read in reads {
            if let Err(error) = bounds(self.shared.files.shards(), read, lease.len()) {
                return (lease, Err(error));
            }
        }
        by_place(reads, order);
        let mut rest = &order[..];
        while !rest.is_empty() {
            let (count, shards) = self.shared.some(reads, rest);
            let Ok(_held) = self.shared.held.acquire_many(shards as u32).await else {
                return (lease, Err(ReadError::Closed));
            };
            let result;
            (lease, result) = self.read_some(reads, &rest[..count], lease, books).await;
            // Before others may open as many.
            books.opened.clear();
            if result.is_err() {
                return (lease, result);
            }
            rest = &rest[count..];
        }
        (lease, Ok(()))
    }

    /// Does some of the reads, which are in the order of their places, from no more shards than a batch may hold open.
    async fn read_some(
        &self,
        reads: &[Read],
        order: &[u32],
        mut lease: Lease,
        books: &mut Books<T>,
    ) -> (Lease, Result<(), ReadError>) {
        let Books { opened, parts, sources, .. } = books;
        parts.clear();
        let mut copied = 0;
        for &n in order {
            let Read { shard, offset, len, at } = reads[n as usize];
            if opened.last().is_none_or(|&(last, _)| last != shard) {
                match self.open(shard).await {
                    Ok(file) => opened.push((shard, file)),
                    Err(error) => return (lease, Err(error)),
                }
            }
            let file = &opened[opened.len() - 1].1;
            let had = self.shared.cached(file, offset, &mut lease.as_mut_slice()[at..at + len]);
            if had < len {
                let (offset, len, at) = (offset + had as u64, len - had, at + had);
                parts.push(Part { source: opened.len() as u32 - 1, offset, len, at });
            }
            copied += had;
            if copied >= TURN {
                copied = 0;
                tokio::task::yield_now().await;
            }
        }
        if !parts.is_empty() {
            let source = |(_, file): &(u32, Arc<T>)| Source { file: file.clone() as Handle, direct: file.demands() };
            sources.extend(opened.iter().map(source));
            let job = Job { sources: std::mem::take(sources), parts: std::mem::take(parts), lease };
            let done = self.shared.engine.0.read(job).await.expect("every job is ended");
            let (back, result) = (done.lease, done.result);
            (*sources, *parts) = (done.sources, done.parts);
            sources.clear();
            lease = match back {
                Some(lease) => lease,
                None => self.shared.slab.lease(&self.shared.account, 0).await,
            };
            if let Err(failed) = result {
                return (lease, Err(self.shared.error(failed, parts, opened)));
            }
        }
        let check = |(shard, file): &(u32, Arc<T>)| self.shared.files.check(*shard, file.file());
        let checked = opened.iter().try_for_each(check);
        (lease, checked)
    }
}

impl<T: Opened> Shared<T> {
    fn books(&self) -> MutexGuard<'_, Vec<Books<T>>> {
        self.books.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn put_away(&self, books: Books<T>) {
        let mut spare = self.books();
        if spare.len() < BOOKS {
            spare.push(books);
        }
    }

    /// How many of the reads in `order` to do together, and of how many shards they are.
    fn some(&self, reads: &[Read], order: &[u32]) -> (usize, usize) {
        let (mut count, mut shards) = (0, 0);
        for same in order.chunk_by(|&a, &b| reads[a as usize].shard == reads[b as usize].shard) {
            if shards == self.most {
                break;
            }
            count += same.len();
            shards += 1;
        }
        (count, shards)
    }

    /// Copies what the page cache has, from the start, and says how many bytes that were. Never waits for storage.
    fn cached(&self, file: &T, offset: u64, to: &mut [u8]) -> usize {
        if to.is_empty() || file.demands().is_some() || !self.tells.load(Ordering::Relaxed) {
            return 0;
        }
        match preadv2(file, &mut [IoSliceMut::new(to)], offset, ReadWriteFlags::NOWAIT) {
            Ok(had) => had,
            Err(Errno::OPNOTSUPP) => {
                self.tells.store(false, Ordering::Relaxed);
                0
            }
            // Not there, or nothing that can be had without waiting: the ring says which.
            Err(_) => 0,
        }
    }

    fn error(&self, failed: Failed, parts: &[Part], opened: &[(u32, Arc<T>)]) -> ReadError {
        let of = |part: usize| {
            let Part { source, offset, len, .. } = parts[part];
            let shard = self.files.shard(opened[source as usize].0).expect("bounds were checked");
            (shard, offset, len)
        };
        match failed {
            Failed::Ended { part } => {
                let (shard, offset, len) = of(part);
                changed(shard, format!("it ends before the {len} bytes at {offset}"))
            }
            Failed::Io { part, source } => {
                let (shard, offset, len) = of(part);
                ReadError::Io { shard: shard.name.clone(), offset, len, source }
            }
            Failed::Overdue { part, after } => {
                let (shard, offset, len) = of(part);
                ReadError::Overdue { shard: shard.name.clone(), offset, len, after }
            }
            Failed::OutOfBounds { part } => {
                let Part { source, offset, len, at } = parts[part];
                ReadError::OutOfBounds(Read { shard: opened[source as usize].0, offset, len, at })
            }
            _ => ReadError::Closed,
        }
    }
}

impl<T: Opened> Drop for UringStore<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T: Opened> Store for UringStore<T> {
    fn read(&self, reads: Vec<Read>, lease: Lease) -> Reading<'_> {
        Box::pin(UringStore::read(self, reads, lease))
    }

    fn read_in(self: Arc<Self>, reads: Vec<Read>, lease: Lease, space: &mut Space) {
        space.set(async move { UringStore::read(&self, reads, lease).await });
    }

    fn align(&self) -> usize {
        self.shared.align
    }
}

//! Building the index: each shard is read once, front to back, and only if it is not known already.

mod error;
mod shard;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

pub use self::error::{BuildError, Damage};
use super::index::{self, BuildLock, Contents, Index, IndexError, IndexWriter, LockError, WrittenField, WrittenShard};
use super::{Dataset, Identity, ShardFile, SourceFile};
use crate::format::webdataset::{FIELD_LIMIT, ShardSamples};

/// What to index, and how.
#[derive(Clone, Debug)]
pub struct BuildRequest {
    /// The dataset's name, for errors and descriptions.
    pub name: String,
    /// The shards, in order: see [`resolve`](super::resolve).
    pub sources: Vec<SourceFile>,
    /// The index file. Its folder is made if it is missing; it is never the data's.
    pub index: PathBuf,
    /// Threads that read shards. Default: as many as there are cores. Each holds a buffer of 2 MiB and one shard's records.
    pub threads: usize,
    /// Leave damaged shards out, which makes another version, instead of failing. Default false.
    pub skip_damaged: bool,
    /// How long to wait for another process that is building the same index. Default: without end.
    pub lock_wait: Option<Duration>,
}

impl BuildRequest {
    pub fn new(name: &str, sources: Vec<SourceFile>, index: PathBuf) -> BuildRequest {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        BuildRequest { name: name.to_owned(), sources, index, threads, skip_damaged: false, lock_wait: None }
    }
}

/// How far a build is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of shards that need not be read any more.
    pub bytes_done: u64,
    pub bytes_total: u64,
    pub shards_done: usize,
    pub shards_total: usize,
    /// Damaged shards found so far.
    pub damaged: Vec<Damage>,
}

/// How a build is watched and stopped.
#[derive(Clone, Copy)]
pub struct Monitor<'a> {
    /// Called from the building threads about every 2 MiB read and after each shard.
    pub progress: &'a (dyn Fn(&Progress) + Sync),
    /// Set it to end the build soon, with [`BuildError::Cancelled`].
    pub cancel: &'a AtomicBool,
}

/// A dataset ready to be served, and what it took.
#[derive(Debug)]
pub struct Built {
    pub dataset: Dataset,
    /// Bytes read from shards; the rest was known from an earlier index.
    pub bytes_read: u64,
    /// Shards left out, with `skip_damaged`, in the dataset's order.
    pub skipped: Vec<Damage>,
    /// Why an earlier index was thrown away, if one was.
    pub discarded: Option<String>,
}

/// Makes the index of a dataset, reading only the shards that an earlier index does not know, and opens it.
///
/// Blocks for as long as that takes. Only one process builds an index at a time; a second one waits, and then finds it
/// done.
pub fn build(request: &BuildRequest, monitor: Monitor<'_>) -> Result<Built, BuildError> {
    let files = files(request)?;
    // What another process completed is used without a lock: an index in place never changes.
    let (_, mut discarded) = match reuse(request, &files)? {
        Known::All(dataset) => return Ok(Built { dataset, bytes_read: 0, skipped: Vec::new(), discarded: None }),
        Known::Some(index, discarded) => (index, discarded),
    };
    if let Some(folder) = request.index.parent() {
        fs::create_dir_all(folder).map_err(|source| write_error(request, source))?;
    }
    let _lock = lock(request, monitor.cancel)?;
    let old = match reuse(request, &files)? {
        Known::All(dataset) => return Ok(Built { dataset, bytes_read: 0, skipped: Vec::new(), discarded }),
        Known::Some(old, why) => {
            discarded = why.or(discarded);
            old
        }
    };
    if let Some(why) = &discarded {
        tracing::warn!(dataset = request.name, index = %request.index.display(), why, "building the index again");
    }
    Work::new(request, monitor, &files, old.as_ref())?.run(discarded)
}

/// What an earlier index is good for.
enum Known {
    /// It is the index of these very shards.
    All(Dataset),
    /// Some of its shards may be known; the text says why it was thrown away, if it was.
    Some(Option<Index>, Option<String>),
}

fn reuse(request: &BuildRequest, files: &[ShardFile]) -> Result<Known, BuildError> {
    let index = match Index::open(&request.index) {
        Ok(index) => index,
        Err(IndexError::Missing) => return Ok(Known::Some(None, None)),
        Err(IndexError::Damaged(why)) => return Ok(Known::Some(None, Some(why))),
        Err(IndexError::Future(format)) => {
            let (dataset, path) = (request.name.clone(), request.index.clone());
            return Err(BuildError::Future { dataset, path, format });
        }
        Err(IndexError::Io(source)) => {
            let (dataset, path) = (request.name.clone(), request.index.clone());
            return Err(BuildError::Open { dataset, path, source });
        }
    };
    if let Some(why) = index::suspicion(&request.index) {
        return Ok(Known::Some(Some(index), Some(why)));
    }
    let shards = index.shards().iter().map(|shard| (&shard.name, shard.identity));
    if shards.eq(files.iter().map(|file| (&file.name, file.identity))) {
        return Ok(Known::All(Dataset::new(&request.name, &request.index, index, files.to_vec())));
    }
    Ok(Known::Some(Some(index), None))
}

/// The shards' files, as they are now.
fn files(request: &BuildRequest) -> Result<Vec<ShardFile>, BuildError> {
    let file = |source: &SourceFile| {
        let SourceFile { name, path } = source.clone();
        let regular = |metadata: fs::Metadata| match metadata.is_file() {
            true => Ok(metadata),
            // Opening a pipe would wait for whoever writes to it.
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        };
        match fs::metadata(&path).and_then(regular) {
            Ok(metadata) => Ok(ShardFile { name, path, identity: Identity::of(&metadata) }),
            Err(error) => {
                Err(BuildError::Read { dataset: request.name.clone(), shard: name, offset: 0, source: error })
            }
        }
    };
    request.sources.iter().map(file).collect()
}

fn lock(request: &BuildRequest, cancel: &AtomicBool) -> Result<BuildLock, BuildError> {
    let mut path = request.index.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    BuildLock::take(&path, request.lock_wait, || cancel.load(Ordering::Relaxed)).map_err(|error| match error {
        LockError::Cancelled => BuildError::Cancelled { dataset: request.name.clone() },
        error => BuildError::Locked { dataset: request.name.clone(), path, error },
    })
}

fn write_error(request: &BuildRequest, source: io::Error) -> BuildError {
    BuildError::Write { dataset: request.name.clone(), path: request.index.clone(), source }
}

/// A shard whose records are in the new index.
struct Done {
    shard: WrittenShard,
    /// Of all its fields.
    bytes: u64,
    /// Of its largest sample.
    largest: u64,
}

/// One build.
struct Work<'a> {
    request: &'a BuildRequest,
    monitor: Monitor<'a>,
    files: &'a [ShardFile],
    old: Option<&'a Index>,
    /// For each file: which shard of `old` it still is.
    known: Vec<Option<usize>>,
    /// What ended the build early.
    failure: Mutex<Option<BuildError>>,
    stop: AtomicBool,
    bytes_total: u64,
    bytes_done: AtomicU64,
    bytes_read: AtomicU64,
    shards_done: AtomicUsize,
    state: Mutex<State>,
    /// Why records of the old index could not be copied.
    discarded: Mutex<Option<String>>,
}

/// What all threads add to.
struct State {
    writer: IndexWriter,
    fields: Vec<WrittenField>,
    places: HashMap<String, u16>,
    /// By file.
    done: Vec<Option<Done>>,
    damage: Vec<Damage>,
}

impl<'a> Work<'a> {
    fn new(
        request: &'a BuildRequest,
        monitor: Monitor<'a>,
        files: &'a [ShardFile],
        old: Option<&'a Index>,
    ) -> Result<Work<'a>, BuildError> {
        let shards = old.map_or(&[][..], Index::shards).iter().enumerate();
        let by_name: HashMap<_, _> = shards.map(|(at, shard)| (shard.name.as_str(), (at, shard.identity))).collect();
        let known = files.iter().map(|file| {
            let (at, identity) = by_name.get(file.name.as_str())?;
            (*identity == file.identity).then_some(*at)
        });
        let known: Vec<_> = known.collect();
        let writer = IndexWriter::create(&request.index).map_err(|source| write_error(request, source))?;
        let sizes = || files.iter().zip(&known).map(|(file, known)| (file.identity.size, known.is_some()));
        Ok(Work {
            request,
            monitor,
            files,
            old,
            failure: Mutex::new(None),
            stop: AtomicBool::new(false),
            bytes_total: sizes().map(|(size, _)| size).sum(),
            bytes_done: AtomicU64::new(sizes().filter(|(_, known)| *known).map(|(size, _)| size).sum()),
            bytes_read: AtomicU64::new(0),
            shards_done: AtomicUsize::new(known.iter().flatten().count()),
            known,
            state: Mutex::new(State {
                writer,
                fields: Vec::new(),
                places: HashMap::new(),
                done: files.iter().map(|_| None).collect(),
                damage: Vec::new(),
            }),
            discarded: Mutex::new(None),
        })
    }

    fn run(self, discarded: Option<String>) -> Result<Built, BuildError> {
        self.progress();
        let new = (0..self.files.len()).filter(|at| self.known[*at].is_none()).collect::<Vec<_>>();
        let kept = (0..self.files.len()).filter(|at| self.known[*at].is_some()).collect::<Vec<_>>();
        self.each(&new, |at| self.read(at));
        let learnt = lock_of(&self.state).done.iter().any(Option::is_some);
        // Shards that are no longer in the dataset, or are in another order, make another index too.
        // An index that is not trusted is copied whole, which checks all of it.
        let same = discarded.is_none()
            && self.old.is_some_and(|old| kept.iter().map(|at| self.known[*at]).eq((0..old.shards().len()).map(Some)));
        if learnt || !same {
            // Also after a failure: what is known is kept.
            self.each(&kept, |at| self.copy(at));
        }
        let Work { request, files, failure, state, bytes_read, .. } = self;
        let discarded = self.discarded.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).or(discarded);
        let State { writer, fields, done, mut damage, .. } =
            state.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        let failure = failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        let whole = failure.is_none();
        let bytes_read = bytes_read.into_inner();
        damage.sort_by_key(|damage| files.iter().position(|file| file.name == damage.shard));
        if matches!(failure, Some(BuildError::Write { .. })) {
            return Err(failure.expect("it was just seen"));
        }
        let mut present = Vec::new();
        if learnt || (!same && whole) {
            let (mut shards, mut bytes, mut largest_sample) = (Vec::new(), 0, 0);
            for (file, done) in files.iter().zip(done) {
                let Some(done) = done else { continue };
                shards.push(done.shard);
                present.push(file.clone());
                bytes += done.bytes;
                largest_sample = largest_sample.max(done.largest);
            }
            let contents = Contents { shards, fields: &fields, bytes, largest_sample };
            writer.finish(contents).map_err(|source| write_error(request, source))?;
            index::trust(&request.index);
        } else {
            present.extend(kept.iter().map(|at| files[*at].clone()));
            drop(writer);
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        if !damage.is_empty() && (!request.skip_damaged || present.is_empty()) {
            return Err(BuildError::Damaged { dataset: request.name.clone(), damage });
        }
        let open = |error| match error {
            IndexError::Io(source) => source,
            error => io::Error::other(error.to_string()),
        };
        let index = Index::open(&request.index).map_err(open);
        let index = index.map_err(|source| BuildError::Open {
            dataset: request.name.clone(),
            path: request.index.clone(),
            source,
        })?;
        let dataset = Dataset::new(&request.name, &request.index, index, present);
        Ok(Built { dataset, bytes_read, skipped: damage, discarded })
    }

    /// Calls `work` for each of `jobs`, on as many threads as asked for.
    fn each(&self, jobs: &[usize], work: impl Fn(usize) + Sync) {
        let next = AtomicUsize::new(0);
        let one = || {
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                work(*job);
            }
        };
        let threads = self.request.threads.clamp(1, jobs.len().max(1));
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(one);
            }
            one();
        });
    }

    /// Reads the shard `at`, unless the build is being stopped.
    fn read(&self, at: usize) {
        if self.stopped() {
            return;
        }
        let file = &self.files[at];
        let dataset = || self.request.name.clone();
        let shard = || file.name.clone();
        let read = shard::read(file, |more| {
            self.bytes_read.fetch_add(more, Ordering::Relaxed);
            self.bytes_done.fetch_add(more, Ordering::Relaxed);
            self.progress();
            !self.stopped()
        });
        match read {
            Ok(shard::Indexed { samples, digest }) => {
                self.shards_done.fetch_add(1, Ordering::Relaxed);
                self.add(at, &samples, digest);
            }
            Err(shard::ReadError::Format(error, unread)) => {
                let damage = Damage { shard: shard(), error };
                tracing::warn!(dataset = self.request.name, %damage, "a damaged shard");
                // It will not be read any further.
                self.bytes_done.fetch_add(unread, Ordering::Relaxed);
                self.shards_done.fetch_add(1, Ordering::Relaxed);
                lock_of(&self.state).damage.push(damage);
            }
            Err(shard::ReadError::Stopped) => {}
            Err(shard::ReadError::Changed) => self.fail(BuildError::Changed { dataset: dataset(), shard: shard() }),
            Err(shard::ReadError::Io { offset, source }) => {
                self.fail(BuildError::Read { dataset: dataset(), shard: shard(), offset, source });
            }
        }
        self.progress();
    }

    /// Copies what the old index knows of the shard `at`.
    fn copy(&self, at: usize) {
        let (Some(old), Some(known)) = (self.old, self.known[at]) else { return };
        match old.shard_samples(known) {
            Ok(samples) => self.add(at, &samples, old.shards()[known].digest),
            // The records are damaged: the shard itself is not, so far as anyone knows.
            Err(error) => {
                *lock_of(&self.discarded) = Some(error.to_string());
                self.bytes_done.fetch_sub(self.files[at].identity.size, Ordering::Relaxed);
                self.shards_done.fetch_sub(1, Ordering::Relaxed);
                self.read(at);
            }
        }
    }

    /// Puts a shard's samples into the new index.
    fn add(&self, at: usize, samples: &ShardSamples, digest: [u8; 32]) {
        let stats = shard::Stats::of(samples);
        let hashes = IndexWriter::hashes(samples);
        let file = &self.files[at];
        let mut state = lock_of(&self.state);
        let Some(places) = state.places(samples, &stats) else {
            drop(state);
            let (dataset, shard) = (self.request.name.clone(), file.name.clone());
            return self.fail(BuildError::TooManyFields { dataset, shard, limit: FIELD_LIMIT });
        };
        drop(state);
        let mut encoded = Vec::new();
        IndexWriter::encode(samples, &places, &mut encoded);
        let mut state = lock_of(&self.state);
        match state.writer.append(&encoded) {
            Ok(place) => {
                let shard = WrittenShard {
                    name: file.name.clone(),
                    identity: file.identity,
                    digest,
                    samples: samples.samples.len() as u64,
                    fields: samples.fields.len() as u64,
                    keys: samples.keys.len() as u64,
                    at: place,
                    hashes,
                };
                state.done[at] = Some(Done { shard, bytes: stats.bytes, largest: stats.largest });
            }
            Err(source) => {
                drop(state);
                self.fail(write_error(self.request, source));
            }
        }
    }

    /// Ends the build; the first failure is the one that is told.
    fn fail(&self, error: BuildError) {
        lock_of(&self.failure).get_or_insert(error);
        self.stop.store(true, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        if self.monitor.cancel.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) {
            self.fail(BuildError::Cancelled { dataset: self.request.name.clone() });
        }
        self.stop.load(Ordering::Relaxed)
    }

    fn progress(&self) {
        let progress = Progress {
            bytes_done: self.bytes_done.load(Ordering::Relaxed),
            bytes_total: self.bytes_total,
            shards_done: self.shards_done.load(Ordering::Relaxed),
            shards_total: self.files.len(),
            damaged: lock_of(&self.state).damage.clone(),
        };
        (self.monitor.progress)(&progress);
    }
}

impl State {
    /// For each name of a shard its place in the dataset's list, whose figures are brought up to date; `None` when there are
    /// more names than can be.
    fn places(&mut self, samples: &ShardSamples, stats: &shard::Stats) -> Option<Vec<u16>> {
        let used = || samples.names.iter().zip(&stats.fields).filter(|(_, field)| field.count > 0);
        let new = used().filter(|(name, _)| !self.places.contains_key(*name)).count();
        if self.fields.len() + new > FIELD_LIMIT {
            return None;
        }
        let mut places = Vec::with_capacity(samples.names.len());
        for (name, field) in samples.names.iter().zip(&stats.fields) {
            if field.count == 0 {
                // Only of samples that were dropped.
                places.push(0);
                continue;
            }
            let place = match self.places.get(name) {
                Some(place) => *place,
                None => {
                    let place = self.fields.len() as u16;
                    self.places.insert(name.clone(), place);
                    self.fields.push(WrittenField { name: name.clone(), count: 0, min: u64::MAX, max: 0, bytes: 0 });
                    place
                }
            };
            let total = &mut self.fields[usize::from(place)];
            total.count += field.count;
            total.min = total.min.min(field.min);
            total.max = total.max.max(field.max);
            total.bytes += field.bytes;
            places.push(place);
        }
        Some(places)
    }
}

/// A thread that panicked is told of by the scope it ran in; what it left is whole.
fn lock_of<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

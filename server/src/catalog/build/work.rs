//! The work of one build: which shards to read, which to copy from what is known, and the index made of them.

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{BuildError, BuildRequest, Built, Damage, Depth, Earlier, Monitor, Progress, shard, write_error};
use crate::catalog::index::{self, Contents, Index, IndexError, IndexWriter, Journal, WrittenField, WrittenShard};
use crate::catalog::{Dataset, Identity, ShardFile};
use crate::format::webdataset::{FIELD_LIMIT, ShardSamples};

/// The longest nap of a build that reads faster than it may: so long it does not notice that it is cancelled.
const NAP: Duration = Duration::from_millis(50);

/// A shard whose records are in the new index.
struct Done {
    shard: WrittenShard,
    /// Of all its fields.
    bytes: u64,
    /// Of its largest sample.
    largest: u64,
}

/// Where a shard's records are known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Its place in the index that is to be replaced.
    Local(usize),
    /// Its place in the index made elsewhere.
    Portable(usize),
    Journal,
}

/// One build.
pub(super) struct Work<'a> {
    request: &'a BuildRequest,
    monitor: Monitor<'a>,
    files: &'a [ShardFile],
    earlier: &'a Earlier,
    /// For each file: where it is known from, if it is.
    known: Vec<Option<Known>>,
    /// What is read is noted here.
    notes: Mutex<Option<Journal>>,
    started: Instant,
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
    pub(super) fn new(
        request: &'a BuildRequest,
        monitor: Monitor<'a>,
        files: &'a [ShardFile],
        earlier: &'a Earlier,
    ) -> Result<Work<'a>, BuildError> {
        let (local, portable) = (by_name(earlier.local.as_ref()), by_name(earlier.portable.as_ref()));
        let known = files.iter().map(|file| {
            let ShardFile { name, identity, .. } = file;
            if let Some((at, _)) = local.get(name.as_str()).filter(|(_, indexed)| indexed == identity) {
                return Some(Known::Local(*at));
            }
            if earlier.journal.as_ref().is_some_and(|journal| journal.knows(name, identity)) {
                return Some(Known::Journal);
            }
            let (at, _) = portable.get(name.as_str()).filter(|(_, indexed)| indexed.is_copy_of(identity))?;
            Some(Known::Portable(*at))
        });
        let known: Vec<_> = known.collect();
        let notes = match earlier.journal {
            Some(_) => Some(Journal::open(&request.index).map_err(|source| write_error(request, source))?),
            None => None,
        };
        let writer = match request.in_memory {
            true => IndexWriter::in_memory(request.depth),
            false => IndexWriter::create(&request.index, request.depth),
        };
        let writer = writer.map_err(|source| write_error(request, source))?;
        let sizes = || files.iter().zip(&known).map(|(file, known)| (file.identity.size, known.is_some()));
        Ok(Work {
            request,
            monitor,
            files,
            earlier,
            notes: Mutex::new(notes),
            started: Instant::now(),
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

    pub(super) fn run(self, discarded: Option<String>) -> Result<Built, BuildError> {
        self.progress();
        let new = (0..self.files.len()).filter(|at| self.known[*at].is_none()).collect::<Vec<_>>();
        let kept = (0..self.files.len()).filter(|at| self.known[*at].is_some()).collect::<Vec<_>>();
        self.each(&new, |at| self.read(at));
        let learnt = lock_of(&self.state).done.iter().any(Option::is_some);
        // Shards that are no longer in the dataset, or are in another order, make another index too.
        // An index that is not trusted is copied whole, which checks all of it.
        let same = discarded.is_none()
            && self.earlier.local.as_ref().is_some_and(|local| {
                let places = (0..local.shards().len()).map(|at| Some(Known::Local(at)));
                kept.iter().map(|at| self.known[*at]).eq(places)
            });
        if learnt || !same {
            // Also after a failure: what is known is kept.
            self.each(&kept, |at| self.copy(at));
        }
        let Work { request, files, failure, state, bytes_read, notes, .. } = self;
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
        let (mut present, mut made) = (Vec::new(), None);
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
            made = writer.finish(contents).map_err(|source| write_error(request, source))?;
            if !request.in_memory {
                index::trust(&request.index);
            }
            // All that it notes is in the index now.
            if let Some(notes) = notes.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
                notes.remove();
            }
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
        let index = match &made {
            Some(file) => Index::map(file),
            None => Index::open(&request.index),
        };
        let index = index.map_err(open);
        let index = index.map_err(|source| BuildError::Open {
            dataset: request.name.clone(),
            path: request.index.clone(),
            source,
        })?;
        let path = (!request.in_memory).then_some(&*request.index);
        let dataset = Dataset::new(&request.name, path, index, present);
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
        let more = |done, read| {
            self.bytes_read.fetch_add(read, Ordering::Relaxed);
            self.bytes_done.fetch_add(done, Ordering::Relaxed);
            self.progress();
            self.slow_down();
            !self.stopped()
        };
        let read = match self.request.depth {
            Depth::Content => shard::read(file, more),
            Depth::Headers => shard::read_headers(file, more),
        };
        match read {
            Ok(shard::Indexed { samples, digest }) => {
                self.shards_done.fetch_add(1, Ordering::Relaxed);
                if let Some(notes) = lock_of(&self.notes).as_mut() {
                    notes.add(&file.name, &file.identity, &digest, &samples);
                }
                self.add(at, &samples, digest);
            }
            Err(shard::ReadError::Format(error, unread)) => {
                let damage = Damage { shard: shard(), error };
                // Whoever asked for the build is told, and sees it in the progress meanwhile.
                tracing::info!(dataset = self.request.name, %damage, "a damaged shard");
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

    /// Copies what is known of the shard `at`.
    fn copy(&self, at: usize) {
        let Some(known) = self.known[at] else { return };
        let Earlier { local, portable, journal } = self.earlier;
        let from = |index: &Option<Index>, place: usize| match index {
            Some(index) => Ok((index.shard_samples(place)?, index.shards()[place].digest)),
            None => Err(IndexError::Missing),
        };
        let found = match known {
            Known::Local(place) => from(local, place),
            Known::Portable(place) => from(portable, place),
            Known::Journal => journal
                .as_ref()
                .and_then(|journal| journal.samples(&self.files[at].name))
                .ok_or_else(|| IndexError::Damaged("the notes of a build that was killed".to_owned())),
        };
        match found {
            Ok((samples, digest)) => self.add(at, &samples, digest),
            // The records are damaged: the shard itself is not, so far as anyone knows.
            Err(error) => {
                *lock_of(&self.discarded) = Some(error.to_string());
                self.bytes_done.fetch_sub(self.files[at].identity.size, Ordering::Relaxed);
                self.shards_done.fetch_sub(1, Ordering::Relaxed);
                self.read(at);
            }
        }
    }

    /// Waits as long as more was read than may be by now.
    fn slow_down(&self) {
        let Some(rate) = self.request.rate else { return };
        while !self.stopped() {
            let due = self.bytes_read.load(Ordering::Relaxed) as f64 / rate.max(1) as f64;
            let ahead = due - self.started.elapsed().as_secs_f64();
            if ahead <= 0.0 {
                return;
            }
            std::thread::sleep(Duration::from_secs_f64(ahead.min(NAP.as_secs_f64())));
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

/// The shards of an index by name: place and identity.
fn by_name(index: Option<&Index>) -> HashMap<&str, (usize, Identity)> {
    let shards = index.map_or(&[][..], Index::shards).iter().enumerate();
    shards.map(|(at, shard)| (shard.name.as_str(), (at, shard.identity))).collect()
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

//! Reads every byte again and compares: which shards, samples and fields are no longer what was indexed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::{CatalogError, Dataset, Depth, Place, Shard, ShardFile};
use crate::format::webdataset::ShardSamples;

/// Bytes of one read.
const BUFFER: usize = 2 << 20;
/// What is given up around a byte that cannot be read.
const SECTOR: u64 = 4096;
/// The most unreadable places of one shard that are tried one by one; then the rest of the shard is given up.
const PATIENCE: usize = 64;
/// The most findings that are kept; all are counted.
const KEPT: usize = 10_000;

/// Something that is not as it was indexed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rot {
    /// The shard's name.
    pub shard: String,
    /// Byte offset in the shard.
    pub offset: u64,
    pub len: u64,
    /// The sample and the field that lie there, if one does.
    pub field: Option<RottenField>,
    pub problem: RotProblem,
}

/// Whose bytes they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RottenField {
    pub ordinal: u64,
    /// Bytes that are not UTF-8 are replaced.
    pub key: String,
    pub name: String,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RotProblem {
    #[error("its bytes do not match their checksum")]
    Checksum,
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    #[error("the file cannot be opened: {0}")]
    Missing(String),
    #[error("it has {found} bytes, {indexed} when it was indexed")]
    Size { indexed: u64, found: u64 },
    #[error("bytes outside of all samples (tar headers, padding) are not what they were: the samples are")]
    Between,
}

impl std::fmt::Display for Rot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Rot { shard, offset, len, field, problem } = self;
        match field {
            Some(RottenField { ordinal, key, name }) => {
                write!(
                    f,
                    "shard {shard}: sample {ordinal} (key {key}), field {name}, {len} bytes at {offset}: {problem}"
                )
            }
            None => write!(f, "shard {shard}: {len} bytes at {offset}: {problem}"),
        }
    }
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    pub bytes: u64,
    pub shards: usize,
    /// By shard and offset; at most 10,000 are kept.
    pub rot: Vec<Rot>,
    /// How many were found.
    pub found: u64,
}

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error("dataset {dataset}: its index was made of the shards' headers only: there is nothing to compare with")]
    NoChecksums { dataset: String },
    #[error("cancelled")]
    Cancelled,
}

/// Reads all shards of `dataset`, on `threads` threads, past the page cache as far as the system allows. `progress` is
/// told how many bytes are done, about every 2 MiB; setting `cancel` ends it soon. Blocks.
pub fn verify(
    dataset: &Dataset,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
    cancel: &AtomicBool,
) -> Result<Verified, VerifyError> {
    if dataset.depth() != Depth::Content {
        return Err(VerifyError::NoChecksums { dataset: dataset.name().to_owned() });
    }
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let rot = Mutex::new(Vec::new());
    let (found, failure) = (AtomicU64::new(0), Mutex::new(None));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(shard) = dataset.shards().get(number) else { return };
            let mut pass = Pass { dataset, number, shard, rot: Vec::new(), found: 0 };
            let more = |bytes| {
                progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes);
                !cancel.load(Ordering::Relaxed)
            };
            let ended = pass.run(more);
            found.fetch_add(pass.found, Ordering::Relaxed);
            lock(&rot).append(&mut pass.rot);
            if let Err(error) = ended {
                lock(&failure).get_or_insert(error);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        (1..threads.clamp(1, dataset.shards().len().max(1))).for_each(|_| _ = scope.spawn(work));
        work();
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        return Err(error);
    }
    let mut rot = rot.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let order = |name: &str| dataset.shards().iter().position(|shard| shard.file.name == name);
    rot.sort_by_cached_key(|rot: &Rot| (order(&rot.shard), rot.offset));
    rot.truncate(KEPT);
    Ok(Verified { bytes: done.into_inner(), shards: dataset.shards().len(), rot, found: found.into_inner() })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A field of the shard being read.
#[derive(Clone, Copy)]
struct Expected {
    offset: u64,
    len: u64,
    crc: Option<u32>,
    /// Within the shard.
    sample: usize,
    name: u16,
}

/// A shard's bytes, whatever it was when it was indexed.
enum Bytes {
    File(File),
    #[cfg(feature = "remote")]
    Object(crate::remote::Reader),
}

impl Bytes {
    /// Its size as it is now, and its bytes.
    fn open(shard: &ShardFile) -> io::Result<(u64, Bytes)> {
        match &shard.place {
            Place::File(path) => {
                let file = File::open(path)?;
                // What lies in memory proves nothing about the disk. Advice may be refused.
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
                Ok((file.metadata()?.len(), Bytes::File(file)))
            }
            #[cfg(feature = "remote")]
            Place::Object(url) => {
                let found = crate::remote::identities(&[url.to_string()]).map_err(|(_, error)| error)?;
                let identity = *found.first().ok_or(io::ErrorKind::NotFound)?;
                let now = ShardFile { identity, ..shard.clone() };
                Ok((identity.size, Bytes::Object(crate::remote::Reader::open(&now)?)))
            }
            #[cfg(not(feature = "remote"))]
            Place::Object(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The next bytes, which are at `at`.
    fn read(&mut self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        match self {
            Bytes::File(file) => file.read_at(buffer, at),
            #[cfg(feature = "remote")]
            Bytes::Object(reader) => io::Read::read(reader, buffer),
        }
    }

    /// Whether what lies behind bytes that cannot be read may be readable.
    fn skips(&self) -> bool {
        matches!(self, Bytes::File(_))
    }
}

/// One shard.
struct Pass<'a> {
    dataset: &'a Dataset,
    /// The shard's place in the list.
    number: usize,
    shard: &'a Shard,
    rot: Vec<Rot>,
    found: u64,
}

impl Pass<'_> {
    fn run(&mut self, mut more: impl FnMut(u64) -> bool) -> Result<(), VerifyError> {
        let samples = self.dataset.shard_samples(self.number)?;
        let size = self.shard.file.identity.size;
        let (found, mut bytes) = match Bytes::open(&self.shard.file) {
            Ok(opened) => opened,
            Err(error) => {
                self.note(0, size, None, RotProblem::Missing(error.to_string()));
                more(size);
                return Ok(());
            }
        };
        if found != size {
            self.note(0, found, None, RotProblem::Size { indexed: size, found });
        }
        let mut reading = Reading::new(&samples);
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; BUFFER];
        let (mut at, end, mut unreadable) = (0, size.min(found), 0);
        while at < end {
            let len = (end - at).min(BUFFER as u64) as usize;
            match bytes.read(&mut buffer[..len], at) {
                Ok(0) => break,
                Ok(read) => {
                    hasher.update(&buffer[..read]);
                    reading.take(at, &buffer[..read], |field, problem| self.field(&samples, field, problem));
                    at += read as u64;
                    if !more(read as u64) {
                        return Err(VerifyError::Cancelled);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    unreadable += 1;
                    let next = if unreadable > PATIENCE || !bytes.skips() { end } else { (at / SECTOR + 1) * SECTOR };
                    let lost = next.min(end) - at;
                    let message = error.to_string();
                    let whole = reading.lose(at, lost, |field| {
                        self.field(&samples, field, RotProblem::Unreadable(message.clone()));
                    });
                    if !whole {
                        self.note(at, lost, None, RotProblem::Unreadable(message));
                    }
                    at += lost;
                    more(lost);
                }
            }
        }
        if self.found == 0 && hasher.finalize() != self.shard.digest {
            self.note(0, size, None, RotProblem::Between);
        }
        Ok(())
    }

    fn field(&mut self, samples: &ShardSamples, field: &Expected, problem: RotProblem) {
        let key = samples.iter().nth(field.sample).map_or(&[][..], |(key, _)| key);
        let rotten = RottenField {
            ordinal: self.shard.first + field.sample as u64,
            key: String::from_utf8_lossy(key).into_owned(),
            name: samples.names[usize::from(field.name)].clone(),
        };
        self.note(field.offset, field.len, Some(rotten), problem);
    }

    fn note(&mut self, offset: u64, len: u64, field: Option<RottenField>, problem: RotProblem) {
        self.found += 1;
        if self.rot.len() < KEPT {
            self.rot.push(Rot { shard: self.shard.file.name.clone(), offset, len, field, problem });
        }
    }
}

/// The fields of a shard by offset, and how far they are compared.
struct Reading {
    fields: Vec<Expected>,
    /// The first that is not compared yet, and the CRC of what was read of it.
    next: usize,
    crc: u32,
    /// Some of it could not be read.
    lost: bool,
}

impl Reading {
    fn new(samples: &ShardSamples) -> Reading {
        let mut fields = Vec::with_capacity(samples.fields.len());
        for (sample, (_, rows)) in samples.iter().enumerate() {
            fields.extend(rows.iter().filter(|row| row.len > 0).map(|row| Expected {
                offset: row.offset,
                len: row.len,
                crc: row.crc,
                sample,
                name: row.name,
            }));
        }
        // Fields of a tar do not overlap; an index that says otherwise is wrong about their CRCs too.
        fields.sort_by_key(|field| field.offset);
        Reading { fields, next: 0, crc: 0, lost: false }
    }

    /// Takes the bytes at `at`.
    fn take(&mut self, at: u64, bytes: &[u8], mut wrong: impl FnMut(&Expected, RotProblem)) {
        let end = at + bytes.len() as u64;
        while let Some(field) = self.fields.get(self.next).copied().filter(|field| field.offset < end) {
            let from = field.offset.max(at);
            let to = (field.offset + field.len).min(end).max(from);
            self.crc = crc32c::crc32c_append(self.crc, &bytes[(from - at) as usize..(to - at) as usize]);
            if field.offset + field.len > end {
                return;
            }
            if !self.lost && field.crc.is_some_and(|crc| crc != self.crc) {
                wrong(&field, RotProblem::Checksum);
            }
            self.advance();
        }
    }

    /// The `len` bytes at `at` cannot be had. Whether all of them are some field's.
    fn lose(&mut self, at: u64, len: u64, mut wrong: impl FnMut(&Expected)) -> bool {
        let (end, mut covered) = (at + len, 0);
        while let Some(field) = self.fields.get(self.next).copied().filter(|field| field.offset < end) {
            if !std::mem::replace(&mut self.lost, true) {
                wrong(&field);
            }
            covered += (field.offset + field.len).min(end).saturating_sub(field.offset.max(at));
            if field.offset + field.len > end {
                break;
            }
            self.advance();
        }
        covered == len
    }

    fn advance(&mut self) {
        (self.next, self.crc, self.lost) = (self.next + 1, 0, false);
    }
}

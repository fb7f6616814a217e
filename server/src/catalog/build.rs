//! Building the index: each shard is read once, front to back, and only if it is not known already.

mod error;
mod shard;
mod work;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use self::error::{BuildError, Damage};
use self::work::Work;
use super::index::{self, BuildLock, Index, IndexError, Journal, LockError};
use super::{Dataset, Identity, Place, ShardFile, SourceFile};

/// Objects read at the same time, at least.
const STREAMS: usize = 8;

/// What to index, and how.
#[derive(Clone, Debug)]
pub struct BuildRequest {
    /// The dataset's name, for errors and descriptions.
    pub name: String,
    /// The shards, in order: see [`resolve`](super::resolve).
    pub sources: Vec<SourceFile>,
    /// The index file. Its folder is made if it is missing; it is never the data's.
    pub index: PathBuf,
    /// Keep the index in memory alone, where it is gone with the dataset, and write nothing: `index` only names it, in
    /// messages. Costs about 0.1 KB for each sample. Default false.
    pub in_memory: bool,
    /// Threads that read shards. Default: as many as there are cores, but no less than 8 when shards are objects elsewhere,
    /// since one connection rarely fills a network. Each holds a buffer of 2 MiB and one shard's records.
    pub threads: usize,
    /// Leave damaged shards out, which makes another version, instead of failing. Default false.
    pub skip_damaged: bool,
    /// How long to wait for another process that is building the same index. Default: without end.
    pub lock_wait: Option<Duration>,
    /// An index made elsewhere (`forebay index`): a file, or an object, which is read into memory. Shards that it knows by
    /// name, size and time of last change are not read again; when it knows all of them, it is used as it lies and nothing
    /// is written. Default: none.
    pub portable: Option<Place>,
    /// How deep to look into shards. Default: all of their bytes.
    pub depth: Depth,
    /// The most bytes read in a second, over all threads. Default: as many as can be.
    pub rate: Option<u64>,
}

/// How deep a build looks into shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// Every byte: each field's CRC-32C, each shard's digest, and the dataset's version from them.
    #[default]
    Content,
    /// The headers only, which is little of a shard: the samples can be served without checksums, under a provisional
    /// version ([`Version::is_provisional`](forebay_transport::Version::is_provisional)).
    Headers,
}

impl BuildRequest {
    pub fn new(name: &str, sources: Vec<SourceFile>, index: PathBuf) -> BuildRequest {
        let elsewhere = sources.iter().any(|source| source.place.is_object());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if elsewhere { cores.max(STREAMS) } else { cores };
        BuildRequest {
            name: name.to_owned(),
            sources,
            index,
            in_memory: false,
            threads,
            skip_damaged: false,
            lock_wait: None,
            portable: None,
            depth: Depth::Content,
            rate: None,
        }
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
    let done = |dataset, discarded| Built { dataset, bytes_read: 0, skipped: Vec::new(), discarded };
    let (portable, why_not) = match portable(request, &files)? {
        Known::All(dataset) => return Ok(done(dataset, None)),
        Known::Some(index, why) => (index, why),
    };
    if request.in_memory {
        let earlier = Earlier { local: None, portable, journal: None };
        let mut built = Work::new(request, monitor, &files, &earlier)?.run(None)?;
        built.discarded = built.discarded.or(why_not);
        return Ok(built);
    }
    // What another process completed is used without a lock: an index in place never changes.
    let mut discarded = match reuse(request, &files)? {
        Known::All(dataset) => return Ok(done(dataset, why_not)),
        Known::Some(_, discarded) => discarded,
    };
    if let Some(folder) = request.index.parent() {
        fs::create_dir_all(folder).map_err(|source| write_error(request, source))?;
    }
    let _lock = lock(request, monitor.cancel)?;
    let local = match reuse(request, &files)? {
        Known::All(dataset) => return Ok(done(dataset, discarded.or(why_not))),
        Known::Some(local, why) => {
            discarded = why.or(discarded);
            local
        }
    };
    if let Some(why) = discarded.as_ref().or(why_not.as_ref()) {
        tracing::info!(dataset = request.name, index = %request.index.display(), why, "building the index again");
    }
    // Reading headers is done before it could be killed.
    let journal = match request.depth {
        Depth::Content => Some(Journal::open(&request.index).map_err(|source| write_error(request, source))?),
        Depth::Headers => None,
    };
    let earlier = Earlier { local, portable, journal };
    let mut built = Work::new(request, monitor, &files, &earlier)?.run(discarded)?;
    built.discarded = built.discarded.or(why_not);
    Ok(built)
}

/// The dataset, if all of its shards are known already: what [`build`] would return without reading or writing anything.
pub fn ready(request: &BuildRequest) -> Result<Option<Dataset>, BuildError> {
    let files = files(request)?;
    for known in [portable(request, &files), reuse(request, &files)] {
        if let Known::All(dataset) = known? {
            return Ok(Some(dataset));
        }
    }
    Ok(None)
}

/// What is known before anything is read.
struct Earlier {
    /// The index that is to be replaced.
    local: Option<Index>,
    portable: Option<Index>,
    /// What a build that was killed had learnt.
    journal: Option<Journal>,
}

/// What an earlier index is good for.
enum Known {
    /// It is the index of these very shards.
    All(Dataset),
    /// Some of its shards may be known; the text says why it was thrown away, if it was.
    Some(Option<Index>, Option<String>),
}

fn reuse(request: &BuildRequest, files: &[ShardFile]) -> Result<Known, BuildError> {
    if request.in_memory || !request.index.exists() {
        return Ok(Known::Some(None, None));
    }
    earlier(request, &Place::File(request.index.clone()), files, |indexed, now| indexed == now)
}

/// What the index made elsewhere is good for.
fn portable(request: &BuildRequest, files: &[ShardFile]) -> Result<Known, BuildError> {
    match &request.portable {
        // Copies have other inodes and ctimes.
        Some(place) => earlier(request, place, files, Identity::is_copy_of),
        None => Ok(Known::Some(None, None)),
    }
}

/// Opens an index, and compares its shards with those there are.
fn earlier(
    request: &BuildRequest,
    place: &Place,
    files: &[ShardFile],
    same: impl Fn(&Identity, &Identity) -> bool,
) -> Result<Known, BuildError> {
    let (dataset, path) = (request.name.clone(), place.to_path());
    let index = match super::portable::open_index(place) {
        Ok(index) => index,
        Err(IndexError::Missing) => {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no such file");
            return Err(BuildError::Open { dataset, path, source });
        }
        Err(IndexError::Damaged(why)) => return Ok(Known::Some(None, Some(why))),
        Err(IndexError::Future(format)) => return Err(BuildError::Future { dataset, path, format }),
        Err(IndexError::Io(source)) => return Err(BuildError::Open { dataset, path, source }),
    };
    if index.depth() != request.depth {
        let why = "it was made of the shards' headers only, or this one is to be";
        return Ok(Known::Some(None, Some(why.to_owned())));
    }
    if let Some(why) = place.file().and_then(index::suspicion) {
        return Ok(Known::Some(Some(index), Some(why)));
    }
    let all = index.shards().len() == files.len()
        && index
            .shards()
            .iter()
            .zip(files)
            .all(|(shard, file)| shard.name == file.name && same(&shard.identity, &file.identity));
    if all {
        return Ok(Known::All(Dataset::new(&request.name, place.file(), index, files.to_vec())));
    }
    Ok(Known::Some(Some(index), None))
}

/// The shards, as they are now.
fn files(request: &BuildRequest) -> Result<Vec<ShardFile>, BuildError> {
    let mut objects = objects(request)?.into_iter();
    let file = |source: &SourceFile| {
        let SourceFile { name, place } = source.clone();
        let path = match &place {
            Place::File(path) => path,
            Place::Object(_) => {
                let identity = objects.next().expect("one for each object");
                return Ok(ShardFile { name, place, identity });
            }
        };
        let regular = |metadata: fs::Metadata| match metadata.is_file() {
            true => Ok(metadata),
            // Opening a pipe would wait for whoever writes to it.
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        };
        match fs::metadata(path).and_then(regular) {
            Ok(metadata) => Ok(ShardFile { name, place, identity: Identity::of(&metadata) }),
            Err(error) => {
                Err(BuildError::Read { dataset: request.name.clone(), shard: name, offset: 0, source: error })
            }
        }
    };
    request.sources.iter().map(file).collect()
}

/// The identities of those shards that are objects, in their order.
#[cfg(feature = "remote")]
fn objects(request: &BuildRequest) -> Result<Vec<Identity>, BuildError> {
    let sources: Vec<&SourceFile> = request.sources.iter().filter(|source| source.place.is_object()).collect();
    let urls: Vec<_> = sources.iter().map(|source| source.place.to_string()).collect();
    crate::remote::identities(&urls).map_err(|(at, source)| {
        let (dataset, shard) = (request.name.clone(), sources[at].name.clone());
        BuildError::Read { dataset, shard, offset: 0, source }
    })
}

#[cfg(not(feature = "remote"))]
fn objects(request: &BuildRequest) -> Result<Vec<Identity>, BuildError> {
    match request.sources.iter().find(|source| source.place.is_object()) {
        None => Ok(Vec::new()),
        Some(source) => Err(BuildError::Read {
            dataset: request.name.clone(),
            shard: source.name.clone(),
            offset: 0,
            source: io::ErrorKind::Unsupported.into(),
        }),
    }
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

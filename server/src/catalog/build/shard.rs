//! One shard, read from front to back: its samples, the CRC of each field, the digest of it all.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::catalog::{Identity, Place, ShardFile};
use crate::format::FormatError;
use crate::format::tar::TarReader;
use crate::format::webdataset::{Grouper, ShardSamples};

/// Bytes of one read: large enough that system calls cost nothing, small enough to stay in a core's cache between the
/// parser, which computes CRCs, and the digest.
const BUFFER: usize = 2 << 20;
/// Bytes of one read where only headers are wanted: the header, and small members along with it.
const HEADERS: usize = 4096;
/// A file system's clock ticks this often, or oftener: two changes within one tick leave the same times behind.
const TICK: Duration = Duration::from_millis(20);

pub(super) struct Indexed {
    pub samples: ShardSamples,
    pub digest: [u8; 32],
}

pub(super) enum ReadError {
    /// The shard is damaged; so many of its bytes were not read.
    Format(FormatError, u64),
    /// The file is no longer the one that was listed.
    Changed,
    Io {
        offset: u64,
        source: io::Error,
    },
    Stopped,
}

/// Reads a shard. `more` is told how many bytes are done and how many were read for that, and says whether to go on.
pub(super) fn read(shard: &ShardFile, mut more: impl FnMut(u64, u64) -> bool) -> Result<Indexed, ReadError> {
    let io = |offset| move |source| ReadError::Io { offset, source };
    let mut shard_bytes = Bytes::open(shard)?;
    let mut tar = TarReader::new(shard.identity.size);
    let mut grouper = Grouper::new();
    let mut hasher = blake3::Hasher::new();
    let size = usize::try_from(shard.identity.size).unwrap_or(BUFFER).clamp(1, BUFFER);
    let mut buffer = vec![0; size];
    let mut offset = 0;
    let parsed = loop {
        let bytes = match shard_bytes.read(&mut buffer) {
            Ok(0) => break tar.finish(),
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) if changed(&source) => return Err(ReadError::Changed),
            Err(source) => return Err(io(offset)(source)),
        };
        offset += bytes.len() as u64;
        if offset > shard.identity.size {
            return Err(ReadError::Changed);
        }
        if !more(bytes.len() as u64, bytes.len() as u64) {
            return Err(ReadError::Stopped);
        }
        if let Err(error) = tar.push(bytes, |member| grouper.push(member)) {
            break Err(error);
        }
        hasher.update(bytes);
    };
    shard_bytes.check(shard)?;
    match parsed {
        Ok(()) => Ok(Indexed { samples: grouper.finish(), digest: *hasher.finalize().as_bytes() }),
        Err(error) => Err(ReadError::Format(error, shard.identity.size.saturating_sub(offset))),
    }
}

/// Reads a shard's headers only, and passes over what lies between. The samples have no CRCs; the digest covers what the
/// headers say and which file it was, not the bytes. `more` as for [`read`].
pub(super) fn read_headers(shard: &ShardFile, mut more: impl FnMut(u64, u64) -> bool) -> Result<Indexed, ReadError> {
    let io = |offset| move |source| ReadError::Io { offset, source };
    let file = open(shard)?;
    // What lies behind a header is not wanted. Advice may be refused.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
    let mut tar = TarReader::new(shard.identity.size);
    let mut grouper = Grouper::new();
    let mut buffer = [0; HEADERS];
    let (mut offset, mut told, mut read) = (0, 0, 0);
    let parsed = loop {
        let skipped = tar.skippable();
        if skipped > 0 {
            if let Err(error) = tar.skip(skipped, |member| grouper.push(member)) {
                break Err(error);
            }
            offset += skipped;
            continue;
        }
        if offset - told >= BUFFER as u64 {
            if !more(offset - told, read) {
                return Err(ReadError::Stopped);
            }
            (told, read) = (offset, 0);
        }
        let bytes = match file.read_at(&mut buffer, offset) {
            Ok(0) => break tar.finish(),
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(io(offset)(source)),
        };
        offset += bytes.len() as u64;
        read += bytes.len() as u64;
        if offset > shard.identity.size {
            return Err(ReadError::Changed);
        }
        if let Err(error) = tar.push(bytes, |member| grouper.push(member)) {
            break Err(error);
        }
    };
    more(offset - told, read);
    unchanged(shard, &file)?;
    match parsed {
        Ok(()) => {
            let mut samples = grouper.finish();
            samples.fields.iter_mut().for_each(|field| field.crc = None);
            let digest = headers_digest(&shard.identity, &samples);
            Ok(Indexed { samples, digest })
        }
        Err(error) => Err(ReadError::Format(error, shard.identity.size.saturating_sub(offset))),
    }
}

/// What stands for a shard's content while only its headers have been read.
fn headers_digest(identity: &Identity, samples: &ShardSamples) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("forebay 2026-12-01 shard headers 1");
    let mut number = |value: u64| _ = hasher.update(&value.to_le_bytes());
    let Identity { size, mtime_ns, ctime_ns, inode } = *identity;
    [size, mtime_ns as u64, ctime_ns as u64, inode].into_iter().for_each(&mut number);
    for (key, fields) in samples.iter() {
        number(key.len() as u64);
        number(fields.len() as u64);
        for field in fields {
            [field.offset, field.len, field.name.into()].into_iter().for_each(&mut number);
        }
    }
    samples.names.iter().for_each(|name| number(name.len() as u64));
    hasher.update(&samples.keys);
    samples.names.iter().for_each(|name| _ = hasher.update(name.as_bytes()));
    *hasher.finalize().as_bytes()
}

/// A shard's bytes, front to back.
enum Bytes {
    File(File),
    #[cfg(feature = "remote")]
    Object(crate::remote::Reader),
}

impl Bytes {
    fn open(shard: &ShardFile) -> Result<Bytes, ReadError> {
        match &shard.place {
            Place::File(_) => open(shard).map(Bytes::File),
            #[cfg(feature = "remote")]
            Place::Object(_) => {
                let reader = crate::remote::Reader::open(shard);
                reader.map(Bytes::Object).map_err(|source| ReadError::Io { offset: 0, source })
            }
            #[cfg(not(feature = "remote"))]
            Place::Object(_) => Err(ReadError::Io { offset: 0, source: io::ErrorKind::Unsupported.into() }),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Bytes::File(file) => file.read(buffer),
            #[cfg(feature = "remote")]
            Bytes::Object(reader) => reader.read(buffer),
        }
    }

    /// Whether what was read is what was listed.
    fn check(&self, shard: &ShardFile) -> Result<(), ReadError> {
        match self {
            Bytes::File(file) => unchanged(shard, file),
            // Each of its answers said which object it was of.
            #[cfg(feature = "remote")]
            Bytes::Object(_) => Ok(()),
        }
    }
}

/// Whether this error says that an object is another by now.
#[cfg(feature = "remote")]
fn changed(error: &io::Error) -> bool {
    crate::remote::is_changed(error)
}

/// Files are compared after they were read.
#[cfg(not(feature = "remote"))]
fn changed(_: &io::Error) -> bool {
    false
}

/// Opens the file that was listed.
fn open(shard: &ShardFile) -> Result<File, ReadError> {
    let io = |source| ReadError::Io { offset: 0, source };
    let path = shard.place.file().ok_or_else(|| io(io::ErrorKind::Unsupported.into()))?;
    let file = File::open(path).map_err(io)?;
    if Identity::of(&file.metadata().map_err(io)?) != shard.identity {
        return Err(ReadError::Changed);
    }
    settle(&shard.identity);
    Ok(file)
}

/// Whether the file that was read, and the one that has the name now, are still what was listed.
fn unchanged(shard: &ShardFile, file: &File) -> Result<(), ReadError> {
    let named = shard.place.file().map(fs::metadata);
    let same = [Some(file.metadata()), named]
        .into_iter()
        .flatten()
        .all(|now| now.is_ok_and(|now| Identity::of(&now) == shard.identity));
    if same { Ok(()) } else { Err(ReadError::Changed) }
}

/// Waits until a change from now on must leave another time behind than the last one did.
fn settle(identity: &Identity) {
    let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) else { return };
    let changed = Duration::from_nanos(identity.ctime_ns.max(identity.mtime_ns).try_into().unwrap_or(0));
    // A clock that is ahead of ours would have us wait for as long: not here.
    if changed <= now && now - changed < TICK {
        std::thread::sleep(TICK - (now - changed));
    }
}

/// Figures of a shard's samples.
pub(super) struct Stats {
    /// By name.
    pub fields: Vec<FieldStats>,
    pub bytes: u64,
    /// The most bytes that the fields of one sample have together.
    pub largest: u64,
}

#[derive(Clone, Copy)]
pub(super) struct FieldStats {
    pub count: u64,
    pub min: u64,
    pub max: u64,
    pub bytes: u64,
}

impl Stats {
    pub fn of(samples: &ShardSamples) -> Stats {
        let none = FieldStats { count: 0, min: u64::MAX, max: 0, bytes: 0 };
        let mut stats = Stats { fields: vec![none; samples.names.len()], bytes: 0, largest: 0 };
        for (_, fields) in samples.iter() {
            let mut sample = 0u64;
            for row in fields {
                let field = &mut stats.fields[usize::from(row.name)];
                field.count += 1;
                field.min = field.min.min(row.len);
                field.max = field.max.max(row.len);
                field.bytes = field.bytes.saturating_add(row.len);
                sample = sample.saturating_add(row.len);
            }
            stats.bytes = stats.bytes.saturating_add(sample);
            stats.largest = stats.largest.max(sample);
        }
        stats
    }
}

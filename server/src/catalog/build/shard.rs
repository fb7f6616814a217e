//! One shard, read from front to back: its samples, the CRC of each field, the digest of it all.

use std::fs::{self, File};
use std::io::{self, Read};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::catalog::{Identity, ShardFile};
use crate::format::FormatError;
use crate::format::tar::TarReader;
use crate::format::webdataset::{Grouper, ShardSamples};

/// Bytes of one read: large enough that system calls cost nothing, small enough to stay in a core's cache between the
/// parser, which computes CRCs, and the digest.
const BUFFER: usize = 2 << 20;
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

/// Reads a shard. `more` is told of the bytes read, and says whether to go on.
pub(super) fn read(shard: &ShardFile, mut more: impl FnMut(u64) -> bool) -> Result<Indexed, ReadError> {
    let io = |offset| move |source| ReadError::Io { offset, source };
    let mut file = File::open(&shard.path).map_err(io(0))?;
    if Identity::of(&file.metadata().map_err(io(0))?) != shard.identity {
        return Err(ReadError::Changed);
    }
    settle(&shard.identity);
    let mut tar = TarReader::new(shard.identity.size);
    let mut grouper = Grouper::new();
    let mut hasher = blake3::Hasher::new();
    let size = usize::try_from(shard.identity.size).unwrap_or(BUFFER).clamp(1, BUFFER);
    let mut buffer = vec![0; size];
    let mut offset = 0;
    let parsed = loop {
        let bytes = match file.read(&mut buffer) {
            Ok(0) => break tar.finish(),
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(io(offset)(source)),
        };
        offset += bytes.len() as u64;
        if offset > shard.identity.size {
            return Err(ReadError::Changed);
        }
        if !more(bytes.len() as u64) {
            return Err(ReadError::Stopped);
        }
        if let Err(error) = tar.push(bytes, |member| grouper.push(member)) {
            break Err(error);
        }
        hasher.update(bytes);
    };
    // Both the file that was read and the one that has the name now.
    let now = [file.metadata(), fs::metadata(&shard.path)];
    if !now.into_iter().all(|now| now.is_ok_and(|now| Identity::of(&now) == shard.identity)) {
        return Err(ReadError::Changed);
    }
    match parsed {
        Ok(()) => Ok(Indexed { samples: grouper.finish(), digest: *hasher.finalize().as_bytes() }),
        Err(error) => Err(ReadError::Format(error, shard.identity.size.saturating_sub(offset))),
    }
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

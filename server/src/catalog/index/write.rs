//! Writing an index file: to a temporary file beside it, which takes its name only when it is whole and on the disk; or in
//! memory, where it has no name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::layout::{self, BLOCK, FieldNameRow, FieldRecord, HEADER, Header, SampleStart, ShardRow, Table};
use super::os;
use crate::catalog::{Depth, Fingerprint, Identity};
use crate::format::webdataset::ShardSamples;

/// Bytes gathered before they are written.
const BUFFER: usize = 1 << 20;
/// Rows of the key table that are sorted at a time: 256 MiB of them. (A few in the tests, so that there are ranges.)
const RANGE: u64 = if cfg!(test) { 8 } else { 1 << 24 };

/// An index file being written. Dropped before [`finish`](IndexWriter::finish), it leaves nothing behind.
#[derive(Debug)]
pub struct IndexWriter {
    names: Option<Names>,
    depth: Depth,
    file: File,
    buffer: Vec<u8>,
    /// Where in the file the next byte goes.
    at: u64,
    /// CRCs of the blocks that are full, encoded.
    crcs: Vec<u8>,
    /// CRC and length of the block that is not.
    crc: u32,
    filled: usize,
    /// Something could not be written: what is in the file is not what the CRCs say.
    broken: bool,
}

/// What the file is called, now and at last. One that is in memory is called nothing.
#[derive(Debug)]
struct Names {
    path: PathBuf,
    temporary: PathBuf,
}

/// A shard whose records are in the file.
#[derive(Clone, Debug)]
pub struct WrittenShard {
    pub name: String,
    pub identity: Identity,
    pub digest: [u8; 32],
    pub samples: u64,
    pub fields: u64,
    pub keys: u64,
    /// Where its records are: what [`IndexWriter::append`] returned.
    pub at: u64,
    /// The hashes of its keys, in order.
    pub hashes: Vec<u64>,
}

/// A field name and its figures, at the place that the records name.
#[derive(Clone, Debug)]
pub struct WrittenField {
    pub name: String,
    pub count: u64,
    pub min: u64,
    pub max: u64,
    pub bytes: u64,
}

/// What completes an index.
#[derive(Debug)]
pub struct Contents<'a> {
    /// In the dataset's order.
    pub shards: Vec<WrittenShard>,
    pub fields: &'a [WrittenField],
    pub bytes: u64,
    pub largest_sample: u64,
}

impl IndexWriter {
    /// Begins the file that is to become `path`. The caller holds the build's lock: a temporary file found there was left
    /// by a build that died.
    pub fn create(path: &Path, depth: Depth) -> io::Result<IndexWriter> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        IndexWriter::of(file, Some(Names { path: path.to_owned(), temporary }), depth)
    }

    /// Begins an index that is only in memory.
    pub fn in_memory(depth: Depth) -> io::Result<IndexWriter> {
        IndexWriter::of(os::memory()?, None, depth)
    }

    fn of(file: File, names: Option<Names>, depth: Depth) -> io::Result<IndexWriter> {
        let mut writer = IndexWriter {
            names,
            depth,
            file,
            buffer: Vec::with_capacity(BUFFER),
            at: 0,
            crcs: Vec::new(),
            crc: 0,
            filled: 0,
            broken: false,
        };
        // The header's place; it is written last.
        writer.write(&[0; HEADER])?;
        Ok(writer)
    }

    /// The records of one shard, as [`append`](IndexWriter::append) takes them. `names` gives for each name of the shard its
    /// place in the dataset's list.
    pub fn encode(samples: &ShardSamples, names: &[u16], out: &mut Vec<u8>) {
        out.clear();
        SampleStart { key: 0, field: 0 }.encode(out);
        for row in &samples.samples {
            SampleStart { key: row.key_end, field: row.fields_end }.encode(out);
        }
        for field in &samples.fields {
            let name = names[usize::from(field.name)];
            FieldRecord { offset: field.offset, len: field.len, crc: field.crc, name }.encode(out);
        }
        out.extend_from_slice(&samples.keys);
        // Records begin at multiples of 8, for those who look at the file with other tools.
        out.resize(out.len().next_multiple_of(8), 0);
    }

    /// The hashes of a shard's keys, in order.
    pub fn hashes(samples: &ShardSamples) -> Vec<u64> {
        samples.iter().map(|(key, _)| layout::hash(key)).collect()
    }

    /// Adds the records of one shard; the result is where they are.
    pub fn append(&mut self, encoded: &[u8]) -> io::Result<u64> {
        let at = self.at;
        let written = self.data(encoded);
        self.broken |= written.is_err();
        written.map(|()| at)
    }

    /// Completes the file and gives it its name. The file that had the name before is replaced at once or not at all. One
    /// that is in memory is returned: there is no other way to it.
    pub fn finish(mut self, contents: Contents<'_>) -> io::Result<Option<File>> {
        if self.broken {
            return Err(io::Error::other("an earlier write failed"));
        }
        let keys = self.at;
        let samples = self.key_table(&contents.shards)?;
        if self.filled > 0 {
            self.crcs.extend_from_slice(&self.crc.to_le_bytes());
        }
        let mut header = Header {
            data_end: self.at,
            keys,
            samples,
            bytes: contents.bytes,
            largest_sample: contents.largest_sample,
            ..Header::default()
        };
        let mut strings = Vec::new();
        let mut string = |text: &str| -> io::Result<(u32, u32)> {
            let place = (strings.len(), text.len());
            strings.extend_from_slice(text.as_bytes());
            let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "more than 4 GiB of names");
            Ok((u32::try_from(place.0).map_err(too_long)?, u32::try_from(place.1).map_err(too_long)?))
        };
        let (mut shards, mut fields) = (Vec::new(), Vec::new());
        let mut fingerprint = Fingerprint::new();
        let mut first = 0;
        for shard in &contents.shards {
            let WrittenShard { samples, fields, keys, at, digest, .. } = *shard;
            let Identity { size, mtime_ns, ctime_ns, inode } = shard.identity;
            let name = string(&shard.name)?;
            fingerprint.shard(&shard.name, size, &digest);
            let row = ShardRow { name, size, mtime_ns, ctime_ns, inode, first, samples, fields, keys, at, digest };
            row.encode(&mut shards);
            first += samples;
        }
        for WrittenField { name, count, min, max, bytes } in contents.fields {
            let row = FieldNameRow { name: string(name)?, count: *count, min: *min, max: *max, bytes: *bytes };
            row.encode(&mut fields);
        }
        header.headers_only = self.depth == Depth::Headers;
        let version = if header.headers_only { fingerprint.finish_provisional() } else { fingerprint.finish() };
        header.version = version.0;
        let crcs = std::mem::take(&mut self.crcs);
        for (table, bytes) in header.tables.iter_mut().zip([&shards, &fields, &strings, &crcs]) {
            *table = Table { at: self.at, len: bytes.len() as u64, crc: crc32c::crc32c(bytes) };
            self.write(bytes)?;
        }
        header.len = self.at;
        self.flush()?;
        self.file.write_all_at(&header.encode(), 0)?;
        let Some(Names { path, temporary }) = &self.names else {
            return self.file.try_clone().map(Some);
        };
        // Until it is on the disk it must not have the name: after a power cut there is the old file or the whole new one.
        self.file.sync_all()?;
        fs::rename(temporary, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = File::open(folder);
        self.names = None;
        folder?.sync_all()?;
        Ok(None)
    }

    /// Writes the table that finds samples by key; the result is how many there are.
    ///
    /// It is sorted a range of hashes at a time, each of about [`RANGE`] rows, so that its memory is bounded: 16 bytes a row,
    /// beside the 8 per sample that the hashes take.
    fn key_table(&mut self, shards: &[WrittenShard]) -> io::Result<u64> {
        let samples = shards.iter().map(|shard| shard.hashes.len() as u64).sum::<u64>();
        // Hashes are uniform: so are equal ranges of them. As many as a power of two, told by the uppermost bits.
        let bits = samples.div_ceil(RANGE).next_power_of_two().trailing_zeros();
        let range = |hash: u64| hash.checked_shr(u64::BITS - bits).unwrap_or(0);
        let (mut keys, mut rows) = (Vec::new(), Vec::new());
        for wanted in 0..1 << bits {
            keys.clear();
            let hashes = shards.iter().flat_map(|shard| shard.hashes.iter().copied()).zip(0u64..);
            keys.extend(hashes.filter(|(hash, _)| range(*hash) == wanted));
            keys.sort_unstable();
            for chunk in keys.chunks(1 << 14) {
                rows.clear();
                for (hash, ordinal) in chunk {
                    rows.extend_from_slice(&hash.to_le_bytes());
                    rows.extend_from_slice(&ordinal.to_le_bytes());
                }
                self.data(&rows)?;
            }
        }
        Ok(samples)
    }

    /// Writes bytes that the blocks' CRCs cover.
    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(BLOCK - self.filled));
            self.crc = crc32c::crc32c_append(self.crc, piece);
            self.filled += piece.len();
            if self.filled == BLOCK {
                self.crcs.extend_from_slice(&self.crc.to_le_bytes());
                (self.crc, self.filled) = (0, 0);
            }
            rest = behind;
        }
        self.write(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        if self.buffer.len() + bytes.len() > BUFFER {
            self.flush()?;
        }
        if bytes.len() > BUFFER {
            return self.file.write_all(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

impl Drop for IndexWriter {
    fn drop(&mut self) {
        if let Some(names) = &self.names {
            // Nothing depends on it: the next build removes what is left here.
            let _ = fs::remove_file(&names.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a write that failed, what comes later must not make an index of the rest.
    #[test]
    fn what_could_not_be_written_is_not_finished() {
        let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else {
            eprintln!("skipped: there is no /dev/full here");
            return;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.idx");
        fs::write(&path, "old").expect("written");
        let mut writer = IndexWriter::create(&path, Depth::Content).expect("created");
        let file = std::mem::replace(&mut writer.file, full);
        let error = writer.append(&vec![0; 2 * BUFFER]).expect_err("no room");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        writer.file = file;
        writer.append(&[0; 16]).expect("there is room again");
        let contents = Contents { shards: Vec::new(), fields: &[], bytes: 0, largest_sample: 0 };
        writer.finish(contents).expect_err("something is missing");
        assert_eq!(fs::read(&path).expect("there"), b"old");
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 1, "the temporary file is gone");
    }
}

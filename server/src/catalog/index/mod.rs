//! The index file: written once, then memory-mapped and read by any number of threads.
//!
//! What is in the file is checked before it is believed, by CRC against damage and by bounds against malice: whatever the
//! bytes are, the answer is right or an error.

mod journal;
mod layout;
mod lock;
mod os;
mod suspect;
mod write;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::Mmap;

use self::layout::{
    BLOCK, FIELD, FIELD_NAME, FieldNameRow, FieldRecord, HEADER, Header, HeaderError, KEY, SAMPLE, SHARD, SampleStart,
    ShardRow, TABLES,
};
use super::{Depth, Extent, Fingerprint, Identity};
use crate::format::webdataset::{FIELD_LIMIT, FieldRow, SampleRow, ShardSamples};
use forebay_transport::Version;

pub use self::journal::Journal;
pub use self::layout::FORMAT;
#[cfg(feature = "remote")]
pub(crate) use self::layout::MAGIC;
pub use self::lock::{BuildLock, LockError};
#[cfg(feature = "remote")]
pub(crate) use self::os::memory;
pub use self::suspect::{suspect, suspicion, trust};
pub use self::write::{Contents, IndexWriter, WrittenField, WrittenShard};

/// Why an index file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    #[error("there is no index")]
    Missing,
    #[error("the index is damaged: {0}")]
    Damaged(String),
    #[error("the index has format {0}, which is newer than this program's ({FORMAT})")]
    Future(u32),
    #[error("cannot read the index: {0}")]
    Io(#[from] io::Error),
}

fn damaged(detail: impl Into<String>) -> IndexError {
    IndexError::Damaged(detail.into())
}

/// An index file, open.
pub struct Index {
    map: Mmap,
    header: Header,
    shards: Vec<IndexedShard>,
    fields: Vec<IndexedField>,
    /// One bit per block of the data: whether its CRC was found right.
    checked: Box<[AtomicU64]>,
}

/// A shard as it was when it was indexed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedShard {
    pub name: String,
    pub identity: Identity,
    pub digest: [u8; 32],
    pub first: u64,
    pub samples: u64,
    row: ShardRow,
}

/// A field name and its figures. Its place in the list is what field records say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedField {
    pub name: String,
    pub count: u64,
    pub min: u64,
    pub max: u64,
    pub bytes: u64,
}

/// Where one sample's records are.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub shard: u32,
    row: &'a ShardRow,
    /// Its field records, as they stand in the file.
    records: &'a [u8],
    /// Place and length of its key in the file.
    key: (u64, u64),
}

impl Index {
    pub fn open(path: &Path) -> Result<Index, IndexError> {
        let file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => IndexError::Missing,
            _ => IndexError::Io(error),
        })?;
        if !file.metadata()?.is_file() {
            return Err(damaged("it is not a regular file"));
        }
        Index::map(&file)
    }

    /// The index in this file, which nobody writes to any more.
    pub fn map(file: &File) -> Result<Index, IndexError> {
        Index::of(os::map(file)?)
    }

    /// The index that these bytes are.
    fn of(map: Mmap) -> Result<Index, IndexError> {
        let header = Header::decode(&map).map_err(|error| match error {
            HeaderError::Damaged(detail) => damaged(detail),
            HeaderError::Future(format) => IndexError::Future(format),
        })?;
        let tables = tables(&map, &header)?;
        let [shards, fields, strings, _] = tables;
        let shards = read_shards(&header, shards, strings)?;
        let fields = read_fields(fields, strings)?;
        let blocks = blocks(&header);
        let checked = (0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Index { map, header, shards, fields, checked })
    }

    pub fn version(&self) -> Version {
        Version(self.header.version)
    }

    /// How deep the build looked that made it.
    pub fn depth(&self) -> Depth {
        if self.header.headers_only { Depth::Headers } else { Depth::Content }
    }

    pub fn samples(&self) -> u64 {
        self.header.samples
    }

    pub fn bytes(&self) -> u64 {
        self.header.bytes
    }

    pub fn largest_sample(&self) -> u64 {
        self.header.largest_sample
    }

    pub fn shards(&self) -> &[IndexedShard] {
        &self.shards
    }

    pub fn fields(&self) -> &[IndexedField] {
        &self.fields
    }

    /// The records of sample `ordinal`, or `None` when there is no such sample.
    pub fn entry(&self, ordinal: u64) -> Result<Option<Entry<'_>>, IndexError> {
        if ordinal >= self.header.samples {
            return Ok(None);
        }
        // The last shard that begins at or before the ordinal: never an empty one, for the next begins there too.
        let shard = self.shards.partition_point(|shard| shard.first <= ordinal) - 1;
        let row = &self.shards[shard].row;
        let (starts, ends) = self.starts(row, ordinal - row.first)?;
        self.entry_at(shard as u32, row, starts, ends).map(Some)
    }

    /// The ordinals of the samples whose key is `key`, ascending.
    pub fn find(&self, key: &[u8]) -> Result<Vec<u64>, IndexError> {
        let wanted = layout::hash(key);
        let (mut low, mut high) = (0, self.header.samples);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key_row(middle)?.0 < wanted { low = middle + 1 } else { high = middle }
        }
        let mut found = Vec::new();
        for place in low..self.header.samples {
            let (hash, ordinal) = self.key_row(place)?;
            if hash != wanted {
                break;
            }
            let entry = self.entry(ordinal)?.ok_or_else(|| damaged("the key table names a sample there is not"))?;
            if self.key(&entry)? == key {
                found.push(ordinal);
            }
        }
        Ok(found)
    }

    pub fn key(&self, entry: &Entry<'_>) -> Result<&[u8], IndexError> {
        self.data(entry.key.0, entry.key.1)
    }

    /// All that is known of the samples of a shard, as if it had just been read.
    pub fn shard_samples(&self, shard: usize) -> Result<ShardSamples, IndexError> {
        let row = &self.shards[shard].row;
        let (fields, keys, _) = row.parts().ok_or_else(|| damaged("a shard's records are nowhere"))?;
        let starts = self.data(row.at, fields - row.at)?;
        let mut out = ShardSamples { keys: self.data(keys, row.keys)?.to_vec(), ..ShardSamples::default() };
        let mut names = vec![None; self.fields.len()];
        // No capacity is reserved from what the file claims, but for records that are really there.
        out.samples.reserve(starts.len() / SAMPLE);
        out.fields.reserve(usize::try_from((keys - fields) / FIELD as u64).unwrap_or(0));
        let mut starts = rows(starts).map(SampleStart::decode);
        let mut start = starts.next().ok_or_else(|| damaged("a shard has no records"))?;
        for end in starts {
            let entry = self.entry_at(shard as u32, row, start, end)?;
            let begin = out.samples.last().map_or((0, 0), |row| (row.key_end, row.fields_end));
            if (start.key, start.field) != begin {
                return Err(damaged("a shard's samples do not follow each other"));
            }
            start = end;
            for field in entry.fields(self) {
                let (name, extent) = field?;
                let name = *names[usize::from(name)].get_or_insert_with(|| {
                    out.names.push(self.fields[usize::from(name)].name.clone());
                    (out.names.len() - 1) as u16
                });
                out.fields.push(FieldRow { offset: extent.offset, len: extent.len, crc: extent.crc, name });
            }
            out.samples.push(SampleRow { key_end: end.key, fields_end: out.fields.len() as u64 });
        }
        if out.samples.last().map_or(0, |row| row.key_end) != row.keys {
            return Err(damaged("a shard's keys do not end where its samples do"));
        }
        Ok(out)
    }

    /// Where the sample `local` of a shard begins, and where the next does.
    fn starts(&self, row: &ShardRow, local: u64) -> Result<(SampleStart, SampleStart), IndexError> {
        let pair = self.data(row.at + local * SAMPLE as u64, 2 * SAMPLE as u64)?;
        let mut pair = rows(pair).map(SampleStart::decode);
        pair.next().zip(pair.next()).ok_or_else(|| damaged("a shard has no records"))
    }

    fn entry_at<'a>(
        &'a self,
        shard: u32,
        row: &'a ShardRow,
        start: SampleStart,
        end: SampleStart,
    ) -> Result<Entry<'a>, IndexError> {
        let (fields, keys, _) = row.parts().ok_or_else(|| damaged("a shard's records are nowhere"))?;
        let ordered =
            start.key <= end.key && end.key <= row.keys && start.field <= end.field && end.field <= row.fields;
        if !ordered {
            return Err(damaged("a sample's records are outside its shard's"));
        }
        let records = self.data(fields + start.field * FIELD as u64, (end.field - start.field) * FIELD as u64)?;
        Ok(Entry { shard, row, records, key: (keys + start.key, end.key - start.key) })
    }

    fn key_row(&self, place: u64) -> Result<(u64, u64), IndexError> {
        let row = self.data(self.header.keys + place * KEY as u64, KEY as u64)?;
        Ok(layout::decode_key(row.first_chunk().ok_or_else(|| damaged("the key table is cut"))?))
    }

    /// `len` bytes of the data at `at`, checked.
    fn data(&self, at: u64, len: u64) -> Result<&[u8], IndexError> {
        let end = at.checked_add(len).filter(|end| *end <= self.header.data_end && at >= HEADER as u64);
        let end = end.ok_or_else(|| damaged(format!("{len} bytes at {at} are outside its data")))?;
        if len == 0 {
            return Ok(&[]);
        }
        // The header was checked against the file's length: what is below `data_end` fits a `usize`.
        let (first, last) = ((at as usize - HEADER) / BLOCK, (end as usize - 1 - HEADER) / BLOCK);
        for block in first..=last {
            if self.checked[block / 64].load(Ordering::Relaxed) & (1 << (block % 64)) == 0 {
                self.check(block)?;
            }
        }
        Ok(&self.map[at as usize..end as usize])
    }

    #[cold]
    fn check(&self, block: usize) -> Result<(), IndexError> {
        let begin = HEADER + block * BLOCK;
        let bytes = &self.map[begin..(begin + BLOCK).min(self.header.data_end as usize)];
        let crcs = self.header.tables[3].at as usize + 4 * block;
        if crc32c::crc32c(bytes).to_le_bytes() != self.map[crcs..crcs + 4] {
            return Err(damaged(format!("bytes {begin} to {} do not match their checksum", begin + bytes.len())));
        }
        self.checked[block / 64].fetch_or(1 << (block % 64), Ordering::Relaxed);
        Ok(())
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("version", &self.version()).field("samples", &self.samples()).finish()
    }
}

impl<'a> Entry<'a> {
    /// The place of each field's name in the index's list, and where the field lies; in the shard's order.
    pub fn fields(&self, index: &Index) -> impl Iterator<Item = Result<(u16, Extent), IndexError>> + use<'a> {
        let (shard, size, names) = (self.shard, self.row.size, index.fields.len());
        rows(self.records).map(move |record: &[u8; FIELD]| {
            let FieldRecord { offset, len, crc, name } = FieldRecord::decode(record);
            if usize::from(name) >= names || offset.checked_add(len).is_none_or(|end| end > size) {
                return Err(damaged("a field's record names what there is not"));
            }
            Ok((name, Extent { shard, offset, len, crc }))
        })
    }

    /// Where the field whose name has place `name` lies.
    pub fn field(&self, index: &Index, name: u16) -> Result<Option<Extent>, IndexError> {
        for field in self.fields(index) {
            let (found, extent) = field?;
            if found == name {
                return Ok(Some(extent));
            }
        }
        Ok(None)
    }
}

/// The rows of `N` bytes that `bytes` consists of.
fn rows<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = &[u8; N]> {
    bytes.chunks_exact(N).filter_map(|row| row.first_chunk())
}

fn blocks(header: &Header) -> usize {
    (header.data_end as usize - HEADER).div_ceil(BLOCK)
}

/// The tables' bytes, whose places and checksums are right.
fn tables<'a>(map: &'a [u8], header: &Header) -> Result<[&'a [u8]; TABLES.len()], IndexError> {
    if header.len != map.len() as u64 {
        return Err(damaged(format!("it has {} bytes and says {}", map.len(), header.len)));
    }
    let keys = header.samples.checked_mul(KEY as u64).and_then(|len| len.checked_add(header.keys));
    if header.keys < HEADER as u64 || keys != Some(header.data_end) {
        return Err(damaged("its key table is not where it should be"));
    }
    let mut end = header.data_end;
    let mut out: [&[u8]; TABLES.len()] = [&[]; TABLES.len()];
    for ((table, name), out) in header.tables.iter().zip(TABLES).zip(&mut out) {
        if table.at != end {
            return Err(damaged(format!("its table of {name} is not where it should be")));
        }
        end = end.checked_add(table.len).filter(|end| *end <= header.len).ok_or_else(|| damaged("a table is cut"))?;
        *out = &map[table.at as usize..end as usize];
        if crc32c::crc32c(out) != table.crc {
            return Err(damaged(format!("its table of {name} does not match its checksum")));
        }
    }
    if end != header.len {
        return Err(damaged("there is something behind its tables"));
    }
    if out[3].len() != 4 * blocks(header) {
        return Err(damaged("its data has more or fewer blocks than checksums"));
    }
    Ok(out)
}

fn string(strings: &[u8], (at, len): (u32, u32)) -> Result<String, IndexError> {
    let bytes = usize::try_from(at).ok().and_then(|at| strings.get(at..)?.get(..usize::try_from(len).ok()?));
    let bytes = bytes.ok_or_else(|| damaged("a name lies outside its table"))?;
    String::from_utf8(bytes.to_vec()).map_err(|_| damaged("a name is not UTF-8"))
}

fn read_shards(header: &Header, table: &[u8], strings: &[u8]) -> Result<Vec<IndexedShard>, IndexError> {
    if !table.len().is_multiple_of(SHARD) || table.len() / SHARD > u32::MAX as usize {
        return Err(damaged("its table of shards has an odd length"));
    }
    let mut shards = Vec::with_capacity(table.len() / SHARD);
    let mut fingerprint = Fingerprint::new();
    let mut first = 0u64;
    for row in rows(table) {
        let row = ShardRow::decode(row);
        let inside = row.parts().is_some_and(|(_, _, end)| row.at >= HEADER as u64 && end <= header.keys);
        if !inside || row.first != first {
            return Err(damaged("a shard's records are not where they should be"));
        }
        first = first.checked_add(row.samples).ok_or_else(|| damaged("more samples than can be counted"))?;
        let name = string(strings, row.name)?;
        fingerprint.shard(&name, row.size, &row.digest);
        let ShardRow { size, mtime_ns, ctime_ns, inode, digest, samples, .. } = row;
        let identity = Identity { size, mtime_ns, ctime_ns, inode };
        shards.push(IndexedShard { name, identity, digest, first: row.first, samples, row });
    }
    if first != header.samples {
        return Err(damaged("its shards have more or fewer samples than it says"));
    }
    let version = if header.headers_only { fingerprint.finish_provisional() } else { fingerprint.finish() };
    if version.0 != header.version {
        return Err(damaged("its version is not that of its shards"));
    }
    Ok(shards)
}

fn read_fields(table: &[u8], strings: &[u8]) -> Result<Vec<IndexedField>, IndexError> {
    if !table.len().is_multiple_of(FIELD_NAME) || table.len() / FIELD_NAME > FIELD_LIMIT {
        return Err(damaged("its table of field names has an odd length"));
    }
    rows(table)
        .map(|row| {
            let FieldNameRow { name, count, min, max, bytes } = FieldNameRow::decode(row);
            Ok(IndexedField { name: string(strings, name)?, count, min, max, bytes })
        })
        .collect()
}

#[cfg(test)]
mod tests;

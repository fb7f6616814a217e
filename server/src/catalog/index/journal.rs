//! What a build learnt so far, shard by shard, so that one that is killed need not begin anew.
//!
//! A file beside the index to which each shard is added as soon as it is read, and which goes away once the index is
//! whole. Each entry is whole or it is not there:
//!
//! ```text
//! magic (8 bytes) · length of the head u32 · length of the records u64 · CRC-32C of the head u32 · CRC-32C of the records u32
//! head:    identity (4 × u64), digest (32 bytes), samples u64, fields u64, keys u64, name, names of the fields (count u32);
//!          a name is its length (u32) and its bytes
//! records: as they stand in an index (see `layout`)
//! ```
//!
//! It is not synced: after a power cut its end may be missing or damaged, which the CRCs tell, and costs reading some
//! shards again.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::layout::{FIELD, FieldRecord, SAMPLE, SampleStart};
use super::{IndexWriter, rows};
use crate::catalog::Identity;
use crate::format::webdataset::{FIELD_LIMIT, FieldRow, SampleRow, ShardSamples};

const MAGIC: [u8; 8] = *b"\x89FBPART1";
/// Bytes before an entry's head.
const FRAME: usize = 28;
/// The most bytes of a head: names of files and fields, which have to fit in memory.
const HEAD_LIMIT: u32 = 64 << 20;

/// The journal of one build, open for adding to it. The caller holds the build's lock.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// None as long as nothing was added.
    file: Option<File>,
    /// Where the next entry goes.
    end: u64,
    /// By name: the latest entry of each shard.
    entries: HashMap<String, Noted>,
    /// Something could not be written: nothing more is.
    broken: bool,
}

/// A shard in the journal.
#[derive(Clone, Debug)]
struct Noted {
    identity: Identity,
    digest: [u8; 32],
    /// Samples, fields, bytes of keys.
    counts: [u64; 3],
    names: Vec<String>,
    /// Place, length and CRC of its records.
    records: (u64, u64, u32),
}

impl Journal {
    /// Opens the journal of the index at `index`, or begins it. What is damaged in it, and all that follows, is cut off.
    pub fn open(index: &Path) -> io::Result<Journal> {
        let mut path = index.as_os_str().to_owned();
        path.push(".part");
        let path = PathBuf::from(path);
        let mut journal = Journal { path, file: None, end: 0, entries: HashMap::new(), broken: false };
        let file = match OpenOptions::new().read(true).write(true).open(&journal.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(journal),
            Err(error) => return Err(error),
        };
        let len = file.metadata()?.len();
        while let Some((name, noted)) = next(&file, journal.end, len)? {
            journal.end = noted.records.0 + noted.records.1;
            journal.entries.insert(name, noted);
        }
        if journal.end < len {
            file.set_len(journal.end)?;
        }
        journal.file = Some(file);
        Ok(journal)
    }

    /// Whether it knows this very file.
    pub fn knows(&self, name: &str, identity: &Identity) -> bool {
        self.entries.get(name).is_some_and(|noted| noted.identity == *identity)
    }

    /// What it knows of a shard; `None` when that is damaged.
    pub fn samples(&self, name: &str) -> Option<(ShardSamples, [u8; 32])> {
        let noted = self.entries.get(name)?;
        let (at, len, crc) = noted.records;
        let mut records = vec![0; usize::try_from(len).ok()?];
        self.file.as_ref()?.read_exact_at(&mut records, at).ok()?;
        if crc32c::crc32c(&records) != crc {
            return None;
        }
        Some((noted.decode(&records)?, noted.digest))
    }

    /// Adds a shard. A failure is told once, and then nothing is added any more: the build goes on without.
    pub fn add(&mut self, name: &str, identity: &Identity, digest: &[u8; 32], samples: &ShardSamples) {
        if self.broken {
            return;
        }
        let entry = encode(name, identity, digest, samples);
        match self.write(&entry) {
            Ok(()) => self.end += entry.len() as u64,
            Err(error) => {
                tracing::warn!(journal = %self.path.display(), %error, "cannot note how far the build is: if it ends early, the next one reads again what is not noted");
                self.broken = true;
                // Half an entry is of no use, and on a full disk its room is: to this index, or to another dataset's.
                let _ = self.file.as_ref().map(|file| file.set_len(self.end));
            }
        }
    }

    fn write(&mut self, entry: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&self.path)?;
                none.insert(file)
            }
        };
        file.write_all_at(entry, self.end)
    }

    /// Removes it: what it knows is in the index.
    pub fn remove(self) {
        // One that stays is read by the next build, and does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// The entry that begins at `begin` of a file of `len` bytes, if it is whole.
fn next(file: &File, begin: u64, len: u64) -> io::Result<Option<(String, Noted)>> {
    let mut frame = [0; FRAME];
    if len - begin < FRAME as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut frame, begin)?;
    let mut take = Take(&frame);
    let frame = (take.array::<8>(), take.u32(), take.u64(), take.u32(), take.u32());
    let (Some(magic), Some(head), Some(records), Some(head_crc), Some(records_crc)) = frame else { return Ok(None) };
    let begin = begin + FRAME as u64;
    let at = begin + u64::from(head);
    if magic != MAGIC || head > HEAD_LIMIT || at.checked_add(records).is_none_or(|end| end > len) {
        return Ok(None);
    }
    let mut bytes = vec![0; head as usize];
    file.read_exact_at(&mut bytes, begin)?;
    if crc32c::crc32c(&bytes) != head_crc {
        return Ok(None);
    }
    Ok(Noted::decode_head(&bytes, (at, records, records_crc)))
}

impl Noted {
    fn decode_head(bytes: &[u8], records: (u64, u64, u32)) -> Option<(String, Noted)> {
        let mut take = Take(bytes);
        let identity = Identity {
            size: take.u64()?,
            mtime_ns: take.u64()? as i64,
            ctime_ns: take.u64()? as i64,
            inode: take.u64()?,
        };
        let digest = take.array()?;
        let counts = [take.u64()?, take.u64()?, take.u64()?];
        let name = take.string()?;
        let count = take.u32()? as usize;
        let names = (0..count.min(FIELD_LIMIT)).map(|_| take.string()).collect::<Option<Vec<_>>>()?;
        Some((name, Noted { identity, digest, counts, names, records }))
    }

    /// Whatever the bytes are: samples whose fields lie within the shard, or nothing.
    fn decode(&self, records: &[u8]) -> Option<ShardSamples> {
        let [samples, fields, keys] = self.counts.map(usize::try_from);
        let (samples, fields, keys) = (samples.ok()?, fields.ok()?, keys.ok()?);
        let starts = samples.checked_add(1)?.checked_mul(SAMPLE)?;
        let rest = records.get(starts..)?;
        let (field_rows, rest) = rest.split_at_checked(fields.checked_mul(FIELD)?)?;
        let mut out =
            ShardSamples { keys: rest.get(..keys)?.to_vec(), names: self.names.clone(), ..Default::default() };
        let mut last = SampleStart { key: 0, field: 0 };
        for row in rows(&records[SAMPLE..starts]) {
            let end = SampleStart::decode(row);
            if end.key < last.key || end.key > keys as u64 || end.field < last.field || end.field > fields as u64 {
                return None;
            }
            out.samples.push(SampleRow { key_end: end.key, fields_end: end.field });
            last = end;
        }
        for row in rows(field_rows) {
            let FieldRecord { offset, len, crc, name } = FieldRecord::decode(row);
            let inside = offset.checked_add(len).is_some_and(|end| end <= self.identity.size);
            if !inside || usize::from(name) >= self.names.len() {
                return None;
            }
            out.fields.push(FieldRow { offset, len, crc, name });
        }
        (last == SampleStart { key: keys as u64, field: fields as u64 }).then_some(out)
    }
}

fn encode(name: &str, identity: &Identity, digest: &[u8; 32], samples: &ShardSamples) -> Vec<u8> {
    let mut head = Vec::new();
    for value in [identity.size, identity.mtime_ns as u64, identity.ctime_ns as u64, identity.inode] {
        head.extend_from_slice(&value.to_le_bytes());
    }
    head.extend_from_slice(digest);
    for count in [samples.samples.len(), samples.fields.len(), samples.keys.len()] {
        head.extend_from_slice(&(count as u64).to_le_bytes());
    }
    let string = |head: &mut Vec<u8>, text: &str| {
        head.extend_from_slice(&(text.len() as u32).to_le_bytes());
        head.extend_from_slice(text.as_bytes());
    };
    string(&mut head, name);
    head.extend_from_slice(&(samples.names.len() as u32).to_le_bytes());
    samples.names.iter().for_each(|name| string(&mut head, name));
    let names: Vec<u16> = (0..samples.names.len() as u16).collect();
    let mut records = Vec::new();
    IndexWriter::encode(samples, &names, &mut records);
    let mut entry = Vec::with_capacity(FRAME + head.len() + records.len());
    entry.extend_from_slice(&MAGIC);
    entry.extend_from_slice(&(head.len() as u32).to_le_bytes());
    entry.extend_from_slice(&(records.len() as u64).to_le_bytes());
    entry.extend_from_slice(&crc32c::crc32c(&head).to_le_bytes());
    entry.extend_from_slice(&crc32c::crc32c(&records).to_le_bytes());
    entry.extend_from_slice(&head);
    entry.extend_from_slice(&records);
    entry
}

/// Takes values off the front of bytes that may be too few.
struct Take<'a>(&'a [u8]);

impl Take<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn string(&mut self) -> Option<String> {
        let len = usize::try_from(self.u32()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(count: u64) -> ShardSamples {
        let mut out = ShardSamples { names: vec!["jpg".into(), "cls".into()], ..Default::default() };
        for n in 0..count {
            out.keys.extend_from_slice(format!("k{n}").as_bytes());
            out.fields.push(FieldRow { offset: n * 100, len: 9, crc: Some(n as u32), name: (n % 2) as u16 });
            out.samples.push(SampleRow { key_end: out.keys.len() as u64, fields_end: out.fields.len() as u64 });
        }
        out
    }

    fn identity(inode: u64) -> Identity {
        Identity { size: 10_000, mtime_ns: -1, ctime_ns: 2, inode }
    }

    #[test]
    fn what_was_added_is_there_after_a_crash() {
        let folder = tempfile::tempdir().expect("a folder");
        let index = folder.path().join("x.fbi");
        let mut journal = Journal::open(&index).expect("begun");
        journal.add("a.tar", &identity(1), &[1; 32], &samples(3));
        journal.add("b.tar", &identity(2), &[2; 32], &samples(0));
        journal.add("a.tar", &identity(3), &[3; 32], &samples(5));
        drop(journal);
        let journal = Journal::open(&index).expect("there");
        assert!(journal.knows("a.tar", &identity(3)) && !journal.knows("a.tar", &identity(1)));
        assert_eq!(journal.samples("a.tar"), Some((samples(5), [3; 32])));
        assert_eq!(journal.samples("b.tar"), Some((samples(0), [2; 32])));
        assert_eq!(journal.samples("c.tar"), None);
        journal.remove();
        assert!(!folder.path().join("x.fbi.part").exists());
    }

    /// Cut anywhere, and with any byte damaged: what is said is right or nothing.
    #[test]
    fn damage_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (index, path) = (folder.path().join("x.fbi"), folder.path().join("x.fbi.part"));
        let mut journal = Journal::open(&index).expect("begun");
        journal.add("a.tar", &identity(1), &[1; 32], &samples(3));
        let first = journal.end as usize;
        journal.add("b.tar", &identity(2), &[2; 32], &samples(2));
        drop(journal);
        let whole = fs::read(&path).expect("there");
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).expect("written");
            let journal = Journal::open(&index).expect("there");
            assert_eq!(journal.entries.len(), usize::from(cut >= first), "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x41;
            fs::write(&path, &bytes).expect("written");
            let journal = Journal::open(&index).expect("there");
            for (name, expected) in [("a.tar", (samples(3), [1; 32])), ("b.tar", (samples(2), [2; 32]))] {
                let found = journal.samples(name);
                assert!(found.is_none() || found == Some(expected), "byte {at}");
            }
        }
    }
}

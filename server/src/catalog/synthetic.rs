//! Indexes of data that nobody has, for benches of size.

use std::io;
use std::path::Path;

use super::index::{Contents, IndexWriter, WrittenField, WrittenShard};
use super::{Depth, ShardFile};
use crate::format::webdataset::{FieldRow, SampleRow, ShardSamples};

/// Writes the index of `files` as if each held `samples` samples with one field `bin` of `len` bytes, a KiB apart (or as
/// far as `len` needs). Fields have no CRC: the files may be sparse.
///
/// # Errors
/// When it cannot be written.
pub fn synthesize(index: &Path, files: &[ShardFile], samples: u64, len: u64) -> io::Result<()> {
    let mut writer = IndexWriter::create(index, Depth::Content)?;
    let mut encoded = Vec::new();
    let mut shards = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let mut all = ShardSamples { names: vec!["bin".to_owned()], ..ShardSamples::default() };
        for sample in 0..samples {
            all.keys.extend_from_slice(format!("{number:06}/{sample:08}").as_bytes());
            let offset = sample * (512 + len).next_multiple_of(1024) + 512;
            all.fields.push(FieldRow { offset, len, crc: None, name: 0 });
            all.samples.push(SampleRow { key_end: all.keys.len() as u64, fields_end: all.fields.len() as u64 });
        }
        IndexWriter::encode(&all, &[0], &mut encoded);
        shards.push(WrittenShard {
            name: file.name.clone(),
            identity: file.identity,
            digest: *blake3::hash(file.name.as_bytes()).as_bytes(),
            samples,
            fields: samples,
            keys: all.keys.len() as u64,
            at: writer.append(&encoded)?,
            hashes: IndexWriter::hashes(&all),
        });
    }
    let count = samples * files.len() as u64;
    let field = WrittenField { name: "bin".to_owned(), count, min: len, max: len, bytes: count * len };
    writer.finish(Contents { shards, fields: &[field], bytes: count * len, largest_sample: len })?;
    Ok(())
}

//! A dataset whose index is open.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_transport::Version;
use forebay_transport::link::FieldId;
use forebay_transport::wire::describe::{
    Description, FieldDescription, SampleDescription, SampleField, ShardDescription, WireRange,
};

use super::index::{Entry, Index, IndexError, IndexedField};
use super::{Depth, Extent, ShardFile};
use crate::format::webdataset::ShardSamples;

/// Why the catalog has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    #[error("dataset {dataset} has {samples} samples: there is no sample {ordinal}")]
    NoSuchSample { dataset: String, ordinal: u64, samples: u64 },
    #[error("dataset {dataset} has {fields} fields: there is no field {field}")]
    NoSuchField { dataset: String, field: FieldId, fields: usize },
    /// The index file is damaged. The next build of the dataset knows it, and makes the index anew.
    #[error("dataset {dataset}: {detail}; whoever opens it next makes it anew")]
    Damaged { dataset: String, detail: String },
}

/// One field over the whole dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldStats {
    pub name: String,
    /// How many samples have it.
    pub count: u64,
    /// The fewest bytes it has in a sample.
    pub min: u64,
    /// The most bytes it has in a sample.
    pub max: u64,
    /// Sum over all samples.
    pub bytes: u64,
}

/// One shard of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    pub file: ShardFile,
    /// BLAKE3 of the shard's bytes.
    pub digest: [u8; 32],
    /// The ordinal of its first sample.
    pub first: u64,
    pub samples: u64,
}

/// One sample: what it is called and where its fields lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    pub ordinal: u64,
    /// The key's bytes as they stand in the shard: UTF-8 nearly always, but nothing promises it.
    pub key: &'a [u8],
    /// Index in the dataset's list of shards.
    pub shard: u32,
    /// In the order of the field ids.
    pub fields: Vec<SampleExtent>,
}

/// One field of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleExtent {
    pub field: FieldId,
    pub extent: Extent,
}

/// A dataset: its index, opened, and where its shards lie. Cheap to share behind an `Arc`; all methods take `&self`.
///
/// Field ids are places in the list of the field names sorted bytewise: a function of the version alone.
#[derive(Debug)]
pub struct Dataset {
    name: String,
    index: Index,
    shards: Vec<Shard>,
    /// By field id.
    fields: Vec<FieldStats>,
    /// By field id: the name's place in the index, which is in order of discovery.
    places: Vec<u16>,
    /// The inverse of `places`.
    ids: Vec<FieldId>,
    /// The index file; none when it is in memory alone.
    path: Option<PathBuf>,
    /// Whether damage was found in it, and noted.
    noted: AtomicBool,
}

impl Dataset {
    /// `path` is where `index` was opened, if it is a file of this machine; `files` are the files of its shards, in order.
    pub(super) fn new(name: &str, path: Option<&Path>, index: Index, files: Vec<ShardFile>) -> Dataset {
        debug_assert!(index.shards().iter().map(|shard| &shard.name).eq(files.iter().map(|file| &file.name)));
        let shards = index.shards().iter().zip(files);
        let shards = shards.map(|(shard, file)| Shard {
            file,
            digest: shard.digest,
            first: shard.first,
            samples: shard.samples,
        });
        let shards = shards.collect();
        let mut places: Vec<u16> = (0..index.fields().len() as u16).collect();
        places.sort_by(|a, b| index.fields()[usize::from(*a)].name.cmp(&index.fields()[usize::from(*b)].name));
        let mut ids = vec![0; places.len()];
        for (id, place) in (0..).zip(&places) {
            ids[usize::from(*place)] = id;
        }
        let fields = places.iter().map(|place| {
            let IndexedField { name, count, min, max, bytes } = index.fields()[usize::from(*place)].clone();
            FieldStats { name, count, min, max, bytes }
        });
        let fields = fields.collect();
        let (path, noted) = (path.map(Path::to_owned), AtomicBool::new(false));
        Dataset { name: name.to_owned(), index, shards, fields, places, ids, path, noted }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn version(&self) -> Version {
        self.index.version()
    }

    /// How deep the build looked that made its index.
    pub fn depth(&self) -> Depth {
        self.index.depth()
    }

    /// All that is known of the samples of the shard at this place in the list.
    pub(super) fn shard_samples(&self, shard: usize) -> Result<ShardSamples, CatalogError> {
        self.index.shard_samples(shard).map_err(|error| self.damaged(error))
    }

    /// How many samples there are; ordinals are `0..samples()`.
    pub fn samples(&self) -> u64 {
        self.index.samples()
    }

    /// Sum of all fields of all samples.
    pub fn bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// The most bytes that the fields of one sample have together.
    pub fn largest_sample(&self) -> u64 {
        self.index.largest_sample()
    }

    /// By field id.
    pub fn fields(&self) -> &[FieldStats] {
        &self.fields
    }

    pub fn field_id(&self, name: &str) -> Option<FieldId> {
        let place = self.fields.binary_search_by(|field| field.name.as_str().cmp(name)).ok()?;
        FieldId::try_from(place).ok()
    }

    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The shards' files, in order: what a store is made with.
    pub fn shard_files(&self) -> Vec<ShardFile> {
        self.shards.iter().map(|shard| shard.file.clone()).collect()
    }

    pub fn sample(&self, ordinal: u64) -> Result<Sample<'_>, CatalogError> {
        let entry = self.entry(ordinal)?;
        let key = self.index.key(&entry).map_err(|error| self.damaged(error))?;
        let mut fields = Vec::new();
        for field in entry.fields(&self.index) {
            let (place, extent) = field.map_err(|error| self.damaged(error))?;
            fields.push(SampleExtent { field: self.ids[usize::from(place)], extent });
        }
        fields.sort_unstable_by_key(|field| field.field);
        Ok(Sample { ordinal, key, shard: entry.shard, fields })
    }

    /// Where one field of one sample lies, or `None` when the sample does not have it.
    pub fn extent(&self, ordinal: u64, field: FieldId) -> Result<Option<Extent>, CatalogError> {
        let place = self.place(field)?;
        self.entry(ordinal)?.field(&self.index, place).map_err(|error| self.damaged(error))
    }

    /// Appends one element per field to `out`, in the order of `fields`. Allocates nothing but what `out` needs to grow.
    /// On an error `out` is as it was.
    pub fn extents(&self, ordinal: u64, fields: &[FieldId], out: &mut Vec<Option<Extent>>) -> Result<(), CatalogError> {
        let entry = self.entry(ordinal)?;
        let before = out.len();
        for field in fields {
            let place = self.place(*field);
            let extent = place.and_then(|place| entry.field(&self.index, place).map_err(|error| self.damaged(error)));
            match extent {
                Ok(extent) => out.push(extent),
                Err(error) => {
                    out.truncate(before);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The ordinals of the samples with this key, ascending. Keys need not be unique.
    pub fn find(&self, key: &[u8]) -> Result<Vec<u64>, CatalogError> {
        self.index.find(key).map_err(|error| self.damaged(error))
    }

    /// The JSON document of the dataset. `max_group_bytes` is the server's limit for one group.
    pub fn describe(&self, max_group_bytes: u64) -> Description {
        let fields = self.fields.iter().cloned();
        let shards = self.shards.iter().map(|shard| ShardDescription {
            name: shard.file.name.clone(),
            bytes: shard.file.identity.size,
            samples: shard.samples,
            digest: blake3::Hash::from_bytes(shard.digest).to_hex().to_string(),
        });
        Description {
            wire: WireRange::ours(),
            name: self.name.clone(),
            version: self.version().to_string(),
            samples: self.samples(),
            bytes: self.bytes(),
            largest_sample: self.largest_sample(),
            fields: fields
                .map(|FieldStats { name, count, min, max, bytes }| FieldDescription { name, count, min, max, bytes })
                .collect(),
            shards: shards.collect(),
            max_group_bytes,
        }
    }

    /// The JSON document of one sample. Bytes of the key that are not UTF-8 are replaced.
    pub fn describe_sample(&self, ordinal: u64) -> Result<SampleDescription, CatalogError> {
        let sample = self.sample(ordinal)?;
        let fields = sample.fields.iter().map(|SampleExtent { field, extent }| SampleField {
            name: self.fields[usize::from(*field)].name.clone(),
            offset: extent.offset,
            bytes: extent.len,
            crc32c: extent.crc.map(|crc| format!("{crc:08x}")),
        });
        Ok(SampleDescription {
            ordinal,
            key: String::from_utf8_lossy(sample.key).into_owned(),
            shard: self.shards[sample.shard as usize].file.name.clone(),
            fields: fields.collect(),
        })
    }

    fn entry(&self, ordinal: u64) -> Result<Entry<'_>, CatalogError> {
        let entry = self.index.entry(ordinal).map_err(|error| self.damaged(error))?;
        entry.ok_or_else(|| CatalogError::NoSuchSample { dataset: self.name.clone(), ordinal, samples: self.samples() })
    }

    fn place(&self, field: FieldId) -> Result<u16, CatalogError> {
        self.places.get(usize::from(field)).copied().ok_or_else(|| CatalogError::NoSuchField {
            dataset: self.name.clone(),
            field,
            fields: self.fields.len(),
        })
    }

    #[cold]
    fn damaged(&self, error: IndexError) -> CatalogError {
        let detail = error.to_string();
        if !self.noted.swap(true, Ordering::Relaxed) {
            tracing::error!(dataset = self.name, index = ?self.path, detail, "the index is damaged");
            if let Some(path) = &self.path {
                super::index::suspect(path, &detail);
            }
        }
        CatalogError::Damaged { dataset: self.name.clone(), detail }
    }
}

//! A dataset whose index is open.

use forebay_transport::Version;
use forebay_transport::link::FieldId;
use forebay_transport::wire::describe::{Description, SampleDescription};

use super::{Extent, ShardFile};

/// Why the catalog has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    #[error("dataset {dataset} has {samples} samples: there is no sample {ordinal}")]
    NoSuchSample { dataset: String, ordinal: u64, samples: u64 },
    #[error("dataset {dataset} has {fields} fields: there is no field {field}")]
    NoSuchField { dataset: String, field: FieldId, fields: usize },
    /// The index file is damaged; the dataset cannot be served until the index has been built again.
    #[error("dataset {dataset}: its index is damaged: {detail}")]
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
}

impl Dataset {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn version(&self) -> Version {
        todo!()
    }

    /// How many samples there are; ordinals are `0..samples()`.
    pub fn samples(&self) -> u64 {
        todo!()
    }

    /// Sum of all fields of all samples.
    pub fn bytes(&self) -> u64 {
        todo!()
    }

    /// The most bytes that the fields of one sample have together.
    pub fn largest_sample(&self) -> u64 {
        todo!()
    }

    /// By field id.
    pub fn fields(&self) -> &[FieldStats] {
        todo!()
    }

    pub fn field_id(&self, name: &str) -> Option<FieldId> {
        todo!("{name}")
    }

    pub fn shards(&self) -> &[Shard] {
        todo!()
    }

    /// The shards' files, in order: what a store is made with.
    pub fn shard_files(&self) -> Vec<ShardFile> {
        todo!()
    }

    pub fn sample(&self, ordinal: u64) -> Result<Sample<'_>, CatalogError> {
        todo!("{ordinal}")
    }

    /// Where one field of one sample lies, or `None` when the sample does not have it.
    pub fn extent(&self, ordinal: u64, field: FieldId) -> Result<Option<Extent>, CatalogError> {
        todo!("{ordinal} {field}")
    }

    /// Appends one element per field to `out`, in the order of `fields`. Allocates nothing but what `out` needs to grow.
    /// On an error `out` is as it was.
    pub fn extents(&self, ordinal: u64, fields: &[FieldId], out: &mut Vec<Option<Extent>>) -> Result<(), CatalogError> {
        todo!("{ordinal} {fields:?} {out:?}")
    }

    /// The ordinals of the samples with this key, ascending. Keys need not be unique.
    pub fn find(&self, key: &[u8]) -> Result<Vec<u64>, CatalogError> {
        todo!("{key:?}")
    }

    /// The JSON document of the dataset. `max_group_bytes` is the server's limit for one group.
    pub fn describe(&self, max_group_bytes: u64) -> Description {
        todo!("{max_group_bytes}")
    }

    /// The JSON document of one sample. Bytes of the key that are not UTF-8 are replaced.
    pub fn describe_sample(&self, ordinal: u64) -> Result<SampleDescription, CatalogError> {
        todo!("{ordinal}")
    }
}

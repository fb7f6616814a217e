//! What a loader must know about a dataset.

use std::sync::Arc;

use forebay_transport::Version;
use forebay_transport::link::FieldId;
use forebay_transport::wire::describe::Description;

/// A dataset on a server, and the fields wanted of it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The server and the fabric, for messages.
    pub server: Arc<str>,
    pub fabric: Arc<str>,
    pub dataset: Arc<str>,
    pub version: Version,
    pub samples: u64,
    /// The fields wanted, and their names, in the same order. Empty only if there are no samples.
    pub fields: Arc<[FieldId]>,
    pub names: Arc<[Arc<str>]>,
    /// Bytes of the fields wanted, of a sample on average and of the largest (an upper bound).
    pub mean_sample: u64,
    pub largest_sample: u64,
    /// The most bytes the server places for one group of more than one sample.
    pub max_group_bytes: u64,
    /// The shards in order, each with its first ordinal. May be empty: then errors name no shard.
    pub shards: Arc<[(u64, Arc<str>)]>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    #[error("the server describes dataset {dataset} with a version that is none: {version:?}")]
    Version { dataset: String, version: String },
    #[error("dataset {dataset} has no field {field:?}; it has: {has}")]
    NoField { dataset: String, field: String, has: String },
    #[error("no field was asked for")]
    NoFields,
    #[error("dataset {dataset} has {count} fields, more than can be asked for together: choose some")]
    TooManyFields { dataset: String, count: usize },
}

impl Source {
    /// From a server's description. `fields` by name, or all when `None`.
    pub fn new(
        server: &str,
        fabric: &str,
        description: &Description,
        fields: Option<&[&str]>,
    ) -> Result<Source, SourceError> {
        let dataset = &description.name;
        let version = Version::parse(&description.version)
            .ok_or_else(|| SourceError::Version { dataset: dataset.clone(), version: description.version.clone() })?;
        let chosen = match fields {
            None => (0..description.fields.len()).collect(),
            Some(names) => names.iter().map(|name| find(description, name)).collect::<Result<Vec<_>, _>>()?,
        };
        // A dataset without samples has no fields either: its epochs are empty, which is no error.
        if chosen.is_empty() && (fields.is_some() || description.samples > 0) {
            return Err(SourceError::NoFields);
        }
        if chosen.len() > forebay_transport::wire::MAX_FIELDS || chosen.iter().any(|&id| id > FieldId::MAX as usize) {
            return Err(SourceError::TooManyFields { dataset: dataset.clone(), count: chosen.len() });
        }
        let of = |id: &usize| &description.fields[*id];
        let total = chosen.iter().map(|id| of(id).bytes).fold(0, u64::saturating_add);
        let largest = chosen.iter().map(|id| of(id).max).fold(0, u64::saturating_add);
        let shards = description.shards.iter().scan(0u64, |first, shard| {
            let this = (*first, Arc::from(shard.name.as_str()));
            *first = first.saturating_add(shard.samples);
            Some(this)
        });
        Ok(Source {
            server: server.into(),
            fabric: fabric.into(),
            dataset: dataset.as_str().into(),
            version,
            samples: description.samples,
            fields: chosen.iter().map(|&id| id as FieldId).collect(),
            names: chosen.iter().map(|id| Arc::from(of(id).name.as_str())).collect(),
            mean_sample: total / description.samples.max(1),
            largest_sample: largest.min(description.largest_sample),
            max_group_bytes: description.max_group_bytes,
            shards: shards.collect(),
        })
    }

    /// The name of the shard that holds a sample, if it is known.
    pub fn shard(&self, ordinal: u64) -> Option<Arc<str>> {
        let after = self.shards.partition_point(|&(first, _)| first <= ordinal);
        self.shards[..after].last().map(|(_, name)| name.clone())
    }
}

fn find(description: &Description, name: &str) -> Result<usize, SourceError> {
    let fields = &description.fields;
    fields.iter().position(|field| field.name == name).ok_or_else(|| SourceError::NoField {
        dataset: description.name.clone(),
        field: name.into(),
        has: fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

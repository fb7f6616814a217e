//! From shards on this machine to a dataset that is served: index, open, enter into the registry.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_transport::Version;

use crate::catalog::{self, BuildError, BuildRequest, Damage, Monitor, Progress, SourceFile};
use crate::serve::registry::{Registry, Served, State};
use crate::store::{PreadConfig, PreadStore};

/// What to serve, and under which name.
#[derive(Clone, Debug)]
pub struct Publish {
    pub name: String,
    /// The shards, in order.
    pub sources: Vec<SourceFile>,
    /// The index file; its folder exists.
    pub index: PathBuf,
    /// An index made elsewhere, for shards that it knows: see [`BuildRequest::portable`].
    pub portable: Option<PathBuf>,
    /// Leave damaged shards out, which makes another version.
    pub skip_damaged: bool,
    pub store: PreadConfig,
}

/// A dataset that is now served.
#[derive(Clone, Debug)]
pub struct Published {
    pub version: Version,
    pub samples: u64,
    pub bytes: u64,
    pub shards: usize,
    /// Bytes of shards that had to be read; the others were known from an earlier index.
    pub bytes_read: u64,
    pub skipped: Vec<Damage>,
    /// Why an earlier index was thrown away, if one was.
    pub discarded: Option<String>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error("dataset {dataset}: cannot start its readers: {source}")]
    Store { dataset: String, source: std::io::Error },
}

/// Indexes what is not indexed yet and serves it. The registry tells how far it is meanwhile, and why not if it fails.
/// Blocks; setting `cancel` ends it soon.
pub fn publish(
    registry: &Registry,
    publish: &Publish,
    progress: &(dyn Fn(&Progress) + Sync),
    cancel: &AtomicBool,
) -> Result<Published, PublishError> {
    registry.set(&publish.name, State::Indexing { progress: 0.0 });
    let done = attempt(registry, publish, progress, cancel);
    if let Err(error) = &done {
        registry.set(&publish.name, State::Damaged { error: error.to_string() });
    }
    done
}

fn attempt(
    registry: &Registry,
    publish: &Publish,
    progress: &(dyn Fn(&Progress) + Sync),
    cancel: &AtomicBool,
) -> Result<Published, PublishError> {
    let Publish { name, sources, index, portable, skip_damaged, store } = publish;
    let request = BuildRequest {
        skip_damaged: *skip_damaged,
        portable: portable.clone(),
        ..BuildRequest::new(name, sources.clone(), index.clone())
    };
    let watch = |now: &Progress| {
        let share = now.bytes_done as f64 / now.bytes_total.max(1) as f64;
        registry.set(name, State::Indexing { progress: share });
        progress(now);
    };
    let built = catalog::build(&request, Monitor { progress: &watch, cancel })?;
    let store = PreadStore::new(built.dataset.shard_files(), *store)
        .map_err(|source| PublishError::Store { dataset: name.clone(), source })?;
    let dataset = built.dataset;
    let published = Published {
        version: dataset.version(),
        samples: dataset.samples(),
        bytes: dataset.bytes(),
        shards: dataset.shards().len(),
        bytes_read: built.bytes_read,
        skipped: built.skipped,
        discarded: built.discarded,
    };
    registry.set(name, State::Ready(Arc::new(Served::new(dataset, Arc::new(store)))));
    Ok(published)
}

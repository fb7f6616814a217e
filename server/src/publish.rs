//! From shards on this machine to a dataset that is served: index, open, enter into the registry.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_transport::Version;

use crate::catalog::{self, BuildError, BuildRequest, Built, Damage, Depth, Monitor, Place, Progress, SourceFile};
use crate::serve::registry::{Registry, Served, State};
use crate::store::Stores;

/// What to serve, and under which name.
#[derive(Clone, Debug)]
pub struct Publish {
    pub name: String,
    /// The shards, in order.
    pub sources: Vec<SourceFile>,
    /// The index file; its folder exists.
    pub index: PathBuf,
    /// Write no index: see [`BuildRequest::in_memory`].
    pub in_memory: bool,
    /// An index made elsewhere, for shards that it knows: see [`BuildRequest::portable`].
    pub portable: Option<Place>,
    /// Leave damaged shards out, which makes another version.
    pub skip_damaged: bool,
    /// Serve as soon as the shards' headers are known, without checksums and under a provisional version: [`complete`]
    /// then reads the rest, at no more than this many bytes in a second. An index that is there already is used.
    pub defer: Option<u64>,
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

/// Indexes what is not indexed yet and serves it, out of a store that `stores` makes. The registry tells how far it is
/// meanwhile, and why not if it fails. Blocks; setting `cancel` ends it soon.
pub fn publish(
    registry: &Registry,
    publish: &Publish,
    stores: &Stores,
    progress: &(dyn Fn(&Progress) + Sync),
    cancel: &AtomicBool,
) -> Result<Published, PublishError> {
    registry.set(&publish.name, State::Indexing { progress: 0.0 });
    let done = attempt(registry, publish, stores, progress, cancel);
    if let Err(error) = &done {
        registry.set(&publish.name, State::Damaged { error: error.to_string() });
    }
    done
}

impl Publish {
    fn request(&self) -> BuildRequest {
        BuildRequest {
            skip_damaged: self.skip_damaged,
            portable: self.portable.clone(),
            in_memory: self.in_memory,
            ..BuildRequest::new(&self.name, self.sources.clone(), self.index.clone())
        }
    }
}

fn attempt(
    registry: &Registry,
    publish: &Publish,
    stores: &Stores,
    progress: &(dyn Fn(&Progress) + Sync),
    cancel: &AtomicBool,
) -> Result<Published, PublishError> {
    let name = &publish.name;
    let mut request = publish.request();
    // Over a network one request for each header would take longer than all the bytes do.
    let here = publish.sources.iter().all(|source| !source.place.is_object());
    if here && publish.defer.is_some() && catalog::ready(&request)?.is_none() {
        request.index = catalog::headers_of(&request.index);
        request.depth = Depth::Headers;
        request.portable = None;
    }
    let watch = |now: &Progress| {
        let share = now.bytes_done as f64 / now.bytes_total.max(1) as f64;
        registry.set(name, State::Indexing { progress: share });
        progress(now);
    };
    let built = catalog::build(&request, Monitor { progress: &watch, cancel })?;
    let store = stores
        .open(built.dataset.shard_files())
        .map_err(|source| PublishError::Store { dataset: name.clone(), source })?;
    let published = published(&built);
    // Whoever reads under the version it had before may go on, also after a restart.
    let before = match request.depth {
        Depth::Content => catalog::provisional(&catalog::headers_of(&publish.index), &built.dataset),
        Depth::Headers => None,
    };
    let served = Served::new(built.dataset, store).known_as(before);
    registry.set(name, State::Ready(Arc::new(served)));
    Ok(published)
}

/// Reads what [`publish`] left for later, and gives the dataset its final version. Whoever reads it under the provisional
/// one may go on, and gets checksums from then on; whoever asks what there is learns the final one. `None` when nothing
/// was left for later. Blocks; setting `cancel` ends it soon, and what it learnt is kept.
///
/// When it fails the dataset is served as before, unless its shards have changed.
pub fn complete(
    registry: &Registry,
    publish: &Publish,
    progress: &(dyn Fn(&Progress) + Sync),
    cancel: &AtomicBool,
) -> Result<Option<Published>, PublishError> {
    let before = match registry.get(&publish.name) {
        Some(State::Ready(served)) if served.dataset.depth() == Depth::Headers => served,
        _ => return Ok(None),
    };
    // One thread: readers come first.
    let request = BuildRequest { rate: publish.defer, threads: 1, ..publish.request() };
    let built = match catalog::build(&request, Monitor { progress, cancel }) {
        Ok(built) => built,
        Err(error) => {
            if let BuildError::Changed { .. } = error {
                registry.stop(&before, &error.to_string());
            }
            return Err(error.into());
        }
    };
    let same = before.dataset.shard_files() == built.dataset.shard_files()
        && before.dataset.samples() == built.dataset.samples();
    if !same {
        registry.stop(&before, "its shards changed before their content was read");
        let dataset = publish.name.clone();
        return Err(BuildError::Changed { dataset, shard: "(one of them)".to_owned() }.into());
    }
    let published = published(&built);
    let after = Served::new(built.dataset, before.store.clone()).known_as(Some(before.dataset.version()));
    registry.succeed(&before, Arc::new(after));
    Ok(Some(published))
}

fn published(built: &Built) -> Published {
    let dataset = &built.dataset;
    Published {
        version: dataset.version(),
        samples: dataset.samples(),
        bytes: dataset.bytes(),
        shards: dataset.shards().len(),
        bytes_read: built.bytes_read,
        skipped: built.skipped.clone(),
        discarded: built.discarded.clone(),
    }
}

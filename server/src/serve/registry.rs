//! Which datasets there are, and whether they can be served now.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use forebay_transport::Version;
use forebay_transport::wire::describe::{DatasetState, DatasetSummary};

use crate::catalog::Dataset;
use crate::store::Store;

/// A dataset that is served: its catalog, and the storage its shards are in.
pub struct Served {
    pub dataset: Dataset,
    pub store: Arc<dyn Store>,
    /// The provisional version that it had before its shards' content was read.
    before: Option<Version>,
    /// Why it is served no more, once it is not.
    stopped: OnceLock<String>,
}

impl Served {
    /// `store` must have been made with the dataset's shards, in their order.
    pub fn new(dataset: Dataset, store: Arc<dyn Store>) -> Served {
        Served { dataset, store, before: None, stopped: OnceLock::new() }
    }

    /// The same, which those who know it by its provisional version may go on reading under that.
    pub fn known_as(self, before: Option<Version>) -> Served {
        Served { before, ..self }
    }

    /// Whether it is what this version names.
    pub fn is(&self, version: Version) -> bool {
        version == self.dataset.version() || Some(version) == self.before
    }

    /// Why nothing of it may be served any more: a shard is not what was indexed.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.get().map(String::as_str)
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("dataset", &self.dataset.name()).field("stopped", &self.stopped()).finish()
    }
}

/// What a dataset is at the moment.
#[derive(Clone, Debug)]
pub enum State {
    /// Being indexed; the share of the shards' bytes that is, 0 to 1.
    Indexing {
        progress: f64,
    },
    Ready(Arc<Served>),
    /// It cannot be served: why, for people.
    Damaged {
        error: String,
    },
    /// Its shards changed after they were indexed: which version is gone, and why.
    Changed {
        version: Version,
        error: String,
    },
}

/// The datasets of a server by name. They change state while it runs; whoever serves takes a state once per request.
#[derive(Debug, Default)]
pub struct Registry {
    states: RwLock<BTreeMap<String, State>>,
}

impl Registry {
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Enters a dataset, or replaces what it was.
    pub fn set(&self, name: impl Into<String>, state: State) {
        self.write().insert(name.into(), state);
    }

    pub fn get(&self, name: &str) -> Option<State> {
        self.read().get(name).cloned()
    }

    /// Stops serving this very dataset, for everybody and in mid-answer; not one that has taken its place meanwhile.
    /// Whether this was the call that stopped it.
    pub fn stop(&self, served: &Arc<Served>, why: &str) -> bool {
        let first = served.stopped.set(why.to_owned()).is_ok();
        let mut states = self.write();
        let state = states.get_mut(served.dataset.name());
        if let Some(state) = state.filter(|state| matches!(state, State::Ready(now) if Arc::ptr_eq(now, served))) {
            *state = State::Changed { version: served.dataset.version(), error: why.to_owned() };
        }
        first
    }

    /// Puts `after` in the place of `before`, if that is still what is served. Whether it was.
    pub fn succeed(&self, before: &Arc<Served>, after: Arc<Served>) -> bool {
        let mut states = self.write();
        let state = states.get_mut(before.dataset.name());
        let state = state.filter(|state| matches!(state, State::Ready(now) if Arc::ptr_eq(now, before)));
        state.map(|state| *state = State::Ready(after)).is_some()
    }

    /// A line for each, by name.
    pub fn list(&self) -> Vec<DatasetSummary> {
        self.read().iter().map(|(name, state)| summary(name, state)).collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, State>> {
        // Nothing done under the lock leaves half a change behind.
        self.states.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, State>> {
        self.states.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn summary(name: &str, state: &State) -> DatasetSummary {
    let bare = DatasetSummary {
        name: name.to_owned(),
        state: DatasetState::Ready,
        version: None,
        samples: None,
        bytes: None,
        error: None,
        progress: None,
    };
    match state {
        State::Indexing { progress } => {
            DatasetSummary { state: DatasetState::Indexing, progress: Some(*progress), ..bare }
        }
        State::Ready(served) => DatasetSummary {
            version: Some(served.dataset.version().to_string()),
            samples: Some(served.dataset.samples()),
            bytes: Some(served.dataset.bytes()),
            ..bare
        },
        State::Damaged { error } => DatasetSummary { state: DatasetState::Damaged, error: Some(error.clone()), ..bare },
        State::Changed { error, .. } => {
            DatasetSummary { state: DatasetState::Changed, error: Some(error.clone()), ..bare }
        }
    }
}

//! Datasets on this machine, named by their shards: which shards, and where their index is.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use forebay_server::catalog::{self, Place, SourceFile};

use crate::failure::Failure;
use crate::progress::Progress;
use crate::units::size;

/// What a user named by paths.
#[derive(Debug)]
pub struct Shards {
    /// For messages.
    pub name: String,
    pub sources: Vec<SourceFile>,
    /// Indexes that came to light while objects elsewhere were listed.
    pub indexes: Vec<Place>,
    /// What `index` makes when it is not told otherwise: beside the shards.
    pub beside: Option<PathBuf>,
}

impl Shards {
    /// The shards that these files, folders, patterns and brace lists name, in order.
    pub fn find(paths: &[String]) -> Result<Shards, Failure> {
        let (mut sources, mut indexes) = (Vec::new(), Vec::new());
        for path in paths {
            let mut found = catalog::find(path).map_err(Failure::usage)?;
            sources.append(&mut found.shards);
            indexes.append(&mut found.indexes);
        }
        distinct("the dataset", &sources)?;
        let stem = match paths {
            [path] => stem(path),
            _ => None,
        };
        let root = catalog::root(&sources);
        let named = root.as_ref().and_then(|root| root.file_name()).map(|name| name.to_string_lossy().into_owned());
        let name = stem.clone().or(named).unwrap_or_else(|| "shards".to_owned());
        let file = format!("{}.{}", stem.as_deref().unwrap_or("forebay"), catalog::EXTENSION);
        let beside = root.filter(|_| paths.len() == 1).map(|root| root.join(file));
        Ok(Shards { name, sources, indexes, beside })
    }

    /// The index in the user's cache that belongs to these paths.
    pub fn cached(&self, paths: &[String]) -> Result<PathBuf, Failure> {
        let home = || std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let xdg = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
        let cache = xdg.or_else(|| Some(home()?.join(".cache"))).ok_or_else(|| {
            Failure::usage(
                "neither $HOME nor $XDG_CACHE_HOME says where to keep the index: make one with `forebay index`",
            )
        })?;
        let mut hasher = blake3::Hasher::new();
        for path in paths {
            let path = match catalog::is_url(path) {
                true => path.into(),
                false => std::path::absolute(path).unwrap_or_else(|_| path.into()),
            };
            hasher.update(path.as_os_str().as_encoded_bytes()).update(&[0]);
        }
        let plain: String = self.name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
        let file = format!("{plain}-{}.{}", &hasher.finalize().to_hex()[..16], catalog::EXTENSION);
        Ok(cache.join("forebay").join(file))
    }

    /// The index to begin from: the one named, or one that lies beside the shards.
    pub fn portable(&self, named: Option<&Path>) -> Option<Place> {
        named.map(Place::of).or_else(|| catalog::beside(&self.sources, &self.indexes))
    }

    /// Whether any of them is an object elsewhere.
    pub fn elsewhere(&self) -> bool {
        self.sources.iter().any(|source| source.place.is_object())
    }
}

/// Refuses two shards of one name.
pub fn distinct(dataset: &str, sources: &[SourceFile]) -> Result<(), Failure> {
    let mut seen = std::collections::BTreeSet::new();
    match sources.iter().find(|source| !seen.insert(&source.name)) {
        Some(twice) => Err(Failure::usage(format!("{dataset}: two shards are called {}", twice.name))),
        None => Ok(()),
    }
}

/// What the files that a pattern names have in common at the start of their names; `None` of a folder.
fn stem(path: &str) -> Option<String> {
    if Path::new(path).is_dir() {
        return None;
    }
    let wild = path.find(['*', '?', '[', '{']).unwrap_or(path.len());
    let file = &path[path[..wild].rfind('/').map_or(0, |slash| slash + 1)..wild];
    let stem = file.strip_suffix(".tar").unwrap_or(file).trim_end_matches(['-', '_', '.', ' ']);
    (!stem.is_empty()).then(|| stem.to_owned())
}

/// Shows how far an index is.
pub struct Watch {
    what: String,
    started: Instant,
    progress: Mutex<Progress>,
}

impl Watch {
    pub fn new(what: impl Into<String>) -> Watch {
        Watch { what: what.into(), started: Instant::now(), progress: Mutex::new(Progress::new()) }
    }

    pub fn build(&self, now: &catalog::Progress) {
        let shards = format!(" in {} of {} shards", now.shards_done, now.shards_total);
        self.show(now.bytes_done, now.bytes_total, &shards);
    }

    pub fn show(&self, done: u64, total: u64, more: &str) {
        self.lock().show(|| {
            let rate = done as f64 / self.started.elapsed().as_secs_f64();
            let left = total.saturating_sub(done) as f64 / rate.max(1.0);
            let (done, total, rate) = (size(done), size(total), rate / 1e9);
            format!("{}: {done} of {total}{more}, {rate:.2} GB/s, {left:.0} s left", self.what)
        });
    }

    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::stem;

    #[test]
    fn patterns_have_stems() {
        for (path, expected) in [
            ("/data/imagenet-train-{000000..001281}.tar", Some("imagenet-train")),
            ("/data/*.tar", None),
            ("a/b/one.tar", Some("one")),
            ("train_[0-9]*.tar", Some("train")),
            ("/", None),
        ] {
            assert_eq!(stem(path).as_deref(), expected, "{path}");
        }
    }
}

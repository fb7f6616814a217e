//! Datasets on this machine, named by their shards: which shards, and where their index is.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebay_server::catalog::{self, Place, SourceFile};

use crate::failure::Failure;
use crate::progress::Progress;
use crate::units::{size, span};

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
    /// When the first figure came, and what was done then: that was known already, and says nothing of the speed.
    begun: OnceLock<(Instant, u64)>,
    progress: Mutex<Progress>,
}

impl Watch {
    pub fn new(what: impl Into<String>) -> Watch {
        Watch { what: what.into(), begun: OnceLock::new(), progress: Mutex::new(Progress::new()) }
    }

    pub fn build(&self, now: &catalog::Progress) {
        let damaged = match now.damaged.len() {
            0 => String::new(),
            damaged => format!(" ({damaged} damaged)"),
        };
        let shards = format!(" in {} of {} shards{damaged}", now.shards_done, now.shards_total);
        self.show(now.bytes_done, now.bytes_total, &shards);
    }

    pub fn show(&self, done: u64, total: u64, more: &str) {
        let (begun, known) = *self.begun.get_or_init(|| (Instant::now(), done));
        let speed = || speed(done.saturating_sub(known), total.saturating_sub(done), begun.elapsed());
        self.lock().show(|| format!("{}: {} of {}{more}{}", self.what, size(done), size(total), speed()));
    }

    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// How fast it is, and how long that would take for what is left; nothing as long as nothing can be said.
fn speed(done: u64, left: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64();
    if done == 0 || !rate.is_finite() {
        return String::new();
    }
    format!(", {:.2} GB/s, {} left", rate / 1e9, span((left as f64 / rate) as u64))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{speed, stem};

    /// What was known before is no part of the speed.
    #[test]
    fn speed_is_of_what_was_read() {
        assert_eq!(speed(3_000_000_000, 9_000_000_000, Duration::from_secs(2)), ", 1.50 GB/s, 6 s left");
        assert_eq!(speed(2 << 30, 115 << 40, Duration::from_secs(1)), ", 2.15 GB/s, 16 h 21 min left");
        assert_eq!(speed(0, 5, Duration::from_secs(1)), "");
        assert_eq!(speed(1, 5, Duration::ZERO), "");
    }

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

//! Indexes that travel: made by `forebay index`, they lie beside the shards or anywhere else, and name shards relative to
//! the dataset's root.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use forebay_transport::Version;

use super::index::{Index, IndexError};
use super::{BuildError, Dataset, Depth, Place, ShardFile, SourceFile};

/// How index files' names end.
pub const EXTENSION: &str = "fbi";
/// The most index files that are looked at in one folder.
const LOOKED_AT: usize = 64;

/// The folder that the names of all these shards are relative to, if it is one.
pub fn root(sources: &[SourceFile]) -> Option<PathBuf> {
    let of = |source: &SourceFile| {
        let depth = Path::new(&source.name).components().count();
        source.place.file()?.ancestors().nth(depth).map(Path::to_owned)
    };
    let first = of(sources.first()?)?;
    sources.iter().all(|source| of(source).as_ref() == Some(&first)).then_some(first)
}

/// The index that lies beside these shards: one that knows exactly them, else one that knows some of them. `indexes` are
/// those seen beside objects; beside files it is looked for. One that cannot be read is passed over.
pub fn beside(sources: &[SourceFile], indexes: &[Place]) -> Option<Place> {
    let mut candidates = indexes.to_vec();
    if let Some(root) = root(sources) {
        let entries = fs::read_dir(&root).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let files = entries.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
        candidates.extend(files.map(Place::File));
    }
    candidates.sort();
    candidates.truncate(LOOKED_AT);
    let names: HashSet<&str> = sources.iter().map(|source| source.name.as_str()).collect();
    let mut some = None;
    for place in candidates {
        let index = match open_index(&place) {
            Ok(index) => index,
            Err(error) => {
                tracing::debug!(index = %place, %error, "passed over");
                continue;
            }
        };
        if index.depth() != Depth::Content {
            continue;
        }
        let known = || index.shards().iter().map(|shard| shard.name.as_str());
        if known().eq(sources.iter().map(|source| source.name.as_str())) {
            return Some(place);
        }
        if some.is_none() && known().any(|name| names.contains(name)) {
            some = Some(place);
        }
    }
    some
}

/// Opens an index file, or one that is an object, which is read into memory.
pub(super) fn open_index(place: &Place) -> Result<Index, IndexError> {
    match place {
        Place::File(path) => Index::open(path),
        #[cfg(feature = "remote")]
        Place::Object(url) => Index::map(&crate::remote::index(url)?),
        #[cfg(not(feature = "remote"))]
        Place::Object(_) => Err(io::Error::other("this program was built without the feature `remote`").into()),
    }
}

/// The names of the shards of an index, none of which leads out of its folder.
#[cfg(feature = "remote")]
pub(crate) fn shards_of(index: &fs::File) -> Result<Vec<String>, IndexError> {
    let index = Index::map(index)?;
    let names = index.shards().iter().map(|shard| inside(&shard.name).map(str::to_owned));
    names.collect::<Result<_, String>>().map_err(IndexError::Damaged)
}

/// The name of a shard, if it does not lead out of its folder.
fn inside(name: &str) -> Result<&str, String> {
    let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    match inside && !name.contains('\0') {
        true => Ok(name),
        false => Err(format!("it names a shard {name:?}, which does not lie below its folder")),
    }
}

/// Where the index of the shards' headers is, of a dataset whose own index is `index`.
pub fn headers_of(index: &Path) -> PathBuf {
    index.with_extension(format!("headers.{EXTENSION}"))
}

/// The provisional version that `dataset` had, if `headers` is the index of the very same shards' headers.
pub fn provisional(headers: &Path, dataset: &Dataset) -> Option<Version> {
    let index = Index::open(headers).ok().filter(|index| index.depth() == Depth::Headers)?;
    let shards = index.shards().iter().map(|shard| (&shard.name, shard.identity));
    let files = dataset.shards().iter().map(|shard| (&shard.file.name, shard.file.identity));
    (index.samples() == dataset.samples() && shards.eq(files)).then(|| index.version())
}

/// Opens a dataset by its index alone: its shards lie under `root`, and are as they were indexed, which is not looked at.
/// For `verify`, and for whoever asks what there is.
///
/// # Errors
/// When the index cannot be used, or names shards outside of `root`.
pub fn open(name: &str, index: &Path, root: &Path) -> Result<Dataset, BuildError> {
    open_with(name, &index.into(), |shard| Ok(root.join(inside(shard)?).into()))
}

/// The same of shards that lie where `sources` says, by name.
///
/// # Errors
/// When the index cannot be used, or names a shard that `sources` does not.
pub fn open_at(name: &str, index: &Place, sources: &[SourceFile]) -> Result<Dataset, BuildError> {
    let places: HashMap<&str, &Place> = sources.iter().map(|source| (source.name.as_str(), &source.place)).collect();
    open_with(name, index, |shard| match places.get(shard) {
        Some(place) => Ok((*place).clone()),
        None => Err(format!("it names a shard {shard:?}, which is not among those that were named")),
    })
}

fn open_with(name: &str, index: &Place, place: impl Fn(&str) -> Result<Place, String>) -> Result<Dataset, BuildError> {
    let path = index.to_path();
    let fail = |source| BuildError::Open { dataset: name.to_owned(), path: path.clone(), source };
    let opened = open_index(index).map_err(|error| match error {
        IndexError::Missing => fail(io::Error::new(io::ErrorKind::NotFound, "there is no such file")),
        IndexError::Io(source) => fail(source),
        IndexError::Future(format) => BuildError::Future { dataset: name.to_owned(), path: path.clone(), format },
        IndexError::Damaged(why) => fail(io::Error::other(why)),
    })?;
    let mut files = Vec::with_capacity(opened.shards().len());
    for shard in opened.shards() {
        let place = place(&shard.name).map_err(|why| fail(io::Error::other(why)))?;
        files.push(ShardFile { name: shard.name.clone(), place, identity: shard.identity });
    }
    Ok(Dataset::new(name, index.file(), opened, files))
}

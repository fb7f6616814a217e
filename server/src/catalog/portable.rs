//! Indexes that travel: made by `forebay index`, they lie beside the shards or anywhere else, and name shards relative to
//! the dataset's root.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use forebay_transport::Version;

use super::index::{Index, IndexError};
use super::{BuildError, Dataset, Depth, ShardFile, SourceFile};

/// How index files' names end.
pub const EXTENSION: &str = "fbi";
/// The most index files that are looked at in one folder.
const LOOKED_AT: usize = 64;

/// The folder that the names of all these shards are relative to, if it is one.
pub fn root(sources: &[SourceFile]) -> Option<PathBuf> {
    let of = |source: &SourceFile| {
        let depth = Path::new(&source.name).components().count();
        source.path.ancestors().nth(depth).map(Path::to_owned)
    };
    let first = of(sources.first()?)?;
    sources.iter().all(|source| of(source).as_ref() == Some(&first)).then_some(first)
}

/// The index that lies beside these shards: one that knows exactly them, else one that knows some of them.
pub fn beside(sources: &[SourceFile]) -> Option<PathBuf> {
    let root = root(sources)?;
    let entries = fs::read_dir(&root).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)).collect();
    files.sort();
    files.truncate(LOOKED_AT);
    let names: HashSet<&str> = sources.iter().map(|source| source.name.as_str()).collect();
    let mut some = None;
    for path in files {
        let Ok(index) = Index::open(&path) else { continue };
        if index.depth() != Depth::Content {
            continue;
        }
        let known = || index.shards().iter().map(|shard| shard.name.as_str());
        if known().eq(sources.iter().map(|source| source.name.as_str())) {
            return Some(path);
        }
        if some.is_none() && known().any(|name| names.contains(name)) {
            some = Some(path);
        }
    }
    some
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
    let fail = |source| BuildError::Open { dataset: name.to_owned(), path: index.to_owned(), source };
    let opened = Index::open(index).map_err(|error| match error {
        IndexError::Missing => fail(io::ErrorKind::NotFound.into()),
        IndexError::Io(source) => fail(source),
        IndexError::Future(format) => BuildError::Future { dataset: name.to_owned(), path: index.to_owned(), format },
        IndexError::Damaged(why) => fail(io::Error::other(why)),
    })?;
    let mut files = Vec::with_capacity(opened.shards().len());
    for shard in opened.shards() {
        let inside = Path::new(&shard.name).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside || shard.name.contains('\0') {
            let why = format!("it names a shard {:?}, which does not lie below its folder", shard.name);
            return Err(fail(io::Error::other(why)));
        }
        files.push(ShardFile { name: shard.name.clone(), path: root.join(&shard.name), identity: shard.identity });
    }
    Ok(Dataset::new(name, index, opened, files))
}

//! From a folder of files to WebDataset shards.
//!
//! What is written is plain ustar, with a PAX header only for what ustar cannot say (a long or non-ASCII name, more than
//! 8 GiB); the same files and the same settings give the same bytes, whoever packs them and when.

mod labels;
mod tar;
mod walk;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use self::labels::Classes;
use self::walk::Item;

/// What to pack, and how.
#[derive(Clone, Debug)]
pub struct PackRequest {
    /// The folder. Hidden files and folders in it are passed over; links are followed.
    pub from: PathBuf,
    /// Where shards go, as `NAME-000000.tar` and so on. Made if it is missing; a shard that is there already is an error.
    pub to: PathBuf,
    /// Default `shard`.
    pub name: String,
    /// Default 256 MiB of samples.
    pub limit: Limit,
    /// The order of samples is a shuffled one, a function of this and of their keys; without it they are sorted by key.
    pub shuffle: Option<u64>,
    pub labels: Labels,
    /// The field's name begins at the first dot of a file's name (`a.seg.png` is field `seg.png` of `a`), as the
    /// `webdataset` package has it, and not at the last. Default false: other dots become `_`.
    pub first_dot: bool,
}

impl PackRequest {
    pub fn new(from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> PackRequest {
        PackRequest {
            from: from.into(),
            to: to.into(),
            name: "shard".to_owned(),
            limit: Limit::Bytes(256 << 20),
            shuffle: None,
            labels: Labels::None,
            first_dot: false,
        }
    }
}

/// When a shard is full. Each has one sample at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Samples(u64),
    /// Bytes of samples, tar headers included.
    Bytes(u64),
}

/// Where a sample's `cls` comes from: a class's number, in decimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// It gets none but what lies in the folder.
    #[default]
    None,
    /// The topmost folder that it lies in; classes are numbered in the order of their sorted names.
    Folders,
    /// A file of lines `FILE,LABEL`: a file's path in the folder, or a sample's key; a header line is recognised.
    /// Labels that are all numbers are taken as they are, others are numbered in sorted order.
    Csv(PathBuf),
}

/// What was packed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    pub shards: Vec<PathBuf>,
    pub samples: u64,
    /// Of all fields.
    pub bytes: u64,
    /// By number, where labels were numbered here. They are also in `classes.txt` beside the shards, a line for each.
    pub classes: Vec<String>,
    /// Files without an extension: no sample can have them.
    pub passed_over: u64,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    #[error("there is no file to pack in {path}")]
    Nothing { path: PathBuf },
    #[error("the shards would lie in the folder that is packed: {path}")]
    Inside { path: PathBuf },
    #[error("{path} cannot be the name of a sample: {why}")]
    Name { path: PathBuf, why: &'static str },
    #[error("{path} would be a second field {field:?} of sample {key:?}")]
    Twice { path: PathBuf, key: String, field: String },
    #[error("sample {key:?} has a field cls already, and is to get another one")]
    Labelled { key: String },
    #[error("{count} samples have no label, the first is {key:?}")]
    Unlabelled { count: usize, key: String },
    #[error("line {line} of {path}: {why}")]
    Csv { path: PathBuf, line: usize, why: &'static str },
    #[error("{path} changed while it was packed")]
    Changed { path: PathBuf },
    #[error("{path} is there already: pack into another folder, or remove what is in this one")]
    Exists { path: PathBuf },
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cancelled")]
    Cancelled,
}

/// Packs. `progress` is told how many bytes are done, and of how many; setting `cancel` ends it soon. Whole shards stay
/// after an error, others do not. Blocks.
pub fn pack(request: &PackRequest, progress: &dyn Fn(u64, u64), cancel: &AtomicBool) -> Result<Packed, PackError> {
    let read = |path: &Path| {
        let path = path.to_owned();
        move |source| PackError::Read { path, source }
    };
    let write = |path: &Path| {
        let path = path.to_owned();
        move |source| PackError::Write { path, source }
    };
    fs::create_dir_all(&request.to).map_err(write(&request.to))?;
    let from = fs::canonicalize(&request.from).map_err(read(&request.from))?;
    if fs::canonicalize(&request.to).map_err(write(&request.to))?.starts_with(&from) {
        return Err(PackError::Inside { path: request.to.clone() });
    }
    let (mut items, passed_over) = walk::samples(&from, request.first_dot)?;
    if items.is_empty() {
        return Err(PackError::Nothing { path: request.from.clone() });
    }
    let classes = labels::label(&mut items, &request.labels)?;
    if let Some(seed) = request.shuffle {
        // A hash for each key: the order does not depend on which other samples there are.
        let mut hasher = blake3::Hasher::new_derive_key("forebay 2026-12-01 pack order 1");
        hasher.update(&seed.to_le_bytes());
        items.sort_by_cached_key(|item| *hasher.clone().update(item.key.as_bytes()).finalize().as_bytes());
    }
    let total = items.iter().map(Item::bytes).sum();
    let mut packed = Packed { passed_over, ..Packed::default() };
    let mut shard: Option<Shard> = None;
    for item in &items {
        if let Some(full) = shard.take_if(|shard| shard.is_full(request.limit, item.tar_bytes())) {
            packed.shards.push(full.finish()?);
        }
        let shard = match &mut shard {
            Some(shard) => shard,
            none => none.insert(Shard::create(&request.to, &request.name, packed.shards.len())?),
        };
        let before = packed.bytes;
        shard.add(item, |done| {
            progress(before + done, total);
            !cancel.load(Ordering::Relaxed)
        })?;
        packed.samples += 1;
        packed.bytes += item.bytes();
    }
    if let Some(last) = shard {
        packed.shards.push(last.finish()?);
    }
    if let Classes::Numbered(classes) = classes {
        let path = request.to.join("classes.txt");
        let lines: String = classes.iter().map(|class| format!("{class}\n")).collect();
        fs::write(&path, lines).map_err(write(&path))?;
        packed.classes = classes;
    }
    Ok(packed)
}

/// A shard being written: under another name until it is whole.
struct Shard {
    path: PathBuf,
    temporary: PathBuf,
    out: BufWriter<File>,
    samples: u64,
    at: u64,
    whole: bool,
}

impl Shard {
    fn create(folder: &Path, name: &str, number: usize) -> Result<Shard, PackError> {
        let path = folder.join(format!("{name}-{number:06}.tar"));
        if fs::symlink_metadata(&path).is_ok() {
            return Err(PackError::Exists { path });
        }
        let temporary = folder.join(format!(".{name}-{number:06}.tar.part"));
        let file = File::create(&temporary).map_err(|source| PackError::Write { path: temporary.clone(), source })?;
        Ok(Shard { path, temporary, out: BufWriter::with_capacity(1 << 20, file), samples: 0, at: 0, whole: false })
    }

    fn is_full(&self, limit: Limit, more: u64) -> bool {
        match limit {
            Limit::Samples(most) => self.samples >= most.max(1),
            Limit::Bytes(most) => self.samples > 0 && self.at + more > most,
        }
    }

    /// Adds a sample. `more` is told how many of its bytes are done, and says whether to go on.
    fn add(&mut self, item: &Item, mut more: impl FnMut(u64) -> bool) -> Result<(), PackError> {
        let path = self.temporary.clone();
        let write = |source| PackError::Write { path: path.clone(), source };
        let mut done = 0;
        for field in &item.fields {
            let name = format!("{}.{}", item.key, field.name);
            self.at += tar::header(&mut self.out, &name, field.len).map_err(write)?;
            match &field.content {
                walk::Content::Bytes(bytes) => self.out.write_all(bytes).map_err(write)?,
                walk::Content::File(source) => {
                    tar::copy(source, field.len, &mut self.out, |copied| more(done + copied)).map_err(|error| {
                        match error {
                            tar::CopyError::Read(error) => PackError::Read { path: source.clone(), source: error },
                            tar::CopyError::Changed => PackError::Changed { path: source.clone() },
                            tar::CopyError::Write(error) => write(error),
                            tar::CopyError::Stopped => PackError::Cancelled,
                        }
                    })?;
                }
            }
            tar::pad(&mut self.out, field.len).map_err(write)?;
            self.at += field.len.next_multiple_of(tar::BLOCK);
            done += field.len;
        }
        self.samples += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<PathBuf, PackError> {
        let end = tar::end(&mut self.out, self.at).and_then(|()| self.out.flush());
        let end =
            end.and_then(|()| self.out.get_ref().sync_all()).and_then(|()| fs::rename(&self.temporary, &self.path));
        end.map_err(|source| PackError::Write { path: self.path.clone(), source })?;
        self.whole = true;
        Ok(self.path.clone())
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        if !self.whole {
            // Half a shard is of no use to anybody.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

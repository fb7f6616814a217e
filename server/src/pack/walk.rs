//! Which samples a folder holds.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{PackError, tar};

/// A sample to be.
#[derive(Debug)]
pub(super) struct Item {
    pub key: String,
    /// Its files' paths in the folder, for labels.
    pub paths: Vec<String>,
    /// Sorted by name.
    pub fields: Vec<Field>,
}

#[derive(Debug)]
pub(super) struct Field {
    pub name: String,
    pub len: u64,
    pub content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    File(PathBuf),
    Bytes(Vec<u8>),
}

impl Item {
    pub fn bytes(&self) -> u64 {
        self.fields.iter().map(|field| field.len).sum()
    }

    /// About what it takes in a tar.
    pub fn tar_bytes(&self) -> u64 {
        self.fields.iter().map(|field| tar::BLOCK + field.len.next_multiple_of(tar::BLOCK)).sum()
    }
}

/// The samples below `root`, sorted by key, and how many files can be of none.
pub(super) fn samples(root: &Path, first_dot: bool) -> Result<(Vec<Item>, u64), PackError> {
    let (mut found, mut passed_over) = (Vec::new(), 0);
    let mut folders = vec![root.to_owned()];
    // Links to folders are followed; a circle of them is not walked twice.
    let mut walked = HashSet::new();
    while let Some(folder) = folders.pop() {
        let read = |source| PackError::Read { path: folder.clone(), source };
        if !walked.insert(fs::canonicalize(&folder).map_err(read)?) {
            continue;
        }
        for entry in fs::read_dir(&folder).map_err(read)? {
            let path = entry.map_err(read)?.path();
            let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            let metadata = fs::metadata(&path).map_err(|source| PackError::Read { path: path.clone(), source });
            match metadata {
                _ if hidden => {}
                Ok(metadata) if metadata.is_dir() => folders.push(path),
                Ok(metadata) if metadata.is_file() => match split(root, &path, first_dot)? {
                    Some((key, name, relative)) => found.push((key, name, relative, metadata.len(), path)),
                    None => passed_over += 1,
                },
                Ok(_) => passed_over += 1,
                Err(error) => return Err(error),
            }
        }
    }
    found.sort();
    let mut items: Vec<Item> = Vec::new();
    for (key, name, relative, len, path) in found {
        let field = Field { name, len, content: Content::File(path.clone()) };
        match items.last_mut().filter(|item| item.key == key) {
            Some(item) if item.fields.iter().any(|other| other.name == field.name) => {
                return Err(PackError::Twice { path, key, field: field.name });
            }
            Some(item) => {
                item.fields.push(field);
                item.paths.push(relative);
            }
            None => items.push(Item { key, paths: vec![relative], fields: vec![field] }),
        }
    }
    Ok((items, passed_over))
}

/// The key and the field that a file is, and its path in the folder; nothing for a file without an extension. The
/// `webdataset` package would pass over the names that are refused here, or split them elsewhere.
fn split(root: &Path, path: &Path, first_dot: bool) -> Result<Option<(String, String, String)>, PackError> {
    let refuse = |why| PackError::Name { path: path.to_owned(), why };
    let relative = path.strip_prefix(root).unwrap_or(path).to_str().ok_or_else(|| refuse("it is not UTF-8"))?;
    let (folder, file) = relative.rsplit_once('/').map_or(("", relative), |(folder, file)| (folder, file));
    let dot = if first_dot { file.find('.') } else { file.rfind('.') };
    let Some(dot) = dot.filter(|dot| *dot > 0 && *dot + 1 < file.len()) else { return Ok(None) };
    if relative.contains(['\n', '\0']) {
        return Err(refuse("it has a line break in it"));
    }
    if relative.starts_with("__") {
        return Err(refuse("names that begin with two underscores are metadata in a WebDataset"));
    }
    let (stem, field) = (file[..dot].replace('.', "_"), file[dot + 1..].to_lowercase());
    if field.starts_with("__") {
        return Err(refuse("fields that begin with two underscores are the webdataset package's own"));
    }
    let key = if folder.is_empty() { stem } else { format!("{folder}/{stem}") };
    Ok(Some((key, field, relative.to_owned())))
}

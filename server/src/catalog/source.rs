//! From what the user says to an ordered list of shards.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Place;

/// The most shards that brace lists may name together.
pub(crate) const LIMIT: usize = 1 << 20;
/// How many names an error spells out.
const NAMED: usize = 3;

/// One shard as the user named it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceFile {
    /// Relative to the dataset's root.
    pub name: String,
    pub place: Place,
}

/// What a user's words name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// In order.
    pub shards: Vec<SourceFile>,
    /// Index files that were named, or seen when objects elsewhere were listed. Of files nobody looks for them here:
    /// [`beside`](super::beside) does.
    pub indexes: Vec<Place>,
}

/// Why a dataset's shards cannot be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    #[error("nothing matches {looked_for}")]
    Nothing { looked_for: String },
    #[error("{missing} of the {total} files that {spec} names are missing: {first}")]
    Missing { spec: String, missing: usize, total: usize, first: String },
    #[error("{spec} names {name} twice")]
    Duplicate { spec: String, name: String },
    #[error("{path} is not a regular file")]
    NotAFile { path: PathBuf },
    #[error("the name of {path} is not UTF-8")]
    NotUtf8 { path: PathBuf },
    #[error("{spec} is not a pattern: {detail}")]
    Pattern { spec: String, detail: String },
    #[error("{spec} names more than {limit} files")]
    TooMany { spec: String, limit: usize },
    #[error("cannot look into {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// Of shards that are objects elsewhere.
    #[error("{url}: {detail}")]
    Remote { url: String, detail: String },
}

/// Lists the shards that `spec` names:
///
/// - a file: that one;
/// - a folder: all files below it whose names end in `.tar`, sorted; hidden ones are passed over;
/// - a pattern with `*`, `**`, `?` or `[…]`: what matches, sorted;
/// - brace lists, `{000000..001281}` or `{train,val}`, nested as you like: what they name, in their order, none missing.
///   Patterns in them are matched one by one.
///
/// - a URL (`https://`, `http://`, `s3://`, `az://`, `gs://`): objects elsewhere, by the same means as far as their store
///   can list them (with the feature `remote`); or an object that says which shards there are: an index, or a text file.
///
/// Names are relative to the folder, or to the longest parent folder that has no wildcard or brace in it, and sorted
/// bytewise. What exists under exactly the given name is that, whatever characters are in it.
pub fn resolve(spec: &str) -> Result<Vec<SourceFile>, SourceError> {
    Ok(find(spec)?.shards)
}

/// The same as [`resolve`], and indexes that came to light.
pub fn find(spec: &str) -> Result<Found, SourceError> {
    if is_url(spec) {
        let found = objects(spec)?;
        unique(spec, &found.shards)?;
        return Ok(found);
    }
    let path = std::path::absolute(spec).map_err(|source| SourceError::Io { path: spec.into(), source })?;
    let found = match fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => folder(&path)?,
        Ok(_) => vec![source(path.parent().unwrap_or(&path), &path)?],
        Err(_) if spec.contains(['*', '?', '[', '{']) => patterns(spec, &path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(SourceError::Nothing { looked_for: path.display().to_string() });
        }
        Err(source) => return Err(SourceError::Io { path, source }),
    };
    for file in &found {
        if let Some(path) = file.place.file().filter(|path| !path.is_file()) {
            return Err(SourceError::NotAFile { path: path.to_owned() });
        }
    }
    unique(spec, &found)?;
    Ok(Found { shards: found, indexes: Vec::new() })
}

/// Whether this names objects elsewhere: no path begins like that, but by malice.
pub fn is_url(spec: &str) -> bool {
    let scheme = spec.split_once("://").map_or("", |(scheme, _)| scheme);
    !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

#[cfg(feature = "remote")]
fn objects(spec: &str) -> Result<Found, SourceError> {
    crate::remote::find(spec)
}

#[cfg(not(feature = "remote"))]
fn objects(spec: &str) -> Result<Found, SourceError> {
    let detail = "this program was built without the feature `remote`".to_owned();
    Err(SourceError::Remote { url: spec.to_owned(), detail })
}

fn unique(spec: &str, found: &[SourceFile]) -> Result<(), SourceError> {
    let mut names = HashSet::new();
    match found.iter().find(|file| !names.insert(&file.name)) {
        Some(twice) => Err(SourceError::Duplicate { spec: spec.to_owned(), name: twice.name.clone() }),
        None => Ok(()),
    }
}

fn source(base: &Path, path: &Path) -> Result<SourceFile, SourceError> {
    let name = path.strip_prefix(base).unwrap_or(path).to_str();
    let name = name.ok_or_else(|| SourceError::NotUtf8 { path: path.to_owned() })?;
    Ok(SourceFile { name: name.to_owned(), place: path.into() })
}

/// The tars below a folder.
fn folder(base: &Path) -> Result<Vec<SourceFile>, SourceError> {
    let mut found = Vec::new();
    let mut folders = vec![base.to_owned()];
    // Links to folders are followed; a circle of them is not walked twice.
    let mut walked = HashSet::new();
    while let Some(folder) = folders.pop() {
        let error = |source| SourceError::Io { path: folder.clone(), source };
        if !walked.insert(fs::canonicalize(&folder).map_err(error)?) {
            continue;
        }
        for entry in fs::read_dir(&folder).map_err(error)? {
            let entry = entry.map_err(error)?;
            let (name, path) = (entry.file_name(), entry.path());
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // A link that leads nowhere is no folder; whether it is a shard its name tells, and then it is refused later.
            if fs::metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
                folders.push(path);
            } else if name.as_encoded_bytes().ends_with(b".tar") {
                found.push(source(base, &path)?);
            }
        }
    }
    if found.is_empty() {
        return Err(SourceError::Nothing { looked_for: format!("{}/**/*.tar", base.display()) });
    }
    found.sort();
    Ok(found)
}

/// The files that brace lists and wildcards name.
fn patterns(spec: &str, absolute: &Path) -> Result<Vec<SourceFile>, SourceError> {
    let absolute = absolute.to_str().ok_or_else(|| SourceError::NotUtf8 { path: absolute.to_owned() })?;
    let wild = absolute.find(['*', '?', '[', '{']).unwrap_or(absolute.len());
    let base = Path::new(&absolute[..absolute[..wild].rfind('/').map_or(0, |slash| slash.max(1))]);
    let mut all = Vec::new();
    expand(absolute, &mut all).map_err(|TooMany| SourceError::TooMany { spec: spec.to_owned(), limit: LIMIT })?;
    let options =
        glob::MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for pattern in &all {
        if fs::symlink_metadata(pattern).is_ok() {
            found.push(source(base, Path::new(pattern))?);
            continue;
        }
        if !pattern.contains(['*', '?', '[']) {
            missing.push(pattern.as_str());
            continue;
        }
        let matches = glob::glob_with(pattern, options)
            .map_err(|error| SourceError::Pattern { spec: spec.to_owned(), detail: error.to_string() })?;
        let mut sorted = Vec::new();
        for path in matches {
            let path = path.map_err(|error| SourceError::Io { path: error.path().to_owned(), source: error.into() })?;
            sorted.push(source(base, &path)?);
        }
        if sorted.is_empty() {
            missing.push(pattern);
        }
        sorted.sort();
        found.append(&mut sorted);
    }
    if found.is_empty() {
        return Err(SourceError::Nothing { looked_for: absolute.to_owned() });
    }
    if !missing.is_empty() {
        let mut first = missing[..missing.len().min(NAMED)].join(", ");
        if missing.len() > NAMED {
            first.push_str(", …");
        }
        let (missing, total) = (missing.len(), all.len());
        return Err(SourceError::Missing { spec: spec.to_owned(), missing, total, first });
    }
    Ok(found)
}

/// More names than can be meant.
pub(crate) struct TooMany;

/// Expands brace lists as shells do, leftmost first, so that the rightmost counts fastest. What is no list (`{}`, `{a}`, a
/// brace alone) stands for itself.
pub(crate) fn expand(text: &str, out: &mut Vec<String>) -> Result<(), TooMany> {
    // What lies before `done` is expanded.
    let mut open = vec![(String::new(), text.to_owned())];
    while let Some((done, rest)) = open.pop() {
        let Some((begin, end)) = braces(&rest) else {
            out.push(done + &rest);
            if out.len() > LIMIT {
                return Err(TooMany);
            }
            continue;
        };
        let (head, tail) = (&rest[..begin], &rest[end + 1..]);
        let Some(parts) = alternatives(&rest[begin + 1..end])? else {
            // Not a list: it stands for itself, but there may be lists in it.
            open.push((format!("{done}{head}{{"), rest[begin + 1..].to_owned()));
            continue;
        };
        for part in parts.iter().rev() {
            open.push((format!("{done}{head}"), format!("{part}{tail}")));
        }
        if open.len() > LIMIT {
            return Err(TooMany);
        }
    }
    Ok(())
}

/// Where the first pair of braces is.
fn braces(text: &str) -> Option<(usize, usize)> {
    for (begin, _) in text.match_indices('{') {
        let mut depth = 0usize;
        for (at, byte) in text.bytes().enumerate().skip(begin) {
            match byte {
                b'{' => depth += 1,
                b'}' if depth == 1 => return Some((begin, at)),
                b'}' => depth -= 1,
                _ => {}
            }
        }
    }
    None
}

/// What stands between braces: `a,b` (commas of inner braces do not count) or `from..to` or `from..to..step`.
fn alternatives(inner: &str) -> Result<Option<Vec<String>>, TooMany> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0usize, 0);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(inner[begin..at].to_owned());
                begin = at + 1;
            }
            _ => {}
        }
    }
    if parts.is_empty() {
        return range(inner);
    }
    parts.push(inner[begin..].to_owned());
    Ok(Some(parts))
}

fn range(inner: &str) -> Result<Option<Vec<String>>, TooMany> {
    let mut pieces = inner.split("..");
    let (Some(from), Some(to), step, None) = (pieces.next(), pieces.next(), pieces.next(), pieces.next()) else {
        return Ok(None);
    };
    let step = match step.map(str::parse::<u64>) {
        None => 1,
        Some(Ok(step)) if step > 0 => step,
        Some(_) => return Ok(None),
    };
    let letter = |text: &str| match text.as_bytes() {
        [letter] if letter.is_ascii_alphabetic() => Some(u64::from(*letter)),
        _ => None,
    };
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let (begin, end, width) = match (letter(from), letter(to), number(from), number(to)) {
        (Some(begin), Some(end), ..) => (begin, end, None),
        (_, _, Some(begin), Some(end)) => {
            // As in a shell: one number with a leading zero makes all as wide as the wider of the two.
            let padded = [from, to].iter().any(|text| text.len() > 1 && text.starts_with('0'));
            (begin, end, Some(if padded { from.len().max(to.len()) } else { 0 }))
        }
        _ => return Ok(None),
    };
    let steps = begin.abs_diff(end) / step;
    if steps >= LIMIT as u64 {
        return Err(TooMany);
    }
    let parts = (0..=steps).map(|i| {
        let value = if begin <= end { begin + i * step } else { begin - i * step };
        match width {
            Some(width) => format!("{value:0width$}"),
            None => char::from(value as u8).to_string(),
        }
    });
    Ok(Some(parts.collect()))
}

#[cfg(test)]
mod tests;

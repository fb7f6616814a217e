//! Damage found in an index's data while it was served is noted beside it, for the next build: opening an index does not read
//! its data, and would find nothing wrong.
//!
//! All of this is best effort: without the note, the damage is found and told of again.

use std::fs;
use std::path::{Path, PathBuf};

fn note(index: &Path) -> PathBuf {
    let mut path = index.as_os_str().to_owned();
    path.push(".damaged");
    PathBuf::from(path)
}

/// Notes that the index is damaged.
pub fn suspect(index: &Path, why: &str) {
    let _ = fs::write(note(index), why);
}

/// Why the index is not to be trusted, if it is not.
pub fn suspicion(index: &Path) -> Option<String> {
    let why = fs::read(note(index)).ok()?;
    Some(String::from_utf8_lossy(&why[..why.len().min(500)]).into_owned())
}

/// The index was written anew.
pub fn trust(index: &Path) {
    let _ = fs::remove_file(note(index));
}

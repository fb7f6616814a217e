//! The data set: shards on disk, in the page cache because they were just written, and what is in them.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

use forebay_system::tars::{self, Shards, Sizes};

/// A data set with sizes like ImageNet's.
pub struct Set {
    folder: PathBuf,
    /// Bytes of each sample, all fields together.
    pub sizes: Vec<u64>,
    /// Over the content of all samples, in any order.
    pub digest: u64,
}

impl Set {
    pub fn make(folder: &Path, samples: usize) -> Set {
        fs::create_dir_all(folder).expect("a folder for the shards");
        let what = Shards { shards: 8, samples, sizes: Sizes::ImageNet, seed: 7 };
        let (mut sizes, mut digest) = (Vec::with_capacity(samples), 0u64);
        let written = tars::write(folder, &what, |sample| {
            sizes.push((sample.jpg.len() + sample.cls.len()) as u64);
            digest = digest.wrapping_add(digest_of(&sample.cls, &sample.jpg));
        });
        written.expect("shards are written");
        let list: String = sizes.iter().map(|size| format!("{size}\n")).collect();
        fs::write(folder.join("sizes"), list).expect("sizes are written");
        Set { folder: folder.to_owned(), sizes, digest }
    }

    pub fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What `forebay serve` is given.
    pub fn pattern(&self) -> String {
        self.folder.join("*.tar").display().to_string()
    }
}

/// The sizes of a set that another process made.
pub fn sizes(folder: &Path) -> Vec<u64> {
    let list = fs::read_to_string(folder.join("sizes")).expect("a list of sizes");
    list.lines().map(|line| line.parse().expect("a size")).collect()
}

/// A number for one sample's content.
pub fn digest_of(cls: &[u8], jpg: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(cls);
    hasher.write_u8(0xff);
    hasher.write(jpg);
    hasher.finish()
}

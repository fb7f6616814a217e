//! Tars made by hand, and short ways to build.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use forebay_server::catalog::{BuildError, BuildRequest, Built, Dataset, Monitor, Progress, build, resolve};

/// A ustar archive of regular files.
pub fn tar<N: AsRef<str>, D: AsRef<[u8]>>(members: &[(N, D)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, data) in members {
        let (name, data) = (name.as_ref().as_bytes(), data.as_ref());
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name);
        header[100..108].copy_from_slice(b"0000644\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

/// `count` samples with a `cls` of one byte and a `jpg` of up to `size` bytes; keys begin with `prefix`.
pub fn samples(prefix: &str, count: usize, size: usize) -> Vec<u8> {
    let mut members = Vec::new();
    for i in 0..count {
        members.push((format!("{prefix}{i:06}.cls"), vec![i as u8]));
        members.push((format!("{prefix}{i:06}.jpg"), vec![i as u8; size * (i % 7) / 7]));
    }
    tar(&members)
}

/// A folder with `data` and `state`.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("data")).expect("a folder in it");
        Place { folder }
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn index(&self) -> PathBuf {
        self.folder.path().join("state/test.idx")
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.data().join(name);
        fs::write(&path, bytes).expect("room for a shard");
        path
    }

    pub fn request(&self) -> BuildRequest {
        let sources = resolve(self.data().to_str().expect("UTF-8")).expect("shards");
        BuildRequest::new("test", sources, self.index())
    }

    pub fn build(&self) -> Result<Built, BuildError> {
        quiet(&self.request())
    }
}

pub fn quiet(request: &BuildRequest) -> Result<Built, BuildError> {
    build(request, Monitor { progress: &|_| {}, cancel: &AtomicBool::new(false) })
}

pub fn watched(request: &BuildRequest, progress: &(dyn Fn(&Progress) + Sync)) -> Result<Built, BuildError> {
    build(request, Monitor { progress, cancel: &AtomicBool::new(false) })
}

/// A sample: its key, its shard's name, and each field's name and bytes.
pub type Dumped = (Vec<u8>, String, Vec<(String, Vec<u8>)>);

/// Everything a dataset says of its samples, read in each way there is.
pub fn dump(dataset: &Dataset) -> Vec<Dumped> {
    let files = dataset.shard_files();
    let all: Vec<u16> = (0..dataset.fields().len() as u16).collect();
    let mut out = Vec::new();
    for ordinal in 0..dataset.samples() {
        let sample = dataset.sample(ordinal).expect("an intact index");
        let mut extents = Vec::new();
        dataset.extents(ordinal, &all, &mut extents).expect("an intact index");
        let some: Vec<_> = extents.iter().flatten().copied().collect();
        assert_eq!(some, sample.fields.iter().map(|field| field.extent).collect::<Vec<_>>());
        assert!(dataset.find(sample.key).expect("an intact index").contains(&ordinal));
        let file = &files[sample.shard as usize];
        let bytes = fs::read(file.place.file().expect("a file")).expect("the shard is there");
        let mut fields = Vec::new();
        for field in &sample.fields {
            assert_eq!(dataset.extent(ordinal, field.field).expect("an intact index"), Some(field.extent));
            let data = &bytes[field.extent.offset as usize..(field.extent.offset + field.extent.len) as usize];
            assert_eq!(field.extent.crc, Some(crc32c::crc32c(data)));
            fields.push((dataset.fields()[usize::from(field.field)].name.clone(), data.to_vec()));
        }
        out.push((sample.key.to_vec(), file.name.clone(), fields));
    }
    out
}

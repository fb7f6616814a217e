//! Open shard files: a bounded number of descriptors, and the check that a file is still the one that was indexed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Read, ReadError};
use crate::catalog::{Identity, ShardFile};

/// An open file of a shard, in whichever way a store opens them.
pub(super) trait Shard: Sized + Send + Sync {
    fn open(shard: &ShardFile) -> io::Result<Self>;
    fn file(&self) -> &File;
}

/// For reading in the ordinary way.
impl Shard for File {
    fn open(shard: &ShardFile) -> io::Result<File> {
        open(shard, 0)
    }

    fn file(&self) -> &File {
        self
    }
}

/// The shards' files, opened when first needed and closed when others are needed more.
pub(super) struct Files<T> {
    shards: Vec<ShardFile>,
    /// The most files kept open.
    most: usize,
    open: Mutex<Open<T>>,
}

struct Open<T> {
    files: Vec<OpenFile<T>>,
    /// By shard: its place in `files`, where there is one.
    places: Vec<Option<u32>>,
    uses: u64,
}

struct OpenFile<T> {
    shard: u32,
    file: Arc<T>,
    used: u64,
}

impl<T: Shard> Files<T> {
    pub(super) fn new(shards: Vec<ShardFile>, most: usize) -> Files<T> {
        let open = Open { files: Vec::new(), places: vec![None; shards.len()], uses: 0 };
        Files { shards, most: most.max(1), open: Mutex::new(open) }
    }

    pub(super) fn shards(&self) -> &[ShardFile] {
        &self.shards
    }

    pub(super) fn shard(&self, shard: u32) -> Option<&ShardFile> {
        self.shards.get(shard as usize)
    }

    /// The shard's file, if it is open. `shard` is in the list.
    pub(super) fn known(&self, shard: u32) -> Option<Arc<T>> {
        self.lock().find(shard)
    }

    /// The shard's file. `shard` is in the list.
    pub(super) fn open(&self, shard: u32) -> Result<Arc<T>, ReadError> {
        if let Some(file) = self.known(shard) {
            return Ok(file);
        }
        // Not under the lock: opening may take long, and others read from what is open. Two who open the same file at
        // the same time cost one descriptor for a moment.
        let indexed = &self.shards[shard as usize];
        let opened = match T::open(indexed) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                // Others in the process have taken all descriptors: these are the ones we can do without. Under the
                // lock, or other readers might use them up before this one gets one.
                let mut cache = self.lock();
                cache.clear();
                T::open(indexed)
            }
            other => other,
        };
        let file = opened.map_err(|source| match source.raw_os_error() {
            // ENXIO: a socket has its name now. ESTALE: a file server no longer knows it.
            Some(libc::ENOENT | libc::ENOTDIR | libc::ENXIO | libc::ESTALE) => changed(indexed, "it is gone".into()),
            _ => ReadError::Io { shard: indexed.name.clone(), offset: 0, len: 0, source },
        })?;
        self.check(shard, file.file())?;
        let file = Arc::new(file);
        let closed = self.lock().keep(shard, file.clone(), self.most);
        drop(closed);
        Ok(file)
    }

    /// Whether the open file is still, byte for byte, the one that was indexed.
    ///
    /// To be asked after reading: whoever writes to a file changes its ctime before its bytes, so that what was read
    /// before an unchanged answer is what was indexed. A file that is replaced or unlinked loses a link, which changes
    /// its ctime too. (What is written through a mapping that was dirty already is not seen; the CRCs are for that.)
    pub(super) fn check(&self, shard: u32, file: &File) -> Result<(), ReadError> {
        let indexed = &self.shards[shard as usize];
        let found = file.metadata().map_err(|source| ReadError::Io {
            shard: indexed.name.clone(),
            offset: 0,
            len: 0,
            source,
        })?;
        let found = Identity::of(&found);
        if found == indexed.identity {
            return Ok(());
        }
        self.forget(shard);
        Err(changed(indexed, difference(&indexed.identity, &found)))
    }

    /// Closes the shard's file, once nobody reads from it.
    fn forget(&self, shard: u32) {
        let closed = self.lock().remove(shard);
        drop(closed);
    }

    fn lock(&self) -> MutexGuard<'_, Open<T>> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<T> Open<T> {
    fn find(&mut self, shard: u32) -> Option<Arc<T>> {
        let place = self.places[shard as usize]?;
        self.uses += 1;
        let open = &mut self.files[place as usize];
        open.used = self.uses;
        Some(open.file.clone())
    }

    /// Keeps a file, and returns the one that has to be closed for it.
    fn keep(&mut self, shard: u32, file: Arc<T>, most: usize) -> Option<OpenFile<T>> {
        let before = self.remove(shard);
        let full = self.files.len() >= most;
        let oldest = || self.files.iter().min_by_key(|open| open.used).map(|open| open.shard);
        // At most one of the two is there: what was removed made room.
        let closed = before.or(full.then(oldest).flatten().and_then(|oldest| self.remove(oldest)));
        self.uses += 1;
        self.places[shard as usize] = Some(self.files.len() as u32);
        self.files.push(OpenFile { shard, file, used: self.uses });
        closed
    }

    fn remove(&mut self, shard: u32) -> Option<OpenFile<T>> {
        let place = self.places[shard as usize].take()? as usize;
        let removed = self.files.swap_remove(place);
        if let Some(moved) = self.files.get(place) {
            self.places[moved.shard as usize] = Some(place as u32);
        }
        Some(removed)
    }

    /// Closes all files that nobody reads from.
    fn clear(&mut self) {
        self.places.fill(None);
        self.files.clear();
    }
}

/// `flags` besides those that every file of a shard is opened with.
pub(super) fn open(shard: &ShardFile, flags: i32) -> io::Result<File> {
    let path = shard.place.file().ok_or_else(|| io::Error::other("it does not lie on this machine"))?;
    // Not blocking, because what was a file may have become a pipe that nobody writes to; files do not heed it. The
    // standard library closes descriptors on exec.
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags).open(path)
}

pub(super) fn changed(shard: &ShardFile, detail: String) -> ReadError {
    ReadError::Changed { shard: shard.name.clone(), detail }
}

/// Whether a read lies within its shard, and within a lease of `lease` bytes.
pub(super) fn bounds(shards: &[ShardFile], read: &Read, lease: usize) -> Result<(), ReadError> {
    let placed = read.at.checked_add(read.len).is_some_and(|end| end <= lease);
    let there = shards
        .get(read.shard as usize)
        .is_some_and(|shard| read.offset.checked_add(read.len as u64).is_some_and(|end| end <= shard.identity.size));
    if placed && there { Ok(()) } else { Err(ReadError::OutOfBounds(*read)) }
}

/// The reads in the order in which they lie on disk, as far as one can tell: by shard and offset.
pub(super) fn by_place(reads: &[Read], order: &mut Vec<u32>) {
    order.clear();
    order.extend(0..reads.len() as u32);
    order.sort_unstable_by_key(|&n| (reads[n as usize].shard, reads[n as usize].offset));
}

/// How many descriptors a store may hold at most: half of what this process may have, so that sockets find some left.
pub(super) fn most_files() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)) / 2
}

fn difference(indexed: &Identity, found: &Identity) -> String {
    if indexed.inode != found.inode {
        format!("it is another file now (inode {}, indexed {})", found.inode, indexed.inode)
    } else if indexed.size != found.size {
        format!("it has {} bytes, {} when indexed", found.size, indexed.size)
    } else if indexed.mtime_ns != found.mtime_ns {
        "it was written to since it was indexed (mtime)".into()
    } else {
        "it was changed, renamed, replaced or unlinked since it was indexed (ctime)".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(dir: &tempfile::TempDir, count: usize) -> Vec<ShardFile> {
        let made = (0..count).map(|n| {
            let path = dir.path().join(n.to_string());
            std::fs::write(&path, n.to_string()).unwrap();
            let identity = Identity::of(&std::fs::metadata(&path).unwrap());
            ShardFile { name: n.to_string(), place: path.into(), identity }
        });
        made.collect()
    }

    #[test]
    fn no_more_files_are_kept_than_allowed_and_the_latest_used_stay() {
        let dir = tempfile::tempdir().unwrap();
        let files: Files<File> = Files::new(shards(&dir, 20), 4);
        let mut model: Vec<u32> = Vec::new();
        for step in 0..500u32 {
            let shard = step * step % 97 % 20;
            let file = files.open(shard).unwrap();
            assert_eq!(std::io::read_to_string(&*file).map(|_| ()).ok(), Some(()));
            model.retain(|&kept| kept != shard);
            model.push(shard);
            if model.len() > 4 {
                model.remove(0);
            }
            let open = files.lock();
            assert_eq!(open.files.len(), model.len());
            for &kept in &model {
                let place = open.places[kept as usize].expect("among the last four used");
                assert_eq!(open.files[place as usize].shard, kept);
            }
            assert_eq!(open.places.iter().flatten().count(), model.len());
        }
    }

    #[test]
    fn a_file_found_changed_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let shards = shards(&dir, 2);
        let files: Files<File> = Files::new(shards.clone(), 4);
        let file = files.open(0).unwrap();
        files.open(1).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(shards[0].place.file().unwrap(), "longer").unwrap();
        let error = files.check(0, &file).unwrap_err();
        assert!(error.to_string().contains("it has 6 bytes, 1 when indexed"), "{error}");
        assert_eq!(files.lock().files.len(), 1);
        assert!(matches!(files.open(0), Err(ReadError::Changed { .. })));
        assert!(files.check(1, &files.open(1).unwrap()).is_ok());
    }
}

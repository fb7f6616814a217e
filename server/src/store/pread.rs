//! Shards that are files of this machine, read by a pool of threads.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use forebay_transport::pool::Lease;
use forebay_transport::reply::{Replies, Reply};

use super::files::{Files, bounds, by_place, changed, most_files};
use super::{Read, ReadDone, ReadError, Reading, Space, Store};
use crate::catalog::ShardFile;

/// How a [`PreadStore`] is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreadConfig {
    /// Threads that read: so many batches are read at the same time, and the others wait in line. Default twice the
    /// number of cores, at most 16: they mostly wait for the disk. Each costs its stack (2 MiB of address space, some
    /// KiB of memory).
    pub threads: usize,
    /// Files kept open, besides one for each thread. Default 512. Never more than half of what the process may open
    /// (`RLIMIT_NOFILE` when the store is made), so that sockets find some left.
    pub files: usize,
}

impl Default for PreadConfig {
    fn default() -> PreadConfig {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        PreadConfig { threads: (2 * cores).min(16), files: 512 }
    }
}

/// A store of files of this machine.
///
/// Every batch checks, after its reads, that each file it read from is the one that was indexed, by size, mtime, ctime
/// and inode. Dropping the store closes it.
pub struct PreadStore {
    shared: Arc<Shared>,
}

struct Shared {
    replies: Replies<ReadDone>,
    files: Files<File>,
    line: Mutex<Line>,
    /// Something was put in line, or the store was closed.
    changed: Condvar,
}

#[derive(Default)]
struct Line {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// A batch in line. It owns the lease: whatever becomes of it, the lease goes to who asked or back to the slab.
struct Job {
    reads: Vec<Read>,
    lease: Lease,
    reply: Reply<ReadDone>,
}

impl Job {
    fn end(self, result: Result<(), ReadError>) {
        let Job { reads, lease, reply } = self;
        // When nobody waits any more, what comes back here is dropped, and the lease with it.
        drop(reply.send(ReadDone { lease, reads, result }));
    }
}

impl PreadStore {
    /// A store of `shards`, which reads name by their index in this list. Opens no file yet.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(shards: Vec<ShardFile>, config: PreadConfig) -> io::Result<PreadStore> {
        let files = Files::new(shards, config.files.min(most_files()));
        let shared =
            Arc::new(Shared { replies: Replies::new(), files, line: Mutex::default(), changed: Condvar::new() });
        // From here on dropping it ends the threads that were started.
        let store = PreadStore { shared };
        for n in 0..config.threads.max(1) {
            let shared = store.shared.clone();
            std::thread::Builder::new().name(format!("read-{n}")).spawn(move || shared.work())?;
        }
        Ok(store)
    }

    /// Ends the store, without waiting: batches that are being read end as they do, all others with
    /// [`ReadError::Closed`]. Its threads end by themselves.
    pub fn close(&self) {
        let waiting = {
            let mut line = self.shared.line();
            line.closed = true;
            std::mem::take(&mut line.jobs)
        };
        self.shared.changed.notify_all();
        waiting.into_iter().for_each(|job| job.end(Err(ReadError::Closed)));
    }
}

impl Drop for PreadStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for PreadStore {
    fn read(&self, reads: Vec<Read>, lease: Lease) -> Reading<'_> {
        Box::pin(self.shared.read(reads, lease))
    }

    fn read_in(self: Arc<Self>, reads: Vec<Read>, lease: Lease, space: &mut Space) {
        space.set(async move { self.shared.read(reads, lease).await });
    }
}

impl Shared {
    async fn read(&self, reads: Vec<Read>, lease: Lease) -> ReadDone {
        let (reply, done) = self.replies.pair();
        self.put(Job { reads, lease, reply });
        done.await.expect("every job is ended")
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Puts a job in line. The line needs no bound of its own: each job holds a lease.
    fn put(&self, job: Job) {
        let mut line = self.line();
        if line.closed {
            drop(line);
            job.end(Err(ReadError::Closed));
            return;
        }
        line.jobs.push_back(job);
        drop(line);
        self.changed.notify_one();
    }

    /// The next job; none when the store is closed.
    fn next(&self) -> Option<Job> {
        let mut line = self.line();
        loop {
            if line.closed {
                return None;
            }
            if let Some(job) = line.jobs.pop_front() {
                return Some(job);
            }
            line = self.changed.wait(line).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// What a thread does.
    fn work(&self) {
        let mut order = Vec::new();
        while let Some(mut job) = self.next() {
            // Nobody waits for it any more: the lease is of more use elsewhere.
            if !job.reply.is_closed() {
                let result = self.fill(&job.reads, &mut job.lease, &mut order);
                job.end(result);
            }
        }
    }

    /// Does the reads, shard by shard: so no more than one file is held open besides those kept, and each is checked
    /// once, after all reads from it.
    fn fill(&self, reads: &[Read], lease: &mut Lease, order: &mut Vec<u32>) -> Result<(), ReadError> {
        for read in reads {
            bounds(self.files.shards(), read, lease.len())?;
        }
        by_place(reads, order);
        let bytes = lease.as_mut_slice();
        for same in order.chunk_by(|&a, &b| reads[a as usize].shard == reads[b as usize].shard) {
            let number = reads[same[0] as usize].shard;
            let file = self.files.open(number)?;
            for &n in same {
                let Read { shard, offset, len, at } = reads[n as usize];
                file.read_exact_at(&mut bytes[at..at + len], offset).map_err(|source| {
                    let shard = self.files.shard(shard).expect("bounds were checked");
                    if source.kind() == io::ErrorKind::UnexpectedEof {
                        return changed(shard, format!("it ends before the {len} bytes at {offset}"));
                    }
                    ReadError::Io { shard: shard.name.clone(), offset, len, source }
                })?;
            }
            self.files.check(number, &file)?;
        }
        Ok(())
    }
}

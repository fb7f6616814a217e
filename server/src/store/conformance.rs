//! What every store must do, as one suite that each of them is put through. It panics where a store does not.
//!
//! [`bytes`] is for every store; [`changes`] for those whose shards are files that others can change. Both need a tokio
//! runtime with time, and an empty folder.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::future::{Future, poll_fn};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use forebay_transport::pool::{Account, Lease, Slab, SlabConfig};

use super::{Read, ReadDone, ReadError, Space, Store};
use crate::catalog::{Identity, ShardFile};

/// The sizes of the shards that the suite makes.
const SIZES: [usize; 4] = [300_000, 4097, 1, 0];

/// Shards in a folder, and a slab to read them into.
struct Fixture {
    shards: Vec<ShardFile>,
    slab: Slab,
    account: Account,
}

/// The byte at `offset` of shard `shard`.
fn byte(shard: usize, offset: usize) -> u8 {
    (shard * 101 + offset * 7 + offset / 251) as u8
}

impl Fixture {
    fn new(dir: &Path) -> Fixture {
        Fixture::with(dir, Slab::new(SlabConfig { capacity: 4 << 20, lock: false }).unwrap())
    }

    fn with(dir: &Path, slab: Slab) -> Fixture {
        fs::create_dir_all(dir).unwrap();
        let shards = SIZES.iter().enumerate().map(|(shard, &size)| {
            let name = format!("shard-{shard}.tar");
            let path = dir.join(&name);
            fs::write(&path, (0..size).map(|offset| byte(shard, offset)).collect::<Vec<_>>()).unwrap();
            ShardFile { name, identity: identity(&path), place: path.into() }
        });
        Fixture { shards: shards.collect(), slab, account: Account::new("conformance", usize::MAX) }
    }

    /// A lease whose bytes are none of any shard's first ones.
    fn lease(&self, len: usize) -> Lease {
        let mut lease = self.slab.try_lease(&self.account, len).expect("the slab is large enough, unless leases leak");
        lease.as_mut_slice().fill(0xa5);
        lease
    }

    async fn read<S: Store>(&self, store: &S, reads: &[Read]) -> ReadDone {
        let len = reads.iter().map(|read| read.at + read.len).max().unwrap_or(0);
        let done = store.read(reads.to_vec(), self.lease(len + 10)).await;
        assert_eq!(done.reads, reads, "the reads come back as they were");
        assert_eq!(done.lease.len(), len + 10);
        done
    }

    /// Reads, and compares every byte with what the shards hold; bytes between reads must not be touched.
    async fn exact<S: Store>(&self, store: &S, reads: &[Read]) {
        let done = self.read(store, reads).await;
        done.result.unwrap();
        let mut expected = vec![0xa5; done.lease.len()];
        for read in reads {
            for n in 0..read.len {
                expected[read.at + n] = byte(read.shard as usize, read.offset as usize + n);
            }
        }
        assert!(done.lease[..] == expected[..], "other bytes than the shards' for {reads:?}");
    }

    /// All of each shard but the given ones.
    async fn others<S: Store>(&self, store: &S, but: &[usize]) {
        for shard in (0..SIZES.len()).filter(|shard| !but.contains(shard)) {
            self.exact(store, &[whole(shard)]).await;
        }
    }

    /// Every lease comes back, if not at once.
    async fn returned(&self) {
        for _ in 0..1000 {
            if self.slab.usage().free == self.slab.capacity() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("leases are lost: {:?}", self.slab);
    }
}

fn identity(path: &Path) -> Identity {
    Identity::of(&fs::metadata(path).unwrap())
}

fn whole(shard: usize) -> Read {
    Read { shard: shard as u32, offset: 0, len: SIZES[shard], at: 0 }
}

/// The right bytes, at the right places, and every lease back.
pub async fn bytes<S: Store + 'static>(dir: &Path, make: impl Fn(Vec<ShardFile>) -> S) {
    bytes_into(&Slab::new(SlabConfig { capacity: 4 << 20, lock: false }).unwrap(), dir, make).await;
}

/// The same in leases of a given slab, of 4 MiB or more and with nothing lent: for stores that treat some memory in
/// another way.
pub async fn bytes_into<S: Store + 'static>(slab: &Slab, dir: &Path, make: impl Fn(Vec<ShardFile>) -> S) {
    let fixture = Arc::new(Fixture::with(dir, slab.clone()));
    let store = Arc::new(make(fixture.shards.clone()));
    fixture.exact(&store, &[]).await;
    fixture.others(&store, &[]).await;
    // Zero bytes: at the start, in the middle, at the very end, of an empty shard, at the end of the lease.
    for (shard, offset) in [(0, 0), (0, 1000), (0, SIZES[0] as u64), (3, 0)] {
        fixture.exact(&store, &[Read { shard, offset, len: 0, at: 10 }]).await;
    }
    fixture.exact(&store, &scattered(1, 500)).await;
    // The same bytes twice, and backwards.
    let twice = [700, 0, 700].iter().enumerate();
    let twice = twice.map(|(n, &offset)| Read { shard: 0, offset, len: 100, at: n * 100 }).collect::<Vec<_>>();
    fixture.exact(&store, &twice).await;
    aligned(&fixture, &store).await;
    out_of_bounds(&fixture, &store).await;
    concurrent(&fixture, &store).await;
    dropped(&fixture, &store).await;
    one_space(&fixture, &store).await;
    fixture.others(&store, &[]).await;
}

/// `count` reads in no order, from all shards, with gaps between them in the lease.
fn scattered(seed: usize, count: usize) -> Vec<Read> {
    let mut at = 0;
    let reads = (0..count).map(|n| {
        let mix = (n + 1) * (seed + 1) * 2_654_435_761 % (1 << 31);
        let shard = mix % SIZES.len();
        let offset = (mix / 7) % (SIZES[shard] + 1);
        let len = (mix / 131 % 900).min(SIZES[shard] - offset);
        at += len + n % 3;
        Read { shard: shard as u32, offset: offset as u64, len, at: at - len }
    });
    reads.collect()
}

/// As stores want it that have to read whole blocks, and nearly so.
async fn aligned<S: Store>(fixture: &Fixture, store: &S) {
    for align in [store.align(), 512, 4096] {
        let blocks = |first: usize, count: usize, at: usize| Read {
            shard: 0,
            offset: (first * align) as u64,
            len: count * align,
            at: at * align,
        };
        let most = SIZES[0] / align;
        let some = [blocks(0, 1, 0), blocks(5, 3, 1), blocks(most - 40.min(most), 40.min(most), 6)];
        fixture.exact(store, &some).await;
        let (start, end) = ((SIZES[0] / align * align) as u64, SIZES[0]);
        let last = Read { shard: 0, offset: start, len: end - start as usize, at: 10 * align };
        fixture.exact(store, &[blocks(2, 2, 0), last]).await;
        for (by, longer) in [(1, 0), (0, 1), (1, 1)] {
            let off = blocks(1, 60.min(most - 2), 1);
            fixture.exact(store, &[Read { offset: off.offset + by, len: off.len + longer, ..off }]).await;
            fixture.exact(store, &[Read { at: off.at + 1, len: off.len + longer, ..off }]).await;
        }
    }
}

async fn out_of_bounds<S: Store>(fixture: &Fixture, store: &S) {
    let end = SIZES[0] as u64;
    for read in [
        Read { shard: SIZES.len() as u32, offset: 0, len: 1, at: 0 },
        Read { shard: u32::MAX, offset: 0, len: 0, at: 0 },
        Read { shard: 0, offset: end, len: 1, at: 0 },
        Read { shard: 0, offset: end + 1, len: 0, at: 0 },
        Read { shard: 0, offset: u64::MAX, len: 2, at: 0 },
        Read { shard: 3, offset: 0, len: 1, at: 0 },
    ] {
        // Behind one that is right.
        let done = fixture.read(store, &[whole(1), read]).await;
        assert!(matches!(done.result, Err(ReadError::OutOfBounds(wrong)) if wrong == read), "{:?}", done.result);
    }
    for (len, at) in [(11, 0), (1, 10), (0, 11), (1, usize::MAX), (usize::MAX, 1)] {
        let read = Read { shard: 0, offset: 0, len, at };
        let done = store.read(vec![read], fixture.lease(10)).await;
        assert!(matches!(done.result, Err(ReadError::OutOfBounds(wrong)) if wrong == read), "{:?}", done.result);
    }
    fixture.returned().await;
}

async fn concurrent<S: Store + 'static>(fixture: &Arc<Fixture>, store: &Arc<S>) {
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..40 {
        let (fixture, store) = (fixture.clone(), store.clone());
        tasks.spawn(async move { fixture.exact(&store, &scattered(seed, 60)).await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    fixture.returned().await;
}

/// Futures that are dropped before, and while, their reads are done.
async fn dropped<S: Store>(fixture: &Fixture, store: &S) {
    drop(store.read(vec![whole(0)], fixture.lease(SIZES[0])));
    for _ in 0..20 {
        let mut futures: Vec<_> = (0..8)
            .map(|_| store.read(vec![whole(0)], fixture.slab.try_lease(&fixture.account, SIZES[0]).unwrap()))
            .collect();
        poll_fn(|cx| {
            for future in &mut futures {
                let _ = future.as_mut().poll(cx);
            }
            Poll::Ready(())
        })
        .await;
        drop(futures);
        fixture.returned().await;
    }
}

/// Batches one after the other in one space, also after one that failed and one that nobody waited for.
async fn one_space<S: Store>(fixture: &Fixture, store: &Arc<S>) {
    let mut space = Space::new();
    let wrong = Read { shard: 3, offset: 0, len: 1, at: 0 };
    for _ in 0..20 {
        let lease = fixture.lease(SIZES[0]);
        store.clone().read_in(vec![whole(0)], lease, &mut space);
        let done = (&mut space).await;
        done.result.unwrap();
        assert_eq!(done.reads, [whole(0)]);
        assert!(done.lease.iter().enumerate().all(|(offset, &found)| found == byte(0, offset)));
        store.clone().read_in(vec![wrong], done.lease, &mut space);
        let done = (&mut space).await;
        assert!(matches!(done.result, Err(ReadError::OutOfBounds(read)) if read == wrong), "{:?}", done.result);
        store.clone().read_in(vec![whole(0)], done.lease, &mut space);
        poll_fn(|cx| Poll::Ready(_ = Pin::new(&mut space).poll(cx))).await;
    }
    drop(space);
    fixture.returned().await;
}

/// What others may do to a shard's file.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Another file of the same bytes, times and name.
    Replace,
    Truncate,
    Append,
    Touch,
    /// The same size, and the times set back.
    Overwrite,
    Unlink,
    Rename,
    /// Something else has its name.
    Folder,
}

impl Change {
    const ALL: [Change; 8] = [
        Change::Replace,
        Change::Truncate,
        Change::Append,
        Change::Touch,
        Change::Overwrite,
        Change::Unlink,
        Change::Rename,
        Change::Folder,
    ];

    fn make(self, path: &Path) {
        let times = fs::metadata(path).unwrap();
        let times = FileTimes::new().set_accessed(times.accessed().unwrap()).set_modified(times.modified().unwrap());
        let writable = || OpenOptions::new().write(true).open(path).unwrap();
        match self {
            Change::Replace => {
                let new = aside(path);
                fs::copy(path, &new).unwrap();
                File::options().write(true).open(&new).unwrap().set_times(times).unwrap();
                fs::rename(new, path).unwrap();
            }
            Change::Truncate => writable().set_len(100).unwrap(),
            Change::Append => OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap(),
            Change::Touch => writable().set_modified(std::time::SystemTime::now()).unwrap(),
            Change::Overwrite => {
                let file = writable();
                file.write_all_at(b"other", 1000).unwrap();
                file.set_times(times).unwrap();
            }
            Change::Unlink => fs::remove_file(path).unwrap(),
            Change::Rename => fs::rename(path, aside(path)).unwrap(),
            Change::Folder => {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            }
        }
    }
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("aside")
}

/// A shard that was changed is noticed by the next batch that reads from it, whether or not the store had it open, and
/// nothing else suffers.
pub async fn changes<S: Store + 'static>(dir: &Path, make: impl Fn(Vec<ShardFile>) -> S) {
    for change in Change::ALL {
        for known in [true, false] {
            let fixture = Fixture::new(&dir.join(format!("{change:?}-{known}")));
            let store = make(fixture.shards.clone());
            if known {
                fixture.exact(&store, &[whole(0)]).await;
            }
            // Longer than the coarsest clock that file systems take times from.
            tokio::time::sleep(Duration::from_millis(20)).await;
            change.make(fixture.shards[0].place.file().expect("it made files"));
            // Also where the bytes read are the same as before, and where none are.
            for (offset, len) in [(0, SIZES[0]), (0, 10), (0, 0)] {
                let read = Read { shard: 0, offset, len, at: SIZES[1] };
                let done = fixture.read(&store, &[whole(1), read]).await;
                match done.result {
                    Err(ReadError::Changed { ref shard, .. }) => assert_eq!(*shard, fixture.shards[0].name),
                    other => panic!("{change:?}, open before: {known}, {len} bytes: {other:?}"),
                }
            }
            fixture.others(&store, &[0]).await;
            fixture.returned().await;
        }
    }
}

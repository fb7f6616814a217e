//! What a store takes from its process: descriptors and threads. One test, in a program of its own, because both are
//! counted for the whole process.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::time::Duration;

use forebay_server::catalog::{Identity, ShardFile};
use forebay_server::store::{PreadConfig, PreadStore, Read, Store};
use forebay_transport::pool::{Account, Slab, SlabConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: usize = 64;
const SHARDS: u32 = 60;
const THREADS: usize = 3;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn readers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("read-")).count()
}

fn shards(dir: &tempfile::TempDir) -> Vec<ShardFile> {
    let made = (0..SHARDS).map(|n| {
        let path = dir.path().join(n.to_string());
        fs::write(&path, [n as u8; 100]).unwrap();
        let identity = Identity::of(&fs::metadata(&path).unwrap());
        ShardFile { name: n.to_string(), place: path.into(), identity }
    });
    made.collect()
}

/// Reads from every shard, many of them at the same time, in batches that meet several shards.
async fn read_all(store: &PreadStore, slab: &Slab) {
    let account = Account::new("test", usize::MAX);
    let batches = (0..SHARDS).map(|first| {
        let shards = [first, (first + 7) % SHARDS, (first + 31) % SHARDS];
        let reads = shards.iter().zip(0..).map(|(&shard, n)| Read { shard, offset: 0, len: 100, at: n * 100 });
        (shards, store.read(reads.collect(), slab.try_lease(&account, 300).unwrap()))
    });
    let mut batches: Vec<_> = batches.collect();
    // Starts all of them.
    std::future::poll_fn(|cx| {
        batches.retain_mut(|(shards, reading)| match reading.as_mut().poll(cx) {
            std::task::Poll::Ready(done) => {
                done.result.unwrap();
                assert!(done.lease.chunks(100).zip(shards).all(|(bytes, shard)| bytes == [*shard as u8; 100]));
                false
            }
            std::task::Poll::Pending => true,
        });
        if batches.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[tokio::test]
async fn a_store_takes_no_more_than_it_may_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let shards = shards(&dir);
    let slab = Slab::new(SlabConfig { capacity: 1 << 20, lock: false }).unwrap();
    let before = descriptors();
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT as u64), maximum }).unwrap();

    let store = PreadStore::new(shards, PreadConfig { threads: THREADS, files: 512 }).unwrap();
    assert_eq!(descriptors(), before, "files are opened when they are needed");
    read_all(&store, &slab).await;
    assert!(descriptors() - before <= LIMIT / 2, "at most half of what the process may open");
    assert!(descriptors() - before >= LIMIT / 2 - 1, "files are kept open");

    // Something else takes all the rest: the store makes do with what it has.
    let mut hog = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        hog.push(file);
    }
    read_all(&store, &slab).await;
    drop(hog);

    // A thread names itself, some time after it was started.
    until("the threads are there", || readers() == THREADS).await;
    drop(store);
    until("threads and descriptors are gone", || readers() == 0 && descriptors() == before).await;
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not so after ten seconds; {} threads, {} descriptors", readers(), descriptors());
}

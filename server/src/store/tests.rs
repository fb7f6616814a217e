use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use forebay_transport::pool::{Account, Slab, SlabConfig};

use super::*;
use crate::catalog::{Identity, ShardFile};

fn pread(shards: Vec<ShardFile>) -> PreadStore {
    PreadStore::new(shards, PreadConfig::default()).unwrap()
}

fn slab() -> Slab {
    Slab::new(SlabConfig { capacity: 1 << 20, lock: false }).unwrap()
}

fn anyone() -> Account {
    Account::new("anyone", usize::MAX)
}

/// `count` shards of 1000 bytes, each its number.
fn shards(dir: &tempfile::TempDir, count: usize) -> Vec<ShardFile> {
    let made = (0..count).map(|n| {
        let path = dir.path().join(format!("{n}.tar"));
        fs::write(&path, [n as u8; 1000]).unwrap();
        let identity = Identity::of(&fs::metadata(&path).unwrap());
        ShardFile { name: format!("{n}.tar"), place: path.into(), identity }
    });
    made.collect()
}

fn first_bytes(shard: u32, len: usize) -> Vec<Read> {
    vec![Read { shard, offset: 0, len, at: 0 }]
}

#[tokio::test]
async fn pread_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::bytes(&dir.path().join("bytes"), pread).await;
    conformance::changes(&dir.path().join("changes"), pread).await;
}

#[tokio::test]
async fn pread_conforms_with_one_thread_and_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let least = |shards| PreadStore::new(shards, PreadConfig { threads: 0, files: 0 }).unwrap();
    conformance::bytes(&dir.path().join("bytes"), least).await;
    conformance::changes(&dir.path().join("changes"), least).await;
}

/// What io_uring comes to on this machine: with everything, without registered memory, and past the page cache. Threads,
/// where the program is built without it.
fn local(direct: Direct, slab: &Slab) -> LocalStores {
    LocalStores::new(&LocalConfig { direct, ..LocalConfig::default() }, slab).unwrap()
}

#[tokio::test]
async fn local_stores_conform() {
    // On a disk, which a temporary folder need not be.
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for direct in [Direct::Off, Direct::On] {
        let registered = Slab::new(SlabConfig { capacity: 4 << 20, lock: false }).unwrap();
        let stores = local(direct, &registered);
        let make = |shards| stores.open(shards).unwrap();
        let dir = dir.path().join(format!("{direct:?}"));
        conformance::bytes_into(&registered, &dir.join("registered"), make).await;
        conformance::bytes(&dir.join("bytes"), make).await;
        conformance::changes(&dir.join("changes"), make).await;
        let faulty = |shards| Faulty::new(make(shards), |_, _: &Read| None);
        conformance::bytes(&dir.join("faulty"), faulty).await;
    }
}

#[tokio::test]
async fn local_stores_conform_with_one_read_at_a_time_and_one_file() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let pread = PreadConfig { threads: 1, files: 1 };
    for direct in [Direct::Off, Direct::On] {
        let config = LocalConfig { direct, depth: 1, pread, ..LocalConfig::default() };
        let stores = LocalStores::new(&config, &slab()).unwrap();
        let make = |shards| stores.open(shards).unwrap();
        let dir = dir.path().join(format!("{direct:?}"));
        conformance::bytes(&dir.join("bytes"), make).await;
        conformance::changes(&dir.join("changes"), make).await;
    }
}

#[tokio::test]
async fn local_stores_outlive_each_other_and_what_made_them() {
    let dir = tempfile::tempdir().unwrap();
    let (slab, account) = (slab(), anyone());
    let stores = local(Direct::Off, &slab);
    let (one, other) = (stores.open(shards(&dir, 2)).unwrap(), stores.open(shards(&dir, 3)).unwrap());
    drop(stores);
    drop(one);
    let done = other.read(first_bytes(2, 1000), slab.try_lease(&account, 1000).unwrap()).await;
    done.result.unwrap();
    assert_eq!(done.lease[..], [2; 1000]);
}

#[test]
fn what_cannot_be_had_is_refused_when_it_was_asked_for_by_name() {
    let config = LocalConfig { io: Io::Pread, direct: Direct::On, ..LocalConfig::default() };
    assert!(matches!(LocalStores::new(&config, &slab()), Err(LocalError::DirectByThreads)));
    let stores = LocalStores::new(&LocalConfig { io: Io::Pread, ..LocalConfig::default() }, &slab()).unwrap();
    assert!(!stores.is_uring() && !stores.is_direct() && stores.notes().is_empty());
    let uring = LocalStores::new(&LocalConfig { io: Io::Uring, ..LocalConfig::default() }, &slab());
    // With the same result as when it is tried without being asked for; nothing in between.
    assert_eq!(uring.is_ok(), local(Direct::Off, &slab()).is_uring());
}

#[test]
fn past_the_cache_when_the_shards_are_larger_than_memory() {
    for (bytes, direct) in [(1 << 20, false), (u64::MAX, true)] {
        let stores = LocalStores::new(&LocalConfig { bytes, ..LocalConfig::default() }, &slab()).unwrap();
        assert_eq!(stores.is_direct(), direct && stores.is_uring(), "{bytes}");
    }
    let config = LocalConfig { bytes: u64::MAX, direct: Direct::Off, ..LocalConfig::default() };
    assert!(!LocalStores::new(&config, &slab()).unwrap().is_direct());
}

#[tokio::test]
async fn faulty_without_faults_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let make = |shards| Faulty::new(pread(shards), |_, _: &Read| None);
    conformance::bytes(&dir.path().join("bytes"), make).await;
    conformance::changes(&dir.path().join("changes"), make).await;
}

#[tokio::test]
async fn faults_come_where_they_were_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let store = Faulty::new(pread(shards(&dir, 3)), |n, read: &Read| match (n, read.shard) {
        (1, _) => Some(Fault::Os(libc::EIO)),
        (_, 2) => Some(Fault::Short),
        _ => None,
    });
    let (slab, account) = (slab(), anyone());
    let mut results = Vec::new();
    for shard in [0, 0, 0, 2] {
        let done = store.read(first_bytes(shard, 10), slab.try_lease(&account, 10).unwrap()).await;
        assert_eq!(done.result.is_ok(), done.lease[..] == [0; 10]);
        results.push(done.result);
    }
    assert!(results[0].is_ok() && results[2].is_ok());
    assert!(matches!(&results[1], Err(ReadError::Io { source, .. }) if source.raw_os_error() == Some(libc::EIO)));
    assert!(matches!(&results[3], Err(ReadError::Changed { .. })));
    assert_eq!(store.count(), 4);
}

#[tokio::test]
async fn a_closed_store_gives_every_lease_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = PreadStore::new(shards(&dir, 1), PreadConfig { threads: 1, files: 1 }).unwrap();
    let store = Arc::new(store);
    let (slab, account) = (slab(), anyone());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (store, lease) = (store.clone(), slab.try_lease(&account, 1000).unwrap());
        tasks.spawn(async move { store.read(first_bytes(0, 1000), lease).await });
    }
    tokio::task::yield_now().await;
    store.close();
    while let Some(done) = tasks.join_next().await {
        let ReadDone { lease, result, .. } = done.unwrap();
        match result {
            Ok(()) => assert_eq!(lease[..], [0; 1000]),
            Err(error) => assert!(matches!(error, ReadError::Closed), "{error}"),
        }
    }
    let done = store.read(first_bytes(0, 1), slab.try_lease(&account, 1).unwrap()).await;
    assert!(matches!(done.result, Err(ReadError::Closed)));
    drop(done);
    assert_eq!(slab.usage().free, slab.capacity());
}

#[tokio::test]
async fn a_pipe_in_a_shards_place_blocks_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let shards = shards(&dir, 1);
    fs::remove_file(shards[0].place.file().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(shards[0].place.file().unwrap()).status().unwrap();
    assert!(made.success());
    let store = pread(shards);
    let reading = store.read(first_bytes(0, 1), slab().try_lease(&anyone(), 1).unwrap());
    let done = tokio::time::timeout(Duration::from_secs(10), reading).await.expect("no thread waits for a writer");
    assert!(matches!(done.result, Err(ReadError::Changed { .. })), "{:?}", done.result);
}

#[tokio::test]
async fn what_was_read_while_it_was_changed_is_not_passed_on() {
    // A writer that appends all the while, from before the first read on, to a file indexed as it was.
    let dir = tempfile::tempdir().unwrap();
    let shards = shards(&dir, 1);
    let path = shards[0].place.file().unwrap().to_owned();
    let store = pread(shards);
    let (slab, account) = (slab(), anyone());
    let done = store.read(first_bytes(0, 1000), slab.try_lease(&account, 1000).unwrap()).await;
    done.result.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    for n in 0..200 {
        let write = tokio::task::spawn_blocking(move || {
            file.write_all(&[n as u8 | 1; 1]).unwrap();
            file
        });
        let done = store.read(first_bytes(0, 1000), slab.try_lease(&account, 1000).unwrap()).await;
        // Until the first byte is written it may be as it was; never other bytes.
        if done.result.is_ok() {
            assert_eq!(done.lease[..], [0; 1000]);
        }
        file = write.await.unwrap();
    }
    let done = store.read(first_bytes(0, 1000), slab.try_lease(&account, 1000).unwrap()).await;
    assert!(matches!(done.result, Err(ReadError::Changed { .. })));
}

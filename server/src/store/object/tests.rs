//! Over objects in memory, so that nothing but the store is tested; real servers are in the whole-system tests.

use std::sync::Arc;

use forebay_transport::pool::{Account, Slab, SlabConfig};
use futures_util::FutureExt;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;

use super::*;
use crate::catalog::{Identity, Place};
use crate::remote::Object;
use crate::store::conformance;

/// The same shards, as objects in memory.
fn upload(files: Vec<ShardFile>, config: RemoteConfig) -> (Arc<InMemory>, RemoteStore) {
    let memory = Arc::new(InMemory::new());
    let shards = files.into_iter().map(|file| {
        let bytes = std::fs::read(file.place.file().expect("a file")).expect("readable");
        let path = Path::from(file.name.as_str());
        let meta = async {
            memory.put(&path, bytes.into()).await.expect("stored");
            memory.head(&path).await.expect("there")
        };
        let meta = meta.now_or_never().expect("memory waits for nothing");
        let identity = Identity::of_object(meta.size, Some(meta.last_modified.timestamp()), meta.e_tag.as_deref());
        let url: Arc<str> = format!("memory://x/{}", file.name).into();
        let object = Object { url: url.clone(), store: memory.clone(), path };
        (ShardFile { name: file.name, place: Place::Object(url), identity }, Target::new(object, identity))
    });
    let shards = shards.collect();
    (memory, RemoteStore::of(shards, config))
}

#[tokio::test]
async fn objects_conform() {
    let dir = tempfile::tempdir().unwrap();
    conformance::bytes(dir.path(), |files| upload(files, RemoteConfig::default()).1).await;
}

#[tokio::test]
async fn objects_conform_without_coalescing_and_one_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let least = RemoteConfig { in_flight: 0, gap: 0, most: 1, ..RemoteConfig::default() };
    conformance::bytes(dir.path(), |files| upload(files, least).1).await;
}

#[tokio::test]
async fn an_object_that_was_replaced_or_removed_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tar");
    std::fs::write(&path, [7; 1000]).unwrap();
    let identity = Identity::of(&std::fs::metadata(&path).unwrap());
    let file = ShardFile { name: "a.tar".into(), place: path.into(), identity };
    let (memory, store) = upload(vec![file], RemoteConfig::default());
    let slab = Slab::new(SlabConfig { capacity: 1 << 20, lock: false }).unwrap();
    let account = Account::new("anyone", usize::MAX);
    let read = async |len| {
        let lease = slab.try_lease(&account, 1000).unwrap();
        store.read(vec![Read { shard: 0, offset: 0, len, at: 0 }], lease).await.result
    };
    read(1000).await.unwrap();
    memory.put(&Path::from("a.tar"), vec![7; 1000].into()).await.unwrap();
    for len in [1000, 10, 0] {
        assert!(matches!(read(len).await, Err(ReadError::Changed { .. })), "{len} bytes");
    }
    memory.delete(&Path::from("a.tar")).await.unwrap();
    assert!(matches!(read(0).await, Err(ReadError::Changed { .. })));
}

fn plan(reads: &[(u32, u64, usize, usize)], config: RemoteConfig) -> Vec<(usize, Range<u64>, usize)> {
    let reads: Vec<_> = reads.iter().map(|&(shard, offset, len, at)| Read { shard, offset, len, at }).collect();
    let mut lease = vec![0; 1 << 16];
    let requests = requests(&reads, &mut lease, &config).unwrap();
    requests.into_iter().map(|request| (request.shard, request.range, request.pieces.len())).collect()
}

#[test]
fn what_lies_near_is_asked_for_together() {
    let config = RemoteConfig { gap: 100, most: 1000, ..RemoteConfig::default() };
    // In any order in the lease; not across shards, gaps that are too wide, or more than one request may bring.
    let reads = [(0, 500, 50, 0), (0, 400, 50, 50), (1, 400, 50, 100), (0, 651, 50, 150), (0, 700, 600, 200)];
    let expected = [(0, 400..550, 2), (0, 651..1300, 2), (1, 400..450, 1)];
    assert_eq!(plan(&reads, config), expected);
    assert_eq!(plan(&[(0, 0, 600, 0), (0, 650, 500, 600)], config), [(0, 0..600, 1), (0, 650..1150, 1)]);
    // What lies within another is brought by it; a read of nothing too.
    assert_eq!(plan(&[(0, 0, 5000, 0), (0, 100, 10, 5000), (0, 5000, 0, 0)], config), [(0, 0..5000, 3)]);
}

#[test]
fn reads_that_lie_over_each_other_in_the_lease_are_refused() {
    let read = |at| Read { shard: 0, offset: 0, len: 10, at };
    let mut lease = vec![0; 100];
    assert!(requests(&[read(0), read(9)], &mut lease, &RemoteConfig::default()).is_err());
    assert!(requests(&[read(10), read(0), read(20)], &mut lease, &RemoteConfig::default()).is_ok());
}

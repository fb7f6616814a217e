//! The local fabric: the contract of links, over real files, and what happens when they fail or change.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_server::catalog::{BuildRequest, Dataset, Monitor, build, resolve};
use forebay_server::local::LocalFabric;
use forebay_server::serve::{Registry, Served, State};
use forebay_server::store::{Fault, Faulty, PreadConfig, PreadStore, Read, Reading, Store};
use forebay_transport::Version;
use forebay_transport::dial::Dialer;
use forebay_transport::link::{Completion, Failure, Fetch, Link, LinkError, Status, Tag};
use forebay_transport::pool::{Account, Lease, Slab, SlabConfig};
use forebay_transport::sim::conformance::{Rig, check_all};
use forebay_transport::sim::{Content, Known};
use tokio::runtime::Runtime;

/// A tar of what a generated dataset has.
fn write(folder: &Path, content: &Content) {
    let mut tar = File::create(folder.join("a.tar")).expect("created");
    for ordinal in 0..content.samples {
        for field in 0..content.fields {
            let Some(len) = content.len(ordinal, field) else { continue };
            let mut bytes = vec![0; len as usize];
            content.fill(ordinal, field, &mut bytes);
            member(&mut tar, &format!("{ordinal:05}.f{field}"), &bytes);
        }
    }
    tar.write_all(&[0; 1024]).expect("written");
}

fn member(tar: &mut File, name: &str, data: &[u8]) {
    let mut header = [0u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.write_all(&header).expect("written");
    tar.write_all(data).expect("written");
    tar.write_all(&vec![0; data.len().next_multiple_of(512) - data.len()]).expect("written");
}

fn dataset(folder: &Path) -> Dataset {
    let sources = resolve(folder.to_str().expect("UTF-8")).expect("shards");
    let request = BuildRequest::new("content", sources, folder.join("index"));
    build(&request, Monitor { progress: &|_| {}, cancel: &AtomicBool::new(false) }).expect("intact").dataset
}

/// What the conformance suite knows about the dataset, with the version that the catalog gave it.
struct Indexed {
    content: Content,
    version: Version,
}

impl Known for Indexed {
    fn dataset(&self) -> Arc<str> {
        "content".into()
    }
    fn version(&self) -> Version {
        self.version
    }
    fn samples(&self) -> u64 {
        self.content.samples
    }
    fn fields(&self) -> u16 {
        self.content.fields
    }
    fn len(&self, ordinal: u64, field: u16) -> Option<u64> {
        self.content.len(ordinal, field)
    }
    fn check(&self, ordinal: u64, field: u16, bytes: &[u8]) -> bool {
        self.content.check(ordinal, field, bytes)
    }
}

struct World {
    folder: tempfile::TempDir,
    known: Indexed,
    registry: Arc<Registry>,
    fabric: LocalFabric,
    runtime: Runtime,
}

impl World {
    fn new(content: Content, store: impl FnOnce(PreadStore) -> Arc<dyn Store>) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), &content);
        let dataset = dataset(folder.path());
        let known = Indexed { content, version: dataset.version() };
        let files = PreadStore::new(dataset.shard_files(), PreadConfig { threads: 2, files: 8 }).expect("threads");
        let registry = Arc::new(Registry::new());
        registry.set("content", State::Ready(Arc::new(Served::new(dataset, store(files)))));
        let fabric = LocalFabric::new("a folder", registry.clone()).expect("a page").with_window(16);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
        World { folder, known, registry, fabric, runtime: runtime.expect("a runtime") }
    }

    /// Of which every sample has something: a tar cannot say that there is one without fields.
    fn content() -> Content {
        let all = (1..).map(|seed| Content { fields: 3, absent: 0.1, ..Content::new(seed, 100, 1, 8 << 10) });
        let mut whole = all.filter(|content| (0..content.samples).all(|ordinal| content.sample_len(ordinal) > 0));
        whole.next().expect("one of many")
    }
}

impl Rig for World {
    fn content(&self) -> &dyn Known {
        &self.known
    }
    fn link(&mut self) -> Box<dyn Link> {
        Box::new(self.fabric.link(self.runtime.handle().clone()))
    }
    fn pass(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
    }
    fn cut(&mut self) {
        self.fabric.close();
    }
}

#[test]
fn the_local_link_keeps_the_contract() {
    check_all(|| World::new(World::content(), |store| Arc::new(store)));
}

/// One operation, to its end.
fn one(world: &mut World, ordinals: &[u64]) -> Completion {
    let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(4 << 20) }).expect("a slab");
    let account = Account::new("test", slab.capacity());
    let mut link = world.link();
    let fetch = Fetch {
        tag: Tag(1),
        dataset: "content".into(),
        version: world.known.version,
        ordinals: ordinals.to_vec(),
        fields: (0..world.known.content.fields).collect(),
        lease: slab.try_lease(&account, 2 << 20).expect("free"),
        entries: Vec::new(),
        deadline: Duration::from_secs(10),
    };
    link.submit(fetch).expect("room");
    link.flush();
    for _ in 0..10_000 {
        if let Poll::Ready(completion) = link.poll(&mut Context::from_waker(Waker::noop())) {
            return completion;
        }
        world.pass();
    }
    panic!("it never completed");
}

/// A sector that cannot be read fails the samples that lie on it, and no other.
#[test]
fn storage_failures_are_of_one_sample() {
    let content = World::content();
    let bad = 17;
    let mut world = World::new(content.clone(), |store| Arc::new(store));
    let extent = {
        let Some(State::Ready(served)) = world.registry.get("content") else { panic!("it is ready") };
        (0..3).find_map(|field| served.dataset.extent(bad, field).expect("there").filter(|extent| extent.len > 0))
    };
    let extent = extent.expect("a field with bytes");
    let dataset = dataset(world.folder.path());
    let files = PreadStore::new(dataset.shard_files(), PreadConfig { threads: 1, files: 8 }).expect("threads");
    let faulty = Faulty::new(files, move |_, read| {
        let covered = read.offset <= extent.offset && extent.offset < read.offset + read.len as u64;
        covered.then_some(Fault::Os(5))
    });
    world.registry.set("content", State::Ready(Arc::new(Served::new(dataset, Arc::new(faulty)))));
    let completion = one(&mut world, &[16, bad, 18]);
    let entries = completion.result.expect("an answer");
    let failed = |entry: &&forebay_transport::link::Entry| entry.status == Status::Failed(Failure::Storage);
    assert_eq!(entries.iter().filter(failed).count(), 1);
    assert_eq!(entries[3..6].iter().filter(failed).count(), 1, "of the sample asked for second");
    for (at, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.status == Status::Ok) {
        let bytes = &completion.lease[entry.offset as usize..][..entry.len as usize];
        assert!(content.check([16, bad, 18][at / 3], (at % 3) as u16, bytes), "entry {at}");
    }
}

/// Nothing of other bytes than those indexed is delivered, and from then on nothing at all.
#[test]
fn a_shard_that_changes_ends_the_version() {
    let mut world = World::new(World::content(), |store| Arc::new(store));
    assert!(one(&mut world, &[1]).result.is_ok());
    std::thread::sleep(Duration::from_millis(30));
    let path = world.folder.path().join("a.tar");
    let bytes = fs::read(&path).expect("there");
    fs::write(&path, bytes).expect("written");
    for _ in 0..2 {
        let error = one(&mut world, &[1]).result.expect_err("it was written to");
        assert!(matches!(&error, LinkError::DatasetChanged(why) if why.contains("a.tar")), "{error}");
    }
    assert!(matches!(world.registry.get("content"), Some(State::Changed { .. })));
}

/// A store that breaks.
struct Broken;

impl Store for Broken {
    fn read(&self, _: Vec<Read>, _: Lease) -> Reading<'_> {
        panic!("this store is broken")
    }
}

/// Nobody waits for ever for an operation of which nobody can say what became of it.
#[test]
#[should_panic(expected = "this store is broken")]
fn a_panic_in_an_operation_is_one_of_who_waits_for_it() {
    let mut world = World::new(World::content(), |_| Arc::new(Broken));
    one(&mut world, &[1]);
}

/// Documents are the server's own.
#[test]
fn documents_are_those_of_a_server() {
    let world = World::new(World::content(), |store| Arc::new(store));
    let (list, missing) = world.runtime.block_on(async {
        let dialled = world.fabric.dial().await.expect("it is here");
        let list = dialled.control.get("/v1/datasets").await.expect("an answer");
        (list, dialled.control.get("/v1/datasets/other").await.expect("an answer"))
    });
    let list: forebay_transport::wire::describe::DatasetList = serde_json::from_slice(&list.body).expect("a list");
    assert_eq!(list.datasets[0].version, Some(world.known.version.to_string()));
    assert_eq!(missing.status, 404);
}

//! A sample on the local fabric costs no allocation.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_client::blocking::{Client, Loader};
use forebay_client::{LoaderOptions, Shuffle};
use forebay_server::catalog::resolve;
use forebay_server::local::LocalFabric;
use forebay_server::publish::{Publish, publish};
use forebay_server::serve::Registry;
use forebay_server::store::{Direct, Io, LocalConfig, LocalStores};
use forebay_system::allocations::{self, Counting};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use forebay_transport::pool::{Ledger, Slab, SlabConfig};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Smaller than the data, so that its memory is used many times over.
const POOL: usize = 24 << 20;
const BATCH: u32 = 32;
/// Epochs in which what grows is filled.
const WARM: usize = 8;
/// Epochs that are counted.
const COUNTED: usize = 15;

/// A client that reads the shards of `folder` on this machine.
fn client(folder: &Path, io: Io, direct: Direct) -> Client {
    let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(POOL) }).expect("memory");
    let stores = LocalStores::new(&LocalConfig { io, direct, ..LocalConfig::default() }, &slab).expect("a store");
    let work = Publish {
        name: "hot".into(),
        sources: resolve(folder.to_str().expect("UTF-8")).expect("shards"),
        index: folder.join("index.fbi"),
        in_memory: false,
        portable: None,
        skip_damaged: false,
        defer: None,
    };
    let registry = Arc::new(Registry::new());
    publish(&registry, &work, &stores.into(), &|_| {}, &AtomicBool::new(false)).expect("intact shards");
    let fabric = LocalFabric::new("hot", registry).expect("a page");
    Client::with_pool(Box::new(fabric), slab, Ledger::new(2 * POOL as u64)).expect("a thread")
}

/// Takes so many batches, and looks at every byte's place of them.
fn take(loader: &mut Loader, batches: u64) {
    for _ in 0..batches {
        let batch = loader.next().expect("more").expect("a batch");
        assert!(batch.iter().all(|sample| sample.field(0).is_some()));
    }
}

/// Allocations in each of some epochs, in all threads.
fn epochs(folder: &Path, io: Io, direct: Direct) -> Vec<u64> {
    let client = client(folder, io, direct);
    let dataset = client.dataset("hot").expect("it is there");
    let options =
        LoaderOptions { batch_size: BATCH, shuffle: Shuffle::Full, seed: 7, epochs: None, ..LoaderOptions::default() };
    let mut loader = dataset.loader(options).expect("a loader");
    let batches = dataset.description().samples.div_ceil(BATCH.into());
    take(&mut loader, WARM as u64 * batches);
    assert!(allocations::calls() > 0, "the allocator counts");
    let mut counts = Vec::with_capacity(COUNTED);
    for _ in 0..COUNTED {
        let before = allocations::calls();
        take(&mut loader, batches);
        counts.push(allocations::calls() - before);
    }
    counts
}

/// Whichever way they are read, small or large. (One test, because all of the process's allocations are counted.)
#[test]
fn samples_cost_no_allocation_on_the_local_fabric() {
    for (size, samples) in [(4 << 10, 16_000), (115_000, 600)] {
        let scratch = Scratch::new("hot");
        let what = Shards { shards: 4, samples, sizes: Sizes::Fixed(size), seed: 3 };
        tars::write(scratch.path(), &what, |_| {}).expect("written");
        for (io, direct) in [(Io::Uring, Direct::Off), (Io::Uring, Direct::On), (Io::Pread, Direct::Off)] {
            let counts = epochs(scratch.path(), io, direct);
            // What is kept for the next batch is as much as was ever needed at a time. An epoch may still need more, when
            // threads happen to run as they never have; what each sample or batch costs would show in all of them.
            let none = counts.iter().filter(|&&count| count == 0).count();
            assert!(2 * none > COUNTED, "{size} bytes, {io:?}, direct {direct:?}: {counts:?}");
        }
    }
}

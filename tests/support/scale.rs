//! What a dataset costs by the number of its samples: time to open it, and heap while it is read.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use forebay_client::blocking::Client;
use forebay_client::{ClientConfig, LoaderOptions, Trust};
use forebay_server::catalog::{self, BuildRequest, Identity, Monitor, ShardFile, SourceFile, synthesize};
use forebay_server::local::LocalFabric;
use forebay_server::serve::{Registry, Served, Service, ServiceConfig, State};
use forebay_server::store::{PreadConfig, PreadStore};
use forebay_transport::h3;
use forebay_transport::pool::{Slab, SlabConfig};

use crate::allocations;

const SHARDS: u64 = 100;
/// Bytes of each sample. A loader asks for 64 groups of 1 MiB ahead: with samples of this size that is a sixth of the smallest
/// dataset measured, so that datasets of any size fill the window alike. (Of samples of 64 bytes the window would hold
/// more than there are, and what is compared would be how many were left.)
const SAMPLE: u64 = 4096;
/// Memory of a client or server beside the heap.
const POOL: usize = 128 << 20;
const BATCH: u32 = 256;
/// Batches between looks at the heap, and how many looks.
const BATCHES: usize = 30;
const LOOKS: usize = 5;

/// What one dataset cost. Heap is what the program has allocated and not given back, as the allocator sees it: the
/// pools, which are of a fixed size, and the mapped index, which the system may drop at any time, are not in it.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// From the index that is there to a dataset that can be served.
    pub opening: Duration,
    /// Of the index file.
    pub index_bytes: u64,
    /// Heap of the open dataset.
    pub open: u64,
    /// Heap of a client that reads a shuffled epoch without a server, the dataset and its store included.
    pub local: u64,
    /// The same through a server on loopback: heap of both together.
    pub served: u64,
}

/// Measures a dataset of so many samples, whose index is made here and whose shards are sparse.
///
/// # Panics
/// When anything of it fails.
pub fn cost(folder: &Path, samples: u64) -> Cost {
    let files: Vec<ShardFile> = (0..SHARDS)
        .map(|number| {
            let (name, path) = (format!("{number:06}.tar"), folder.join(format!("{samples}-{number:06}.tar")));
            let file = File::create(&path).expect("created");
            file.set_len(samples / SHARDS * (512 + SAMPLE).next_multiple_of(1024) + 1024).expect("sparse");
            ShardFile { name, place: path.into(), identity: Identity::of(&file.metadata().expect("there")) }
        })
        .collect();
    let index = folder.join(format!("{samples}.fbi"));
    synthesize(&index, &files, samples / SHARDS, SAMPLE).expect("written");
    let sources = files.iter().map(|file| SourceFile { name: file.name.clone(), place: file.place.clone() }).collect();
    let request = BuildRequest::new("scale", sources, index.clone());
    drop(files);

    let before = allocations::live();
    let begun = Instant::now();
    let built = catalog::build(&request, Monitor { progress: &|_| {}, cancel: &AtomicBool::new(false) });
    let dataset = built.expect("it is whole").dataset;
    let opening = begun.elapsed();
    let open = allocations::live() - before;
    assert_eq!(dataset.samples(), samples);
    let store = PreadStore::new(dataset.shard_files(), PreadConfig::default()).expect("threads");
    let registry = Arc::new(Registry::new());
    registry.set("scale", State::Ready(Arc::new(Served::new(dataset, Arc::new(store)))));
    let fabric = LocalFabric::new("scale", registry.clone()).expect("a page");
    let local = read(&Client::with_dialer(Box::new(fabric), POOL as u64).expect("memory"), before);
    let served = serve(folder, registry, |client| read(client, before));
    Cost { opening, index_bytes: fs::metadata(index).expect("there").len(), open, local, served }
}

/// The heap in use beyond `before` in the middle of a shuffled epoch, when all that may be fetched ahead has arrived: while
/// it is under way it takes more, by how fast the storage and the network are at that moment. The middle one of some
/// looks.
fn read(client: &Client, before: u64) -> u64 {
    let options = LoaderOptions { batch_size: BATCH, seed: 7, ..LoaderOptions::default() };
    let mut loader = client.dataset("scale").expect("it is served").loader(options).expect("a loader");
    let mut seen = Vec::with_capacity(LOOKS);
    for _ in 0..LOOKS {
        for _ in 0..BATCHES {
            assert_eq!(loader.next().expect("more").expect("a batch").len(), BATCH as usize);
        }
        seen.push((settled() - before) as f64);
    }
    crate::figures::median(&seen) as u64
}

/// The heap in use once it stays the same.
fn settled() -> u64 {
    const STILL: u32 = 10;
    let (mut last, mut same) = (allocations::live(), 0);
    for _ in 0..1000 {
        std::thread::sleep(Duration::from_millis(10));
        let now = allocations::live();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        if same == STILL {
            break;
        }
    }
    last
}

/// Serves the registry over HTTP/3 to a client.
fn serve(folder: &Path, registry: Arc<Registry>, with: impl FnOnce(&Client) -> u64) -> u64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let identity = h3::Identity::self_signed(folder, &["127.0.0.1".to_owned()]).expect("a certificate");
    let trust = Trust::Pinned(identity.fingerprint());
    let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(POOL) }).expect("memory");
    let service = Arc::new(Service::new(registry, slab, ServiceConfig::default()));
    let config = h3::ServerConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)), identity, POOL);
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let (address, serving) = {
        let _inside = runtime.enter();
        let server = h3::Server::bind(config).expect("a port");
        let address = server.local_addr();
        let shutdown = async move { drop(ended.await) };
        (address, runtime.spawn(server.serve(service, shutdown, Duration::ZERO)))
    };
    let url = format!("https://{address}").parse().expect("a URL");
    let config = ClientConfig { memory: 2 * POOL as u64, trust, ..ClientConfig::default() };
    let client = Client::connect(&url, config).expect("it serves");
    let figure = with(&client);
    drop(client);
    drop(end);
    runtime.block_on(serving).expect("it ends");
    figure
}

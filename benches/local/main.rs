//! The local fabric, against the least that could be done: a loop of `pread` with the same checks.
//!
//! Both read the same samples in the same shuffled order from the page cache, compare the same CRCs, and write to memory
//! of the same size, from one end to the other and round again. The loop looks nothing up (its places are listed
//! beforehand), makes no batches and hands nothing to anybody.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use forebay_client::blocking::{Client, Dataset};
use forebay_client::{LoaderOptions, Shuffle};
use forebay_server::catalog::{Extent, resolve};
use forebay_server::local::LocalFabric;
use forebay_server::publish::{Publish, publish};
use forebay_server::serve::{Registry, Served, State};
use forebay_server::store::PreadConfig;
use forebay_system::allocations::{self, Counting};
use forebay_system::figures::{Figures, median};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs of each kind, in turn.
const PAIRS: usize = 9;

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let figures = Figures::new("local", smoke);
    let (samples, pool, pairs) = if smoke { (600, 16 << 20, 1) } else { (8000, 128 << 20, PAIRS) };
    let scratch = Scratch::new("bench-local");
    let what = Shards { shards: 8, samples, sizes: Sizes::ImageNet, seed: 1 };
    tars::write(scratch.path(), &what, |_| {}).expect("room for shards");
    let world = World::open(scratch.path(), pool);
    ratio(&figures, &world, pool, pairs);
    allocations(&figures, &world);
}

struct World {
    served: Arc<Served>,
    dataset: Dataset,
}

impl World {
    fn open(folder: &Path, pool: u64) -> World {
        let work = Publish {
            name: "bench".into(),
            sources: resolve(folder.to_str().expect("UTF-8")).expect("shards"),
            index: folder.join("index.fbi"),
            in_memory: false,
            portable: None,
            skip_damaged: false,
            defer: None,
        };
        let registry = Arc::new(Registry::new());
        publish(&registry, &work, &PreadConfig::default().into(), &|_| {}, &AtomicBool::new(false))
            .expect("intact shards");
        let Some(State::Ready(served)) = registry.get("bench") else { panic!("it was published") };
        let fabric = LocalFabric::new("bench", registry).expect("a page");
        let client = Client::with_dialer(Box::new(fabric), pool).expect("memory");
        World { served, dataset: client.dataset("bench").expect("it is served") }
    }

    fn options(&self, batch: u32, epochs: u64) -> LoaderOptions {
        LoaderOptions { batch_size: batch, shuffle: Shuffle::Full, seed: 7, epochs: Some(epochs), ..Default::default() }
    }

    /// One epoch through the loader: its time and bytes.
    fn epoch(&self, batch: u32) -> (Duration, u64) {
        let begun = Instant::now();
        let loader = self.dataset.loader(self.options(batch, 1)).expect("a loader");
        let bytes = loader.map(|batch| batch.expect("a batch").bytes()).sum();
        (begun.elapsed(), bytes)
    }

    /// Where the samples of that epoch lie, in its order.
    fn places(&self, batch: u32) -> Vec<Extent> {
        let fields: Vec<u16> = (0..self.served.dataset.fields().len() as u16).collect();
        let mut extents = Vec::new();
        for batch in self.dataset.loader(self.options(batch, 1)).expect("a loader") {
            for sample in batch.expect("a batch").iter() {
                self.served.dataset.extents(sample.ordinal(), &fields, &mut extents).expect("an intact index");
            }
        }
        extents.into_iter().flatten().collect()
    }
}

/// The loop: reads each field to the next place in `memory`, and compares its CRC.
fn pread(files: &[File], places: &[Extent], memory: &mut [u8]) -> (Duration, u64) {
    let begun = Instant::now();
    let (mut at, mut bytes) = (0, 0);
    for Extent { shard, offset, len, crc } in places {
        let len = *len as usize;
        if at + len > memory.len() {
            at = 0;
        }
        let place = &mut memory[at..at + len];
        files[*shard as usize].read_exact_at(place, *offset).expect("a good disk");
        assert_eq!(Some(crc32c::crc32c(place)), *crc);
        at = (at + len).next_multiple_of(64);
        bytes += len as u64;
    }
    (begun.elapsed(), bytes)
}

fn ratio(figures: &Figures, world: &World, pool: u64, pairs: usize) {
    let files: Vec<File> = world
        .served
        .dataset
        .shard_files()
        .iter()
        .map(|shard| File::open(shard.place.file().expect("a file")).expect("there"))
        .collect();
    let places = world.places(64);
    let mut memory = vec![1u8; pool as usize];
    let speed = |(time, bytes): (Duration, u64)| bytes as f64 / 1e6 / time.as_secs_f64();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    pread(&files, &places, &mut memory);
    for _ in 0..pairs {
        ours.push(speed(world.epoch(64)));
        theirs.push(speed(pread(&files, &places, &mut memory)));
    }
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
    figures.note("local fabric, shuffled epoch", median(&ours), "MB/s", json!({ "runs": ours }));
    figures.note("pread loop with the same checks", median(&theirs), "MB/s", json!({ "runs": theirs }));
    figures.note("local fabric ÷ pread loop", median(&ratios), "ratio", json!({ "runs": ratios, "pool_bytes": pool }));
}

/// Allocations between two batches well within an epoch, in all threads, for groups of different sizes: what each sample
/// costs is the slope.
fn allocations(figures: &Figures, world: &World) {
    for batch in [16, 64] {
        let mut loader = world.dataset.loader(world.options(batch, 3)).expect("a loader");
        let samples = world.dataset.description().samples;
        let batches = samples.div_ceil(u64::from(batch));
        let groups = |loader: &forebay_client::blocking::Loader| loader.stats().completed;
        let skip = |loader: &mut forebay_client::blocking::Loader, count| {
            (0..count).map(|_| loader.next().expect("more").expect("a batch").len() as u64).sum::<u64>()
        };
        // An epoch to fill what grows.
        skip(&mut loader, batches);
        let (calls, before) = (allocations::calls(), groups(&loader));
        let read = skip(&mut loader, batches);
        let (calls, groups) = (allocations::calls() - calls, groups(&loader) - before);
        let name = format!("allocations per sample, batches of {batch}");
        let more = json!({ "allocations": calls, "samples": read, "batches": batches, "groups": groups });
        figures.note(&name, calls as f64 / read as f64, "allocations", more);
        let name = format!("allocations per group, batches of {batch}");
        figures.note(&name, calls as f64 / groups.max(1) as f64, "allocations", json!({}));
    }
}

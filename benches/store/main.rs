//! How fast shards on this machine come into leases by io_uring.
//!
//! - **Cached**: batches of 8 random reads of 112 KiB out of the page cache, through the store, against a plain loop of `pread`
//!   into leases of the same slab, one batch at a time on one thread each, with the same look at every file afterwards.
//! - **Direct** (gate: 0.93): the same reads past the page cache, 32 at a time, against `fio` with as many, of the same sizes at
//!   the same alignment from the same files, by io_uring with registered files and buffers.
//!
//! Pairs take turns, the median of their ratios counts. `--smoke` reads a small set once and compares every byte with what was
//! written; its figures mean nothing.
#![allow(clippy::disallowed_methods)] // Clocks and processes are what a bench is for.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_server::catalog::{Identity, ShardFile};
use forebay_server::store::{Direct, LocalConfig, LocalStores, Read, Store};
use forebay_system::figures::{Figures, median};
use forebay_system::scratch::Scratch;
use forebay_transport::pool::{Account, Slab, SlabConfig};
use serde_json::{Value, json};

const BLOCK: usize = 4096;
/// The size of a read: about that of an image.
const SIZE: usize = 28 * BLOCK;
/// Reads in a batch: what the server reads at a time.
const BATCH: usize = 8;
const DEPTH: u32 = 32;
const POOL: usize = 256 << 20;
/// What the direct ratio must reach.
const GATE: f64 = 0.93;

struct Extent {
    smoke: bool,
    files: usize,
    file: usize,
    pairs: usize,
    run: Duration,
}

fn main() -> ExitCode {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let extent = match smoke {
        true => Extent { smoke, files: 2, file: 4 << 20, pairs: 1, run: Duration::from_millis(50) },
        false => Extent { smoke, files: 8, file: 256 << 20, pairs: 9, run: Duration::from_millis(1500) },
    };
    let figures = Figures::new("store", smoke);
    let scratch = Scratch::new("bench-store");
    let shards = shards(scratch.path(), &extent);
    cached(&figures, &extent, &shards);
    let ratio = direct(&figures, &extent, &shards);
    match ratio {
        Some(ratio) if ratio < GATE && !smoke => {
            eprintln!("store: past the page cache the ratio to fio is {ratio:.3}; it must be {GATE} at least");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// The byte at `offset` of shard `shard`.
fn byte(shard: usize, offset: u64) -> u8 {
    (offset / 509 + offset + shard as u64 * 31) as u8
}

fn shards(dir: &Path, extent: &Extent) -> Vec<ShardFile> {
    let one = |n: usize| {
        let (name, path) = (n.to_string(), dir.join(n.to_string()));
        let mut file = File::create(&path).expect("a shard");
        for start in (0..extent.file as u64).step_by(1 << 20) {
            let bytes: Vec<u8> = (start..start + (1 << 20)).map(|offset| byte(n, offset)).collect();
            file.write_all(&bytes).expect("room for a shard");
        }
        file.sync_all().expect("a shard on the disk");
        ShardFile { name, identity: Identity::of(&fs::metadata(&path).expect("a shard")), place: path.into() }
    };
    (0..extent.files).map(one).collect()
}

/// Random batches, the same for the same seed.
struct Batches {
    random: fastrand::Rng,
    files: u32,
    blocks: u64,
}

impl Batches {
    fn new(seed: u64, extent: &Extent) -> Batches {
        let blocks = ((extent.file - SIZE) / BLOCK) as u64;
        Batches { random: fastrand::Rng::with_seed(seed), files: extent.files as u32, blocks }
    }

    fn fill(&mut self, reads: &mut Vec<Read>) {
        reads.clear();
        reads.extend((0..BATCH).map(|n| Read {
            shard: self.random.u32(..self.files),
            offset: self.random.u64(..=self.blocks) * BLOCK as u64,
            len: SIZE,
            at: n * SIZE,
        }));
    }
}

fn compare(lease: &[u8], reads: &[Read]) {
    for read in reads {
        let found = &lease[read.at..][..read.len];
        let wrong = found.iter().zip(read.offset..).any(|(&found, offset)| found != byte(read.shard as usize, offset));
        assert!(!wrong, "other bytes than were written: {read:?}");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

/// Reads with `tasks` batches at a time, and says how many bytes per second that made.
fn by_store(store: &Arc<dyn Store>, slab: &Slab, tasks: u64, seed: u64, extent: &Extent) -> f64 {
    let start = Instant::now();
    let (run, smoke) = (extent.run, extent.smoke);
    let bytes: u64 = runtime().block_on(async {
        let mut working = tokio::task::JoinSet::new();
        for task in 0..tasks {
            let mut batches = Batches::new(seed * 1000 + task, extent);
            let (store, slab) = (store.clone(), slab.clone());
            working.spawn(async move {
                let (account, mut reads, mut bytes) = (Account::new("bench", usize::MAX), Vec::new(), 0);
                // Some leases are always under way, so that memory is rotated through as it is when serving.
                let mut held = std::collections::VecDeque::new();
                while start.elapsed() < run {
                    batches.fill(&mut reads);
                    let lease = slab.lease(&account, BATCH * SIZE).await;
                    let done = store.read(std::mem::take(&mut reads), lease).await;
                    done.result.expect("shards that are there");
                    if smoke {
                        compare(&done.lease, &done.reads);
                    }
                    bytes += (BATCH * SIZE) as u64;
                    reads = done.reads;
                    rotate(&mut held, done.lease, tasks);
                }
                bytes
            });
        }
        let mut sum = 0;
        while let Some(bytes) = working.join_next().await {
            sum += bytes.expect("a task that ends well");
        }
        sum
    });
    bytes as f64 / start.elapsed().as_secs_f64()
}

/// Keeps most of the pool lent, so that each batch goes to the memory that was used longest ago.
fn rotate<T>(held: &mut std::collections::VecDeque<T>, lease: T, tasks: u64) {
    held.push_back(lease);
    if held.len() as u64 * tasks > (POOL / (BATCH * SIZE)) as u64 * 3 / 4 {
        held.pop_front();
    }
}

fn by_pread(files: &[File], shards: &[ShardFile], slab: &Slab, seed: u64, extent: &Extent) -> f64 {
    let start = Instant::now();
    let (account, mut reads, mut bytes) = (Account::new("bench", usize::MAX), Vec::new(), 0u64);
    let mut held = std::collections::VecDeque::new();
    let mut batches = Batches::new(seed * 1000, extent);
    while start.elapsed() < extent.run {
        batches.fill(&mut reads);
        reads.sort_unstable_by_key(|read| (read.shard, read.offset));
        let mut lease = slab.try_lease(&account, BATCH * SIZE).expect("memory");
        for same in reads.chunk_by(|a, b| a.shard == b.shard) {
            let shard = same[0].shard as usize;
            for read in same {
                let to = &mut lease.as_mut_slice()[read.at..][..read.len];
                files[shard].read_exact_at(to, read.offset).expect("a read");
            }
            let found = files[shard].metadata().expect("an open file");
            assert!(Identity::of(&found) == shards[shard].identity, "unchanged");
        }
        bytes += (BATCH * SIZE) as u64;
        rotate(&mut held, lease, 1);
    }
    bytes as f64 / start.elapsed().as_secs_f64()
}

fn stores(direct: Direct, slab: &Slab) -> LocalStores {
    let config = LocalConfig { direct, depth: DEPTH, ..LocalConfig::default() };
    let stores = LocalStores::new(&config, slab).expect("a store");
    stores.notes().iter().for_each(|note| eprintln!("store: {note}"));
    stores
}

fn settings(extent: &Extent, stores: &LocalStores, pairs: &[(f64, f64)]) -> Value {
    let ratios: Vec<f64> = pairs.iter().map(|(ours, theirs)| ours / theirs).collect();
    json!({
        "ratios": ratios,
        "MB": extent.files * extent.file / 1_000_000,
        "read": SIZE,
        "reads in a batch": BATCH,
        "by io_uring": stores.is_uring(),
        "registered MB": stores.registered() / 1_000_000,
    })
}

/// Measures pairs in turn; notes both and their ratio, which it returns.
fn pairs(
    figures: &Figures,
    (name, other): (&str, &str),
    (extent, stores): (&Extent, &LocalStores),
    mut ours: impl FnMut(u64) -> f64,
    mut theirs: impl FnMut(u64) -> f64,
) -> f64 {
    let turn = |n: usize| match n.is_multiple_of(2) {
        true => {
            let first = ours(n as u64);
            (first, theirs(n as u64))
        }
        false => {
            let first = theirs(n as u64);
            (ours(n as u64), first)
        }
    };
    let measured: Vec<(f64, f64)> = (0..extent.pairs).map(turn).collect();
    let of = |pick: fn(&(f64, f64)) -> f64| median(&measured.iter().map(pick).collect::<Vec<_>>());
    figures.note(&format!("{name}, by the store"), of(|pair| pair.0 / 1e9), "GB/s", Value::Null);
    figures.note(&format!("{name}, by {other}"), of(|pair| pair.1 / 1e9), "GB/s", Value::Null);
    let ratio = of(|pair| pair.0 / pair.1);
    figures.note(&format!("{name}, store / {other}"), ratio, "", settings(extent, stores, &measured));
    ratio
}

fn slab() -> Slab {
    Slab::new(SlabConfig::new(POOL)).expect("memory")
}

fn cached(figures: &Figures, extent: &Extent, shards: &[ShardFile]) {
    let slab = slab();
    let stores = stores(Direct::Off, &slab);
    let store = stores.open(shards.to_vec()).expect("a store");
    let files: Vec<File> =
        shards.iter().map(|shard| File::open(shard.place.file().expect("a file")).expect("a shard")).collect();
    // Into the cache, all of it.
    shards.iter().for_each(|shard| drop(fs::read(shard.place.file().expect("a file")).expect("a shard")));
    pairs(
        figures,
        ("cached", "a pread loop"),
        (extent, &stores),
        |seed| by_store(&store, &slab, 1, seed, extent),
        |seed| by_pread(&files, shards, &slab, seed, extent),
    );
}

/// The ratio to `fio`, where there is one and both can go past the page cache.
fn direct(figures: &Figures, extent: &Extent, shards: &[ShardFile]) -> Option<f64> {
    let slab = slab();
    let stores = stores(Direct::On, &slab);
    let store = stores.open(shards.to_vec()).expect("a store");
    if !stores.is_direct() {
        println!("!! SKIPPED: reads past the page cache: there is no io_uring here");
        return None;
    }
    // So many batches that there are always as many reads to do as the kernel takes at a time, and some waiting.
    let tasks = u64::from(DEPTH) / BATCH as u64 + 2;
    let ours = |seed| {
        let (before, start) = (read_from_disk(), Instant::now());
        let rate = by_store(&store, &slab, tasks, seed, extent);
        let (read, delivered) = (read_from_disk() - before, rate * start.elapsed().as_secs_f64());
        println!(
            "store: direct: the kernel counts {:.3} bytes from the disk for each delivered",
            read as f64 / delivered
        );
        assert!(read as f64 > 0.9 * delivered, "the disk was not read: what is measured is a cache");
        rate
    };
    if Command::new("fio").arg("--version").output().is_err() {
        println!("!! SKIPPED: the comparison with fio: it is not installed (apt-get install fio)");
        figures.note("direct, by the store", ours(0) / 1e9, "GB/s", Value::Null);
        return None;
    }
    let paths: Vec<PathBuf> = shards.iter().map(|shard| shard.place.file().expect("a file").to_owned()).collect();
    Some(pairs(figures, ("direct", "fio"), (extent, &stores), ours, |seed| by_fio(&paths, seed, extent)))
}

/// Bytes that this process had fetched from storage so far, as the kernel counts them.
fn read_from_disk() -> u64 {
    let counters = fs::read_to_string("/proc/self/io").expect("the kernel's count");
    let line = counters.lines().find_map(|line| line.strip_prefix("read_bytes: ")).expect("a count of bytes read");
    line.trim().parse().expect("a number")
}

fn by_fio(paths: &[PathBuf], seed: u64, extent: &Extent) -> f64 {
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    let mut command = Command::new("fio");
    command.args(["--name=direct", "--rw=randread", "--direct=1", "--ioengine=io_uring", "--norandommap"]);
    command.args(["--fixedbufs=1", "--registerfiles=1", "--nonvectored=1", "--time_based", "--output-format=json"]);
    command.args(["--file_service_type=random", "--invalidate=0", "--thread"]);
    command.arg(format!("--filename={}", names.join(":")));
    command.args([format!("--size={}", extent.files * extent.file), format!("--iodepth={DEPTH}")]);
    command.args([format!("--bs={SIZE}"), format!("--blockalign={BLOCK}"), format!("--randseed={}", seed + 1)]);
    command.arg(format!("--runtime={}ms", extent.run.as_millis()));
    let output = command.output().expect("fio");
    let text = String::from_utf8_lossy(&output.stdout);
    // Its warnings come before the JSON.
    let found: Option<Value> = text.find('{').and_then(|start| serde_json::from_str(&text[start..]).ok());
    let rate =
        found.as_ref().and_then(|found| found["jobs"][0]["read"]["bw_bytes"].as_f64()).filter(|&rate| rate > 0.0);
    rate.unwrap_or_else(|| panic!("fio: {}{text}", String::from_utf8_lossy(&output.stderr)))
}

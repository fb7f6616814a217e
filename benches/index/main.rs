//! Indexing against reading with the same sums and nothing else, and what a dataset of ten million samples costs.
//!
//! Indexing: before each pass the files are dropped from the page cache (`POSIX_FADV_DONTNEED` after a sync), and the bytes that
//! then come from the disk are counted (`/proc/self/io`): less than all of them would be no cold run. Ratios are of
//! neighbouring passes. Heap: what the allocator has given out, so neither the pools nor the mapped index; see
//! `forebay_system::scale`.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_server::catalog::{BuildRequest, Monitor, build, resolve};
use forebay_system::allocations::Counting;
use forebay_system::figures::{Figures, median};
use forebay_system::scale::cost;
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs of each kind, in turn. They are short and many: a virtual machine that gives free memory back to its host every
/// few seconds makes whoever reads next pay for getting it again, which is several times what reading costs; that way it is
/// few of the runs.
const PAIRS: usize = 31;

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let figures = Figures::new("index", smoke);
    indexing(&figures, smoke);
    size(&figures, smoke);
}

/// Forgets what the page cache knows of these files.
fn cool(paths: &[PathBuf]) {
    for path in paths {
        let file = File::open(path).expect("there");
        file.sync_all().expect("on the disk");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
    }
}

/// Reads each file once, front to back, as many at a time as there are processors, and sums it up.
fn sums(paths: &[PathBuf]) -> Duration {
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut buffer = vec![0; 2 << 20];
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut file = File::open(path).expect("there");
            let (mut crc, mut hasher) = (0, blake3::Hasher::new());
            loop {
                let read = file.read(&mut buffer).expect("a good disk");
                if read == 0 {
                    break;
                }
                crc = crc32c::crc32c_append(crc, &buffer[..read]);
                hasher.update(&buffer[..read]);
            }
            std::hint::black_box((crc, hasher.finalize()));
        }
    };
    std::thread::scope(|scope| {
        (1..std::thread::available_parallelism().map_or(1, usize::from)).for_each(|_| _ = scope.spawn(work));
        work();
    });
    begun.elapsed()
}

/// One pass over the files.
struct Pass {
    wall: Duration,
    /// Processor time, user and system.
    cpu: Duration,
    /// Bytes that came from the disk, not from the page cache.
    disk: u64,
}

/// Runs `work` with nothing of `paths` in the page cache.
fn cold(paths: &[PathBuf], work: impl FnOnce() -> Duration) -> Pass {
    cool(paths);
    let (cpu, disk) = used();
    let wall = work();
    let (cpu_after, disk_after) = used();
    Pass { wall, cpu: cpu_after.saturating_sub(cpu), disk: disk_after - disk }
}

/// What this process has used so far: processor time, and bytes from disks.
fn used() -> (Duration, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    let ticks = stat.rsplit_once(") ").expect("a name").1.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    let io = std::fs::read_to_string("/proc/self/io").expect("/proc");
    let disk = io.lines().find_map(|line| line.strip_prefix("read_bytes: ")).expect("a figure");
    (Duration::from_millis(10 * ticks), disk.parse().expect("a number"))
}

fn indexing(figures: &Figures, smoke: bool) {
    let (samples, pairs) = if smoke { (200, 1) } else { (4000, PAIRS) };
    let scratch = Scratch::new("bench-index");
    let what = Shards { shards: 16, samples, sizes: Sizes::ImageNet, seed: 1 };
    let paths = tars::write(scratch.path(), &what, |_| {}).expect("room for shards");
    let bytes: u64 = paths.iter().map(|path| path.metadata().expect("there").len()).sum();
    let sources = resolve(scratch.path().to_str().expect("UTF-8")).expect("shards");
    let index = |run: usize| {
        let request = BuildRequest::new("bench", sources.clone(), scratch.join(&format!("{run}.fbi")));
        let begun = Instant::now();
        let built = build(&request, Monitor { progress: &|_| {}, cancel: &AtomicBool::new(false) });
        assert_eq!(built.expect("intact").bytes_read, bytes);
        begun.elapsed()
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for run in 0..pairs {
        // Who begins takes turns, so that a machine that gets slower favours neither.
        if run % 2 == 0 {
            ours.push(cold(&paths, || index(run)));
            theirs.push(cold(&paths, || sums(&paths)));
        } else {
            theirs.push(cold(&paths, || sums(&paths)));
            ours.push(cold(&paths, || index(run)));
        }
    }
    let least = ours.iter().chain(&theirs).map(|pass| pass.disk).min().expect("runs") as f64 / bytes as f64;
    let speed = |passes: &[Pass]| -> Vec<f64> {
        passes.iter().map(|pass| bytes as f64 / 1e6 / pass.wall.as_secs_f64()).collect()
    };
    let cost = |passes: &[Pass]| -> Vec<f64> {
        passes.iter().map(|pass| pass.cpu.as_secs_f64() * 1e9 / bytes as f64).collect()
    };
    let ratios = |of: &[f64], to: &[f64]| -> Vec<f64> { of.iter().zip(to).map(|(of, to)| of / to).collect() };
    let speeds = (speed(&ours), speed(&theirs));
    let costs = (cost(&ours), cost(&theirs));
    let (by_time, by_cpu) = (ratios(&speeds.0, &speeds.1), ratios(&costs.1, &costs.0));
    let more = |runs: &[f64]| json!({ "runs": runs, "MB": bytes / 1_000_000, "least share from disk": least });
    figures.note("indexing ÷ CRC-32C and BLAKE3, cold", median(&by_time), "ratio", more(&by_time));
    figures.note("the same by processor time", median(&by_cpu), "ratio", more(&by_cpu));
    figures.note("indexing, cold", median(&speeds.0), "MB/s", more(&speeds.0));
    figures.note("CRC-32C and BLAKE3, cold", median(&speeds.1), "MB/s", more(&speeds.1));
    figures.note("indexing, cold: processor time", median(&costs.0), "CPU s/GB", more(&costs.0));
    figures.note("CRC-32C and BLAKE3, cold: processor time", median(&costs.1), "CPU s/GB", more(&costs.1));
    figures.note("least share of the bytes that came from the disk", least * 100.0, "%", json!({}));
}

fn size(figures: &Figures, smoke: bool) {
    let scratch = Scratch::new("bench-size");
    // What is allocated once in a process's life is allocated here.
    cost(scratch.path(), 50_000);
    let (few, many) = if smoke { (100_000, 200_000) } else { (100_000, 10_000_000) };
    let (small, large) = (cost(scratch.path(), few), cost(scratch.path(), many));
    for (what, small, large) in [
        ("the open dataset", small.open, large.open),
        ("local fabric and dataset", small.local, large.local),
        ("server, client and dataset", small.served, large.served),
    ] {
        let growth = (large as f64 / small as f64 - 1.0) * 100.0;
        figures.note(&format!("heap growth from 10^5 to 10^7 samples: {what}"), growth, "%", json!({}));
        figures.note(&format!("heap at 10^7 samples: {what}"), large as f64 / 1024.0, "KiB", json!({}));
    }
    figures.note("opening 10^7 samples, warm", large.opening.as_secs_f64() * 1e3, "ms", json!({}));
    figures.note("index of 10^7 samples", large.index_bytes as f64 / many as f64, "bytes per sample", json!({}));
}

//! `forebay read`: epochs, as a training job would read them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_client::blocking::Dataset;
use forebay_client::loader::LoaderStats;
use forebay_client::{Batch, InUse, LoaderOptions, OnError, Shuffle};

use crate::args::{OnErrorArg, Read, ShuffleArg};
use crate::connect::{self, Way};
use crate::failure::{Failure, INTERRUPTED};
use crate::ls;
use crate::output;
use crate::progress::Progress;
use crate::units::{count, size};
use crate::usage;

/// Set by Ctrl-C: the run ends at the next batch, and still says what it did.
static INTERRUPT: AtomicBool = AtomicBool::new(false);

pub fn run(args: &Read) -> Result<(), Failure> {
    let way = Way { trust: &args.trust, fabric: args.fabric };
    usage::on_interrupt(&INTERRUPT)?;
    let dataset = connect::dataset(&args.url, way, (&args.local, Some(&args.disk)), Some(args.memory))?;
    let options = options(args);
    let mut run = Run { digest: args.digest.then(Digest::default), keep: args.keep_batches, ..Run::default() };
    let outcome = epochs(&dataset, options, &mut run);
    let summary = run.summary(&dataset, args);
    if args.json {
        output::json(&summary_json(&summary, &run, args, outcome.as_ref().err()))?;
    } else if run.begun {
        output::text(&summary_text(&summary, &run))?;
    }
    outcome
}

fn options(args: &Read) -> LoaderOptions {
    LoaderOptions {
        batch_size: args.batch_size,
        shuffle: match args.shuffle {
            ShuffleArg::None => Shuffle::None,
            ShuffleArg::Full => Shuffle::Full,
        },
        seed: args.seed,
        epochs: Some(args.epochs),
        rank: args.rank,
        world_size: args.world_size,
        drop_last: args.drop_last,
        fields: (!args.fields.is_empty()).then(|| args.fields.clone()),
        on_error: match args.on_error {
            OnErrorArg::Raise => OnError::Raise,
            OnErrorArg::Skip => OnError::Skip { max: args.max_skips },
        },
        pool_timeout: args.pool_timeout,
        stall_timeout: args.stall_timeout,
        ..LoaderOptions::default()
    }
}

/// What a pass over the data did.
#[derive(Default)]
pub struct Run {
    pub batches: u64,
    pub samples: u64,
    pub bytes: u64,
    pub first_batch: Option<Duration>,
    pub elapsed: Duration,
    pub cpu: Duration,
    pub stats: LoaderStats,
    pub digest: Option<Digest>,
    /// Fields that came without a checksum.
    pub unverified: u64,
    /// Which fabric was in use last.
    pub in_use: Option<InUse>,
    keep: u32,
    /// There was a loader: what was asked for made sense.
    begun: bool,
}

/// Delivers everything, keeps nothing longer than asked for. `run` tells what was done, also after an error.
pub fn epochs(dataset: &Dataset, options: LoaderOptions, run: &mut Run) -> Result<(), Failure> {
    let started = Instant::now();
    let cpu = usage::cpu();
    let outcome = deliver(dataset, options, run, started);
    run.elapsed = started.elapsed();
    run.cpu = usage::cpu().saturating_sub(cpu);
    outcome
}

fn deliver(dataset: &Dataset, options: LoaderOptions, run: &mut Run, started: Instant) -> Result<(), Failure> {
    let epochs = options.epochs.unwrap_or(u64::MAX);
    let share = dataset.description().samples / u64::from(options.world_size.max(1));
    let total = share.saturating_mul(epochs);
    let mut loader = dataset.loader(options)?;
    run.begun = true;
    let mut progress = Progress::new();
    let mut kept: VecDeque<Batch> = VecDeque::new();
    let outcome = loop {
        // The oldest goes before the next is waited for: a job that works on `keep` batches holds no more than that.
        while kept.len() >= run.keep.max(1) as usize {
            kept.pop_front();
        }
        if INTERRUPT.load(Ordering::Relaxed) {
            break Err(Failure::new(INTERRUPTED, "interrupted"));
        }
        match loader.next() {
            None => break Ok(()),
            Some(Err(error)) => break Err(error.into()),
            Some(Ok(batch)) => {
                run.first_batch.get_or_insert_with(|| started.elapsed());
                run.batches += 1;
                run.samples += batch.len() as u64;
                run.bytes += batch.bytes();
                if let Some(digest) = &mut run.digest {
                    digest.add(&batch);
                }
                progress.show(|| {
                    let seconds = started.elapsed().as_secs_f64();
                    let rate = run.samples as f64 / seconds;
                    let left = total.saturating_sub(run.samples) as f64 / rate;
                    format!(
                        "epoch {}: {} of about {} samples, {:.0} samples/s, {:.1} MB/s, {left:.0} s left",
                        batch.epoch(),
                        count(run.samples),
                        count(total),
                        rate,
                        run.bytes as f64 / 1e6 / seconds
                    )
                });
                kept.push_back(batch);
            }
        }
    };
    progress.clear();
    run.stats = loader.stats();
    run.unverified = dataset.unverified();
    run.in_use = dataset.in_use().ok();
    outcome
}

/// Two digests of what was delivered: one of order and bytes, and one that is the same for the same set of samples, so
/// that those of all ranks can be added up and compared.
#[derive(Default)]
pub struct Digest {
    ordered: blake3::Hasher,
    /// Sum, modulo 2^256, of the digests of (ordinal, fields) of each sample.
    set: [u64; 4],
}

impl Digest {
    fn add(&mut self, batch: &Batch) {
        for sample in batch.iter() {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&sample.ordinal().to_le_bytes());
            for (index, name) in sample.fields().iter().enumerate() {
                if let Some(bytes) = sample.field(index) {
                    hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
                    hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
                }
            }
            let digest = hasher.finalize();
            self.ordered.update(digest.as_bytes());
            let mut carry = false;
            for (word, bytes) in self.set.iter_mut().zip(digest.as_bytes().chunks_exact(8)) {
                let mut eight = [0; 8];
                eight.copy_from_slice(bytes);
                let (sum, over) = word.overflowing_add(u64::from_le_bytes(eight));
                let (sum, carried) = sum.overflowing_add(u64::from(carry));
                *word = sum;
                carry = over || carried;
            }
        }
    }

    pub fn ordered(&self) -> String {
        self.ordered.finalize().to_hex().to_string()
    }

    /// The 256-bit number, most significant digit first.
    pub fn set(&self) -> String {
        self.set.iter().rev().map(|word| format!("{word:016x}")).collect()
    }
}

/// The figures of a run that are worth a line.
pub struct Summary {
    pub samples_per_second: f64,
    pub megabytes_per_second: f64,
    pub p50: Duration,
    pub p99: Duration,
    pub cpu_per_gb: f64,
    pub pool: u64,
}

impl Run {
    pub fn summary(&self, dataset: &Dataset, args: &Read) -> Summary {
        let _ = dataset;
        self.figures(args.memory / 2)
    }

    pub fn figures(&self, pool: u64) -> Summary {
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        Summary {
            samples_per_second: self.samples as f64 / seconds,
            megabytes_per_second: self.bytes as f64 / 1e6 / seconds,
            p50: self.stats.latency.quantile(0.5),
            p99: self.stats.latency.quantile(0.99),
            cpu_per_gb: self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9).max(1e-9),
            pool,
        }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn summary_text(summary: &Summary, run: &Run) -> String {
    let stats = &run.stats;
    let mut text = format!(
        "samples   {} in {} batches, {}\nbytes     {} ({})\n\
         time      {:.2} s, first batch after {:.0} ms\n\
         speed     {:.0} samples/s, {:.1} MB/s\n\
         groups    {}, latency p50 {:.1} ms, p99 {:.1} ms\n\
         CPU       {:.2} s, {:.2} s per GB\npool      {}\n",
        count(run.samples),
        count(run.batches),
        match run.unverified {
            0 => "each verified".to_owned(),
            fields => format!("{} fields without a checksum yet", count(fields)),
        },
        count(run.bytes),
        size(run.bytes),
        run.elapsed.as_secs_f64(),
        milliseconds(run.first_batch.unwrap_or_default()),
        summary.samples_per_second,
        summary.megabytes_per_second,
        count(stats.completed),
        milliseconds(summary.p50),
        milliseconds(summary.p99),
        run.cpu.as_secs_f64(),
        summary.cpu_per_gb,
        size(summary.pool),
    );
    let trouble = [
        ("asked for again", stats.retried),
        ("fetched again to make room", stats.evicted),
        ("corrupt on arrival", stats.corrupt),
        ("unreadable on the server", stats.storage),
        ("skipped", stats.skipped),
    ];
    let trouble: Vec<String> =
        trouble.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{} {what}", count(*n))).collect();
    if !trouble.is_empty() {
        text.push_str(&format!("trouble   {}\n", trouble.join(", ")));
    }
    if let Some(in_use) = &run.in_use {
        text.push_str(&format!("fabric    {}", ls::fabric(in_use)));
        if in_use.failovers > 0 {
            let (came, left) = (count(in_use.promotions), count(in_use.failovers));
            text.push_str(&format!("; a faster one came into use {came} times and was left {left} times"));
        }
        text.push('\n');
    }
    if let Some(digest) = &run.digest {
        text.push_str(&format!("order     {}\nset       {}\n", digest.ordered(), digest.set()));
    }
    text
}

fn summary_json(summary: &Summary, run: &Run, args: &Read, failure: Option<&Failure>) -> serde_json::Value {
    let (stats, in_use) = (&run.stats, run.in_use.as_ref());
    serde_json::json!({
        "url": args.url,
        "epochs": args.epochs,
        "rank": args.rank,
        "world_size": args.world_size,
        "batches": run.batches,
        "samples": run.samples,
        "bytes": run.bytes,
        "seconds": run.elapsed.as_secs_f64(),
        "first_batch_seconds": run.first_batch.map(|first| first.as_secs_f64()),
        "samples_per_second": summary.samples_per_second,
        "megabytes_per_second": summary.megabytes_per_second,
        "group_latency_p50_ms": milliseconds(summary.p50),
        "group_latency_p99_ms": milliseconds(summary.p99),
        "cpu_seconds": run.cpu.as_secs_f64(),
        "cpu_seconds_per_gb": summary.cpu_per_gb,
        "pool_bytes": summary.pool,
        "groups": stats.completed,
        "retried": stats.retried,
        "unplaced": stats.unplaced,
        "evicted": stats.evicted,
        "corrupt": stats.corrupt,
        "storage_errors": stats.storage,
        "skipped": stats.skipped,
        "unverified_fields": run.unverified,
        "fabric": in_use.and_then(|in_use| in_use.fabric.as_ref()),
        "fabric_reason": in_use.map(|in_use| &in_use.reason),
        "fabric_promotions": in_use.map_or(0, |in_use| in_use.promotions),
        "fabric_failovers": in_use.map_or(0, |in_use| in_use.failovers),
        "order_digest": run.digest.as_ref().map(Digest::ordered),
        "set_digest": run.digest.as_ref().map(Digest::set),
        "error": failure.map(|failure| &failure.message),
        "exit_code": failure.map_or(0, |failure| failure.code),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_digest_is_a_256_bit_sum() {
        let digest = Digest { set: [1, 0, 0, u64::MAX], ..Digest::default() };
        assert_eq!(digest.set(), "ffffffffffffffff000000000000000000000000000000000000000000000001");
    }
}

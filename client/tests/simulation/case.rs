//! What one seed stands for: a dataset, a pool, a path with its faults, loaders and consumers.

use std::time::Duration;

use forebay_client::fetch::RetryConfig;
use forebay_client::loader::{LoaderConfig, OnError, Source};
use forebay_client::plan::{Plan, PlanSpec, Shuffle};
use forebay_client::window::WindowConfig;
use forebay_transport::place::needed;
use forebay_transport::sim::{Content, Faults, Known, SimConfig};
use forebay_transport::wire::ALIGN;

use super::beside::RailCase;

pub const FRAME: u64 = 4096;

/// A rank's loader and who reads from it.
#[derive(Clone, Debug)]
pub struct LoaderCase {
    pub spec: PlanSpec,
    pub config: LoaderConfig,
    /// Bytes of its account.
    pub limit: u64,
    pub consumer: Consumer,
}

/// How a consumer behaves.
#[derive(Clone, Copy, Debug)]
pub struct Consumer {
    /// Batches asked for ahead.
    pub depth: u32,
    /// Batches kept after the next one was taken.
    pub keep: usize,
    /// Keeps a single sample of each batch that it lets go of, for as long as batches are kept.
    pub keep_samples: bool,
    /// Time spent on a batch: up to this.
    pub think: Duration,
    /// One batch in this many takes ten seconds. 0: none.
    pub pause_every: u64,
    /// Leaves after this many batches.
    pub leave_after: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub content: Content,
    pub pool: u64,
    pub link: SimConfig,
    /// How long after a cut the path is back; `None`: never. And how long each path lives.
    pub back_after: Option<Duration>,
    pub lives: Option<Duration>,
    /// A faster path beside it.
    pub rail: Option<RailCase>,
    pub loaders: Vec<LoaderCase>,
}

impl Case {
    pub fn new(seed: u64) -> Case {
        let mut rng = fastrand::Rng::with_seed(seed);
        let rng = &mut rng;
        let content = content(rng, seed);
        let largest = (0..content.samples).map(|ordinal| need(&content, ordinal)).max().unwrap_or(0);
        let pool = pool(rng, largest, &content);
        let faulty = rng.u8(0..3) > 0;
        let faults = if faulty { faults(rng) } else { Faults::default() };
        let link = SimConfig {
            seed: rng.u64(..),
            latency: Duration::from_micros(log(rng, 50, 200_000)),
            jitter: Duration::from_micros(log(rng, 1, 100_000)),
            bandwidth: log(rng, 1_000_000, 1_000_000_000),
            window: log(rng, 1, 64) as usize,
            max_group_bytes: if rng.bool() { 64 << 20 } else { log(rng, 4096, 1 << 20) },
            faults,
        };
        let cuts = faulty && rng.u8(0..3) == 0;
        let lives = cuts.then(|| Duration::from_millis(log(rng, 20, 10_000)));
        let never = cuts && rng.u8(0..10) == 0;
        let back_after = (!never).then(|| Duration::from_millis(log(rng, 1, 20_000)));
        let count = if rng.u8(0..4) == 0 { rng.u32(2..=3) } else { 1 };
        let shared = rng.bool();
        let limit = if shared { pool } else { (pool / u64::from(count) / FRAME * FRAME).max(FRAME) };
        let loaders = (0..count).map(|at| loader(rng, &content, limit, at, count)).collect();
        Case { content, pool, link, back_after, lives, rail: None, loaders }
    }

    /// One loader of one rank over a quiet path: 300 samples of 1 to 3000 bytes in batches of 10, one epoch, a pool of
    /// 1 MiB, a consumer that keeps nothing.
    pub fn quiet() -> Case {
        let content = Content::new(1, 300, 1, 3000);
        let spec = PlanSpec {
            version: content.version,
            samples: content.samples,
            shuffle: Shuffle::Full,
            seed: 1,
            rank: 0,
            world_size: 1,
            batch_size: 10,
            drop_last: false,
        };
        let window = WindowConfig { group_bytes: 16 << 10, ..WindowConfig::default() };
        let config = LoaderConfig { window, ..LoaderConfig::default() };
        let consumer = Consumer {
            depth: 1,
            keep: 0,
            keep_samples: false,
            think: Duration::ZERO,
            pause_every: 0,
            leave_after: None,
        };
        let pool = 1 << 20;
        let loaders = vec![LoaderCase { spec, config, limit: pool, consumer }];
        Case { content, pool, link: SimConfig::default(), back_after: None, lives: None, rail: None, loaders }
    }

    pub fn source(&self) -> Source {
        let content = &self.content;
        let samples = content.samples;
        let bytes: u64 = (0..samples).map(|ordinal| content.sample_len(ordinal)).sum();
        Source {
            server: "sim:1".into(),
            fabric: "sim".into(),
            dataset: content.dataset.clone(),
            version: content.version,
            samples,
            fields: (0..content.fields).collect(),
            names: (0..content.fields).map(|field| format!("f{field}").into()).collect(),
            mean_sample: bytes / samples.max(1),
            largest_sample: (0..samples).map(|ordinal| content.sample_len(ordinal)).max().unwrap_or(0),
            max_group_bytes: self.link.max_group_bytes,
            shards: [(0, "a.tar".into()), (samples / 2, "b.tar".into())].into(),
        }
    }

    /// Whether single samples or operations can fail, or are placed in other ways than they fit.
    pub fn is_faulty(&self) -> bool {
        // What is wrong with a rail is no excuse, unless there is nothing else.
        if self.rail.as_ref().is_some_and(|rail| rail.only) {
            return true;
        }
        let Faults {
            corrupt, storage, rotten, busy, server, protocol, refused, silent, truncated, stingy, barren, ..
        } = &self.link.faults;
        let all = [corrupt, storage, busy, server, protocol, refused, silent, truncated, stingy];
        *barren || rotten.is_some() || self.lives.is_some() || all.iter().any(|&&probability| probability > 0.0)
    }

    /// The memory that a batch needs at least, as our machine fetches it when it must: packed into as few leases as the
    /// server places.
    pub fn packed(&self, ordinals: impl Iterator<Item = u64>) -> u64 {
        let framed = |bytes: u64| bytes.max(1).next_multiple_of(FRAME);
        let (mut frames, mut lease, mut count) = (0, 0u64, 0);
        for ordinal in ordinals {
            let next = lease.next_multiple_of(ALIGN) + need(&self.content, ordinal);
            if count > 0 && next > self.link.max_group_bytes {
                frames += framed(lease);
                (lease, count) = (need(&self.content, ordinal), 1);
            } else {
                (lease, count) = (next, count + 1);
            }
        }
        if count > 0 { frames + framed(lease) } else { 0 }
    }
}

pub fn need(content: &Content, ordinal: u64) -> u64 {
    let lens = (0..content.fields).filter_map(|field| content.len(ordinal, field));
    needed(lens, ALIGN).expect("a small sample")
}

/// A number between `min` and `max`, evenly over orders of magnitude.
pub fn log(rng: &mut fastrand::Rng, min: u64, max: u64) -> u64 {
    let (min, max) = (min as f64, max as f64);
    (min * (max / min).powf(rng.f64())).round() as u64
}

fn content(rng: &mut fastrand::Rng, seed: u64) -> Content {
    let samples = if rng.u8(0..20) == 0 { rng.u64(0..4) } else { log(rng, 1, 600) };
    let max_len = log(rng, 1, 60_000);
    let min_len = if rng.bool() { max_len } else { rng.u64(0..=max_len.min(100)) };
    let absent = if rng.bool() { 0.0 } else { 0.2 };
    let fields = rng.u16(1..=3);
    Content { fields, absent, ..Content::new(seed as u8, samples, min_len, max_len) }
}

fn pool(rng: &mut fastrand::Rng, largest: u64, content: &Content) -> u64 {
    let barely = largest.max(1).next_multiple_of(FRAME);
    let all = (content.samples * barely).max(barely);
    match rng.u8(0..6) {
        0 => barely,
        1 => barely + FRAME,
        2 => barely * 2,
        3 => (all / 8).max(barely).next_multiple_of(FRAME),
        _ => barely + log(rng, FRAME, 4 << 20).next_multiple_of(FRAME),
    }
    .min(8 << 20)
}

fn faults(rng: &mut fastrand::Rng) -> Faults {
    let mut some = |most: f64| if rng.u8(0..3) == 0 { rng.f64() * most } else { 0.0 };
    let mut faults = Faults {
        corrupt: some(0.2),
        storage: some(0.1),
        busy: some(0.2),
        server: some(0.1),
        protocol: some(0.1),
        refused: some(0.01),
        silent: some(0.1),
        truncated: some(0.1),
        stingy: some(0.5),
        late: some(1.0),
        ..Faults::default()
    };
    faults.late_for = Duration::from_millis(log(rng, 1, 5_000));
    if rng.u8(0..5) == 0 {
        faults.rotten = Some([|ordinal| ordinal % 7 == 3, |ordinal| ordinal < 40, |_| true][rng.usize(0..3)]);
    }
    if rng.u8(0..10) == 0 {
        faults.change_at = Some(Duration::from_millis(log(rng, 1, 3_000)));
    }
    faults
}

fn loader(rng: &mut fastrand::Rng, content: &Content, limit: u64, at: u32, count: u32) -> LoaderCase {
    let ranks = count > 1 && rng.bool();
    let world_size = if ranks { count } else { rng.u32(1..=4) };
    let spec = PlanSpec {
        version: content.version,
        samples: content.samples,
        shuffle: if rng.u8(0..4) == 0 { Shuffle::None } else { Shuffle::Full },
        seed: rng.u64(..),
        rank: if ranks { at } else { rng.u32(0..world_size) },
        world_size,
        batch_size: log(rng, 1, 64) as u32,
        drop_last: rng.bool(),
    };
    let leaves = rng.u8(0..4) == 0;
    let epochs = if leaves && rng.bool() { None } else { Some(rng.u64(1..=3)) };
    let leave_after = leaves.then(|| rng.u64(0..=20));
    let window = WindowConfig {
        bytes: log(rng, 1, 16 << 20),
        groups: log(rng, 1, 64) as usize,
        group_bytes: log(rng, 1, 256 << 10),
        group_samples: log(rng, 1, 4096) as u32,
    };
    let on_error = if rng.bool() { OnError::Raise } else { OnError::Skip { max: log(rng, 1, 200) } };
    let retry = RetryConfig { attempts: rng.u32(1..=5), ..RetryConfig::default() };
    let config = LoaderConfig {
        first_epoch: rng.u64(0..3),
        epochs,
        window,
        retry,
        on_error,
        deadline: Duration::from_millis(log(rng, 500, 30_000)),
        tag_prefix: at as u16,
        seed: rng.u64(..),
        ..LoaderConfig::default()
    };
    let consumer = Consumer {
        depth: rng.u32(1..=3),
        keep: if rng.bool() { 0 } else { rng.usize(0..=4) },
        keep_samples: rng.u8(0..4) == 0,
        think: Duration::from_micros(log(rng, 1, 100_000)),
        pause_every: if rng.u8(0..4) == 0 { rng.u64(2..30) } else { 0 },
        leave_after,
    };
    LoaderCase { spec, config, limit, consumer }
}

pub fn plan(case: &LoaderCase) -> Plan {
    Plan::new(case.spec.clone()).expect("a sound plan")
}

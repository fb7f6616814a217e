//! A link whose delays and failures are drawn from a seed, under virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::content::{Content, Known};
use crate::link::{Completion, Entry, Failure, Fetch, Link, LinkError, LinkStats, Status, Tag};
use crate::place::Placer;
use crate::pool::{Lease, Quarantined};
use crate::wire::ALIGN;

/// The time of a simulation: moves only when it is told to. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Arc<AtomicU64>);

impl SimClock {
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Moves on to `time`, if that is later than now.
    pub fn advance_to(&self, time: Duration) {
        self.0.fetch_max(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// What a simulated path is like.
#[derive(Clone, Debug)]
pub struct SimConfig {
    pub seed: u64,
    /// The round trip, and how much longer it may be for one operation: what reorders completions.
    pub latency: Duration,
    pub jitter: Duration,
    /// Bytes per second of the path, shared by all operations.
    pub bandwidth: u64,
    /// Operations in flight before submissions are given back.
    pub window: usize,
    /// The most bytes placed for one group; a sample alone is placed whatever its size.
    pub max_group_bytes: u64,
    pub faults: Faults,
}

impl Default for SimConfig {
    /// 1 ms, 1 GB/s, 16 operations, 8 MiB, no faults.
    fn default() -> SimConfig {
        SimConfig {
            seed: 0,
            latency: Duration::from_millis(1),
            jitter: Duration::ZERO,
            bandwidth: 1_000_000_000,
            window: 16,
            max_group_bytes: 8 << 20,
            faults: Faults::default(),
        }
    }
}

/// What goes wrong, as probabilities from 0 to 1. None by default.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Per sample: a byte is changed on the way.
    pub corrupt: f64,
    /// Per sample: the server cannot read it.
    pub storage: f64,
    /// Samples, by ordinal, that are corrupt each time they are read.
    pub rotten: Option<fn(u64) -> bool>,
    /// Per operation, each: it ends with this error.
    pub busy: f64,
    pub server: f64,
    pub protocol: f64,
    pub refused: f64,
    /// Per operation: nothing more is heard of it until its deadline.
    pub silent: f64,
    /// Per operation: the answer lacks its last entry.
    pub truncated: f64,
    /// Per operation: the server places less than fits, perhaps nothing.
    pub stingy: f64,
    /// The server places nothing, ever.
    pub barren: bool,
    /// Per cancelled or cut operation: the device goes on writing for up to this long.
    pub late: f64,
    pub late_for: Duration,
    /// When the path dies, and when the dataset changes on the server.
    pub cut_at: Option<Duration>,
    pub change_at: Option<Duration>,
}

/// Where an operation's lease is.
enum Memory {
    Lease(Lease),
    /// Something may still write to it.
    Late(Quarantined),
}

struct SimOp {
    fetch: SimFetch,
    memory: Memory,
    /// When it completes.
    at: Duration,
    /// How it ends; `None`: with an answer.
    error: Option<LinkError>,
    truncated: bool,
    stingy: bool,
}

/// A fetch without its lease.
struct SimFetch {
    ordinals: Vec<u64>,
    fields: Arc<[crate::link::FieldId]>,
    entries: Vec<Entry>,
}

/// A link to a simulated server that has [`Content`].
pub struct SimLink {
    clock: SimClock,
    content: Content,
    config: SimConfig,
    rng: fastrand::Rng,
    ops: BTreeMap<Tag, SimOp>,
    /// Until when the path is busy with what was submitted.
    busy: Duration,
    dead: bool,
    bytes: u64,
    refused: bool,
    waker: Option<Waker>,
    /// Until `flush` the server hears nothing.
    unflushed: Vec<Tag>,
    stalled: bool,
}

impl SimLink {
    pub fn new(clock: SimClock, content: Content, config: SimConfig) -> SimLink {
        SimLink {
            rng: fastrand::Rng::with_seed(config.seed),
            clock,
            content,
            config,
            ops: BTreeMap::new(),
            busy: Duration::ZERO,
            dead: false,
            bytes: 0,
            refused: false,
            waker: None,
            unflushed: Vec::new(),
            stalled: false,
        }
    }

    /// When something happens next by itself; the clock need not stop before.
    pub fn next_event(&self) -> Option<Duration> {
        let cut = self.config.faults.cut_at.filter(|_| !self.dead);
        self.ops.values().map(|op| op.at).chain(cut).min()
    }

    /// Ends the path now: what is in flight completes as closed.
    pub fn cut(&mut self) {
        self.dead = true;
        let now = self.clock.now();
        self.unflushed.clear();
        for tag in self.ops.keys().copied().collect::<Vec<_>>() {
            self.end_early(tag, now, LinkError::Closed("the simulated path was cut".into()));
        }
        self.wake();
    }

    /// From now on the server answers nothing that it has not answered yet.
    pub fn stall(&mut self) {
        self.stalled = true;
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.f64() < probability
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Notices a cut whose time has come.
    fn settle(&mut self) {
        let due = self.config.faults.cut_at.is_some_and(|at| at <= self.clock.now());
        if due && !self.dead {
            self.cut();
        }
    }

    /// Ends an operation before its answer. A device that is late keeps the lease.
    fn end_early(&mut self, tag: Tag, now: Duration, error: LinkError) {
        let late = self.chance(self.config.faults.late);
        let for_ns = self.config.faults.late_for.as_nanos() as u64;
        let extra = if late { Duration::from_nanos(self.rng.u64(0..=for_ns)) } else { Duration::ZERO };
        let Some(op) = self.ops.remove(&tag) else { return };
        if matches!(op.memory, Memory::Late(_)) {
            // It is already waiting for its writer.
            self.ops.insert(tag, op);
            return;
        }
        let Memory::Lease(lease) = op.memory else { unreachable!("the other case was above") };
        let memory = if late { Memory::Late(lease.quarantine()) } else { Memory::Lease(lease) };
        self.ops.insert(tag, SimOp { memory, at: now + extra, error: Some(error), ..op });
    }

    /// When the server's answer to a group will have arrived, and how it ends.
    fn schedule(&mut self, tag: Tag) {
        let now = self.clock.now();
        let faults = self.config.faults.clone();
        let error = if self.chance(faults.busy) {
            let retry_after = self.rng.bool().then(|| Duration::from_millis(self.rng.u64(0..200)));
            Some(LinkError::Busy { retry_after })
        } else if self.chance(faults.server) {
            Some(LinkError::Server { status: 500, detail: "simulated".into() })
        } else if self.chance(faults.protocol) {
            Some(LinkError::Protocol("simulated".into()))
        } else if self.chance(faults.refused) {
            Some(LinkError::Refused { status: 403, detail: "simulated".into() })
        } else {
            None
        };
        let (truncated, stingy) = (self.chance(faults.truncated), self.chance(faults.stingy));
        let silent = self.chance(faults.silent) || self.stalled;
        let jitter = self.rng.u64(0..=self.config.jitter.as_nanos() as u64);
        let Some(op) = self.ops.get_mut(&tag) else { return };
        let Memory::Lease(lease) = &op.memory else { return };
        let lens = op.fetch.ordinals.iter().map(|&ordinal| self.content.sample_len(ordinal));
        let bytes = lens.sum::<u64>().min(lease.len() as u64);
        let wire = Duration::from_secs_f64(bytes as f64 / self.config.bandwidth as f64);
        self.busy = self.busy.max(now) + wire;
        (op.truncated, op.stingy) = (truncated, stingy);
        if silent {
            // Its deadline was put there when it was submitted.
            return;
        }
        op.error = error;
        op.at = self.busy + self.config.latency + Duration::from_nanos(jitter);
    }

    fn complete(&mut self, tag: Tag, op: SimOp) -> Completion {
        let SimOp { mut fetch, memory, error, truncated, stingy, .. } = op;
        let (mut lease, late) = match memory {
            Memory::Lease(lease) => (lease, false),
            Memory::Late(quarantined) => (quarantined.release(), true),
        };
        if late {
            // What the device wrote meanwhile.
            lease.as_mut_slice().fill(0xa5);
        }
        let result = match error {
            Some(error) => Err(error),
            None => Ok(self.answer(&mut fetch, &mut lease, truncated, stingy)),
        };
        Completion { tag, lease, ordinals: fetch.ordinals, result }
    }

    /// The server's answer to a group, its bytes written to the lease.
    fn answer(&mut self, fetch: &mut SimFetch, lease: &mut Lease, truncated: bool, stingy: bool) -> Vec<Entry> {
        let alone = fetch.ordinals.len() == 1;
        let mut capacity = lease.len() as u64;
        if !alone {
            capacity = capacity.min(self.config.max_group_bytes);
        }
        if stingy {
            capacity = self.rng.u64(0..=capacity);
        }
        if self.config.faults.barren {
            capacity = 0;
        }
        let mut placer = Placer::new(capacity, ALIGN);
        let mut entries = std::mem::take(&mut fetch.entries);
        let (mut lens, mut offsets) = (Vec::new(), Vec::new());
        for &ordinal in &fetch.ordinals {
            lens.clear();
            lens.extend(fetch.fields.iter().map(|&field| self.content.len(ordinal, field)));
            offsets.clear();
            let storage = self.chance(self.config.faults.storage);
            let rotten = self.config.faults.rotten.is_some_and(|rotten| rotten(ordinal));
            let corrupt = self.chance(self.config.faults.corrupt) || rotten;
            let placed = placer.sample(&lens, &mut offsets);
            for (at, &field) in fetch.fields.iter().enumerate() {
                let mut entry = Entry { status: Status::Absent, offset: 0, len: 0, crc: None };
                match lens[at] {
                    None => {}
                    Some(_) if storage => entry.status = Status::Failed(Failure::Storage),
                    Some(len) if !placed => (entry.status, entry.len) = (Status::NotPlaced, len),
                    Some(len) => {
                        entry = Entry { status: Status::Ok, offset: offsets[at], len, crc: None };
                        let bytes = &mut lease.as_mut_slice()[offsets[at] as usize..][..len as usize];
                        self.content.fill(ordinal, field, bytes);
                        entry.crc = Some(crc32c::crc32c(bytes));
                        if corrupt && len > 0 {
                            bytes[self.rng.usize(0..len as usize)] ^= 1 << self.rng.u32(0..8);
                        }
                        self.bytes += len;
                    }
                }
                entries.push(entry);
            }
        }
        if truncated {
            entries.pop();
        }
        entries
    }
}

impl Drop for SimLink {
    /// Ends every device there was: nothing writes any more.
    fn drop(&mut self) {
        for (_, op) in std::mem::take(&mut self.ops) {
            if let Memory::Late(quarantined) = op.memory {
                drop(quarantined.release());
            }
        }
    }
}

impl Link for SimLink {
    fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        self.settle();
        if self.dead || self.ops.len() >= self.config.window {
            self.refused = true;
            return Err(fetch);
        }
        let now = self.clock.now();
        let Fetch { tag, dataset, version, ordinals, fields, lease, entries, deadline } = fetch;
        assert!(!ordinals.is_empty() && !fields.is_empty() && !self.ops.contains_key(&tag), "a malformed fetch");
        let changed = self.config.faults.change_at.is_some_and(|at| at <= now);
        let error = if dataset != self.content.dataset {
            LinkError::Refused { status: 404, detail: format!("no dataset {dataset}") }
        } else if version != self.content.version || changed {
            LinkError::DatasetChanged("simulated".into())
        } else if ordinals.iter().any(|&ordinal| ordinal >= self.content.samples) {
            LinkError::Refused { status: 400, detail: "no such sample".into() }
        } else {
            let op = SimOp {
                fetch: SimFetch { ordinals, fields, entries },
                memory: Memory::Lease(lease),
                at: now.saturating_add(deadline),
                error: Some(LinkError::Deadline(deadline)),
                truncated: false,
                stingy: false,
            };
            self.ops.insert(tag, op);
            self.unflushed.push(tag);
            return Ok(());
        };
        let (fetch, memory) = (SimFetch { ordinals, fields, entries }, Memory::Lease(lease));
        let at = now + self.config.latency;
        self.ops.insert(tag, SimOp { fetch, memory, at, error: Some(error), truncated: false, stingy: false });
        Ok(())
    }

    fn flush(&mut self) {
        self.settle();
        for tag in std::mem::take(&mut self.unflushed) {
            self.schedule(tag);
        }
    }

    fn cancel(&mut self, tag: Tag) {
        let heard = !self.unflushed.contains(&tag);
        self.unflushed.retain(|&other| other != tag);
        let now = self.clock.now();
        // A cancellation may come too late for the server: then the operation completes as it would have.
        let too_late = self.rng.u8(0..4) == 0;
        if self.ops.get(&tag).is_some_and(|op| op.at > now && !(too_late && heard)) {
            self.end_early(tag, now, LinkError::Cancelled);
            self.wake();
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        self.settle();
        let now = self.clock.now();
        let due = self.ops.iter().filter(|(_, op)| op.at <= now).min_by_key(|(_, op)| op.at);
        let Some(tag) = due.map(|(&tag, _)| tag) else {
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        match self.ops.remove(&tag) {
            Some(op) => Poll::Ready(self.complete(tag, op)),
            None => Poll::Pending,
        }
    }

    fn is_alive(&self) -> bool {
        !self.dead && self.config.faults.cut_at.is_none_or(|at| at > self.clock.now())
    }

    fn stats(&self) -> LinkStats {
        LinkStats { rtt: self.config.latency, in_flight: self.ops.len(), bytes: self.bytes }
    }
}

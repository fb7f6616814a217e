//! The step machine: what it knows, and how an event moves it.
//!
//! Ahead of the consumer lies a queue of segments, consecutive in the plan, the first of which overlap the next batch:
//! the *head*. Only the head may take memory from others: from the back of the queue, which is then planned again when
//! its turn comes. So each eviction serves the head, the head never gives way to anything, and each of its samples is
//! asked for a bounded number of times: that is why the machine always gets on. (The rest is in `memory`.)

use std::collections::VecDeque;
use std::time::Duration;

use forebay_transport::link::{Completion, Entry, Fetch, LinkError, LinkStats, Tag};
use forebay_transport::pool::{Account, Lease, Slab};

use super::limit::Limit;
use super::memory::Blocked;
use super::ops::Ops;
use super::segment::{Segment, Slot};
use super::tables::Tables;
use super::{Action, Event, FetchError, LoaderConfig, LoaderError, LoaderStats, Reason, Source};
use crate::fetch::Backoff;
use crate::plan::{EpochOrder, Plan};
use crate::window::Window;

/// An operation between submission and completion.
#[derive(Debug)]
pub(super) struct Op {
    /// Its segment: that at this place, if it still has this id.
    pub epoch: u64,
    pub index: u64,
    pub segment: u64,
    /// The segment's slots it asks for.
    pub first: usize,
    pub count: usize,
    /// The lease: as told to the server, and in whole frames.
    pub capacity: u64,
    pub bytes: u64,
    pub submitted: Duration,
    /// Cancelled: what it brings is not used.
    pub orphan: bool,
}

/// Whether batches are still to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// No more batches: waits for what is in flight.
    Closing,
    Ended,
}

/// A batch of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub epoch: u64,
    pub step: u64,
    /// Its samples' indexes.
    pub first: u64,
    pub end: u64,
}

/// A loader without I/O: `(now, event) → actions`.
pub struct Machine {
    pub(super) source: Source,
    pub(super) plan: Plan,
    pub(super) config: LoaderConfig,
    pub(super) slab: Slab,
    pub(super) account: Account,
    pub(super) stats: LoaderStats,
    pub(super) window: Window,
    pub(super) backoff: Backoff,
    pub(super) phase: Phase,
    pub(super) now: Duration,
    /// The next batch to deliver; `None` when there is none.
    pub(super) head: Option<Head>,
    /// From the head on, in order, without gaps.
    pub(super) ahead: VecDeque<Segment>,
    /// Where the next segment begins: (epoch, index).
    pub(super) planned: (u64, u64),
    pub(super) order: Option<(u64, EpochOrder)>,
    pub(super) next_id: u64,
    pub(super) ops: Ops,
    pub(super) next_tag: u64,
    /// Given back by the link, in order; their operations are in `ops`.
    pub(super) refused: VecDeque<Fetch>,
    /// Bytes of leases in operations; of those, in orphans; and of leases that have arrived.
    pub(super) flying_bytes: u64,
    pub(super) orphan_bytes: u64,
    pub(super) ready_bytes: u64,
    pub(super) orphans: usize,
    /// Submissions since the last flush.
    pub(super) unflushed: bool,
    pub(super) link_up: bool,
    /// How often the path was lost, or the server too busy, since anything of the head arrived whole.
    pub(super) lost: u32,
    /// The link gave a submission back.
    pub(super) link_full: bool,
    pub(super) link: LinkStats,
    /// What went wrong last, for messages.
    pub(super) cause: Option<String>,
    pub(super) want: u64,
    /// Since when the consumer waits.
    pub(super) waiting: Option<Duration>,
    /// When there was progress last.
    pub(super) progress: Duration,
    pub(super) blocked: Option<Blocked>,
    /// Time blocked before that, since there was progress.
    pub(super) blocked_before: Duration,
    /// Memory, not the window, held a submission back.
    pub(super) short: bool,
    /// Until then nothing is asked for ahead of need.
    pub(super) hold: Duration,
    /// How the head was packed again: (how often, whether nobody else held memory the last time).
    pub(super) packed: (u32, bool),
    pub(super) limit: Limit,
    pub(super) wake: Option<Duration>,
    pub(super) tables: Tables,
    /// Memory that is used again.
    pub(super) placed: Vec<u32>,
    pub(super) spare_segments: Vec<Segment>,
    pub(super) spare_ordinals: Vec<Vec<u64>>,
    pub(super) spare_entries: Vec<Vec<Entry>>,
}

impl Machine {
    /// A loader of `plan` over `source`, which leases from `slab` for `account`.
    pub fn new(source: Source, plan: Plan, config: LoaderConfig, slab: Slab, account: Account) -> Machine {
        let pool = slab.capacity().min(account.limit()) as u64;
        let window =
            Window::new(config.window, source.mean_sample, source.largest_sample, pool, source.max_group_bytes);
        let mut machine = Machine {
            window,
            backoff: Backoff::new(&config.retry, config.seed),
            phase: Phase::Running,
            now: Duration::ZERO,
            head: None,
            ahead: VecDeque::new(),
            planned: (config.first_epoch, 0),
            order: None,
            next_id: 0,
            ops: Ops::default(),
            next_tag: 0,
            refused: VecDeque::new(),
            flying_bytes: 0,
            orphan_bytes: 0,
            ready_bytes: 0,
            orphans: 0,
            unflushed: false,
            link_up: false,
            lost: 0,
            link_full: false,
            link: LinkStats::default(),
            cause: None,
            want: 0,
            waiting: None,
            progress: Duration::ZERO,
            blocked: None,
            blocked_before: Duration::ZERO,
            short: false,
            hold: Duration::ZERO,
            packed: (0, false),
            limit: Limit::default(),
            wake: None,
            tables: Tables::new(source.names.clone()),
            placed: Vec::new(),
            spare_segments: Vec::new(),
            spare_ordinals: Vec::new(),
            spare_entries: Vec::new(),
            stats: LoaderStats::default(),
            source,
            plan,
            config,
            slab,
            account,
        };
        machine.head = machine.batch(config.first_epoch, 0);
        machine
    }

    /// Advances to `now` (monotonic, from any origin) by one event. Actions are appended to `out`, to be carried out in
    /// order.
    pub fn step(&mut self, now: Duration, event: Event, out: &mut Vec<Action>) {
        if self.short && self.waiting.is_some() {
            self.stats.pool_limited += now.saturating_sub(self.now);
        }
        self.now = self.now.max(now);
        self.accept(event, out);
        if self.phase == Phase::Running {
            self.advance(out);
        }
        if std::mem::take(&mut self.unflushed) {
            out.push(Action::Flush);
        }
        if self.phase == Phase::Closing && self.ops.is_empty() {
            self.phase = Phase::Ended;
            out.push(Action::Ended);
        }
        if self.phase == Phase::Running {
            self.set_timer(out);
        }
        self.stats.in_flight = self.ops.len() as u64;
        self.stats.in_flight_bytes = self.flying_bytes;
    }

    pub fn stats(&self) -> &LoaderStats {
        &self.stats
    }

    /// Whether [`Action::Ended`] was said.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    fn accept(&mut self, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Completed(completion) => self.completed(completion, out),
            Event::Refused(fetch) => {
                self.link_full = true;
                match self.ops.get(fetch.tag.0) {
                    Some(op) if !op.orphan => self.refused.push_back(fetch),
                    Some(_) => drop(self.forget(fetch.tag, fetch.lease)),
                    None => {}
                }
            }
            Event::Room => self.link_full = false,
            Event::LinkUp => {
                self.link_up = true;
                self.link_full = false;
            }
            Event::LinkDown(why) => {
                self.lost = self.lost.saturating_add(u32::from(self.link_up));
                self.link_up = false;
                self.cause = Some(why);
            }
            Event::Stats(link) => {
                self.limit.measure(self.now, &link);
                // Not when it is fewer: then it is another link's count. And not for ever on a path that is lost again
                // and again before anything is complete.
                if link.bytes > self.link.bytes && self.lost < self.config.retry.attempts {
                    self.progress = self.now;
                    self.blocked_before = Duration::ZERO;
                }
                self.link = link;
            }
            Event::MemoryReturned | Event::Tick => {}
            Event::Want(more) => self.want += u64::from(more),
            Event::ConsumerWaiting(true) => {
                if self.waiting.is_none() {
                    self.waiting = Some(self.now);
                    self.blocked_before = Duration::ZERO;
                }
            }
            Event::ConsumerWaiting(false) => self.waiting = None,
            Event::Relinquish => self.relinquish(out),
            Event::Close => {
                if self.phase == Phase::Running {
                    self.close(out);
                }
            }
        }
    }

    /// Does whatever can be done now.
    fn advance(&mut self, out: &mut Vec<Action>) {
        if let Err(error) = self.try_advance(out) {
            out.push(Action::Fail(error));
            self.close(out);
        }
    }

    fn try_advance(&mut self, out: &mut Vec<Action>) -> Result<(), LoaderError> {
        self.deliver(out)?;
        if self.head.is_none() {
            out.push(Action::Finished);
            self.close(out);
            return Ok(());
        }
        self.short = false;
        if self.link_up {
            self.resubmit(out);
            self.request(out)?;
        } else {
            // Memory is not what is missing now.
            self.unblock();
        }
        self.check_blocked()?;
        self.check_stall()
    }

    /// Cancels everything and keeps nothing; what is in flight is still to come back.
    pub(super) fn close(&mut self, out: &mut Vec<Action>) {
        self.phase = Phase::Closing;
        self.head = None;
        while let Some(segment) = self.ahead.pop_back() {
            self.drop_segment(segment, out);
        }
    }

    /// The batch at (epoch, step), if the plan has it.
    pub(super) fn batch(&self, epoch: u64, step: u64) -> Option<Head> {
        let (epoch, step) = if step < self.plan.steps() { (epoch, step) } else { (epoch.checked_add(1)?, 0) };
        let past = self.config.epochs.is_some_and(|epochs| epoch - self.config.first_epoch >= epochs);
        // A plan without samples has no batches in any epoch, however many there are.
        if past || self.plan.is_empty() {
            return None;
        }
        let range = self.plan.batch(step);
        Some(Head { epoch, step, first: range.start, end: range.end })
    }

    /// Whether a segment overlaps the next batch.
    pub(super) fn is_head(&self, segment: &Segment) -> bool {
        self.head.is_some_and(|head| segment.epoch == head.epoch && segment.first < head.end)
    }

    /// Puts the next segment behind the others, if there is anything left to plan.
    pub(super) fn plan_segment(&mut self) -> bool {
        let len = self.plan.len();
        let (mut epoch, mut index) = self.planned;
        if index >= len {
            (epoch, index) = (epoch + 1, 0);
        }
        if self.plan.is_empty() || self.config.epochs.is_some_and(|epochs| epoch - self.config.first_epoch >= epochs) {
            return false;
        }
        if self.order.as_ref().is_none_or(|(of, _)| *of != epoch) {
            self.order = Some((epoch, self.plan.epoch(epoch)));
        }
        let Some((_, order)) = &self.order else { return false };
        let batch = u64::from(self.plan.spec().batch_size);
        let mut count = self.window.next_group(index, len, batch);
        if let Some(head) = self.head.filter(|head| head.epoch == epoch && index < head.end) {
            // After an eviction the head may begin in the middle of a group: what lies behind it can wait.
            count = count.min(head.end - index).max(1);
        }
        let mut segment = self.spare_segments.pop().unwrap_or_default();
        segment.reset(self.next_id, epoch, index);
        self.next_id += 1;
        for index in index..index + count {
            segment.push(order.ordinal(self.plan.position(index)), self.source.fields.len());
        }
        self.planned = (epoch, segment.end());
        self.ahead.push_back(segment);
        true
    }

    /// Takes an operation out of the books.
    pub(super) fn forget(&mut self, tag: Tag, lease: Lease) -> Option<(Op, Lease)> {
        let op = self.ops.remove(tag.0)?;
        self.flying_bytes -= op.bytes;
        if op.orphan {
            self.orphan_bytes -= op.bytes;
            self.orphans -= 1;
        }
        Some((op, lease))
    }

    fn completed(&mut self, completion: Completion, out: &mut Vec<Action>) {
        let Completion { tag, lease, mut ordinals, result } = completion;
        self.link_full = false;
        let Some((op, lease)) = self.forget(tag, lease) else { return };
        ordinals.clear();
        self.spare_ordinals.push(ordinals);
        self.stats.completed += 1;
        if let Err(LinkError::DatasetChanged(detail)) = &result {
            if self.phase == Phase::Running {
                let (dataset, server) = (self.source.dataset.clone(), self.source.server.clone());
                out.push(Action::Fail(LoaderError::DatasetChanged { dataset, server, detail: detail.clone() }));
                self.close(out);
            }
            return;
        }
        if self.phase != Phase::Running || op.orphan {
            return;
        }
        let Some(at) = self.find(&op) else { return };
        match result {
            Ok(mut entries) if entries.len() == op.count * self.source.fields.len() => {
                self.stats.latency.record(self.now.saturating_sub(op.submitted));
                self.arrived(at, &op, &entries, lease);
                entries.clear();
                self.spare_entries.push(entries);
            }
            Ok(entries) => {
                let reason = Reason::Entries { got: entries.len(), wanted: op.count * self.source.fields.len() };
                drop(lease);
                self.op_failed(at, &op, reason, out);
            }
            Err(error) => {
                drop(lease);
                self.op_failed(at, &op, Reason::Link(error), out);
            }
        }
    }

    /// The place of an operation's segment in the queue, if it is still there.
    fn find(&self, op: &Op) -> Option<usize> {
        let at = self.ahead.partition_point(|segment| (segment.epoch, segment.first) < (op.epoch, op.index));
        self.ahead.get(at).filter(|segment| segment.id == op.segment).map(|_| at)
    }

    /// What is known about a slot that failed.
    pub(super) fn fault(&self, segment: &Segment, slot: usize, reason: Reason) -> FetchError {
        let Slot { ordinal, attempts, .. } = segment.slots[slot];
        FetchError {
            dataset: self.source.dataset.clone(),
            shard: self.source.shard(ordinal),
            epoch: segment.epoch,
            position: self.plan.position(segment.first + slot as u64),
            ordinal,
            server: self.source.server.clone(),
            fabric: self.source.fabric.clone(),
            attempts,
            elapsed: self.now.saturating_sub(segment.asked_at),
            reason,
        }
    }

    /// Ends a wait that nothing ends.
    fn check_stall(&mut self) -> Result<(), LoaderError> {
        match self.stall_deadline() {
            Some(deadline) if self.now >= deadline => {
                let since = self.waiting.unwrap_or(self.now).max(self.progress);
                let no_path = if self.link_up { "nothing arrives" } else { "there is no path to the server" };
                Err(LoaderError::Stalled {
                    dataset: self.source.dataset.clone(),
                    server: self.source.server.clone(),
                    fabric: self.source.fabric.clone(),
                    elapsed: self.now.saturating_sub(since),
                    cause: self.cause.clone().unwrap_or_else(|| no_path.into()),
                })
            }
            _ => Ok(()),
        }
    }

    /// Something of the head arrived, or it was delivered.
    pub(super) fn progressed(&mut self) {
        self.progress = self.now;
        self.blocked_before = Duration::ZERO;
        self.lost = 0;
    }

    /// When the consumer's wait becomes a stall. Waiting for the consumer's memory has a timeout of its own, and does not
    /// count here; so the two together bound every wait, also when it changes between them.
    fn stall_deadline(&self) -> Option<Duration> {
        let waiting = self.waiting?;
        if self.blocked.is_some() {
            return None;
        }
        let since = waiting.max(self.progress).saturating_add(self.blocked_before);
        Some(since.saturating_add(self.config.stall_timeout))
    }

    /// Asks for a tick at the next time at which anything changes by itself.
    fn set_timer(&mut self, out: &mut Vec<Action>) {
        let retries = self.ahead.iter().filter(|segment| segment.missing > 0 && segment.not_before > self.now);
        let retry = retries.map(|segment| segment.not_before).min();
        let hold = (self.hold > self.now).then_some(self.hold);
        let next = [self.stall_deadline(), self.pool_deadline(), retry, hold].into_iter().flatten().min();
        if let Some(at) = next.filter(|_| next != self.wake) {
            out.push(Action::WakeAt(at));
        }
        self.wake = next.filter(|&at| at > self.now);
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("phase", &self.phase)
            .field("head", &self.head)
            .field("segments", &self.ahead.len())
            .field("ops", &self.ops.len())
            .field("flying", &self.flying_bytes)
            .field("ready", &self.ready_bytes)
            .field("blocked", &self.blocked)
            .finish_non_exhaustive()
    }
}

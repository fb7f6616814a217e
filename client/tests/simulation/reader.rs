//! A consumer, and everything that must hold of what it is given.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_client::loader::{Batch, LoaderError, OnError, Sample};
use forebay_client::plan::Plan;
use forebay_transport::pool::Account;
use forebay_transport::sim::{Content, Known};

use super::case::{Case, LoaderCase, plan};

/// What a loader's consumer has, wants, and has seen.
pub struct Reader {
    case: LoaderCase,
    plan: Plan,
    content: Content,
    account: Account,
    rng: fastrand::Rng,
    /// Delivered and not taken.
    queue: VecDeque<Batch>,
    kept: VecDeque<Batch>,
    kept_samples: VecDeque<Sample>,
    /// The batch that must be next.
    next: (u64, u64),
    taken: u64,
    substitutes: u64,
    /// Since when it waits, and until when it is busy.
    pub waiting: Option<Duration>,
    pub busy_until: Duration,
    pub left: bool,
    pub end: Option<Result<(), LoaderError>>,
}

/// What a reader does next.
pub enum Wish {
    Nothing,
    Take,
    Wait,
    Leave,
}

/// No wait is longer than this, whatever goes wrong: a generous sum of all timeouts and back-offs.
const LONGEST_WAIT: Duration = Duration::from_secs(1200);

impl Reader {
    pub fn new(case: &LoaderCase, content: &Content, account: Account, seed: u64) -> Reader {
        Reader {
            plan: plan(case),
            next: (case.config.first_epoch, 0),
            case: case.clone(),
            content: content.clone(),
            account,
            rng: fastrand::Rng::with_seed(seed),
            queue: VecDeque::new(),
            kept: VecDeque::new(),
            kept_samples: VecDeque::new(),
            taken: 0,
            substitutes: 0,
            waiting: None,
            busy_until: Duration::ZERO,
            left: false,
            end: None,
        }
    }

    /// Changes the plan that is expected: for showing that a wrong order is noticed.
    pub fn expect_another_order(&mut self) {
        let mut spec = self.plan.spec().clone();
        spec.seed ^= 1;
        self.plan = Plan::new(spec).expect("a sound plan");
    }

    pub fn deliver(&mut self, batch: Batch) {
        assert!(self.end.is_none(), "a batch after the end");
        self.check(&batch);
        if self.left {
            return;
        }
        self.queue.push_back(batch);
        assert!(self.queue.len() <= self.case.consumer.depth as usize, "more batches than wanted");
    }

    fn check(&mut self, batch: &Batch) {
        let (epoch, step) = self.next;
        assert_eq!((batch.epoch(), batch.step()), (epoch, step), "the next batch");
        let indexes = self.plan.batch(step);
        assert_eq!(batch.len() as u64, indexes.end - indexes.start, "as many samples as planned");
        assert_eq!(batch.positions().start, self.plan.position(indexes.start));
        let order = self.plan.epoch(epoch);
        for (at, (index, sample)) in indexes.zip(batch.iter()).enumerate() {
            let position = self.plan.position(index);
            assert_eq!(sample.position(), position);
            if sample.is_substitute() {
                self.substitutes += 1;
            } else {
                assert_eq!(sample.ordinal(), order.ordinal(position), "position {position} of epoch {epoch}");
            }
            for field in 0..self.content.fields {
                let bytes = sample.field(field as usize);
                assert_eq!(bytes, batch.field(at, field as usize));
                match bytes {
                    Some(bytes) => {
                        let ordinal = sample.ordinal();
                        assert!(self.content.check(ordinal, field, bytes), "sample {ordinal}: other bytes")
                    }
                    None => assert_eq!(self.content.len(sample.ordinal(), field), None),
                }
            }
        }
        match self.case.config.on_error {
            OnError::Raise => assert_eq!(self.substitutes, 0, "nothing may be skipped"),
            OnError::Skip { max } => assert!(self.substitutes <= max, "more skipped than allowed"),
        }
        assert!(self.account.held() as u64 <= self.case.limit, "over budget");
        self.next = if step + 1 < self.plan.steps() { (epoch, step + 1) } else { (epoch + 1, 0) };
    }

    pub fn finished(&mut self, case: &Case, result: Result<(), LoaderError>) {
        assert!(self.end.is_none(), "a second end");
        match &result {
            Ok(()) => {
                let epochs = self.case.config.epochs.unwrap_or(0);
                let end = self.case.config.first_epoch + epochs;
                let last = if self.plan.is_empty() { self.next } else { (end, 0) };
                assert_eq!(self.next, last, "finished before the plan is");
            }
            Err(error) => self.excuse(case, error),
        }
        self.end = Some(result);
    }

    /// Whether there was reason for an error.
    fn excuse(&self, case: &Case, error: &LoaderError) {
        let faulty = case.is_faulty();
        match error {
            LoaderError::DatasetChanged { .. } => assert!(case.link.faults.change_at.is_some(), "{error}"),
            LoaderError::PoolExhausted(pool) => {
                let holders = self.case.consumer.keep > 0 || case.loaders.len() > 1 || !self.queue.is_empty();
                let (epoch, step) = self.next;
                let order = self.plan.epoch(epoch);
                let ordinals = self.plan.batch(step).map(|index| order.ordinal(self.plan.position(index)));
                let fits = case.packed(ordinals) <= pool.pool;
                assert!(holders || faulty || !fits, "nobody is in the way, and it fits: {error}");
                assert!(pool.consumer + pool.others > 0 || pool.waited.is_zero(), "waited for nobody: {error}");
                assert!(pool.consumer + pool.held <= pool.pool, "{error}");
            }
            LoaderError::Fetch(fault) => {
                assert!(faulty, "{error}");
                let shard = if fault.ordinal < case.content.samples / 2 { "a.tar" } else { "b.tar" };
                assert_eq!(fault.shard.as_deref(), Some(shard));
                assert!(fault.attempts <= self.case.config.retry.attempts.max(1) + 2, "{error}");
            }
            LoaderError::TooManySkipped { .. } | LoaderError::Stalled { .. } => assert!(faulty, "{error}"),
            other => panic!("an unknown error: {other}"),
        }
    }

    pub fn wish(&self, now: Duration) -> Wish {
        if self.left || now < self.busy_until {
            return Wish::Nothing;
        }
        if self.case.consumer.leave_after == Some(self.taken) {
            return Wish::Leave;
        }
        if !self.queue.is_empty() {
            return Wish::Take;
        }
        match (&self.end, self.waiting) {
            (None, None) => Wish::Wait,
            (None, Some(since)) => {
                assert!(now - since < LONGEST_WAIT, "waits since {since:?}, now {now:?}");
                Wish::Nothing
            }
            (Some(_), _) => Wish::Nothing,
        }
    }

    /// Takes a batch, and lets go of what is not kept.
    pub fn take(&mut self, now: Duration) {
        let Some(batch) = self.queue.pop_front() else { return };
        self.taken += 1;
        let Consumer { keep, keep_samples, think, pause_every, .. } = self.case.consumer;
        self.kept.push_back(batch);
        while self.kept.len() > keep {
            if let Some(batch) = self.kept.pop_front().filter(|_| keep_samples && keep > 0) {
                self.kept_samples.push_back(batch.sample(self.rng.usize(0..batch.len())));
            }
        }
        while self.kept_samples.len() > keep {
            let sample = self.kept_samples.pop_front().expect("it is not empty");
            for field in (0..self.content.fields).filter(|&field| sample.view(field as usize).is_some()) {
                let bytes = sample.field(field as usize).expect("a view of it");
                assert!(self.content.check(sample.ordinal(), field, bytes), "a kept sample changed");
            }
        }
        let pause = pause_every > 0 && self.taken.is_multiple_of(pause_every);
        let think = Duration::from_nanos(self.rng.u64(0..=think.as_nanos() as u64));
        self.busy_until = now + if pause { Duration::from_secs(10) } else { think };
    }

    /// Lets go of everything, after a last look.
    pub fn leave(&mut self) {
        self.left = true;
        for sample in &self.kept_samples {
            let bytes = (0..self.content.fields).filter_map(|field| Some((field, sample.field(field as usize)?)));
            bytes.for_each(|(field, bytes)| assert!(self.content.check(sample.ordinal(), field, bytes)));
        }
        self.queue.clear();
        self.kept.clear();
        self.kept_samples.clear();
    }

    pub fn depth(&self) -> u32 {
        self.case.consumer.depth
    }

    pub fn has_room(&self) -> bool {
        !self.queue.is_empty()
    }
}

use super::case::Consumer;

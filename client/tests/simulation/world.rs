//! A world in virtual time: a path that comes and goes, loaders, their consumers, and a driver without threads.

use std::collections::{BTreeSet, VecDeque};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_client::loader::{Action, Event, Machine};
use forebay_transport::link::{Completion, Failure, Link, Status, Tag};
use forebay_transport::pool::{Account, Slab, SlabConfig};
use forebay_transport::sim::{SimClock, SimLink};

use super::beside::Beside;
use super::case::{Case, plan};
use super::reader::{Reader, Wish};

/// Ways to break what a loader does, each of which the checks must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    DeliverTwice,
    DropBatch,
    AnotherOrder,
    SkipVerification,
    LeakLease,
    ForgetCompletion,
    /// What a rail says is taken at its word.
    TrustRail,
    /// What a rail did not answer is said to be closed twice.
    AnswerTwice,
}

struct Loader {
    machine: Machine,
    account: Account,
    reader: Reader,
    wake: Option<Duration>,
    refused: bool,
    ended: bool,
    opened: bool,
}

pub struct World {
    case: Case,
    clock: SimClock,
    slab: Slab,
    seen: u64,
    /// The path, when there is one, and those before it that still have operations.
    link: Option<SimLink>,
    retiring: Vec<SimLink>,
    links: u64,
    beside: Option<Beside>,
    back_at: Option<Duration>,
    loaders: Vec<Loader>,
    events: VecDeque<(usize, Event)>,
    stats_at: Duration,
    sabotage: Option<Sabotage>,
    /// Accepted by some link, and not completed.
    in_flight: BTreeSet<Tag>,
    forged: Option<Completion>,
    leaked: Vec<forebay_transport::pool::Lease>,
    notes: Vec<String>,
    pub steps: u64,
}

/// More steps than any case needs: a livelock.
const MAX_STEPS: u64 = 3_000_000;

/// What came of a case.
#[derive(Debug, Default)]
pub struct Outcome {
    pub time: Duration,
    pub batches: u64,
    pub finished: u64,
    pub failed: Vec<String>,
    pub notes: Vec<String>,
    pub corrupt: u64,
    pub evicted: u64,
    pub cancelled: u64,
    pub skipped: u64,
    pub retried: u64,
    pub unplaced: u64,
    /// Of a rail: tries, how often it came into use and how often that ended, and operations that it answered.
    pub rail: [u64; 4],
}

impl World {
    pub fn new(case: Case, seed: u64, sabotage: Option<Sabotage>) -> World {
        let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(case.pool as usize) }).expect("a small slab");
        assert_eq!(slab.frame() as u64, super::case::FRAME);
        let loaders = case.loaders.iter().enumerate().map(|(at, loader)| {
            let account = Account::new(format!("loader {at}"), loader.limit as usize);
            let machine = Machine::new(case.source(), plan(loader), loader.config, slab.clone(), account.clone());
            let mut reader = Reader::new(loader, &case.content, account.clone(), seed ^ at as u64);
            if sabotage == Some(Sabotage::AnotherOrder) {
                reader.expect_another_order();
            }
            Loader { machine, account, reader, wake: None, refused: false, ended: false, opened: false }
        });
        let loaders = loaders.collect();
        let clock = SimClock::default();
        World {
            beside: case.rail.as_ref().map(|rail| Beside::new(rail, clock.clone(), case.content.clone())),
            clock,
            slab,
            seen: 0,
            link: None,
            retiring: Vec::new(),
            links: 0,
            back_at: Some(Duration::ZERO),
            loaders,
            events: VecDeque::new(),
            stats_at: Duration::from_secs(1),
            sabotage,
            in_flight: BTreeSet::new(),
            forged: None,
            leaked: Vec::new(),
            notes: Vec::new(),
            steps: 0,
            case,
        }
    }

    /// Runs until every loader has ended and every consumer is gone; panics when something does not hold.
    pub fn run(mut self) -> Outcome {
        while self.loaders.iter().any(|loader| !loader.ended) {
            self.turn();
        }
        self.finish()
    }

    fn turn(&mut self) {
        let mut idle = true;
        while let Some((at, event)) = self.next_event() {
            self.step(at, event);
            idle = false;
        }
        idle &= !self.read();
        if idle {
            self.pass();
        }
    }

    fn next_event(&mut self) -> Option<(usize, Event)> {
        if self.events.is_empty() {
            self.change_path();
        }
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if let Some(completion) = self.poll_links() {
            let at = (completion.tag.0 >> 48) as usize;
            assert!(self.in_flight.remove(&completion.tag), "{:?} completes, and is not under way", completion.tag);
            self.tell_room();
            if self.sabotage == Some(Sabotage::ForgetCompletion) && completion.tag.0 % 8 == 7 {
                return self.next_event();
            }
            return Some((at, Event::Completed(completion)));
        }
        let mut cx = Context::from_waker(Waker::noop());
        let returned = self.slab.poll_returned(&mut cx, &mut self.seen).is_ready();
        if returned {
            self.events.extend((0..self.loaders.len()).map(|at| (at, Event::MemoryReturned)));
            return self.events.pop_front();
        }
        let now = self.clock.now();
        let due = self.loaders.iter().position(|loader| loader.wake.is_some_and(|wake| wake <= now));
        due.map(|at| {
            self.loaders[at].wake = None;
            (at, Event::Tick)
        })
    }

    /// A path that died, or one that is back.
    fn change_path(&mut self) {
        let now = self.clock.now();
        if let Some(link) = self.link.take_if(|link| !link.is_alive()) {
            self.retiring.push(link);
            self.back_at = self.case.back_after.map(|after| now + after);
            self.tell(|| Event::LinkDown("the path was cut".into()));
            self.beside.iter_mut().for_each(Beside::down);
        }
        if self.link.is_none() && self.back_at.is_some_and(|at| at <= now) {
            let mut config = self.case.link.clone();
            config.seed = config.seed.wrapping_add(self.links);
            config.faults.cut_at = self.case.lives.map(|lives| now + lives);
            self.links += 1;
            self.link = Some(SimLink::new(self.clock.clone(), self.case.content.clone(), config));
            self.back_at = None;
            self.beside.iter_mut().for_each(Beside::up);
            if !self.only_rail() {
                self.tell(|| Event::LinkUp);
            }
        }
        let changed = self.beside.as_mut().and_then(Beside::advance);
        self.rail_changed(changed);
    }

    /// Samples take the rail from now on, or do not any more.
    fn rail_changed(&mut self, changed: Option<bool>) {
        let Some(used) = changed else { return };
        if self.only_rail() {
            self.tell(|| if used { Event::LinkUp } else { Event::LinkDown("the rail is not used".into()) });
        }
        self.tell_room();
    }

    fn only_rail(&self) -> bool {
        self.beside.as_ref().is_some_and(|beside| beside.case.only)
    }

    fn tell(&mut self, mut event: impl FnMut() -> Event) {
        self.events.extend((0..self.loaders.len()).map(|at| (at, event())));
    }

    /// Those that were refused may try again.
    fn tell_room(&mut self) {
        for (at, loader) in self.loaders.iter_mut().enumerate() {
            if std::mem::take(&mut loader.refused) {
                self.events.push_back((at, Event::Room));
            }
        }
    }

    fn poll_links(&mut self) -> Option<Completion> {
        if let Some(forged) = self.forged.take() {
            return Some(forged);
        }
        let mut cx = Context::from_waker(Waker::noop());
        for link in self.link.iter_mut().chain(&mut self.retiring) {
            if let Poll::Ready(mut completion) = link.poll(&mut cx) {
                if self.sabotage != Some(Sabotage::SkipVerification) {
                    verify(&mut completion);
                }
                self.beside.iter_mut().for_each(|beside| beside.absolve(&completion));
                return Some(completion);
            }
        }
        self.retiring.retain(|link| link.stats().in_flight > 0);
        let beside = self.beside.as_mut()?;
        let before = beside.is_used();
        let completion = beside.poll(&mut cx, verify, self.sabotage != Some(Sabotage::TrustRail));
        let after = beside.is_used();
        self.rail_changed((before != after).then_some(after));
        if let (Some(Sabotage::AnswerTwice), Some(Completion { tag, result: Err(error), .. })) =
            (self.sabotage, &completion)
        {
            let lease = self.slab.try_lease(&self.loaders[(tag.0 >> 48) as usize].account, 1);
            let forge = |lease| Completion { tag: *tag, lease, ordinals: vec![0], result: Err(error.clone()) };
            self.forged = lease.map(forge);
        }
        completion
    }

    fn step(&mut self, at: usize, event: Event) {
        self.steps += 1;
        assert!(self.steps < MAX_STEPS, "a livelock: {:?}", self.loaders[at].machine);
        if self.loaders[at].ended {
            return;
        }
        let mut actions = Vec::new();
        self.loaders[at].machine.step(self.clock.now(), event, &mut actions);
        for action in actions {
            self.act(at, action);
        }
        let account = &self.loaders[at].account;
        assert!(account.held() <= account.limit(), "over budget");
    }

    fn act(&mut self, at: usize, action: Action) {
        let only = self.only_rail();
        let loader = &mut self.loaders[at];
        match action {
            Action::Submit(fetch) => {
                let tag = fetch.tag;
                let given_back = match (&mut self.beside, &mut self.link) {
                    (Some(beside), _) if only || beside.is_used() => beside.submit(fetch).err(),
                    (_, Some(link)) => link.submit(fetch).err(),
                    (_, None) => Some(fetch),
                };
                match given_back {
                    Some(fetch) => {
                        loader.refused = true;
                        self.events.push_back((at, Event::Refused(fetch)));
                    }
                    None => assert!(self.in_flight.insert(tag), "{tag:?} is under way already"),
                }
            }
            Action::Flush => {
                self.link.iter_mut().for_each(SimLink::flush);
                self.beside.iter_mut().for_each(Beside::flush);
            }
            Action::Cancel(tag) => self.cancel(tag),
            Action::Deliver(batch) => {
                loader.reader.waiting = None;
                self.events.push_back((at, Event::ConsumerWaiting(false)));
                match self.sabotage {
                    Some(Sabotage::DeliverTwice) if batch.step() == 1 => loader.reader.deliver(batch.clone()),
                    Some(Sabotage::DropBatch) if batch.step() == 1 => return,
                    Some(Sabotage::LeakLease) if batch.step() == 1 => {
                        self.leaked.extend(self.slab.try_lease(&loader.account, 1));
                    }
                    _ => {}
                }
                loader.reader.deliver(batch);
            }
            Action::Finished => loader.reader.finished(&self.case, Ok(())),
            Action::Fail(error) => loader.reader.finished(&self.case, Err(error)),
            Action::Ended => {
                loader.ended = true;
                assert_eq!(loader.machine.stats().in_flight, 0, "ended with operations in flight");
                assert!(loader.machine.has_ended());
            }
            Action::WakeAt(time) => loader.wake = Some(time),
            Action::Starved { .. } => {
                let others = (0..self.loaders.len()).filter(|&other| other != at);
                self.events.extend(others.map(|other| (other, Event::Relinquish)));
            }
            Action::Note(note) => self.notes.push(note.to_string()),
        }
    }

    fn cancel(&mut self, tag: Tag) {
        self.link.iter_mut().chain(&mut self.retiring).for_each(|link| link.cancel(tag));
        self.beside.iter_mut().for_each(|beside| beside.cancel(tag));
    }

    /// Lets consumers do what they want to; whether any did.
    fn read(&mut self) -> bool {
        let now = self.clock.now();
        let mut did = false;
        for (at, loader) in self.loaders.iter_mut().enumerate() {
            if loader.ended && !loader.reader.left && loader.reader.end.is_some() && !loader.reader.has_room() {
                // It has seen the end: what it kept goes too.
                loader.reader.leave();
                did = true;
            }
            match loader.reader.wish(now) {
                Wish::Nothing => continue,
                Wish::Take => {
                    loader.reader.take(now);
                    self.events.push_back((at, Event::Want(1)));
                }
                Wish::Wait => {
                    loader.reader.waiting = Some(now);
                    if !std::mem::replace(&mut loader.opened, true) {
                        self.events.push_back((at, Event::Want(loader.reader.depth())));
                    }
                    self.events.push_back((at, Event::ConsumerWaiting(true)));
                }
                Wish::Leave => {
                    loader.reader.leave();
                    self.events.push_back((at, Event::Close));
                }
            }
            did = true;
        }
        did
    }

    /// Lets time pass until something happens.
    fn pass(&mut self) {
        let now = self.clock.now();
        let links = self.link.iter().chain(&self.retiring).filter_map(SimLink::next_event);
        let wakes = self.loaders.iter().filter_map(|loader| loader.wake);
        let busy = self.loaders.iter().filter(|loader| !loader.reader.left).map(|loader| loader.reader.busy_until);
        let beside = self.beside.as_ref().and_then(Beside::next_event);
        let next = links.chain(beside).chain(wakes).chain(self.back_at).chain(busy.filter(|&until| until > now)).min();
        let Some(next) = next else {
            let stuck = self.loaders.iter().filter(|loader| !loader.ended).map(|loader| &loader.machine);
            panic!("a hang at {now:?}: {:?}, {:?}", stuck.collect::<Vec<_>>(), self.slab);
        };
        self.clock.advance_to(next);
        if self.clock.now() >= self.stats_at {
            self.stats_at = self.clock.now() + Duration::from_secs(1);
            if let Some(link) = &self.link {
                let mut stats = link.stats();
                stats.bytes += self.beside.as_ref().map_or(0, Beside::bytes);
                self.events.extend((0..self.loaders.len()).map(|at| (at, Event::Stats(stats))));
            }
        }
    }

    /// All memory is back.
    fn finish(mut self) -> Outcome {
        self.loaders.iter_mut().for_each(|loader| loader.reader.leave());
        let time = self.clock.now();
        let mut outcome = Outcome { time, notes: std::mem::take(&mut self.notes), ..Outcome::default() };
        if let Some(beside) = &self.beside {
            let (promotions, failovers) = beside.counts();
            outcome.rail = [beside.dials, promotions, failovers, beside.completed];
        }
        for loader in &self.loaders {
            assert_eq!(loader.account.held(), 0, "memory that never came back: {:?}", loader.machine);
            let stats = loader.machine.stats();
            assert!(stats.completed <= stats.submitted);
            outcome.batches += stats.batches;
            outcome.corrupt += stats.corrupt;
            outcome.evicted += stats.evicted;
            outcome.cancelled += stats.cancelled;
            outcome.skipped += stats.skipped;
            outcome.retried += stats.retried;
            outcome.unplaced += stats.unplaced;
            match &loader.reader.end {
                Some(Ok(())) => outcome.finished += 1,
                Some(Err(error)) => outcome.failed.push(error.to_string()),
                None => {}
            }
        }
        let usage = self.slab.usage();
        assert_eq!(
            (usage.free, usage.quarantined, usage.leases),
            (usage.capacity, 0, 0),
            "memory that never came back"
        );
        outcome
    }
}

/// Marks entries whose bytes do not match their CRC, as the driver does.
fn verify(completion: &mut Completion) {
    let Ok(entries) = &mut completion.result else { return };
    for entry in entries.iter_mut().filter(|entry| entry.status == Status::Ok) {
        let bytes = &completion.lease[entry.offset as usize..][..entry.len as usize];
        if entry.crc.is_some_and(|crc| crc != crc32c::crc32c(bytes)) {
            entry.status = Status::Failed(Failure::Corrupt);
        }
    }
}

//! One rail beside the first path: its links, which operations they hold, and what completions mean for it.
//!
//! It decides by [`Select`], and does at once what that says about links; what is left for whoever drives it are the
//! [`Change`]s: dialling, and telling others. Pure as far as its links are: `(now, event) → change`.
//!
//! An operation that a rail was given completes exactly once, wherever it was when the rail was left: as it did, or as
//! [`LinkError::Closed`], which has its samples asked for again, without an attempt being used up. Nothing is asked for anywhere
//! else before that; so nothing can arrive twice, and no memory is lent twice.

use std::task::{Context, Poll};
use std::time::Duration;

use forebay_transport::dial::RailError;
use forebay_transport::link::{Completion, Entry, Failure, Fetch, Link, LinkError, LinkStats, Status, Tag};

use super::{Command, Event, Select, SelectConfig, Try};

/// What whoever drives a rail has to do, or to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Dial for this try, and say what came of it with [`Rail::dialled`].
    Probe(Try),
    /// Samples take the rail from now on.
    Used,
    /// What is dialled is of no use any more, and can be dropped.
    Unproved,
    /// The rail was used, and is not any more: samples take the first path.
    Left,
}

/// A link and what it holds.
struct Lane<L> {
    of: Try,
    link: L,
    held: Vec<Tag>,
}

/// A rail to one dataset.
pub struct Rail<L> {
    select: Select,
    fabric: String,
    /// There is no other way: a refusal is final, and damaged bytes use up attempts.
    only: bool,
    used: Option<Lane<L>>,
    /// Links that were left, and still hold something.
    left: Vec<Lane<L>>,
    spare: Vec<Tag>,
    commands: Vec<Command>,
    promotions: u64,
    failovers: u64,
}

impl<L: Link> Rail<L> {
    /// `fabric` is its name, for messages; `seed` is what pauses vary by. `only`: samples must not come over anything else.
    pub fn new(config: SelectConfig, fabric: &str, seed: u64, only: bool) -> Rail<L> {
        Rail {
            select: Select::new(config, fabric, seed),
            fabric: fabric.to_owned(),
            only,
            used: None,
            left: Vec::new(),
            spare: Vec::new(),
            commands: Vec::new(),
            promotions: 0,
            failovers: 0,
        }
    }

    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// Whether samples take it.
    pub fn is_used(&self) -> bool {
        self.used.is_some()
    }

    /// Whether it is being tried.
    pub fn is_probed(&self) -> bool {
        self.select.is_probing()
    }

    /// Whether what came of the last try is known, or nothing comes of waiting for it.
    pub fn is_settled(&self) -> bool {
        self.is_used() || self.select.is_paused()
    }

    /// Why samples take the path that they take, for people.
    pub fn reason(&self) -> String {
        self.select.reason()
    }

    /// How often it came into use, and how often that ended.
    pub fn counts(&self) -> (u64, u64) {
        (self.promotions, self.failovers)
    }

    /// When [`tick`](Rail::tick) is due.
    pub fn wake(&self) -> Option<Duration> {
        self.select.wake()
    }

    /// The first path stands.
    #[must_use]
    pub fn up(&mut self, now: Duration) -> Option<Change> {
        self.step(now, Event::Up, None)
    }

    /// It is gone, and the session that let the rail in with it.
    #[must_use]
    pub fn down(&mut self, now: Duration) -> Option<Change> {
        self.step(now, Event::Down, None)
    }

    #[must_use]
    pub fn tick(&mut self, now: Duration) -> Option<Change> {
        self.step(now, Event::Tick, None)
    }

    /// What came of a [`Change::Probe`]. A link that comes too late is dropped.
    #[must_use]
    pub fn dialled(&mut self, now: Duration, of: Try, result: Result<L, RailError>) -> Option<Change> {
        match result {
            Ok(link) => self.step(now, Event::Proved(of), Some(link)),
            Err(RailError::Failed(why)) => self.step(now, Event::Failed(of, why), None),
            Err(RailError::Refused(why)) => self.step(now, Event::Refused(of, why), None),
        }
    }

    /// Notices that the link in use is dead. Called when [`poll`](Rail::poll) was pending: what completes may say why.
    #[must_use]
    pub fn watch(&mut self, now: Duration) -> Option<Change> {
        let lane = self.used.as_ref().filter(|lane| !lane.link.is_alive())?;
        self.step(now, Event::Failed(lane.of, "the connection was lost".into()), None)
    }

    /// One step of the decision, and what it means for links.
    fn step(&mut self, now: Duration, event: Event, link: Option<L>) -> Option<Change> {
        self.select.step(now, event, &mut self.commands);
        match (self.commands.pop()?, link) {
            (Command::Probe(of), _) => Some(Change::Probe(of)),
            (Command::Promote(of), Some(link)) => {
                self.promotions += 1;
                self.used = Some(Lane { of, link, held: std::mem::take(&mut self.spare) });
                Some(Change::Used)
            }
            // Nothing is promoted that has no link.
            (Command::Promote(_), None) => None,
            (Command::Leave(_), _) => {
                let Some(mut lane) = self.used.take() else { return Some(Change::Unproved) };
                self.failovers += 1;
                lane.held.iter().for_each(|&tag| lane.link.cancel(tag));
                self.left.push(lane);
                self.sweep();
                Some(Change::Left)
            }
        }
    }

    /// Lets go of links that hold nothing.
    fn sweep(&mut self) {
        while let Some(at) = self.left.iter().position(|lane| lane.held.is_empty()) {
            self.spare = self.left.swap_remove(at).held;
        }
    }

    /// Takes an operation, or gives it back when there is no room, or when the rail is not in use.
    #[allow(clippy::result_large_err)]
    pub fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        let Some(lane) = &mut self.used else { return Err(fetch) };
        let tag = fetch.tag;
        lane.link.submit(fetch)?;
        lane.held.push(tag);
        Ok(())
    }

    pub fn flush(&mut self) {
        if let Some(lane) = &mut self.used {
            lane.link.flush();
        }
    }

    pub fn cancel(&mut self, tag: Tag) {
        // What links hold that were left is cancelled already.
        if let Some(lane) = &mut self.used {
            lane.link.cancel(tag);
        }
    }

    /// The next completion, of the link in use or of those before it. What it says has still to be
    /// [judged](Rail::judge), once its bytes were checked.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Try, Completion)> {
        for lane in self.used.iter_mut().chain(&mut self.left) {
            if let Poll::Ready(completion) = lane.link.poll(cx) {
                if let Some(at) = lane.held.iter().position(|&tag| tag == completion.tag) {
                    lane.held.swap_remove(at);
                }
                let of = lane.of;
                self.sweep();
                return Poll::Ready((of, completion));
            }
        }
        Poll::Pending
    }

    /// What a completion says about the rail, and what is to be said to its owner: nothing that may be the rail's fault ends
    /// anything, as long as there is another way to ask. That one has the last word.
    #[must_use]
    pub fn judge(&mut self, now: Duration, of: Try, completion: &mut Completion) -> Option<Change> {
        let (event, closed) = match &completion.result {
            Ok(entries) => {
                let corrupt = |entry: &Entry| entry.status == Status::Failed(Failure::Corrupt);
                if !entries.iter().any(corrupt) {
                    return None;
                }
                (Event::Failed(of, "bytes came that do not match their checksum".into()), !self.only)
            }
            // These are the server's words, whatever carries them.
            Err(LinkError::Busy { .. } | LinkError::Server { .. } | LinkError::DatasetChanged(_)) => return None,
            // Its owner does not want it any more, and does not care how it ended.
            Err(LinkError::Cancelled) if self.used.as_ref().is_some_and(|lane| lane.of == of) => return None,
            Err(LinkError::Cancelled) => {
                completion.result = Err(LinkError::Closed(format!("{} was left", self.fabric)));
                return None;
            }
            Err(error @ LinkError::Refused { .. }) => (Event::Refused(of, error.to_string()), !self.only),
            Err(LinkError::Closed(why)) => (Event::Failed(of, why.clone()), true),
            Err(error) => (Event::Failed(of, error.to_string()), true),
        };
        if closed && let Event::Failed(_, why) | Event::Refused(_, why) = &event {
            completion.result = Err(LinkError::Closed(format!("{}: {why}", self.fabric)));
        }
        self.step(now, event, None)
    }

    /// All links that something may still come of: the one in use first.
    pub fn links(&self) -> impl Iterator<Item = &L> {
        self.used.iter().chain(&self.left).map(|lane| &lane.link)
    }

    /// What the link in use knows about itself.
    pub fn stats(&self) -> Option<LinkStats> {
        self.used.as_ref().map(|lane| lane.link.stats())
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use forebay_transport::pool::{Account, Slab, SlabConfig};
    use forebay_transport::sim::{Content, Faults, SimClock, SimConfig, SimLink};

    use super::*;

    struct World {
        clock: SimClock,
        slab: Slab,
        content: Content,
        rail: Rail<SimLink>,
        submitted: u64,
    }

    impl World {
        /// With a rail that was just tried.
        fn new(only: bool) -> World {
            let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(1 << 20) }).unwrap();
            let mut rail = Rail::new(SelectConfig::default(), "fast", 1, only);
            assert_eq!(rail.up(Duration::ZERO), Some(Change::Probe(Try(1))));
            World { clock: SimClock::default(), slab, content: Content::new(1, 100, 10, 1000), rail, submitted: 0 }
        }

        /// With one in use, that a path with these faults is behind.
        fn used(only: bool, faults: Faults) -> World {
            let mut world = World::new(only);
            let link = world.link(faults);
            assert_eq!(world.rail.dialled(Duration::ZERO, Try(1), Ok(link)), Some(Change::Used));
            world
        }

        fn link(&self, faults: Faults) -> SimLink {
            SimLink::new(self.clock.clone(), self.content.clone(), SimConfig { faults, ..SimConfig::default() })
        }

        #[allow(clippy::result_large_err)]
        fn submit(&mut self) -> Result<(), Fetch> {
            let account = Account::new("test", 1 << 20);
            self.submitted += 1;
            self.rail.submit(Fetch {
                tag: Tag(self.submitted),
                dataset: self.content.dataset.clone(),
                version: self.content.version,
                ordinals: vec![self.submitted],
                fields: [0].into(),
                lease: self.slab.try_lease(&account, 2000).unwrap(),
                entries: Vec::new(),
                deadline: Duration::from_secs(30),
            })
        }

        /// What completes until `seconds`, as its owner is told, and what changes by it.
        fn run(&mut self, seconds: u64) -> (Vec<Completion>, Vec<Change>) {
            self.rail.flush();
            self.clock.advance_to(Duration::from_secs(seconds));
            let (mut completions, mut changes) = (Vec::new(), Vec::new());
            let mut cx = Context::from_waker(Waker::noop());
            while let Poll::Ready((of, mut completion)) = self.rail.poll(&mut cx) {
                if let (Ok(entries), true) = (&mut completion.result, self.content.samples == 1000) {
                    entries.iter_mut().for_each(|entry| entry.status = Status::Failed(Failure::Corrupt));
                }
                changes.extend(self.rail.judge(self.clock.now(), of, &mut completion));
                completions.push(completion);
            }
            changes.extend(self.rail.watch(self.clock.now()));
            (completions, changes)
        }

        /// From here on everything arrives damaged.
        fn damage(&mut self) {
            self.content.samples = 1000;
        }

        fn assert_empty(&self) {
            assert!(self.rail.left.is_empty() && self.rail.used.as_ref().is_none_or(|lane| lane.held.is_empty()));
            let usage = self.slab.usage();
            assert_eq!((usage.free, usage.quarantined), (usage.capacity, 0));
        }
    }

    fn tags(completions: &[Completion]) -> Vec<u64> {
        let mut tags: Vec<u64> = completions.iter().map(|completion| completion.tag.0).collect();
        tags.sort_unstable();
        tags
    }

    fn all_closed(completions: &[Completion], says: &str) -> bool {
        let closed = |error: &LinkError| matches!(error, LinkError::Closed(why) if why.contains(says));
        completions.iter().all(|completion| completion.result.as_ref().is_err_and(closed))
    }

    #[test]
    fn a_rail_that_breaks_gives_everything_back_once_and_says_why() {
        let mut world = World::used(false, Faults { cut_at: Some(Duration::from_millis(500)), ..Faults::default() });
        (0..3).for_each(|_| world.submit().unwrap());
        let (completions, changes) = world.run(0);
        assert_eq!((completions.len(), changes), (0, vec![]));
        world.clock.advance_to(Duration::from_millis(2));
        let (completions, changes) = world.run(0);
        assert!(completions.iter().all(|completion| completion.result.is_ok()) && changes.is_empty());
        assert_eq!(tags(&completions), [1, 2, 3]);
        drop(completions);
        // Cut before the answers to these were under way.
        (0..3).for_each(|_| world.submit().unwrap());
        world.clock.advance_to(Duration::from_millis(500));
        let (completions, changes) = world.run(0);
        assert_eq!((tags(&completions), changes), (vec![4, 5, 6], vec![Change::Left]));
        assert!(all_closed(&completions, "fast: the simulated path was cut"), "{completions:?}");
        assert!(world.rail.reason().contains("the simulated path was cut"), "{}", world.rail.reason());
        drop(completions);
        assert!(world.submit().is_err() && !world.rail.is_used());
        world.assert_empty();
        assert_eq!(world.rail.counts(), (1, 1));
    }

    #[test]
    fn one_that_dies_while_it_holds_nothing_is_left_as_well() {
        let mut world = World::used(false, Faults { cut_at: Some(Duration::from_millis(500)), ..Faults::default() });
        assert_eq!(world.run(0).1, []);
        assert_eq!(world.run(1).1, [Change::Left]);
        assert_eq!(world.run(2).1, [], "once");
        assert!(world.rail.reason().contains("connection was lost"));
    }

    #[test]
    fn a_healthy_rail_is_left_with_its_session_and_ends_what_it_holds() {
        for late in [0.0, 1.0] {
            let late_for = Duration::from_secs(3);
            let mut world = World::used(false, Faults { late, late_for, ..Faults::default() });
            (0..8).for_each(|_| world.submit().unwrap());
            world.rail.flush();
            assert_eq!(world.rail.down(Duration::ZERO), Some(Change::Left));
            assert!(world.submit().is_err(), "nothing more is taken");
            // A device may still write to what was cancelled: it comes back when it can not.
            let (completions, changes) = world.run(4);
            assert_eq!((tags(&completions), changes), ((1..=8).collect(), vec![]));
            let (done, rest): (Vec<_>, Vec<_>) = completions.into_iter().partition(|it| it.result.is_ok());
            assert!(all_closed(&rest, "fast was left") && !rest.is_empty(), "{rest:?}");
            drop((done, rest));
            world.assert_empty();
        }
    }

    #[test]
    fn a_link_that_comes_too_late_is_dropped() {
        let mut world = World::new(false);
        assert_eq!(world.rail.tick(Duration::from_millis(999)), None);
        assert_eq!(world.rail.tick(Duration::from_secs(1)), Some(Change::Unproved));
        let link = world.link(Faults::default());
        assert_eq!(world.rail.dialled(Duration::from_secs(1), Try(1), Ok(link)), None);
        assert!(!world.rail.is_used() && world.rail.is_settled());
        let failed = Err(RailError::Failed("late".into()));
        assert_eq!(world.rail.dialled(Duration::from_secs(1), Try(1), failed), None);
    }

    #[test]
    fn damaged_bytes_are_the_rails_fault_until_the_first_path_says_otherwise() {
        let mut world = World::used(false, Faults::default());
        world.damage();
        (0..2).for_each(|_| world.submit().unwrap());
        let (completions, changes) = world.run(1);
        assert_eq!(changes, [Change::Left], "the first of them");
        assert!(all_closed(&completions, "checksum") && completions.len() == 2);
        // Where there is no other way, they count.
        let mut world = World::used(true, Faults::default());
        world.damage();
        world.submit().unwrap();
        let (completions, changes) = world.run(1);
        assert!(completions[0].result.is_ok() && changes == [Change::Left]);
    }

    #[test]
    fn the_first_path_has_the_last_word_about_refusals() {
        let mut world = World::used(false, Faults { refused: 1.0, ..Faults::default() });
        world.submit().unwrap();
        let (completions, changes) = world.run(1);
        assert!(all_closed(&completions, "403") && changes == [Change::Left]);
        assert!(world.rail.wake().unwrap() > Duration::from_secs(100), "asking again soon would not change it");
        let mut world = World::used(true, Faults { refused: 1.0, ..Faults::default() });
        world.submit().unwrap();
        let (completions, changes) = world.run(1);
        assert!(matches!(&completions[0].result, Err(LinkError::Refused { .. })) && changes == [Change::Left]);
    }

    #[test]
    fn what_the_server_says_is_not_the_rails_fault() {
        let change_at = Some(Duration::ZERO);
        for faults in [
            Faults { busy: 1.0, ..Faults::default() },
            Faults { server: 1.0, ..Faults::default() },
            Faults { change_at, ..Faults::default() },
        ] {
            let mut world = World::used(false, faults);
            world.submit().unwrap();
            let (completions, changes) = world.run(1);
            assert!(completions[0].result.is_err() && !all_closed(&completions, "") && changes.is_empty());
            assert!(world.rail.is_used());
        }
    }

    #[test]
    fn silence_is() {
        let mut world = World::used(false, Faults { silent: 1.0, ..Faults::default() });
        world.submit().unwrap();
        let (completions, changes) = world.run(31);
        assert!(all_closed(&completions, "no progress for 30s") && changes == [Change::Left]);
        world.submit().unwrap_err();
    }

    #[test]
    fn who_cancels_is_told_so_as_long_as_the_rail_is_used() {
        let mut world = World::used(false, Faults { silent: 1.0, ..Faults::default() });
        (0..20).take_while(|_| world.submit().is_ok()).count();
        world.rail.flush();
        (1..=20).for_each(|tag| world.rail.cancel(Tag(tag)));
        let (completions, changes) = world.run(1);
        let cancelled = |completion: &Completion| completion.result == Err(LinkError::Cancelled);
        assert!(completions.iter().any(cancelled) && completions.iter().all(cancelled) && changes.is_empty());
    }
}

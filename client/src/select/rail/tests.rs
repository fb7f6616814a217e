//! Rails over simulated links: what completes, how often, and what it means.

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
fn what_is_damaged_in_storage_is_not_the_rails_fault() {
    for (status, absolved) in [(Status::Failed(Failure::Corrupt), true), (Status::Ok, false)] {
        let mut world = World::used(false, Faults::default());
        let (number, now) = (1, Duration::from_secs(1));
        // The second failure in a row: of the pause after that at least a second is waited, were it the rail's fault.
        world.damage();
        world.submit().unwrap();
        assert_eq!(world.run(1).1, [Change::Left]);
        let due = world.rail.wake().unwrap();
        assert!(world.rail.is_blamed());
        let answer = |ordinals: Vec<u64>, status| {
            let lease = world.slab.try_lease(&Account::new("test", 1 << 20), 100).unwrap();
            let entry = Entry { status, offset: 0, len: 1, crc: None };
            let entries = ordinals.iter().map(|_| entry).collect();
            Completion { tag: Tag(9), lease, ordinals, result: Ok(entries) }
        };
        let (other, same) = (answer(vec![7, 8], status), answer(vec![7, number], status));
        world.rail.absolve(now, &other);
        assert!(world.rail.is_blamed(), "another sample says nothing");
        world.rail.absolve(now, &same);
        assert!(!world.rail.is_blamed() && world.rail.wake().unwrap() <= due);
        assert_eq!(world.rail.select.failures, u32::from(!absolved));
    }
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

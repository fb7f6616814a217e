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
    /// The sample that came damaged, for which the rail was left.
    blamed: Option<(Try, u64)>,
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
            blamed: None,
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
            Ok(_) => {
                let at = first_corrupt(completion)?;
                if self.used.as_ref().is_some_and(|lane| lane.of == of) {
                    self.blamed = completion.ordinals.get(at).map(|&ordinal| (of, ordinal));
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

    /// Whether [`absolve`](Rail::absolve) has something to look for.
    pub fn is_blamed(&self) -> bool {
        self.blamed.is_some()
    }

    /// Looks whether what completed on the first path holds the sample that the rail was left for. If that came damaged there as
    /// well, it is so where it is stored.
    pub fn absolve(&mut self, now: Duration, completion: &Completion) {
        let Some((of, ordinal)) = self.blamed else { return };
        let (Ok(entries), Some(at)) = (&completion.result, completion.ordinals.iter().position(|&it| it == ordinal))
        else {
            return;
        };
        let fields = entries.len() / completion.ordinals.len();
        let entries = entries.get(at * fields..(at + 1) * fields).unwrap_or_default();
        if entries.iter().any(is_corrupt) {
            self.blamed = None;
            let change = self.step(now, Event::Absolved(of), None);
            debug_assert!(change.is_none(), "a pause goes on");
        } else if entries.iter().all(|entry| matches!(entry.status, Status::Ok | Status::Absent)) {
            self.blamed = None;
        }
    }

    /// What the link in use knows about itself.
    pub fn stats(&self) -> Option<LinkStats> {
        self.used.as_ref().map(|lane| lane.link.stats())
    }
}

fn is_corrupt(entry: &Entry) -> bool {
    entry.status == Status::Failed(Failure::Corrupt)
}

/// The place of the first sample of which something is damaged.
fn first_corrupt(completion: &Completion) -> Option<usize> {
    let entries = completion.result.as_ref().ok()?;
    let at = entries.iter().position(is_corrupt)?;
    let fields = (entries.len() / completion.ordinals.len().max(1)).max(1);
    Some(at / fields)
}

#[cfg(test)]
mod tests;

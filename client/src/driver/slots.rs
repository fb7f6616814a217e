//! The machines of all loaders of a client, and what their actions mean to the links and consumers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use forebay_transport::link::Tag;
use tokio::sync::mpsc;

use super::Delivery;
use super::path::Path;
use crate::loader::{Action, Event, LoaderStats, Machine};

struct Slot {
    machine: Machine,
    out: mpsc::UnboundedSender<Delivery>,
    wake: Option<Duration>,
    /// The link gave a submission back, and had no room since.
    refused: bool,
    closing: bool,
}

#[derive(Default)]
pub(super) struct Slots {
    slots: BTreeMap<u16, Slot>,
    /// Where the search for an unused id begins, so that a tag is not used again soon.
    next: u16,
    /// Whose turn it is to go first, so that room on the link and memory are shared fairly.
    turn: u16,
    /// Memory that is used again.
    actions: Vec<Action>,
    events: VecDeque<(u16, Event)>,
    ids: Vec<u16>,
}

impl Slots {
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Which loader an operation belongs to.
    pub(super) fn owner(tag: Tag) -> u16 {
        (tag.0 >> 48) as u16
    }

    pub(super) fn open(
        &mut self,
        make: Box<dyn FnOnce(u16) -> Machine + Send>,
        out: mpsc::UnboundedSender<Delivery>,
    ) -> Option<u16> {
        let id = (0..=u16::MAX).map(|i| self.next.wrapping_add(i)).find(|id| !self.slots.contains_key(id))?;
        self.next = id.wrapping_add(1);
        let slot = Slot { machine: make(id), out, wake: None, refused: false, closing: false };
        self.slots.insert(id, slot);
        Some(id)
    }

    pub(super) fn stats(&self, id: u16) -> Option<&LoaderStats> {
        self.slots.get(&id).map(|slot| slot.machine.stats())
    }

    /// The earliest time a machine asked to be woken at.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.slots.values().filter_map(|slot| slot.wake).min()
    }

    /// Ticks the machines whose time has come; whether there were any.
    pub(super) fn tick(&mut self, now: Duration, path: &mut Path) -> bool {
        let mut due = std::mem::take(&mut self.ids);
        due.clear();
        due.extend(self.slots.iter().filter(|(_, slot)| slot.wake.is_some_and(|wake| wake <= now)).map(|(&id, _)| id));
        for &id in &due {
            if let Some(slot) = self.slots.get_mut(&id) {
                slot.wake = None;
            }
            self.step(now, id, Event::Tick, path);
        }
        let any = !due.is_empty();
        self.ids = due;
        any
    }

    /// Tells those that were refused that the link may have room now.
    pub(super) fn retry_refused(&mut self, now: Duration, path: &mut Path) {
        let ids = self.in_turn();
        for &id in &ids {
            if let Some(slot) = self.slots.get_mut(&id)
                && std::mem::take(&mut slot.refused)
            {
                self.step(now, id, Event::Room, path);
            }
        }
        self.ids = ids;
    }

    pub(super) fn close_all(&mut self, now: Duration, path: &mut Path) {
        let ids = self.in_turn();
        for &id in &ids {
            if self.slots.get(&id).is_some_and(|slot| !slot.closing) {
                self.step(now, id, Event::Close, path);
            }
        }
        self.ids = ids;
    }

    /// One step of each machine that there is an event for, by the dataset that it reads.
    pub(super) fn step_all(
        &mut self,
        now: Duration,
        mut event: impl FnMut(&Path, &Arc<str>) -> Option<Event>,
        path: &mut Path,
    ) {
        let ids = self.in_turn();
        for &id in &ids {
            let Some(slot) = self.slots.get(&id) else { continue };
            if let Some(event) = event(path, &slot.machine.source().dataset) {
                self.step(now, id, event, path);
            }
        }
        self.ids = ids;
    }

    /// What a loader reads.
    pub(super) fn dataset(&self, id: u16) -> Option<Arc<str>> {
        self.slots.get(&id).map(|slot| slot.machine.source().dataset.clone())
    }

    /// Whether anybody reads a dataset.
    pub(super) fn read(&self, dataset: &str) -> bool {
        self.slots.values().any(|slot| *slot.machine.source().dataset == *dataset)
    }

    /// All ids, beginning with another one each time. Their memory is to be put back.
    fn in_turn(&mut self) -> Vec<u16> {
        let split = self.turn;
        let mut ids = std::mem::take(&mut self.ids);
        ids.clear();
        ids.extend(self.slots.range(split..).map(|(&id, _)| id));
        ids.extend(self.slots.range(..split).map(|(&id, _)| id));
        self.turn = ids.get(1).or(ids.first()).copied().unwrap_or(0);
        ids
    }

    /// One step of one machine, and of all those that its actions concern.
    pub(super) fn step(&mut self, now: Duration, id: u16, event: Event, path: &mut Path) {
        let mut events = std::mem::take(&mut self.events);
        events.push_back((id, event));
        while let Some((id, event)) = events.pop_front() {
            // An event for a machine that has ended is late, not wrong; a completion's lease goes back as it is dropped.
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            slot.closing |= matches!(event, Event::Close);
            let mut actions = std::mem::take(&mut self.actions);
            slot.machine.step(now, event, &mut actions);
            for action in actions.drain(..) {
                self.act(id, action, path, &mut events);
            }
            self.actions = actions;
        }
        self.events = events;
    }

    fn act(&mut self, id: u16, action: Action, path: &mut Path, events: &mut VecDeque<(u16, Event)>) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        match action {
            Action::Submit(fetch) => {
                if let Err(fetch) = path.submit(fetch) {
                    slot.refused = true;
                    events.push_back((id, Event::Refused(fetch)));
                }
            }
            Action::Flush => path.flush(),
            Action::Cancel(tag) => path.cancel(tag),
            // A consumer that is gone takes its channel with it; its `Close` is on the way.
            Action::Deliver(batch) => _ = slot.out.send(Delivery::Batch(batch)),
            Action::Finished => slot.end(Ok(()), id, events),
            Action::Fail(error) => slot.end(Err(error), id, events),
            Action::Ended => _ = self.slots.remove(&id),
            Action::WakeAt(time) => slot.wake = Some(time),
            Action::Starved { bytes } => {
                tracing::debug!("loader {id} needs {bytes} bytes of the pool: the others are asked to give back");
                events.extend(self.slots.keys().filter(|&&other| other != id).map(|&other| (other, Event::Relinquish)));
            }
            Action::Note(note) => tracing::warn!("{note}"),
        }
    }
}

impl Slot {
    fn end(&mut self, result: Result<(), crate::loader::LoaderError>, id: u16, events: &mut VecDeque<(u16, Event)>) {
        let stats = Box::new(self.machine.stats().clone());
        let _ = self.out.send(Delivery::End(result, stats));
        events.push_back((id, Event::Close));
    }
}

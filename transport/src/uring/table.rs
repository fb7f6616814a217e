//! Which files the ring knows by number. The table is filled by operations of the ring itself, not by system calls.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};

use super::{Descriptor, Handle, Target};

/// The table's memory of the files in the kernel's table. It keeps none of them open by itself: a file that everybody else
/// has closed leaves the kernel's table at the next [`sweep`](Table::sweep).
pub(super) struct Table {
    slots: Vec<Slot>,
    /// By the address of a file's `Arc`, which is not another's as long as its slot has a `Weak` of it.
    places: HashMap<usize, u32>,
    /// What the kernel reads when a slot is changed. Never moves.
    descriptors: Box<[RawFd]>,
    uses: u64,
}

#[derive(Default)]
struct Slot {
    file: Option<Weak<dyn Descriptor>>,
    /// The kernel has been asked to change the slot and has not answered. Until then the file stays open.
    changing: bool,
    kept: Option<Handle>,
    /// Operations under way that name the slot.
    users: u32,
    used: u64,
}

/// The address by which a file is known.
fn key(file: &Handle) -> usize {
    Arc::as_ptr(file).cast::<()>().addr()
}

/// A change that the kernel has to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub slot: u32,
    /// Points into the table, which lives as long as the ring.
    pub descriptor: *const RawFd,
}

impl Table {
    /// A table like the kernel's: `slots` of them, all empty. 0 for none.
    pub(super) fn new(slots: u32) -> Table {
        let count = slots as usize;
        Table {
            slots: (0..count).map(|_| Slot::default()).collect(),
            places: HashMap::with_capacity(count),
            descriptors: vec![-1; count].into(),
            uses: 0,
        }
    }

    /// How an operation names the file from now until [`release`](Table::release), and what the kernel is to be told for the sake
    /// of later ones.
    pub(super) fn name(&mut self, file: &Handle) -> (Target, Option<Change>) {
        let plain = Target::Descriptor(file.as_fd().as_raw_fd());
        self.uses += 1;
        if let Some(&number) = self.places.get(&key(file)) {
            let slot = &mut self.slots[number as usize];
            slot.used = self.uses;
            if slot.changing {
                return (plain, None);
            }
            slot.users += 1;
            return (Target::Slot(number), None);
        }
        let free = self.slots.iter().enumerate().filter(|(_, slot)| !slot.changing && slot.users == 0);
        // Empty ones and those of closed files first, then the one that was of no use for longest.
        let gone = |slot: &Slot| slot.file.as_ref().is_none_or(|file| file.strong_count() == 0);
        let best = free.min_by_key(|(_, slot)| if gone(slot) { 0 } else { slot.used }).map(|(number, _)| number as u32);
        let change = best.map(|number| self.set(number, Some(file.clone())));
        (plain, change)
    }

    /// An operation that named the file has ended.
    pub(super) fn release(&mut self, target: Target) {
        if let Target::Slot(number) = target {
            self.slots[number as usize].users -= 1;
        }
    }

    /// The next slot of a file that nobody else has open any more: it is emptied.
    pub(super) fn sweep(&mut self) -> Option<Change> {
        let gone = |slot: &Slot| {
            slot.file.as_ref().is_some_and(|file| file.strong_count() == 0) && !slot.changing && slot.users == 0
        };
        let number = self.slots.iter().position(gone)?;
        Some(self.set(number as u32, None))
    }

    fn set(&mut self, number: u32, file: Option<Handle>) -> Change {
        let slot = &mut self.slots[number as usize];
        if let Some(before) = slot.file.take() {
            self.places.remove(&before.as_ptr().cast::<()>().addr());
        }
        let descriptor = &mut self.descriptors[number as usize];
        *descriptor = file.as_ref().map_or(-1, |file| file.as_fd().as_raw_fd());
        if let Some(file) = &file {
            self.places.insert(key(file), number);
        }
        slot.file = file.as_ref().map(Arc::downgrade);
        slot.kept = file;
        slot.changing = true;
        slot.used = self.uses;
        Change { slot: number, descriptor }
    }

    /// The kernel's answer to a change.
    pub(super) fn changed(&mut self, number: u32, worked: bool) {
        let slot = &mut self.slots[number as usize];
        slot.changing = !worked;
        slot.kept = None;
        if !worked {
            // A slot that does not take what it is told stays out of use: `changing` for good.
            if let Some(file) = slot.file.take() {
                self.places.remove(&file.as_ptr().cast::<()>().addr());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Handle {
        Arc::new(std::fs::File::open("/dev/null").unwrap())
    }

    fn slot_of(table: &mut Table, file: &Handle) -> Option<u32> {
        match table.name(file).0 {
            Target::Slot(slot) => {
                table.release(Target::Slot(slot));
                Some(slot)
            }
            Target::Descriptor(_) => None,
        }
    }

    #[test]
    fn a_file_is_named_by_number_once_the_kernel_knows_it() {
        let mut table = Table::new(2);
        let file = file();
        let (target, change) = table.name(&file);
        assert!(matches!(target, Target::Descriptor(fd) if fd == file.as_fd().as_raw_fd()));
        assert_eq!(table.name(&file).1, None, "asked for once");
        table.changed(change.unwrap().slot, true);
        assert_eq!(slot_of(&mut table, &file), Some(change.unwrap().slot));
    }

    #[test]
    fn slots_in_use_stay_and_the_longest_unused_goes() {
        let mut table = Table::new(2);
        let files = [file(), file(), file()];
        for file in &files[..2] {
            let change = table.name(file).1.unwrap();
            table.changed(change.slot, true);
        }
        let (held, _) = table.name(&files[0]);
        let second = slot_of(&mut table, &files[1]).unwrap();
        // The first is the longest unused, but an operation names it.
        let change = table.name(&files[2]).1.unwrap();
        assert_eq!(change.slot, second);
        assert!(table.name(&files[1]).1.is_none(), "one slot is in use, the other being changed");
        table.changed(second, true);
        table.release(held);
        assert_eq!(slot_of(&mut table, &files[2]), Some(second));
    }

    #[test]
    fn closed_files_are_swept_and_a_stubborn_slot_is_left_alone() {
        let mut table = Table::new(1);
        let first = file();
        let slot = table.name(&first).1.unwrap().slot;
        table.changed(slot, true);
        assert_eq!(table.sweep(), None);
        drop(first);
        assert_eq!(table.sweep().unwrap().slot, slot);
        assert_eq!(table.descriptors[slot as usize], -1);
        table.changed(slot, false);
        assert_eq!((table.name(&file()).1, table.sweep()), (None, None));
    }

    #[test]
    fn no_table_is_a_table_without_slots() {
        assert_eq!(Table::new(0).name(&file()).1, None);
    }
}

//! Memory of batches that is used again once the consumer has let go of them.

use std::sync::{Arc, Mutex, MutexGuard};

use forebay_transport::pool::View;

use super::batch::Table;

/// Batches' worth of memory that is kept: as many as a consumer commonly has at a time.
const SPARE: usize = 8;

/// The tables of one loader's batches.
pub(super) struct Tables {
    names: Arc<[Arc<str>]>,
    shelf: Arc<Shelf>,
    /// Of batches that the consumer may still hold, in the order of their delivery.
    delivered: Vec<Arc<Table>>,
    spare: Vec<Arc<Table>>,
}

impl Tables {
    /// For batches of the fields of these names.
    pub(super) fn new(names: Arc<[Arc<str>]>) -> Tables {
        Tables { names, shelf: Arc::default(), delivered: Vec::new(), spare: Vec::new() }
    }

    /// An empty table that nobody else has, and an empty list of views.
    pub(super) fn take(&mut self) -> (Arc<Table>, Vec<View>) {
        let mut at = 0;
        while at < self.delivered.len() {
            match Arc::get_mut(&mut self.delivered[at]) {
                None => at += 1,
                Some(table) => {
                    table.clear();
                    let table = self.delivered.remove(at);
                    if self.spare.len() < SPARE {
                        self.spare.push(table);
                    }
                }
            }
        }
        let table = self.spare.pop().unwrap_or_else(|| Arc::new(Table::new(self.names.clone(), self.shelf.clone())));
        (table, self.shelf.lock().pop().unwrap_or_default())
    }

    /// The table is now a batch's.
    pub(super) fn deliver(&mut self, table: &Arc<Table>) {
        self.delivered.push(table.clone());
    }

    /// Epoch and step of batches that the consumer holds something of.
    pub(super) fn held(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let held = self.delivered.iter().filter(|table| Arc::strong_count(table) > 1);
        held.map(|table| (table.epoch, table.step))
    }
}

/// Where a batch leaves its list of views, whoever drops it.
#[derive(Debug, Default)]
pub(super) struct Shelf(Mutex<Vec<Vec<View>>>);

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<View>>> {
        // Nothing that runs under this lock panics.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Gives back what the views hold, and keeps the list's memory.
    pub(super) fn leave(&self, mut views: Vec<View>) {
        views.clear();
        let mut lists = self.lock();
        if lists.len() < SPARE {
            lists.push(views);
        }
    }
}

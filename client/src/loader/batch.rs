//! What the consumer gets: batches of samples that are views into leases.

use std::fmt;
use std::sync::Arc;

use forebay_transport::pool::View;

use super::tables::Shelf;

/// One step's samples, in the plan's order. Dropping it (and the samples and views taken from it) gives the memory back.
#[derive(Clone)]
pub struct Batch {
    pub(super) table: Arc<Table>,
    /// The leases that hold the samples, in order of first use.
    pub(super) views: Vec<View>,
}

/// What is known about a batch's samples, apart from their bytes.
#[derive(Debug)]
pub(super) struct Table {
    pub epoch: u64,
    pub step: u64,
    pub first_position: u64,
    pub names: Arc<[Arc<str>]>,
    pub samples: Vec<Row>,
    /// Of each sample, each field: `samples.len() * names.len()`.
    pub cells: Vec<Cell>,
    pub shelf: Arc<Shelf>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub ordinal: u64,
    /// Index in the batch's views.
    pub view: u32,
    pub substitute: bool,
}

/// Where one field's bytes lie in the lease; `None` when the sample has no such field.
pub(super) type Cell = Option<(usize, usize)>;

impl Batch {
    pub fn epoch(&self) -> u64 {
        self.table.epoch
    }

    /// Which of the rank's batches of the epoch this is, from 0.
    pub fn step(&self) -> u64 {
        self.table.step
    }

    pub fn len(&self) -> usize {
        self.table.samples.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.samples.is_empty()
    }

    /// The fields that were asked for, in the order of their indexes.
    pub fn fields(&self) -> &[Arc<str>] {
        &self.table.names
    }

    /// The positions of the epoch's sequence that this batch fills.
    pub fn positions(&self) -> std::ops::Range<u64> {
        self.table.first_position..self.table.first_position + self.len() as u64
    }

    /// The ordinals of the samples delivered.
    pub fn ordinals(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.table.samples.iter().map(|row| row.ordinal)
    }

    /// Sample `i`. It may be kept after the batch is dropped, and then keeps its lease, not the whole batch.
    ///
    /// # Panics
    /// When `i` is not below [`len`](Batch::len).
    pub fn sample(&self, i: usize) -> Sample {
        let view = self.views[self.table.samples[i].view as usize].clone();
        Sample { table: self.table.clone(), index: i, view }
    }

    /// The bytes of field `field` of sample `i`, without taking the sample out; `None` when it has no such field.
    pub fn field(&self, i: usize, field: usize) -> Option<&[u8]> {
        let view = &self.views[self.table.samples[i].view as usize];
        self.table.cell(i, field).map(|(offset, len)| &view[offset..offset + len])
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Sample> + '_ {
        (0..self.len()).map(|i| self.sample(i))
    }

    /// Sum of all fields of all samples.
    pub fn bytes(&self) -> u64 {
        self.table.cells.iter().flatten().map(|&(_, len)| len as u64).sum()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.table.shelf.leave(std::mem::take(&mut self.views));
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch(epoch {}, step {}, {} samples)", self.epoch(), self.step(), self.len())
    }
}

impl Table {
    pub(super) fn new(names: Arc<[Arc<str>]>, shelf: Arc<Shelf>) -> Table {
        Table { epoch: 0, step: 0, first_position: 0, names, samples: Vec::new(), cells: Vec::new(), shelf }
    }

    /// Without samples, but with their memory.
    pub(super) fn clear(&mut self) {
        self.samples.clear();
        self.cells.clear();
    }

    fn cell(&self, sample: usize, field: usize) -> Cell {
        let fields = self.names.len();
        if field >= fields { None } else { self.cells[sample * fields + field] }
    }
}

/// One sample: views into the lease it arrived in, nothing copied.
#[derive(Clone)]
pub struct Sample {
    table: Arc<Table>,
    index: usize,
    view: View,
}

impl Sample {
    /// Its place in the dataset. Of a substitute: that of the sample whose bytes these are.
    pub fn ordinal(&self) -> u64 {
        self.table.samples[self.index].ordinal
    }

    /// Its place in the epoch's sequence.
    pub fn position(&self) -> u64 {
        self.table.first_position + self.index as u64
    }

    /// Whether this stands in for a sample that could not be had (`OnError::Skip`).
    pub fn is_substitute(&self) -> bool {
        self.table.samples[self.index].substitute
    }

    /// The bytes of a field, by its index in [`Batch::fields`]; `None` when the sample has no such field.
    pub fn field(&self, field: usize) -> Option<&[u8]> {
        self.table.cell(self.index, field).map(|(offset, len)| &self.view[offset..offset + len])
    }

    /// The bytes of a field by its name; `None` when the sample has no such field, or it was not asked for.
    pub fn field_by_name(&self, name: &str) -> Option<&[u8]> {
        self.field(self.table.names.iter().position(|field| &**field == name)?)
    }

    /// A field as a view that can be kept by itself.
    pub fn view(&self, field: usize) -> Option<View> {
        self.table.cell(self.index, field).map(|(offset, len)| self.view.slice(offset, len))
    }

    pub fn fields(&self) -> &[Arc<str>] {
        &self.table.names
    }
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sample({} at position {})", self.ordinal(), self.position())
    }
}

//! The operations between submission and completion.

use std::collections::VecDeque;

use super::machine::Op;

/// Operations by their tags, in the order of their submission. Adding and removing one allocates nothing once there were
/// as many at a time as there will be.
#[derive(Debug, Default)]
pub(super) struct Ops(VecDeque<(u64, Op)>);

impl Ops {
    /// `tag` is larger than any before it: at a million a second, they last for nine years.
    pub(super) fn insert(&mut self, tag: u64, op: Op) {
        self.0.push_back((tag, op));
    }

    pub(super) fn get(&self, tag: u64) -> Option<&Op> {
        self.0.get(self.find(tag)?).map(|(_, op)| op)
    }

    pub(super) fn remove(&mut self, tag: u64) -> Option<Op> {
        self.0.remove(self.find(tag)?).map(|(_, op)| op)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Op)> {
        self.0.iter_mut().map(|(tag, op)| (*tag, op))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn find(&self, tag: u64) -> Option<usize> {
        self.0.binary_search_by_key(&tag, |(of, _)| *of).ok()
    }
}

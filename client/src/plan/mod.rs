//! The order in which an epoch's samples are wanted: a pure function of (version, seed, epoch).
//!
//! Three numbers name a sample of an epoch. Its **ordinal** is its place in the dataset; its **position** is its place in
//! the epoch's sequence, which all ranks share; its **index** is its place in one rank's part of that sequence. With world
//! size W and batch size B, step `s` of rank `r` is positions `[(sW + r)B, (sW + r + 1)B)`.
//!
//! `drop_last = true` leaves out the step that not every rank can fill, so that all ranks have the same number of full
//! batches: `samples / (W·B)` of them, which may be 0. `drop_last = false` delivers every position: the last batch of one
//! rank may be short, and ranks after it have one batch fewer (an empty batch is never delivered).

mod permutation;

use std::ops::Range;
use std::sync::Arc;

use forebay_transport::Version;

pub use permutation::Permutation;

/// Changes when the same specification would give another order.
pub const PLAN_VERSION: u32 = 1;

/// How an epoch is ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shuffle {
    /// As the samples lie in the dataset.
    None,
    /// A uniform permutation of all samples, another one each epoch.
    #[default]
    Full,
}

/// What a plan is made of. Everything in it is part of [`Plan::hash`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSpec {
    pub version: Version,
    /// How many samples the version has. At most 2^63.
    pub samples: u64,
    pub shuffle: Shuffle,
    pub seed: u64,
    /// This consumer's data-parallel rank, below `world_size`.
    pub rank: u32,
    /// How many data-parallel ranks share the epoch. At least 1.
    pub world_size: u32,
    /// Samples per batch and rank. At least 1.
    pub batch_size: u32,
    /// Leave out the step that not every rank can fill.
    pub drop_last: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    #[error("a batch size of 0 has no batches")]
    NoBatch,
    #[error("rank {rank} is not one of {world_size} ranks")]
    Rank { rank: u32, world_size: u32 },
    #[error("{0} samples are more than a plan can order")]
    TooMany(u64),
    #[error("there is no sample {ordinal} among {samples}")]
    NoSuchSample { ordinal: u64, samples: u64 },
}

/// A rank's plan for every epoch. Constant memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    spec: PlanSpec,
    len: u64,
    /// The ordinals by position, instead of the whole dataset in the order of `spec`.
    list: Option<Arc<[u64]>>,
}

impl Plan {
    pub fn new(spec: PlanSpec) -> Result<Plan, PlanError> {
        if spec.batch_size == 0 {
            return Err(PlanError::NoBatch);
        }
        if spec.rank >= spec.world_size {
            return Err(PlanError::Rank { rank: spec.rank, world_size: spec.world_size });
        }
        if spec.samples > Permutation::MAX {
            return Err(PlanError::TooMany(spec.samples));
        }
        let batch = u64::from(spec.batch_size);
        let stride = batch * u64::from(spec.world_size);
        let rest = spec.samples % stride;
        let tail = if spec.drop_last { 0 } else { rest.saturating_sub(u64::from(spec.rank) * batch).min(batch) };
        let len = spec.samples / stride * batch + tail;
        Ok(Plan { spec, len, list: None })
    }

    /// A plan of one batch of one rank: these ordinals, in this order, of a version with `samples` samples.
    pub fn list(version: Version, samples: u64, ordinals: &[u64]) -> Result<Plan, PlanError> {
        if let Some(&ordinal) = ordinals.iter().find(|&&ordinal| ordinal >= samples) {
            return Err(PlanError::NoSuchSample { ordinal, samples });
        }
        let batch_size = u32::try_from(ordinals.len()).map_err(|_| PlanError::TooMany(ordinals.len() as u64))?;
        let spec = PlanSpec {
            version,
            samples: u64::from(batch_size),
            shuffle: Shuffle::None,
            seed: 0,
            rank: 0,
            world_size: 1,
            batch_size,
            drop_last: false,
        };
        Ok(Plan { list: Some(ordinals.into()), ..Plan::new(spec)? })
    }

    pub fn spec(&self) -> &PlanSpec {
        &self.spec
    }

    /// Samples of this rank in each epoch.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Batches of this rank in each epoch.
    pub fn steps(&self) -> u64 {
        self.len.div_ceil(u64::from(self.spec.batch_size))
    }

    /// The indexes of a step's batch; empty at and after [`steps`](Plan::steps).
    pub fn batch(&self, step: u64) -> Range<u64> {
        let batch = u64::from(self.spec.batch_size);
        let first = step.saturating_mul(batch).min(self.len);
        first..first.saturating_add(batch).min(self.len)
    }

    /// The position of this rank's `index`, which must be below [`len`](Plan::len).
    pub fn position(&self, index: u64) -> u64 {
        let batch = u64::from(self.spec.batch_size);
        let (step, within) = (index / batch, index % batch);
        (step * u64::from(self.spec.world_size) + u64::from(self.spec.rank)) * batch + within
    }

    /// The order of one epoch.
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        let permutation = match self.spec.shuffle {
            Shuffle::None => None,
            Shuffle::Full => Some(Permutation::new(self.spec.samples, &self.spec.version, self.spec.seed, epoch)),
        };
        EpochOrder { permutation, list: self.list.clone() }
    }

    /// BLAKE3 of the whole specification: two plans with the same hash deliver the same samples in the same order.
    pub fn hash(&self) -> [u8; 32] {
        let PlanSpec { version, samples, shuffle, seed, rank, world_size, batch_size, drop_last } = &self.spec;
        let mut hasher = blake3::Hasher::new_derive_key("forebay plan: hash of a specification");
        hasher.update(&PLAN_VERSION.to_le_bytes());
        hasher.update(&version.0);
        hasher.update(&samples.to_le_bytes());
        hasher.update(&[match shuffle {
            Shuffle::None => 0,
            Shuffle::Full => 1,
        }]);
        hasher.update(&seed.to_le_bytes());
        hasher.update(&rank.to_le_bytes());
        hasher.update(&world_size.to_le_bytes());
        hasher.update(&batch_size.to_le_bytes());
        hasher.update(&[u8::from(*drop_last)]);
        for ordinal in self.list.iter().flat_map(|list| list.iter()) {
            hasher.update(&ordinal.to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

/// The order of one epoch, the same for all ranks.
#[derive(Clone)]
pub struct EpochOrder {
    permutation: Option<Permutation>,
    list: Option<Arc<[u64]>>,
}

impl EpochOrder {
    /// The ordinal at `position`, which must be below the number of samples.
    pub fn ordinal(&self, position: u64) -> u64 {
        if let Some(list) = &self.list {
            return list[usize::try_from(position).expect("a list fits in memory")];
        }
        self.permutation.as_ref().map_or(position, |permutation| permutation.index(position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(samples: u64, world_size: u32, rank: u32, batch_size: u32, drop_last: bool) -> Plan {
        let version = Version([3; 32]);
        let spec =
            PlanSpec { version, samples, shuffle: Shuffle::Full, seed: 5, rank, world_size, batch_size, drop_last };
        Plan::new(spec).unwrap()
    }

    /// Every rank's batches as positions.
    fn positions(samples: u64, world_size: u32, batch_size: u32, drop_last: bool) -> Vec<Vec<Vec<u64>>> {
        let rank = |rank| {
            let plan = plan(samples, world_size, rank, batch_size, drop_last);
            let batch = |step| plan.batch(step).map(|index| plan.position(index)).collect::<Vec<_>>();
            assert!(plan.batch(plan.steps()).is_empty());
            (0..plan.steps()).map(batch).collect()
        };
        (0..world_size).map(rank).collect()
    }

    #[test]
    fn step_s_of_rank_r_is_where_the_rule_says() {
        for (samples, world_size, batch_size) in
            [(0, 1, 4), (3, 1, 4), (3, 5, 1), (3, 5, 4), (47, 3, 4), (48, 3, 4), (53, 3, 4)]
        {
            let (w, b) = (u64::from(world_size), u64::from(batch_size));
            for (r, batches) in positions(samples, world_size, batch_size, false).iter().enumerate() {
                for (s, batch) in batches.iter().enumerate() {
                    let first = (s as u64 * w + r as u64) * b;
                    assert_eq!(*batch, (first..(first + b).min(samples)).collect::<Vec<_>>());
                    assert!(!batch.is_empty());
                }
            }
            let mut all = positions(samples, world_size, batch_size, false).concat().concat();
            all.sort_unstable();
            assert_eq!(all, (0..samples).collect::<Vec<_>>(), "every position once");
            for batches in positions(samples, world_size, batch_size, true) {
                assert_eq!(batches.len() as u64, samples / (w * b), "all ranks have as many steps");
                assert!(batches.iter().all(|batch| batch.len() as u64 == b), "and every batch is full");
            }
        }
    }

    #[test]
    fn small_epochs() {
        assert_eq!(positions(0, 2, 4, false), [vec![], vec![] as Vec<Vec<u64>>]);
        assert_eq!(positions(3, 1, 4, false), [[[0, 1, 2]]]);
        assert_eq!(positions(3, 1, 4, true), [vec![] as Vec<Vec<u64>>]);
        // Fewer samples than ranks: those without a sample have no batch.
        assert_eq!(positions(3, 5, 1, false), [vec![vec![0]], vec![vec![1]], vec![vec![2]], vec![], vec![]]);
        assert_eq!(positions(6, 2, 4, false), [[[0, 1, 2, 3].to_vec()], [[4, 5].to_vec()]]);
    }

    #[test]
    fn what_cannot_be_planned_is_refused() {
        let spec = plan(10, 2, 1, 4, false).spec().clone();
        let refused = |spec| Plan::new(spec).unwrap_err();
        assert_eq!(refused(PlanSpec { batch_size: 0, ..spec.clone() }), PlanError::NoBatch);
        assert_eq!(refused(PlanSpec { rank: 2, ..spec.clone() }), PlanError::Rank { rank: 2, world_size: 2 });
        assert_eq!(
            refused(PlanSpec { world_size: 0, rank: 0, ..spec.clone() }),
            PlanError::Rank { rank: 0, world_size: 0 }
        );
        assert_eq!(refused(PlanSpec { samples: u64::MAX, ..spec }), PlanError::TooMany(u64::MAX));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let plan = plan(1 << 63, u32::MAX, u32::MAX - 1, 1000, false);
        let last = plan.len() - 1;
        assert!(plan.position(last) < 1 << 63);
        assert!(plan.epoch(u64::MAX).ordinal(plan.position(last)) < 1 << 63);
    }

    #[test]
    fn the_hash_covers_the_whole_specification() {
        let spec = plan(10, 2, 1, 4, false).spec().clone();
        let others = [
            PlanSpec { version: Version([4; 32]), ..spec.clone() },
            PlanSpec { samples: 11, ..spec.clone() },
            PlanSpec { shuffle: Shuffle::None, ..spec.clone() },
            PlanSpec { seed: 6, ..spec.clone() },
            PlanSpec { rank: 0, ..spec.clone() },
            PlanSpec { world_size: 3, ..spec.clone() },
            PlanSpec { batch_size: 5, ..spec.clone() },
            PlanSpec { drop_last: true, ..spec.clone() },
            spec,
        ];
        let hashes = others.map(|spec| Plan::new(spec).unwrap().hash());
        assert_eq!(hashes.iter().collect::<std::collections::BTreeSet<_>>().len(), hashes.len());
    }
}

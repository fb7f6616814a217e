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

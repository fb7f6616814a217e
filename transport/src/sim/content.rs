//! A dataset that is a function: every byte of it can be checked without being stored anywhere.

use std::sync::Arc;

use crate::link::{FieldId, Version};

/// A dataset whose bytes are known: what a link's answers are compared with.
pub trait Known {
    fn dataset(&self) -> Arc<str>;
    fn version(&self) -> Version;
    fn samples(&self) -> u64;
    /// How many fields there are: ids from 0.
    fn fields(&self) -> u16;
    /// A field's length in bytes; `None` when the sample does not have it.
    fn len(&self, ordinal: u64, field: FieldId) -> Option<u64>;
    /// Whether these are the field's bytes.
    fn check(&self, ordinal: u64, field: FieldId, bytes: &[u8]) -> bool;
}

/// A generated dataset. Equal values generate equal bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    pub dataset: Arc<str>,
    pub version: Version,
    pub samples: u64,
    pub fields: u16,
    /// Lengths of fields are spread between these, both included, evenly over orders of magnitude.
    pub min_len: u64,
    pub max_len: u64,
    /// The share of fields that samples do not have, 0 to 1.
    pub absent: f64,
}

impl Content {
    /// A dataset `sim` with one field in each sample.
    pub fn new(version: u8, samples: u64, min_len: u64, max_len: u64) -> Content {
        let version = Version([version; 32]);
        Content { dataset: "sim".into(), version, samples, fields: 1, min_len, max_len, absent: 0.0 }
    }

    fn key(&self, ordinal: u64, field: FieldId) -> u64 {
        let version = u64::from_le_bytes(std::array::from_fn(|i| self.version.0[i]));
        mix(mix(version ^ mix(ordinal)) ^ u64::from(field))
    }

    /// Writes a field's bytes.
    pub fn fill(&self, ordinal: u64, field: FieldId, bytes: &mut [u8]) {
        let mut state = self.key(ordinal, field);
        for chunk in bytes.chunks_mut(8) {
            state = state.wrapping_mul(0xd6e8_feb8_6659_fd93).wrapping_add(0x9e37_79b9_7f4a_7c15);
            chunk.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes()[..chunk.len()]);
        }
    }

    /// The bytes that the lengths of all fields of a sample add up to.
    pub fn sample_len(&self, ordinal: u64) -> u64 {
        (0..self.fields).filter_map(|field| self.len(ordinal, field)).sum()
    }
}

impl Known for Content {
    fn dataset(&self) -> Arc<str> {
        self.dataset.clone()
    }

    fn version(&self) -> Version {
        self.version
    }

    fn samples(&self) -> u64 {
        self.samples
    }

    fn fields(&self) -> u16 {
        self.fields
    }

    fn len(&self, ordinal: u64, field: FieldId) -> Option<u64> {
        let key = mix(self.key(ordinal, field));
        let unit = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64;
        if unit(key) < self.absent {
            return None;
        }
        let (min, max) = (self.min_len as f64 + 1.0, self.max_len as f64 + 1.0);
        let len = min * (max / min).powf(unit(mix(key))) - 1.0;
        Some((len.round() as u64).clamp(self.min_len, self.max_len))
    }

    fn check(&self, ordinal: u64, field: FieldId, bytes: &[u8]) -> bool {
        if self.len(ordinal, field) != Some(bytes.len() as u64) {
            return false;
        }
        let mut state = self.key(ordinal, field);
        bytes.chunks(8).all(|chunk| {
            state = state.wrapping_mul(0xd6e8_feb8_6659_fd93).wrapping_add(0x9e37_79b9_7f4a_7c15);
            chunk == &(state ^ (state >> 29)).to_le_bytes()[..chunk.len()]
        })
    }
}

/// SplitMix64's finaliser.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

//! The version of a dataset. Pure.

use forebay_transport::Version;

/// Separates this hash from any other use of BLAKE3. Changing what is hashed needs another context.
const CONTEXT: &str = "forebay 2026-12-01 dataset version 1";

/// Takes the shards of a dataset in order; the result is its version.
///
/// What is hashed: for each shard the length of its name (u64, little-endian), the name, its size (u64, little-endian) and
/// the BLAKE3 of its bytes; at the end the number of shards (u64, little-endian). Names are relative, so that a copy
/// elsewhere has the same version; the lengths make it impossible for two lists of shards to hash alike.
#[derive(Debug)]
pub struct Fingerprint {
    hasher: blake3::Hasher,
    shards: u64,
}

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint { hasher: blake3::Hasher::new_derive_key(CONTEXT), shards: 0 }
    }
}

impl Fingerprint {
    pub fn new() -> Fingerprint {
        Fingerprint::default()
    }

    pub fn shard(&mut self, name: &str, size: u64, digest: &[u8; 32]) {
        self.hasher.update(&(name.len() as u64).to_le_bytes());
        self.hasher.update(name.as_bytes());
        self.hasher.update(&size.to_le_bytes());
        self.hasher.update(digest);
        self.shards += 1;
    }

    pub fn finish(mut self) -> Version {
        self.hasher.update(&self.shards.to_le_bytes());
        Version(*self.hasher.finalize().as_bytes())
    }

    /// The version while only the shards' headers have been read.
    pub fn finish_provisional(self) -> Version {
        self.finish().provisional()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(shards: &[(&str, u64, u8)]) -> Version {
        let mut fingerprint = Fingerprint::new();
        for (name, size, digest) in shards {
            fingerprint.shard(name, *size, &[*digest; 32]);
        }
        fingerprint.finish()
    }

    #[test]
    fn every_part_counts() {
        let all = [
            version(&[]),
            version(&[("a.tar", 1, 1)]),
            version(&[("b.tar", 1, 1)]),
            version(&[("a.tar", 2, 1)]),
            version(&[("a.tar", 1, 2)]),
            version(&[("a.tar", 1, 1), ("b.tar", 1, 1)]),
            version(&[("b.tar", 1, 1), ("a.tar", 1, 1)]),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other != one), "{i}");
        }
    }

    /// What is kept in indexes, and in what clients resume from, must not change by accident.
    #[test]
    fn stays_what_it_was() {
        let version = version(&[("a.tar", 10_240, 7), ("sub/b.tar", 0, 255)]);
        assert_eq!(version.to_string(), GOLDEN);
    }

    const GOLDEN: &str = "b3-c34c76544bcab8a85a22e77e052b9d35bb4c675e2bc4a2e68415e91e6a5153b2";
}

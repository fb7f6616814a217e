//! Stores of shards wherever they lie.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{LocalStores, PreadConfig, Store};
use crate::catalog::ShardFile;

/// What one request holds besides the lease: what came off its connection and is not copied yet, at most.
const HELD: u64 = 512 << 10;

/// How objects elsewhere are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    /// Requests in flight at the same time, of each store; others wait in line. Default 64. Each holds a connection, and up
    /// to 512 KiB that came and is not yet copied into its lease.
    pub in_flight: usize,
    /// Bytes between two reads of one batch that are read along, so that one request brings both. Default 128 KiB: about
    /// what comes in the time of one more request.
    pub gap: u64,
    /// Bytes of one request, unless one read is longer: what is more is asked for in several, side by side. Default 8 MiB.
    pub most: u64,
    /// How long no progress (16 KiB in a second count as some) is borne in all attempts at one request before it fails.
    /// Default 30 s.
    pub patience: Duration,
}

impl Default for RemoteConfig {
    fn default() -> RemoteConfig {
        RemoteConfig { in_flight: 64, gap: 128 << 10, most: 8 << 20, patience: Duration::from_secs(30) }
    }
}

impl RemoteConfig {
    /// As many requests as `memory` bytes are enough for, with `stores` stores that share them: at most the default, and at
    /// least one. Each store has requests of its own, so that a slow one takes none from the others.
    pub fn within(memory: u64, stores: usize) -> RemoteConfig {
        let config = RemoteConfig::default();
        let share = memory / HELD / stores.max(1) as u64;
        RemoteConfig { in_flight: usize::try_from(share).unwrap_or(usize::MAX).clamp(1, config.in_flight), ..config }
    }

    /// Bytes of memory that one store may hold besides leases, for the ledger.
    pub fn bytes(&self) -> u64 {
        self.in_flight as u64 * HELD
    }
}

/// Makes stores of shards that are files of this machine, and of shards that are objects elsewhere.
#[derive(Clone, Debug)]
pub struct Stores {
    pub local: LocalStores,
    pub remote: RemoteConfig,
}

impl Stores {
    /// A store of `shards`, which reads name by their index in this list: they are all files of this machine, or all objects
    /// elsewhere.
    ///
    /// # Errors
    /// When they are some of each, when a thread cannot be started, or when a URL is none.
    pub fn open(&self, shards: Vec<ShardFile>) -> io::Result<Arc<dyn Store>> {
        let objects = shards.iter().filter(|shard| shard.place.is_object()).count();
        if objects == 0 {
            return self.local.open(shards);
        }
        if objects < shards.len() {
            let why = "some of its shards are files and some are objects elsewhere: make them two datasets";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        elsewhere(shards, self.remote)
    }
}

#[cfg(feature = "remote")]
fn elsewhere(shards: Vec<ShardFile>, config: RemoteConfig) -> io::Result<Arc<dyn Store>> {
    Ok(Arc::new(super::RemoteStore::new(shards, config)?))
}

#[cfg(not(feature = "remote"))]
fn elsewhere(_: Vec<ShardFile>, _: RemoteConfig) -> io::Result<Arc<dyn Store>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this program was built without the feature `remote`"))
}

impl From<LocalStores> for Stores {
    fn from(local: LocalStores) -> Stores {
        Stores { local, remote: RemoteConfig::default() }
    }
}

/// Files by threads.
impl From<PreadConfig> for Stores {
    fn from(pread: PreadConfig) -> Stores {
        LocalStores::from(pread).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Identity, Place};

    #[test]
    fn requests_are_as_many_as_there_is_memory_for() {
        assert_eq!(RemoteConfig::within(1 << 40, 1).in_flight, 64);
        assert_eq!(RemoteConfig::within(16 << 20, 1).in_flight, 32);
        assert_eq!(RemoteConfig::within(16 << 20, 4).in_flight, 8);
        assert_eq!(RemoteConfig::within(0, 0).in_flight, 1);
        assert_eq!(RemoteConfig::within(16 << 20, 4).bytes(), 4 << 20);
    }

    #[test]
    fn a_dataset_lies_here_or_elsewhere() {
        let shard = |place| ShardFile { name: "a".into(), place, identity: Identity::of_object(1, None, None) };
        let file = shard(Place::File("/a".into()));
        let object = shard(Place::Object("ftp://host/a".into()));
        let stores = Stores::from(PreadConfig::default());
        let error = |shards| stores.open(shards).err().expect("refused").to_string();
        assert!(error(vec![file, object.clone()]).contains("make them two datasets"));
        let part = if cfg!(feature = "remote") { "s3://" } else { "without the feature" };
        assert!(error(vec![object]).contains(part));
    }
}

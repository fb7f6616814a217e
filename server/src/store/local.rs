//! How this process reads shards that are files of this machine: decided once, at start, for all datasets.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_transport::pool::Slab;

use super::uring::{self, Rings};
use super::{PreadConfig, PreadStore, Store};
use crate::catalog::ShardFile;

/// By which means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// By io_uring, or by threads where it cannot be had.
    #[default]
    Auto,
    /// By io_uring or not at all.
    Uring,
    /// By threads.
    Pread,
}

/// Whether to go past the page cache (`O_DIRECT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// When the shards are larger than what memory is available for caching them.
    #[default]
    Auto,
    On,
    Off,
}

/// How shards are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalConfig {
    pub io: Io,
    /// Only by io_uring: threads always read through the page cache.
    pub direct: Direct,
    /// Bytes of all shards that are going to be read, for [`Direct::Auto`]. Default 0.
    pub bytes: u64,
    /// Reads that the kernel has at a time, of up to 1 MiB each. Default 32.
    pub depth: u32,
    /// How long one may take before it is given up and its memory set aside. Default 30 s.
    pub patience: Duration,
    /// Threads, when it is threads; files kept open by each store, in any case.
    pub pread: PreadConfig,
}

impl Default for LocalConfig {
    fn default() -> LocalConfig {
        LocalConfig {
            io: Io::Auto,
            direct: Direct::Auto,
            bytes: 0,
            depth: 32,
            patience: Duration::from_secs(30),
            pread: PreadConfig::default(),
        }
    }
}

/// Why something is not to be had, and what mends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    pub remedy: String,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    #[error("io_uring was asked for and cannot be had: {reason}. To mend it: {remedy}")]
    NoUring { reason: String, remedy: String },
    #[error("O_DIRECT was asked for, and needs io_uring, which was ruled out")]
    DirectByThreads,
}

/// Makes stores of shards that are files of this machine. Clones share one ring.
#[derive(Clone)]
pub struct LocalStores {
    rings: Option<Arc<Rings>>,
    direct: bool,
    pread: PreadConfig,
    notes: Arc<[String]>,
}

impl LocalStores {
    /// Finds out what this process may do. `slab` is where reads will go; it is registered with the ring if that is allowed.
    ///
    /// # Errors
    /// When what was asked for by name cannot be had.
    pub fn new(config: &LocalConfig, slab: &Slab) -> Result<LocalStores, LocalError> {
        let LocalConfig { io, pread, .. } = *config;
        let mut notes = Vec::new();
        let direct = match config.direct {
            Direct::On => true,
            Direct::Off => false,
            Direct::Auto => config.bytes > memory_for_caching(),
        };
        let rings = match io {
            Io::Pread if config.direct == Direct::On => return Err(LocalError::DirectByThreads),
            Io::Pread => None,
            Io::Auto | Io::Uring => match Rings::start(config, slab, direct) {
                Ok(rings) => Some(Arc::new(rings)),
                Err(Refusal { reason, remedy }) if io == Io::Uring => {
                    return Err(LocalError::NoUring { reason, remedy });
                }
                Err(Refusal { reason, remedy }) => {
                    let cached = if direct { ", through the page cache" } else { "" };
                    notes.push(format!(
                        "reading by threads instead of io_uring{cached}: {reason}. To mend it: {remedy}; or say --io pread"
                    ));
                    None
                }
            },
        };
        if let Some(Refusal { reason, remedy }) = rings.as_ref().and_then(|rings| rings.unregistered()) {
            notes.push(format!(
                "the pool is not registered with io_uring, so that each read costs more: {reason}. To mend it: {remedy}"
            ));
        }
        let direct = direct && rings.is_some();
        Ok(LocalStores { rings, direct, pread, notes: notes.into() })
    }

    /// Whether this process may use io_uring at all. Nothing is kept of the try.
    ///
    /// # Errors
    /// Why not, and what mends it.
    pub fn probe_uring() -> Result<(), Refusal> {
        uring::probe()
    }

    /// A store of `shards`, which reads name by their index in this list. Opens no file yet.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn open(&self, shards: Vec<ShardFile>) -> io::Result<Arc<dyn Store>> {
        match &self.rings {
            Some(rings) => rings.open(shards),
            None => Ok(Arc::new(PreadStore::new(shards, self.pread)?)),
        }
    }

    /// What is not as good as it could be, each with what mends it: to be said once.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Bytes of memory for data that is held besides the pool, for the ledger.
    pub fn bytes(&self) -> u64 {
        self.rings.as_ref().map_or(0, |rings| rings.bounce())
    }

    /// Whether reads go by io_uring.
    pub fn is_uring(&self) -> bool {
        self.rings.is_some()
    }

    /// Whether reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Bytes of the pool that are registered.
    pub fn registered(&self) -> u64 {
        self.rings.as_ref().map_or(0, |rings| rings.registered())
    }
}

/// By threads.
impl From<PreadConfig> for LocalStores {
    fn from(pread: PreadConfig) -> LocalStores {
        LocalStores { rings: None, direct: false, pread, notes: Arc::new([]) }
    }
}

impl fmt::Debug for LocalStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalStores")
            .field("uring", &self.is_uring())
            .field("direct", &self.direct)
            .field("registered", &self.registered())
            .finish_non_exhaustive()
    }
}

/// Bytes that the machine, or the container that this process is in, has for the page cache. Without an answer all there can
/// be.
fn memory_for_caching() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    machine.unwrap_or(u64::MAX).min(container.unwrap_or(u64::MAX))
}

/// What the kernel thinks it could give without swapping: what is free, and what caches hold.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_found_or_not() {
        assert_eq!(available("MemTotal:       100 kB\nMemAvailable:     40 kB\n"), Some(40 << 10));
        for odd in ["", "MemAvailable: 40", "MemAvailable: x kB", "MemAvailable: 18446744073709551615 kB"] {
            assert_eq!(available(odd), None, "{odd}");
        }
        assert!(memory_for_caching() > 1 << 20);
    }
}

//! How much to have in flight, and how large a group is. Pure.

/// Limits of what one loader has in flight. Fixed for a loader's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Bytes of leases in flight. Default 256 MiB; each is memory of the pool, and never more than it.
    pub bytes: u64,
    /// Groups in flight. Default 64.
    pub groups: usize,
    /// Bytes of samples asked for together. Default 1 MiB; more makes fewer requests and coarser memory.
    pub group_bytes: u64,
    /// The most samples in one group. Default 4096.
    pub group_samples: u32,
}

impl Default for WindowConfig {
    fn default() -> WindowConfig {
        WindowConfig { bytes: 256 << 20, groups: 64, group_bytes: 1 << 20, group_samples: 4096 }
    }
}

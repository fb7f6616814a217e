//! How a client is set up, and how a loader is.

use std::time::Duration;

use forebay_transport::h3::endpoint::TransportConfig;
use forebay_transport::h3::tls::Trust;

use crate::loader::OnError;
use crate::plan::Shuffle;

/// Which fabrics a client may take to a server. All of what is asked beside samples goes over HTTP/3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fabric {
    /// HTTP/3 from the first sample on, and RDMA beside it as soon and as long as that has proved itself.
    #[default]
    Auto,
    /// HTTP/3 alone.
    H3,
    /// RDMA alone: opening a loader fails, and says why, where it cannot be had. One that breaks later is waited for, until
    /// `stall_timeout`.
    Rdma,
}

/// Which fabric samples of a dataset take, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// `h3`, `rdma`, `local`; `None` when the only one that may be taken is not there.
    pub fabric: Option<String>,
    /// For people.
    pub reason: String,
    /// How often a faster fabric than the first came into use, and how often that ended.
    pub promotions: u64,
    pub failovers: u64,
}

impl std::fmt::Display for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.fabric {
            Some(fabric) => write!(f, "come over {fabric}: {}", self.reason),
            None => write!(f, "do not come: {}", self.reason),
        }
    }
}

/// One client: one pool, one thread, one set of connections.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Bytes of memory for data: half is the pool of pinned buffers, the rest is what the transport may hold beside it.
    /// Default 512 MiB. The pool divided by the round trip is the speed limit of a path.
    pub memory: u64,
    /// How the server proves who it is. Default: the system's certificate authorities.
    pub trust: Trust,
    /// How long the first connection may take. Default 10 s.
    pub connect_timeout: Duration,
    /// The largest UDP payload to look for on the path, in bytes, 1200 at least. Default 8952 (jumbo frames).
    pub max_mtu: u16,
    /// Operations in flight on one link. Default 128, and never more than the server allows.
    pub window: usize,
    /// Which fabrics may be taken. Default: whichever is best.
    pub fabric: Fabric,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            memory: 512 << 20,
            trust: Trust::System,
            connect_timeout: Duration::from_secs(10),
            max_mtu: TransportConfig::client().max_mtu,
            window: 128,
            fabric: Fabric::default(),
        }
    }
}

/// What a loader delivers, and in which order.
#[derive(Clone, Debug)]
pub struct LoaderOptions {
    /// Samples per batch of this rank. Default 256.
    pub batch_size: u32,
    /// Default: a full shuffle.
    pub shuffle: Shuffle,
    /// What the order is a function of, besides the dataset's version and the epoch. Default 0.
    pub seed: u64,
    /// The first epoch. Default 0.
    pub first_epoch: u64,
    /// How many epochs; `None` is endless. Default 1.
    pub epochs: Option<u64>,
    /// Data-parallel rank, from 0. Default 0.
    pub rank: u32,
    /// Data-parallel ranks. Default 1.
    pub world_size: u32,
    /// Leave out the batches that not every rank can fill. Default false: the last batch may be short.
    pub drop_last: bool,
    /// Fields by name, or all of them. Default all.
    pub fields: Option<Vec<String>>,
    /// What to do about a sample that cannot be had. Default: end with an error.
    pub on_error: OnError,
    /// How long the consumer may wait for memory that only it can give back. Default 30 s.
    pub pool_timeout: Duration,
    /// How long the consumer may wait without anything arriving. Default 60 s.
    pub stall_timeout: Duration,
}

impl Default for LoaderOptions {
    fn default() -> LoaderOptions {
        LoaderOptions {
            batch_size: 256,
            shuffle: Shuffle::Full,
            seed: 0,
            first_epoch: 0,
            epochs: Some(1),
            rank: 0,
            world_size: 1,
            drop_last: false,
            fields: None,
            on_error: OnError::Raise,
            pool_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
        }
    }
}

//! How a loader runs.

use std::time::Duration;

use crate::fetch::RetryConfig;
use crate::window::WindowConfig;

/// What to do about a sample that cannot be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// End the loader with an error that names it.
    #[default]
    Raise,
    /// Fill its position with a neighbouring sample, marked as a substitute, at most this often in the loader's life.
    Skip { max: u64 },
}

/// How a loader runs.
#[derive(Clone, Copy, Debug)]
pub struct LoaderConfig {
    /// The first epoch. Default 0.
    pub first_epoch: u64,
    /// How many epochs; `None` is endless. Default 1.
    pub epochs: Option<u64>,
    pub window: WindowConfig,
    pub retry: RetryConfig,
    pub on_error: OnError,
    /// How long an operation may go without progress of the link. Default 30 s.
    pub deadline: Duration,
    /// How long the consumer may wait for memory that only it can give back. Default 30 s.
    pub pool_timeout: Duration,
    /// How long the consumer may wait without anything arriving. Default 60 s.
    pub stall_timeout: Duration,
    /// Bytes that the transport lets be under way at once, which limit a path's speed as the pool does. Only for saying
    /// so. Default: no limit.
    pub path_bytes: u64,
    /// Goes into the upper 16 bits of every tag, so that the loaders of one link can be told apart. Default 0.
    pub tag_prefix: u16,
    /// Seeds the jitter of back-offs, nothing else. Default 0.
    pub seed: u64,
}

impl Default for LoaderConfig {
    fn default() -> LoaderConfig {
        LoaderConfig {
            first_epoch: 0,
            epochs: Some(1),
            window: WindowConfig::default(),
            retry: RetryConfig::default(),
            on_error: OnError::Raise,
            deadline: Duration::from_secs(30),
            pool_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            path_bytes: u64::MAX,
            tag_prefix: 0,
            seed: 0,
        }
    }
}

//! Attempts, back-off, and what an error means. Pure.

use std::time::Duration;

/// How often and how fast a failed request is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryConfig {
    /// Attempts per sample, the first included. Default 5.
    pub attempts: u32,
    /// The back-off before the second attempt; it doubles from there. Default 50 ms.
    pub base: Duration,
    /// The longest back-off. Default 5 s.
    pub ceiling: Duration,
}

impl Default for RetryConfig {
    fn default() -> RetryConfig {
        RetryConfig { attempts: 5, base: Duration::from_millis(50), ceiling: Duration::from_secs(5) }
    }
}

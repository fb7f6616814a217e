//! Attempts, back-off, and what an error means. Pure.

use std::time::Duration;

use forebay_transport::link::LinkError;

/// How often and how fast a failed request is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryConfig {
    /// Attempts per sample, the first included. Default 5; 0 is taken as 1.
    pub attempts: u32,
    /// The back-off before the second attempt, of which at least half is waited; it doubles from there. Default 50 ms.
    pub base: Duration,
    /// The longest back-off. Default 5 s.
    pub ceiling: Duration,
}

impl Default for RetryConfig {
    fn default() -> RetryConfig {
        RetryConfig { attempts: 5, base: Duration::from_millis(50), ceiling: Duration::from_secs(5) }
    }
}

/// What an operation's error means for its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// Ask again; the samples have used up an attempt.
    Retry,
    /// Ask again when there is a path; no attempt is used up, since nobody looked at the request.
    Elsewhere,
    /// Ask again, not before this long; no attempt is used up.
    Later(Duration),
    /// The planned bytes are gone: the loader ends at once.
    Changed(String),
    /// Asking again will not help.
    Fatal,
}

/// What `error` means. A cancellation that we asked for does not come here.
pub fn classify(error: &LinkError) -> Class {
    match error {
        LinkError::DatasetChanged(detail) => Class::Changed(detail.clone()),
        LinkError::Closed(_) => Class::Elsewhere,
        LinkError::Busy { retry_after } => Class::Later(retry_after.unwrap_or_default()),
        // Nobody asked for it, so it says nothing about the request.
        LinkError::Cancelled => Class::Retry,
        error if error.is_retryable() => Class::Retry,
        _ => Class::Fatal,
    }
}

/// Exponential back-off with seeded jitter: half of the delay is fixed, half drawn, so that clients that failed together
/// do not come back together.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    ceiling: Duration,
    state: u64,
}

impl Backoff {
    pub fn new(config: &RetryConfig, seed: u64) -> Backoff {
        Backoff { base: config.base, ceiling: config.ceiling, state: seed }
    }

    /// How long to wait after the `failures`-th failure in a row, from 1.
    pub fn delay(&mut self, failures: u32) -> Duration {
        let factor = 1u32 << failures.saturating_sub(1).min(31);
        let full = self.base.saturating_mul(factor).min(self.ceiling);
        full.mul_f64(0.5 + 0.5 * self.draw())
    }

    /// A number from 0 to 1 (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        (x >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_up_to_its_ceiling_and_varies() {
        let config = RetryConfig::default();
        let mut backoff = Backoff::new(&config, 1);
        for failures in 1..40 {
            let full = config.base.saturating_mul(1 << failures.min(20u32).saturating_sub(1)).min(config.ceiling);
            let delays = [backoff.delay(failures), backoff.delay(failures)];
            assert!(delays.iter().all(|&delay| delay >= full / 2 && delay <= full), "{failures}: {delays:?}");
            assert_ne!(delays[0], delays[1]);
        }
        assert_eq!(Backoff::new(&config, 7).delay(3), Backoff::new(&config, 7).delay(3), "seeded");
    }

    #[test]
    fn errors_are_what_they_mean() {
        let retry_after = Some(Duration::from_secs(3));
        let detail = || "x".to_string();
        for (error, class) in [
            (LinkError::DatasetChanged(detail()), Class::Changed(detail())),
            (LinkError::Closed(detail()), Class::Elsewhere),
            (LinkError::Busy { retry_after }, Class::Later(Duration::from_secs(3))),
            (LinkError::Refused { status: 403, detail: detail() }, Class::Fatal),
            (LinkError::Server { status: 500, detail: detail() }, Class::Retry),
            (LinkError::Protocol(detail()), Class::Retry),
            (LinkError::Deadline(Duration::from_secs(1)), Class::Retry),
        ] {
            assert_eq!(classify(&error), class);
        }
    }
}

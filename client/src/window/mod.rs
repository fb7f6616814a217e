//! How much to have in flight, how large a group is, and how much memory to ask for it. Pure.

/// Limits of what one loader has in flight. Fixed for a loader's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Bytes of leases in flight. Default 256 MiB; each is memory of the pool, and never more than it.
    pub bytes: u64,
    /// Groups in flight. Default 64; 0 is taken as 1.
    pub groups: usize,
    /// Bytes of samples asked for together. Default 1 MiB; more makes fewer requests and coarser memory.
    pub group_bytes: u64,
    /// The most samples in one group. Default 4096; 0 is taken as 1.
    pub group_samples: u32,
}

impl Default for WindowConfig {
    fn default() -> WindowConfig {
        WindowConfig { bytes: 256 << 20, groups: 64, group_bytes: 1 << 20, group_samples: 4096 }
    }
}

/// How many groups a pool is cut into at least, so that there is always something in flight beside what is read.
const GROUPS_PER_POOL: u64 = 8;
/// How many samples' worth of trust the description's mean has against the lengths seen.
const PRIOR: f64 = 32.0;
/// Slack of a lease, in standard deviations of a group's size: about one group in forty does not fit at first.
const SLACK: f64 = 2.0;

/// A loader's window, and what it has learned about the samples' lengths.
#[derive(Clone, Debug)]
pub struct Window {
    config: WindowConfig,
    /// The most bytes of one group of several samples.
    group_bytes: u64,
    largest: u64,
    /// Of the samples' needs (their fields, aligned): how many, mean, and sum of squared differences from it.
    seen: f64,
    mean: f64,
    spread: f64,
}

impl Window {
    /// `mean` and `largest` as described, `pool` and `max_group_bytes` the limits, all in bytes.
    pub fn new(config: WindowConfig, mean: u64, largest: u64, pool: u64, max_group_bytes: u64) -> Window {
        let group_bytes = config.group_bytes.min(max_group_bytes).min(pool / GROUPS_PER_POOL).max(1);
        let mean = mean.clamp(1, largest.max(1)) as f64;
        // Nothing is known about the spread yet: samples of one size have none, others about half their mean.
        let deviation = if largest as f64 <= 1.05 * mean { 0.0 } else { mean / 2.0 };
        let spread = PRIOR * deviation * deviation;
        Window { config, group_bytes, largest: largest.max(1), seen: PRIOR, mean, spread }
    }

    /// Whether one more group of `bytes` may go beside what is in flight. One always may.
    pub fn has_room(&self, groups: usize, in_flight: u64, bytes: u64) -> bool {
        groups == 0 || (groups < self.config.groups && in_flight.saturating_add(bytes) <= self.config.bytes)
    }

    /// The most bytes that samples asked for together need.
    pub fn group_bytes(&self) -> u64 {
        self.group_bytes
    }

    /// The most samples that are asked for together.
    pub fn group_samples(&self) -> u64 {
        u64::from(self.config.group_samples.max(1))
    }

    /// How many samples the next group has, when `index` is the next of an epoch's `len` and batches have `batch`: whole
    /// batches, or equal parts of one, so that a group that is still needed for a later batch is rare.
    pub fn next_group(&self, index: u64, len: u64, batch: u64) -> u64 {
        let most = ((self.group_bytes as f64 / self.mean) as u64).clamp(1, self.group_samples());
        let rest = batch - index % batch;
        let count =
            if most >= rest { rest + (most - rest) / batch * batch } else { rest.div_ceil(rest.div_ceil(most)) };
        count.min(len - index)
    }

    /// Bytes for `count` samples of unknown lengths, with slack.
    pub fn estimate(&self, count: u64) -> u64 {
        let deviation = (self.spread / self.seen).sqrt();
        let bytes = self.mean * count as f64 + SLACK * deviation * (count as f64).sqrt();
        // The largest's fields are aligned too: leave it a cache line each way.
        (bytes.ceil() as u64).min(count.saturating_mul(self.largest.saturating_add(128)))
    }

    /// A sample needed this much.
    pub fn learn(&mut self, need: u64) {
        let need = need as f64;
        self.seen += 1.0;
        let before = need - self.mean;
        self.mean = (self.mean + before / self.seen).max(1.0);
        self.spread += before * (need - self.mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(mean: u64, largest: u64) -> Window {
        Window::new(WindowConfig::default(), mean, largest, 1 << 30, 64 << 20)
    }

    #[test]
    fn groups_are_whole_batches_or_equal_parts_of_one() {
        let small = window(1000, 2000);
        assert_eq!(small.next_group(0, 1 << 40, 100), 1000);
        assert_eq!(small.next_group(30, 1 << 40, 100), 970);
        assert_eq!(small.next_group(0, 250, 100), 250);
        assert_eq!(small.next_group(0, 1 << 40, 1), 1048);
        // 9 fit: a batch of 20 is 7 + 7 + 6.
        let large = window(115_000, 10 << 20);
        assert_eq!([0, 7, 14, 20].map(|index| large.next_group(index, 1 << 40, 20)), [7, 7, 6, 7]);
        assert_eq!(window(8 << 20, 10 << 20).next_group(5, 1 << 40, 20), 1);
        assert_eq!(window(1, 1).next_group(0, 1 << 40, 1), 4096);
        assert_eq!(window(0, 0).next_group(0, 1, 1 << 32), 1);
    }

    #[test]
    fn estimates_have_slack_and_learn() {
        let mut learning = window(1000, 100_000);
        let first = learning.estimate(100);
        assert!(first > 100_000 && first < 150_000, "{first}");
        (0..10_000).for_each(|_| learning.learn(3000));
        let later = learning.estimate(100);
        assert!(later > 295_000 && later < 320_000, "{later}");
        // Of one size: no slack but the alignment's.
        assert!(window(1000, 1000).estimate(100) <= 112_800);
        assert_eq!(window(1000, 1100).estimate(1).min(1228), window(1000, 1100).estimate(1));
    }

    #[test]
    fn one_group_may_always_go() {
        let window = window(1000, 2000);
        assert!(window.has_room(0, 0, u64::MAX));
        assert!(!window.has_room(1, 1 << 20, 256 << 20) && window.has_room(1, 1 << 20, 255 << 20));
        assert!(!window.has_room(64, 64, 1));
    }
}

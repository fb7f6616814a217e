//! What a loader did, in constant memory.

use std::time::Duration;

/// Counters of one loader since its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoaderStats {
    /// Batches and samples delivered, and the samples' bytes.
    pub batches: u64,
    pub samples: u64,
    pub bytes: u64,
    /// Groups submitted and completed.
    pub submitted: u64,
    pub completed: u64,
    /// Samples that arrived, those among them asked for again after an eviction included.
    pub fetched: u64,
    /// Samples asked for again, for whatever reason but an eviction.
    pub retried: u64,
    /// Samples asked for again because the lease was too small.
    pub unplaced: u64,
    /// Samples that had arrived and were dropped to make room for an earlier one.
    pub evicted: u64,
    /// Operations cancelled to make room for an earlier one.
    pub cancelled: u64,
    /// Samples whose bytes did not match their CRC.
    pub corrupt: u64,
    /// Samples the server could not read.
    pub storage: u64,
    /// Whole operations that failed.
    pub failed: u64,
    /// Positions filled with another sample.
    pub skipped: u64,
    /// Operations now in flight, and the bytes of their leases.
    pub in_flight: u64,
    pub in_flight_bytes: u64,
    /// Time the consumer waited while memory, not the window, held submissions back.
    pub pool_limited: Duration,
    /// Submission to completion, by group.
    pub latency: Histogram,
}

/// A histogram of durations with a relative error below 1/16: 16 buckets for each power of two of microseconds.
#[derive(Clone, PartialEq)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
}

const SUB: u32 = 4;
const BUCKETS: usize = (64 - SUB as usize + 1) << SUB;

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Box::new([0; BUCKETS]), total: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.counts[bucket(micros)] += 1;
        self.total += 1;
    }

    pub fn count(&self) -> u64 {
        self.total
    }

    /// The duration that the share `q` (0 to 1) of all records does not exceed; zero when there are none.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = ((self.total as f64 * q).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_micros(upper(at));
            }
        }
        Duration::ZERO
    }

    /// Adds another histogram's records.
    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(other.counts.iter()).for_each(|(mine, theirs)| *mine += theirs);
        self.total += other.total;
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (p50, p99) = (self.quantile(0.5), self.quantile(0.99));
        write!(f, "Histogram({} records, p50 {p50:?}, p99 {p99:?})", self.total)
    }
}

fn bucket(micros: u64) -> usize {
    let power = 63 - (micros | 1).leading_zeros();
    if power < SUB {
        return micros as usize;
    }
    let shift = power - SUB;
    (((shift + 1) as usize) << SUB) + ((micros >> shift) as usize & ((1 << SUB) - 1))
}

/// The largest value in a bucket.
fn upper(bucket: usize) -> u64 {
    let (group, sub) = (bucket >> SUB, (bucket & ((1 << SUB) - 1)) as u64);
    if group == 0 {
        return sub;
    }
    let shift = group as u32 - 1;
    (((1 << SUB) + sub) << shift) + ((1u64 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        (1..=1000).for_each(|ms| histogram.record(Duration::from_millis(ms)));
        for (q, exact) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = histogram.quantile(q).as_secs_f64() * 1e3;
            assert!(found >= exact && found < exact * 1.07, "{q}: {found}");
        }
    }

    #[test]
    fn every_value_has_a_bucket_that_holds_it() {
        for value in (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) - 1, (1 << bit) + 1]).chain([0, u64::MAX]) {
            let at = bucket(value);
            assert!(at < BUCKETS && upper(at) >= value && (at == 0 || upper(at - 1) < value), "{value}");
        }
    }
}

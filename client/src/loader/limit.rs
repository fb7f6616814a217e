//! Whether memory is what limits a path's speed.

use std::time::Duration;

use forebay_transport::link::LinkStats;

use super::event::Note;

/// The least share of the limit that must be measured before it is said to be one. A path that memory limits reaches a
/// third of it or more: some of the memory always waits for its turn, or is with the consumer.
const SHARE: f64 = 0.25;
/// The shortest time over which a rate means anything.
const SPAN: Duration = Duration::from_millis(500);

/// What is known about a path's speed, and whether its limit was said.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limit {
    /// When bytes were last counted, and how many there were.
    counted: Option<(Duration, u64)>,
    /// Bytes per second that arrive.
    rate: f64,
    noted: bool,
}

impl Limit {
    /// Takes note of a link's figures.
    pub fn measure(&mut self, now: Duration, link: &LinkStats) {
        if let Some((then, bytes)) = self.counted {
            let span = now.saturating_sub(then);
            // Fewer than before are another link's.
            if span < SPAN && link.bytes >= bytes {
                return;
            }
            self.rate = link.bytes.checked_sub(bytes).map_or(0.0, |more| more as f64 / span.as_secs_f64());
        }
        self.counted = Some((now, link.bytes));
    }

    /// Once: that `bytes`, all that can be under way, limit the speed. Said only of a path that comes near it:
    /// what is much slower has another limit.
    pub fn note(&mut self, bytes: u64, rtt: Duration) -> Option<Note> {
        let bytes_per_second = bytes as f64 / rtt.as_secs_f64();
        if self.noted || rtt.is_zero() || self.rate < SHARE * bytes_per_second {
            return None;
        }
        self.noted = true;
        Some(Note::PoolLimits { pool: bytes, rtt, bytes_per_second })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a path with 256 MiB under way at most, after two seconds with so many megabytes each.
    fn said(rtt_ms: u64, megabytes: u64) -> Option<String> {
        let (mut limit, rtt) = (Limit::default(), Duration::from_millis(rtt_ms));
        for second in 0..3 {
            let bytes = second * megabytes * 1_000_000;
            limit.measure(Duration::from_secs(second), &LinkStats { rtt, in_flight: 1, bytes });
        }
        let first = limit.note(256 << 20, rtt).map(|note| note.to_string());
        assert_eq!(limit.note(256 << 20, rtt), None, "it is said once");
        first
    }

    #[test]
    fn it_is_said_where_it_is_so() {
        assert_eq!(said(150, 1500).as_deref(), Some("256 MiB limits this path to 1.8 GB/s at 150 ms"));
        assert_eq!(said(150, 500).as_deref(), Some("256 MiB limits this path to 1.8 GB/s at 150 ms"));
    }

    #[test]
    fn a_path_that_is_slower_for_another_reason_has_no_such_limit() {
        // Loopback: the processor is the limit.
        assert_eq!(said(3, 1200), None);
        assert_eq!(said(150, 100), None);
        assert_eq!(said(0, 1200), None);
    }

    #[test]
    fn another_link_counts_from_the_beginning() {
        let (mut limit, rtt) = (Limit::default(), Duration::from_millis(100));
        for (ms, bytes) in [(0, 0), (1000, 5_000_000_000), (1001, 10), (1002, 20)] {
            limit.measure(Duration::from_millis(ms), &LinkStats { rtt, in_flight: 1, bytes });
        }
        assert_eq!(limit.note(1 << 20, rtt), None);
    }
}

//! One direction of the path, without sockets and clocks: when does a datagram arrive, if at all?

use std::time::{Duration, Instant};

use super::DelayConfig;

#[derive(Debug)]
pub(super) struct Lane {
    one_way: Duration,
    rate: Option<u64>,
    queue: usize,
    loss: f64,
    jitter: Duration,
    random: fastrand::Rng,
    /// When the wire has carried all that was admitted so far.
    free_at: Option<Instant>,
    /// Bytes admitted and not yet arrived.
    on_the_way: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Arrives(Instant),
    Lost,
    Overflows,
}

impl Lane {
    pub(super) fn new(config: &DelayConfig, seed: u64) -> Self {
        Self {
            one_way: config.one_way,
            rate: config.rate.filter(|rate| *rate > 0),
            queue: config.queue,
            loss: config.loss,
            jitter: config.jitter,
            random: fastrand::Rng::with_seed(seed),
            free_at: None,
            on_the_way: 0,
        }
    }

    /// How many bytes, a multiple of `stride`, may share one fate: one datagram's where fates are drawn, `time` of the wire
    /// where it has a rate, all where neither is.
    pub(super) fn portion(&self, stride: usize, time: Duration) -> usize {
        if self.loss > 0.0 || !self.jitter.is_zero() {
            return stride;
        }
        match self.rate {
            None => usize::MAX,
            Some(rate) => {
                let bytes = (rate as f64 * time.as_secs_f64()) as usize;
                (bytes / stride).max(1) * stride
            }
        }
    }

    pub(super) fn admit(&mut self, now: Instant, bytes: usize) -> Fate {
        if self.loss > 0.0 && self.random.f64() < self.loss {
            return Fate::Lost;
        }
        let left = match self.rate {
            None if self.on_the_way + bytes > self.queue => return Fate::Overflows,
            None => now,
            Some(rate) => {
                let start = self.free_at.map_or(now, |free| free.max(now));
                let waiting = start.duration_since(now).as_secs_f64() * rate as f64;
                if waiting + bytes as f64 > self.queue as f64 {
                    return Fate::Overflows;
                }
                let end = start + Duration::from_secs_f64(bytes as f64 / rate as f64);
                self.free_at = Some(end);
                end
            }
        };
        self.on_the_way += bytes;
        Fate::Arrives(
            left + self.one_way + self.jitter.mul_f64(if self.jitter.is_zero() { 0.0 } else { self.random.f64() }),
        )
    }

    /// Bytes that [`admit`](Self::admit) let in have arrived.
    pub(super) fn arrived(&mut self, bytes: usize) {
        self.on_the_way = self.on_the_way.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn lane(config: DelayConfig) -> Lane {
        Lane::new(&config, config.seed)
    }

    #[test]
    fn a_rate_spaces_arrivals_and_a_full_queue_drops() {
        let (now, rate) = (Instant::now(), Some(1_000_000));
        let mut lane = lane(DelayConfig { one_way: 10 * MS, rate, queue: 3_000, ..DelayConfig::default() });
        let fates: Vec<Fate> = (0..4).map(|_| lane.admit(now, 1_000)).collect();
        let expected = [Fate::Arrives(now + 11 * MS), Fate::Arrives(now + 12 * MS), Fate::Arrives(now + 13 * MS)];
        assert_eq!(fates[..3], expected);
        assert_eq!(fates[3], Fate::Overflows);
        assert_eq!(
            lane.admit(now + MS, 1_000),
            Fate::Arrives(now + 14 * MS),
            "a millisecond made room for 1,000 bytes"
        );
    }

    #[test]
    fn without_a_rate_the_queue_bounds_what_is_on_the_way() {
        let now = Instant::now();
        let mut lane = lane(DelayConfig { one_way: 5 * MS, queue: 100, ..DelayConfig::default() });
        assert_eq!(lane.admit(now, 100), Fate::Arrives(now + 5 * MS));
        assert_eq!(lane.admit(now, 1), Fate::Overflows);
        lane.arrived(100);
        assert_eq!(lane.admit(now, 1), Fate::Arrives(now + 5 * MS));
    }

    #[test]
    fn losses_follow_the_seed_and_the_share() {
        let run = |seed| {
            let mut lane = lane(DelayConfig { loss: 0.1, seed, ..DelayConfig::default() });
            let now = Instant::now();
            (0..10_000).map(|_| lane.admit(now, 1) == Fate::Lost).collect::<Vec<bool>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let lost = run(3).into_iter().filter(|lost| *lost).count();
        assert!((800..1200).contains(&lost), "{lost} of 10,000 at 10%");
    }
}

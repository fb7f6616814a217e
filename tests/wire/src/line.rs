//! One direction of the wire, without packets: when does a segment arrive, or what becomes of it? (Pure: time is passed in.)
//!
//! The model is a link behind a queue: a segment waits for those before it, takes its length divided by the rate to be sent, and
//! arrives a delay later. A segment that finds the queue full is dropped at its tail. Loss happens on the way, behind the
//! queue: what is lost has used the link. Segments keep their order, whatever the jitter, but for those chosen to be late.

use std::time::Duration;

use crate::settings::{Burst, Settings};

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at this time.
    Arrives(Duration),
    /// It arrives at this time, behind segments that were sent after it.
    Late(Duration),
    Lost,
    /// The queue was full.
    Overflow,
}

/// One direction.
#[derive(Debug)]
pub struct Line {
    settings: Settings,
    queue: u64,
    random: fastrand::Rng,
    /// When the link will have sent all that is in the queue.
    free: Duration,
    /// When the last segment in order arrives.
    last: Duration,
    /// Within a burst of losses.
    bad: bool,
}

impl Line {
    /// `seed` is what chance depends on.
    pub fn new(settings: Settings, seed: u64) -> Line {
        Line {
            queue: settings.queue_bytes(),
            settings,
            random: fastrand::Rng::with_seed(seed),
            free: Duration::ZERO,
            last: Duration::ZERO,
            bad: false,
        }
    }

    /// A segment of `bytes`, headers of IP included, comes to the queue at `now`, which never goes back.
    pub fn offer(&mut self, now: Duration, bytes: u64) -> Fate {
        let waits = self.free.saturating_sub(now);
        let mut sent = now.max(self.free);
        if let Some(rate) = self.settings.rate {
            let waiting = (waits.as_secs_f64() * rate as f64 / 8.0).round() as u64;
            if waiting + bytes > self.queue {
                return Fate::Overflow;
            }
            sent += Duration::from_nanos(bytes * 8 * 1_000_000_000 / rate);
        }
        self.free = sent;
        if self.is_lost() {
            return Fate::Lost;
        }
        let arrives = sent + self.settings.delay + self.settings.jitter.mul_f64(self.random.f64());
        if self.settings.reorder > 0.0 && self.random.f64() < self.settings.reorder {
            return Fate::Late(arrives + self.settings.late);
        }
        self.last = self.last.max(arrives);
        Fate::Arrives(self.last)
    }

    fn is_lost(&mut self) -> bool {
        let single = self.settings.loss > 0.0 && self.random.f64() < self.settings.loss;
        let Some(Burst { start, mean }) = self.settings.burst else { return single };
        // Gilbert's model: a burst begins with one chance, and ends with another after each segment.
        self.bad = match self.bad {
            true => self.random.f64() >= 1.0 / mean,
            false => self.random.f64() < start,
        };
        single || self.bad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn line(settings: Settings) -> Line {
        Line::new(settings, 1)
    }

    fn plain() -> Settings {
        Settings { delay: 50 * MS, rate: Some(8_000_000), queue: Some(10_000), ..Settings::default() }
    }

    #[test]
    fn segments_take_their_time_on_the_link_and_then_the_delay() {
        let mut line = line(plain());
        // A kilobyte takes a millisecond.
        assert_eq!(line.offer(Duration::ZERO, 1000), Fate::Arrives(51 * MS));
        assert_eq!(line.offer(Duration::ZERO, 2000), Fate::Arrives(53 * MS));
        assert_eq!(line.offer(100 * MS, 1000), Fate::Arrives(151 * MS));
    }

    #[test]
    fn a_full_queue_drops_its_tail() {
        let mut line = line(plain());
        let fates: Vec<Fate> = (0..12).map(|_| line.offer(Duration::ZERO, 1000)).collect();
        assert!(fates[..10].iter().all(|fate| matches!(fate, Fate::Arrives(_))), "{fates:?}");
        assert_eq!(fates[10..], [Fate::Overflow; 2]);
        // What the link has sent makes room.
        assert_eq!(line.offer(2 * MS, 1000), Fate::Arrives(61 * MS));
    }

    #[test]
    fn jitter_keeps_the_order_and_its_bounds() {
        let mut line = line(Settings { jitter: 10 * MS, rate: None, queue: None, ..plain() });
        let mut last = Duration::ZERO;
        for n in 0..10_000 {
            let now = n * MS / 10;
            let Fate::Arrives(at) = line.offer(now, 1000) else { panic!("nothing is lost here") };
            assert!(at >= last && at >= now + 50 * MS && at <= now + 60 * MS, "{n}");
            last = at;
        }
    }

    #[test]
    fn losses_are_as_many_as_they_were_said_to_be() {
        let settings = Settings { loss: 0.02, rate: None, queue: None, ..Settings::default() };
        let mut line = line(settings);
        let lost = (0..100_000).filter(|_| line.offer(Duration::ZERO, 1000) == Fate::Lost).count();
        assert!((1800..2200).contains(&lost), "{lost}");
    }

    #[test]
    fn losses_in_bursts_come_together() {
        let burst = Some(Burst { start: 0.002, mean: 10.0 });
        let mut line = line(Settings { burst, ..Settings::default() });
        let lost: Vec<bool> = (0..200_000).map(|_| line.offer(Duration::ZERO, 1000) == Fate::Lost).collect();
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let count = lost.iter().filter(|&&lost| lost).count();
        let mean = count as f64 / bursts as f64;
        assert!((300..500).contains(&bursts) && (8.5..11.5).contains(&mean), "{bursts} bursts of {mean}");
    }

    #[test]
    fn some_come_behind_those_that_were_sent_after_them() {
        let mut line = line(Settings { reorder: 0.1, late: 5 * MS, rate: None, queue: None, ..plain() });
        let fates: Vec<Fate> = (0..1000).map(|n| line.offer(n * MS, 1000)).collect();
        let late = fates.iter().filter(|fate| matches!(fate, Fate::Late(_))).count();
        assert!((60..140).contains(&late), "{late}");
    }
}

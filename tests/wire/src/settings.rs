//! What a wire is like.

use std::str::FromStr;
use std::time::Duration;

/// What a wire is like, in each direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How long a segment is on its way: half of the round trip.
    pub delay: Duration,
    /// Up to so much longer, evenly spread. Segments keep their order.
    pub jitter: Duration,
    /// Bits of IP packets in a second. `None`: as fast as this machine is.
    pub rate: Option<u64>,
    /// Bytes that wait to be sent at most. `None`: the bandwidth-delay product of the round trip, 64 KiB at least.
    pub queue: Option<u64>,
    /// The share of segments that are lost, each by itself.
    pub loss: f64,
    /// Losses that come together.
    pub burst: Option<Burst>,
    /// The share of segments that come late, behind others, and how late.
    pub reorder: f64,
    pub late: Duration,
    /// The largest IP packet on the wire.
    pub mtu: u32,
    /// What chance depends on.
    pub seed: u64,
}

/// Losses that come together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// The share of segments with which a burst begins.
    pub start: f64,
    /// How many segments a burst takes, in the mean. 1 or more.
    pub mean: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: None,
            queue: None,
            loss: 0.0,
            burst: None,
            reorder: 0.0,
            late: Duration::from_millis(5),
            mtu: 1500,
            seed: 1,
        }
    }
}

impl Settings {
    /// The queue's bound in bytes.
    pub fn queue_bytes(&self) -> u64 {
        let product = |rate: u64| (rate as f64 / 8.0 * 2.0 * self.delay.as_secs_f64()) as u64;
        self.queue.unwrap_or_else(|| self.rate.map_or(u64::MAX, product).max(64 << 10))
    }
}

/// A time with its unit: `150ms`, `10us`, `2s`.
pub fn time(text: &str) -> Result<Duration, String> {
    let unit = |unit, scale: f64| text.strip_suffix(unit).map(|number| (number, scale));
    let (number, scale) = unit("us", 1e-6)
        .or_else(|| unit("ms", 1e-3))
        .or_else(|| unit("s", 1.0))
        .ok_or_else(|| format!("{text}: a time has a unit: us, ms or s"))?;
    let seconds = f64::from_str(number).map_err(|error| format!("{text}: {error}"))? * scale;
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{text}: {error}"))
}

/// A rate in bits per second: `400mbit`, `1gbit`, `64kbit`.
pub fn rate(text: &str) -> Result<u64, String> {
    let unit = |unit, scale: f64| text.strip_suffix(unit).map(|number| (number, scale));
    let (number, scale) = unit("kbit", 1e3)
        .or_else(|| unit("mbit", 1e6))
        .or_else(|| unit("gbit", 1e9))
        .ok_or_else(|| format!("{text}: a rate has a unit: kbit, mbit or gbit"))?;
    match f64::from_str(number).map_err(|error| format!("{text}: {error}"))? * scale {
        bits if (8.0..=1e12).contains(&bits) => Ok(bits as u64),
        _ => Err(format!("{text}: out of range")),
    }
}

/// A share: `1%`, `0.01`.
pub fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 0.01));
    match f64::from_str(number).map_err(|error| format!("{text}: {error}"))? * scale {
        share if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("{text}: a share is between 0 and 100%")),
    }
}

/// A share and a mean length: `0.1%:8`.
pub fn burst(text: &str) -> Result<Burst, String> {
    let (start, mean) = text.split_once(':').ok_or_else(|| format!("{text}: write SHARE:LENGTH, as in 0.1%:8"))?;
    let mean = f64::from_str(mean).map_err(|error| format!("{text}: {error}"))?;
    if !(mean >= 1.0 && mean.is_finite()) {
        return Err(format!("{text}: a burst takes 1 segment or more"));
    }
    Ok(Burst { start: share(start)?, mean })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_meant() {
        assert_eq!(time("150ms"), Ok(Duration::from_millis(150)));
        assert_eq!(time("10us"), Ok(Duration::from_micros(10)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(rate("400mbit"), Ok(400_000_000));
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(burst("0.1%:8"), Ok(Burst { start: 0.001, mean: 8.0 }));
        for wrong in ["", "5", "ms", "-1s", "infs", "nans"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(rate("0mbit").is_err() && rate("5").is_err() && share("101%").is_err() && share("nan").is_err());
        assert!(burst("1%:0.5").is_err() && burst("1%:nan").is_err());
    }

    #[test]
    fn a_queue_is_as_long_as_what_is_on_the_way() {
        let settings = Settings { delay: Duration::from_millis(75), rate: Some(400_000_000), ..Settings::default() };
        assert_eq!(settings.queue_bytes(), 7_500_000);
        assert_eq!(Settings { delay: Duration::ZERO, ..settings }.queue_bytes(), 64 << 10);
        assert_eq!(Settings { queue: Some(5), ..settings }.queue_bytes(), 5);
        assert_eq!(Settings::default().queue_bytes(), u64::MAX);
    }
}

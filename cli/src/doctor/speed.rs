//! How fast samples come, over each fabric: read for two seconds and thrown away.

use std::time::{Duration, Instant};

use forebay_client::client::{Client, Dataset};
use forebay_client::{ClientConfig, Error, Fabric, LoaderOptions, ServerUrl, Trust};
use tokio::time::timeout;

/// How long each fabric is read from.
const TIME: Duration = Duration::from_secs(2);
/// How long the first samples may take.
const FIRST: Duration = Duration::from_secs(10);
/// How often it is looked at what has arrived.
const TICK: Duration = Duration::from_millis(20);
/// About the bytes of a batch.
const BATCH: u64 = 1 << 20;

/// One measurement.
#[derive(Clone, Debug)]
pub struct Speed {
    pub fabric: &'static str,
    pub dataset: String,
    pub rate: Result<Rate, Trouble>,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The fabric cannot be taken.
    Fabric(String),
    Other(String),
}

impl Trouble {
    pub fn why(&self) -> &str {
        match self {
            Trouble::Fabric(why) | Trouble::Other(why) => why,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub samples: u64,
    pub bytes: u64,
    pub elapsed: Duration,
}

impl Rate {
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        match error {
            Error::Fabric { reason, .. } => Trouble::Fabric(reason),
            other => Trouble::Other(other.to_string()),
        }
    }
}

/// From a server, over one fabric.
pub async fn of_server(url: &ServerUrl, dataset: &str, trust: &Trust, memory: u64, fabric: Fabric) -> Speed {
    let reading = async {
        let config = ClientConfig { trust: trust.clone(), memory, fabric, ..ClientConfig::default() };
        let client = Client::connect(url, config).await?;
        let rate = match client.dataset(dataset).await {
            Ok(dataset) => of(&dataset).await,
            Err(error) => Err(error.into()),
        };
        client.close().await;
        rate
    };
    let name = if fabric == Fabric::Rdma { "rdma" } else { "h3" };
    Speed { fabric: name, dataset: dataset.to_owned(), rate: reading.await }
}

/// Of a dataset that is open, from its first byte on. What arrives is counted, not what is delivered: on a slow path a pool full of
/// groups is under way at once, and the first of them is whole when most of all are. Must be called within a tokio runtime.
pub async fn of(dataset: &Dataset) -> Result<Rate, Trouble> {
    let description = dataset.description();
    if description.samples == 0 {
        return Err(Trouble::Other(format!("{} has no samples", description.name)));
    }
    let mean = (description.bytes / description.samples).max(1);
    let batch_size = (BATCH / mean).clamp(1, 256) as u32;
    let options = LoaderOptions { batch_size, epochs: None, ..LoaderOptions::default() };
    let mut loader = dataset.loader(options).await?;
    let asked = Instant::now();
    let mut first: Option<(Instant, u64)> = None;
    loop {
        let bytes = dataset.link_stats().await?.map_or(0, |stats| stats.bytes);
        let now = Instant::now();
        match first {
            Some((since, before)) if now - since >= TIME => {
                let (bytes, elapsed) = (bytes.saturating_sub(before), now - since);
                return Ok(Rate { samples: bytes / mean, bytes, elapsed });
            }
            None if bytes > 0 => first = Some((now, bytes)),
            None if now - asked >= FIRST => return Err(Trouble::Other(format!("nothing arrived for {FIRST:?}"))),
            _ => {}
        }
        // Delivered, it is given back at once: the pool is never what is waited for.
        let tick = now + TICK;
        while let Some(left) = tick.checked_duration_since(Instant::now()) {
            match timeout(left, loader.next()).await {
                Ok(Some(batch)) => drop(batch?),
                Ok(None) => return Err(Trouble::Other("no more is delivered".to_owned())),
                Err(_) => break,
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn healthy() -> Speed {
        let rate = Rate { samples: 20_000, bytes: 2_000_000_000, elapsed: TIME };
        Speed { fabric: "h3", dataset: "imagenet".into(), rate: Ok(rate) }
    }

    #[test]
    fn a_rate_is_by_the_second() {
        let rate = healthy().rate.unwrap();
        assert_eq!((rate.bytes_per_second(), rate.samples_per_second()), (1e9, 1e4));
        let none = Rate { samples: 0, bytes: 0, elapsed: Duration::ZERO };
        assert_eq!(none.bytes_per_second(), 0.0);
    }
}

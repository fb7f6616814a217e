//! How fast samples come, over each fabric: read for two seconds and thrown away.

use std::time::{Duration, Instant};

use forebay_client::client::{Client, Dataset};
use forebay_client::{ClientConfig, Error, Fabric, LoaderOptions, ServerUrl, Trust};
use tokio::time::timeout;

/// How long each fabric is read from.
const TIME: Duration = Duration::from_secs(2);
/// How long the first samples may take.
const FIRST: Duration = Duration::from_secs(10);
/// About the bytes of a batch, of which only whole ones are counted: so few that many come in the time on slow paths too.
const BATCH: u64 = 512 << 10;

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

/// Of a dataset that is open, from its first batch on. Must be called within a tokio runtime.
pub async fn of(dataset: &Dataset) -> Result<Rate, Trouble> {
    let description = dataset.description();
    if description.samples == 0 {
        return Err(Trouble::Other(format!("{} has no samples", description.name)));
    }
    let mean = (description.bytes / description.samples).max(1);
    let batch_size = (BATCH / mean).clamp(1, 256) as u32;
    let options = LoaderOptions { batch_size, epochs: None, ..LoaderOptions::default() };
    let mut loader = dataset.loader(options).await?;
    let late = |after: Duration| Trouble::Other(format!("nothing arrived for {after:?}"));
    match timeout(FIRST, loader.next()).await {
        Err(_) => return Err(late(FIRST)),
        Ok(batch) => drop(batch.transpose()?),
    }
    let started = Instant::now();
    let mut rate = Rate { samples: 0, bytes: 0, elapsed: Duration::ZERO };
    while let Some(left) = TIME.checked_sub(started.elapsed()) {
        match timeout(left, loader.next()).await {
            Ok(Some(batch)) => {
                let batch = batch?;
                rate.samples += batch.len() as u64;
                rate.bytes += batch.bytes();
            }
            Ok(None) | Err(_) => break,
        }
    }
    rate.elapsed = started.elapsed();
    Ok(rate)
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

//! What connecting to a server tells.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_client::transport::h3::client::{AskLimits, ConnectConfig, ConnectError, Connection, Connector};
use forebay_client::transport::h3::endpoint::TransportConfig;
use forebay_client::transport::h3::tls::TlsError;
use forebay_client::transport::wire::date;
use forebay_client::transport::wire::describe::{DatasetList, DatasetState};
use forebay_client::{Fingerprint, ServerUrl, Trust};

/// How long a server may take to answer at all: then it counts as one that does not.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Questions that the round trip is measured with: the quickest tells it best.
const QUESTIONS: usize = 5;

/// A server that was named.
#[derive(Debug)]
pub struct Server {
    pub url: ServerUrl,
    pub trust: Trust,
    pub reached: Result<Reached, ConnectError>,
}

/// One that answered, and whose certificate is trusted.
#[derive(Clone, Debug)]
pub struct Reached {
    pub peer: SocketAddr,
    /// Of the certificate.
    pub presented: Fingerprint,
    /// What the quickest question took.
    pub round_trip: Duration,
    /// Bytes of the largest UDP payload that is known to reach it.
    pub payload: u16,
    /// Seconds that its clock is ahead of ours. `None` if it does not say.
    pub ahead: Option<f64>,
    /// What it has, or why it does not say.
    pub datasets: Result<DatasetList, String>,
}

/// Connects as a client does.
///
/// # Errors
/// When what is to be trusted makes no sense, which is not the server's doing.
pub async fn reach(url: &ServerUrl, trust: &Trust, memory: u64) -> Result<(Server, Option<Connection>), TlsError> {
    let transport = TransportConfig::client().within(memory / 2);
    let config = ConnectConfig { trust: trust.clone(), transport, timeout: PATIENCE };
    let connection = match Connector::new(config) {
        Ok(connector) => connector.connect(&url.host, url.port).await,
        // Of the machine's making.
        Err(error @ TlsError::NoRoots(_)) => Err(error.into()),
        Err(error) => return Err(error),
    };
    let server = |reached| Server { url: url.clone(), trust: trust.clone(), reached };
    Ok(match connection {
        Ok(connection) => (server(Ok(question(&connection).await)), Some(connection)),
        Err(error) => (server(Err(error)), None),
    })
}

async fn question(connection: &Connection) -> Reached {
    let limits = AskLimits { time: PATIENCE, ..AskLimits::default() };
    let mut reached = Reached {
        peer: connection.peer(),
        presented: connection.presented(),
        round_trip: connection.rtt(),
        payload: connection.mtu(),
        ahead: None,
        datasets: Err("not asked".to_owned()),
    };
    for _ in 0..QUESTIONS {
        let (asked, started) = (now(), Instant::now());
        let answer = match connection.get("/v1/datasets", limits).await {
            Ok(answer) => answer,
            Err(error) => {
                reached.datasets = Err(error.to_string());
                break;
            }
        };
        let took = started.elapsed();
        if took <= reached.round_trip || reached.ahead.is_none() {
            let said = answer.headers.get("date").and_then(|date| date::parse(date.to_str().ok()?));
            // Its clock was read half-way, and says whole seconds: half of one on average is not said.
            reached.ahead = said.map(|said| said as f64 + 0.5 - (asked + took.as_secs_f64() / 2.0));
        }
        reached.round_trip = reached.round_trip.min(took);
        reached.datasets = match answer.status.as_u16() {
            200 => serde_json::from_slice(&answer.body).map_err(|error| format!("its list makes no sense: {error}")),
            status => Err(format!("it answers with status {status}")),
        };
    }
    reached
}

/// Seconds since 1970, by this machine's clock.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Server {
    /// The dataset to read for a measurement: the one that was named, or the first that can be.
    pub fn dataset(&self) -> Option<&str> {
        let list = self.reached.as_ref().ok()?.datasets.as_ref().ok()?;
        let ready = |name: &str| {
            let line = list.datasets.iter().find(|line| line.name == name)?;
            (line.state == DatasetState::Ready && line.samples != Some(0)).then_some(())
        };
        match &self.url.dataset {
            Some(name) => Some(name),
            None => list.datasets.iter().map(|line| line.name.as_str()).find(|name| ready(name).is_some()),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A server next door.
    pub fn healthy() -> Server {
        let reached = Reached {
            peer: "192.0.2.7:4433".parse().unwrap(),
            presented: Fingerprint([7; 32]),
            round_trip: Duration::from_micros(200),
            payload: 8952,
            ahead: Some(0.3),
            datasets: Ok(DatasetList {
                wire: forebay_client::transport::wire::describe::WireRange::ours(),
                datasets: vec![],
            }),
        };
        let url = "https://storage:4433/imagenet".parse().unwrap();
        Server { url, trust: Trust::Pinned(Fingerprint([7; 32])), reached: Ok(reached) }
    }
}

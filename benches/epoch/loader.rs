//! The client: a process that reads epochs, and says as JSON what that was like.

use std::process::Command;
use std::time::{Duration, Instant};

use forebay_client::blocking::Client;
use forebay_client::{ClientConfig, LoaderOptions, Trust};
use forebay_system::program::{Running, Server};
use serde::{Deserialize, Serialize};

use crate::MEMORY;
use crate::place::{self, Core};
use crate::set::{Set, digest_of};

/// What a reading process says at its end. Times in seconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// From asking for the first sample to having the last.
    pub seconds: f64,
    /// From before connecting to having the first batch.
    pub first: f64,
    pub samples: u64,
    pub bytes: u64,
    /// Over all samples' content, if it was asked for.
    pub digest: u64,
    /// Samples that had to be asked for again because something was wrong with them.
    pub faults: u64,
    /// From asking for a group to having it.
    pub p50: f64,
    pub p99: f64,
    /// The most bytes that the process held.
    pub peak: Option<f64>,
    /// Processor time of this process meanwhile, where the system tells.
    pub cpu: Option<f64>,
    /// And of the one it read from: filled in by whoever watches both.
    pub server_cpu: Option<f64>,
}

impl Outcome {
    /// Of a process that reads from `server`, and must end well.
    pub fn of(command: Command, server: &Server) -> Outcome {
        let before = place::cpu(server.running.id());
        let finished = Running::start(command).finish(Duration::from_secs(120));
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let outcome: Outcome = serde_json::from_str(finished.text()).expect("an outcome");
        let used = place::cpu(server.running.id()).zip(before).map(|(after, before)| after - before);
        Outcome { server_cpu: used, ..outcome }
    }

    /// MB for each second of the busier side's processor time: what the rate would be with a core for each and nobody else
    /// on them.
    pub fn rate_of_core(&self) -> Option<f64> {
        Some(self.bytes as f64 / self.cpu?.max(self.server_cpu?) / 1e6)
    }

    /// MB/s.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e6
    }

    /// Everything was read, and was right.
    pub fn check(&self, set: &Set, epochs: u64, compare: bool) {
        let wanted = (set.sizes.len() as u64 * epochs, set.bytes() * epochs, 0);
        assert_eq!((self.samples, self.bytes, self.faults), wanted, "samples, bytes, faults");
        if compare {
            assert_eq!(self.digest, set.digest.wrapping_mul(epochs), "what was read is not what was written");
        }
    }
}

/// A process that runs [`read`].
pub fn command(url: &str, trust: &str, mtu: u16, epochs: u64, compare: bool) -> Command {
    let mut command = Core::Client.role("loader");
    command.args([url, trust, &mtu.to_string(), &epochs.to_string(), &compare.to_string()]);
    command
}

/// Reads epochs as a training job does, and prints an [`Outcome`].
pub fn read(arguments: &[String]) {
    let [url, trust, mtu, epochs, compare] = arguments else { panic!("{arguments:?}") };
    let url = url.parse().expect("a URL");
    let config = ClientConfig {
        memory: MEMORY,
        trust: Trust::Pinned(trust.parse().expect("a fingerprint")),
        max_mtu: mtu.parse().expect("a size"),
        ..ClientConfig::default()
    };
    let (epochs, compare) = (epochs.parse().expect("a number"), compare == "true");
    let begun = Instant::now();
    let client = Client::connect(&url, config).expect("connected");
    let dataset = client.dataset(crate::NAME).expect("a dataset");
    let mut outcome = Outcome::default();
    let me = std::process::id();
    let (started, used) = (Instant::now(), place::cpu(me));
    let options = LoaderOptions { seed: 7, epochs: Some(epochs), ..LoaderOptions::default() };
    let mut loader = dataset.loader(options).expect("a loader");
    for batch in &mut loader {
        let batch = batch.expect("a batch");
        if outcome.samples == 0 {
            outcome.first = begun.elapsed().as_secs_f64();
        }
        outcome.samples += batch.len() as u64;
        outcome.bytes += batch.bytes();
        if compare {
            for sample in batch.iter() {
                let field = |name| sample.field_by_name(name).expect("a field");
                outcome.digest = outcome.digest.wrapping_add(digest_of(field("cls"), field("jpg")));
            }
        }
    }
    outcome.seconds = started.elapsed().as_secs_f64();
    outcome.cpu = place::cpu(me).zip(used).map(|(after, before)| after - before);
    let stats = loader.stats();
    outcome.faults = stats.corrupt + stats.storage + stats.failed + stats.skipped;
    outcome.p50 = stats.latency.quantile(0.5).as_secs_f64();
    outcome.p99 = stats.latency.quantile(0.99).as_secs_f64();
    outcome.peak = place::peak(me);
    println!("{}", serde_json::to_string(&outcome).expect("JSON"));
}

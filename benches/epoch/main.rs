//! How fast a shuffled epoch is: `forebay serve` and the client's loader, each a process on a core of its own.
//!
//! - **The ratio** (gate: 0.6): the epoch over HTTP/3 through loader and pool, every CRC checked, against QUIC alone: the same
//!   samples' sizes, sockets, settings and TLS, 64 streams at once, `write_chunk` of `Bytes` that lie in memory on the sender,
//!   a copy into leases of the same kind of slab on the receiver. Pairs take turns, the median of their ratios counts. The
//!   shards are in the page cache. Once with packets of 1452 bytes, as on the Internet, which is what is gated; once with the
//!   largest that the defaults find on loopback.
//!   A machine that others use too favours whichever side has more threads, so the same ratio is also taken of the processor
//!   time that the busier side used for each byte; both must pass.
//! - **The profile** of both processes, with `perf` where it works.
//! - **A long path**: the epoch through a delay line of 50 ms round trip, which shares the two cores.
//! - **Memory**: the most that both processes ever held (`VmHWM`), against what they were given.
//!
//! `--smoke` reads a small set once, on every path, and compares it with what was written; its figures mean nothing.
#![allow(clippy::disallowed_methods)] // Clocks and processes are what a bench is for.

mod bare;
mod loader;
mod place;
mod profile;
mod set;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use forebay_system::figures::{Figures, median};
use forebay_system::program::Server;
use forebay_system::scratch::Scratch;
use forebay_transport::sim::delay::{DelayConfig, DelayLine};
use serde_json::{Value, json};

use loader::Outcome;
use place::Core;
use set::Set;

/// The dataset's name on the server.
const NAME: &str = "set";
/// What client and server are given, in bytes: half of it is the pool.
const MEMORY: u64 = 512 << 20;
/// Streams at once, on both sides of the comparison.
const STREAMS: usize = 64;
/// The largest UDP payload of an ordinary path.
const ORDINARY: u16 = 1452;
/// The default: jumbo frames.
const JUMBO: u16 = 8952;
/// What the ratio must reach with ordinary packets.
const GATE: f64 = 0.6;
const ROUND_TRIP: Duration = Duration::from_millis(50);

/// How much is measured.
struct Extent {
    smoke: bool,
    samples: usize,
    pairs: usize,
    jumbo_pairs: usize,
    passes: usize,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, role, rest @ ..] = arguments.as_slice()
        && flag == "--role"
    {
        match role.as_str() {
            "sender" => bare::send(rest),
            "receiver" => bare::receive(rest),
            _ => loader::read(rest),
        }
        return ExitCode::SUCCESS;
    }
    let smoke = arguments.iter().any(|argument| argument == "--smoke");
    let extent = if smoke {
        Extent { smoke, samples: 300, pairs: 1, jumbo_pairs: 1, passes: 1 }
    } else {
        Extent { smoke, samples: 5200, pairs: 11, jumbo_pairs: 7, passes: 3 }
    };
    if bench(&extent) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether the gate was passed.
fn bench(extent: &Extent) -> bool {
    let figures = Figures::new("epoch", extent.smoke);
    let scratch = Scratch::new("bench-epoch");
    let set = Set::make(&scratch.join("shards"), extent.samples);
    let settings = json!({
        "samples": set.sizes.len(),
        "MB": set.bytes() / 1_000_000,
        "mean bytes": set.bytes() / set.sizes.len() as u64,
        "memory of each": MEMORY,
        "streams": STREAMS,
        "a core for each": place::can_pin(),
    });
    let ordinary = Pairing::new(&scratch, &set, ORDINARY, extent);
    let ratio = ordinary.pairs(&figures, extent.pairs, settings);
    let jumbo = Pairing::new(&scratch, &set, JUMBO, extent);
    jumbo.pairs(&figures, extent.jumbo_pairs, Value::Null);
    long_path(&jumbo, &figures, extent.passes);
    memory(&jumbo, &figures);
    if !extent.smoke {
        profile::note(&figures, &ordinary, &scratch);
        if ratio < GATE {
            eprintln!("epoch: the lower ratio at {ORDINARY} bytes is {ratio:.3}; it must be {GATE} at least");
            return false;
        }
    }
    true
}

/// Both servers, idle unless they are read from.
struct Pairing<'a> {
    set: &'a Set,
    mtu: u16,
    /// Compare every byte with what was written, besides the loader's own check.
    compare: bool,
    server: Server,
    sender: Server,
}

impl<'a> Pairing<'a> {
    fn new(scratch: &Scratch, set: &'a Set, mtu: u16, extent: &Extent) -> Pairing<'a> {
        let state = scratch.join(&format!("state-{mtu}"));
        let server = serve(&state, set, mtu);
        let sender = Server::watch(bare::sender(set, &scratch.join("bare"), mtu));
        Pairing { set, mtu, compare: extent.smoke, server, sender }
    }

    fn epoch(&self, url: &str, epochs: u64) -> Outcome {
        let command = loader::command(url, &self.server.trust, self.mtu, epochs, self.compare);
        let outcome = Outcome::of(command, &self.server);
        outcome.check(self.set, epochs, self.compare);
        outcome
    }

    fn bare(&self, per_stream: usize) -> Outcome {
        let outcome = Outcome::of(bare::receiver(&self.sender, self.set, self.mtu, per_stream), &self.sender);
        assert_eq!((outcome.samples, outcome.bytes), (self.set.sizes.len() as u64, self.set.bytes()), "read in full");
        outcome
    }

    /// Measures pairs in turn, notes what they gave, and returns the lower of the two median ratios.
    fn pairs(&self, figures: &Figures, count: usize, settings: Value) -> f64 {
        let url = self.server.dataset(NAME);
        // The first epoch and the first stream of each find everything cold.
        self.epoch(&url, 1);
        self.bare(bare::GROUP);
        let (mut ours, mut grouped, mut single) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..count {
            let mut bare = || {
                grouped.push(self.bare(bare::GROUP));
                single.push(self.bare(1));
            };
            // Whoever goes first goes second the next time.
            if pair % 2 == 0 {
                ours.push(self.epoch(&url, 1));
                bare();
            } else {
                bare();
                ours.push(self.epoch(&url, 1));
            }
        }
        let mtu = self.mtu;
        let rates = [("epoch", &ours), ("bare QUIC", &grouped), ("bare QUIC, one sample a stream", &single)];
        let headline = ratios(&ours, &grouped, |outcome| Some(outcome.rate())).expect("rates are always known");
        let ratio = median(&headline);
        figures.note(&format!("ratio to bare QUIC at {mtu}"), ratio, "", with(settings, "ratios", &headline));
        let by_core = ratios(&ours, &grouped, Outcome::rate_of_core);
        if let Some(by_core) = &by_core {
            let figure = format!("ratio by the busier side's processor time at {mtu}");
            figures.note(&figure, median(by_core), "", json!({ "ratios": by_core }));
        }
        for (figure, outcomes) in rates {
            let runs: Vec<f64> = outcomes.iter().map(Outcome::rate).collect();
            figures.note(&format!("{figure} at {mtu}"), median(&runs), "MB/s", json!({ "runs": runs }));
            for (who, cpu) in [("client", (|o| o.cpu) as fn(&Outcome) -> Option<f64>), ("server", |o| o.server_cpu)] {
                let runs: Option<Vec<f64>> = outcomes.iter().map(|o| Some(cpu(o)? / o.bytes as f64 * 1e9)).collect();
                let Some(runs) = runs else { continue };
                figures.note(&format!("{figure} at {mtu}: {who}"), median(&runs), "CPU s/GB", json!({ "runs": runs }));
            }
        }
        let first: Vec<f64> = ours.iter().map(|outcome| outcome.first * 1e3).collect();
        let figure = format!("first batch at {mtu}, connecting included");
        figures.note(&figure, median(&first), "ms", json!({ "runs": first }));
        by_core.map_or(ratio, |by_core| ratio.min(median(&by_core)))
    }
}

/// How much better `ours` are than `others`, pair by pair; `None` when the system does not tell.
fn ratios(ours: &[Outcome], others: &[Outcome], rate: impl Fn(&Outcome) -> Option<f64>) -> Option<Vec<f64>> {
    ours.iter().zip(others).map(|(ours, other)| Some(rate(ours)? / rate(other)?)).collect()
}

fn with(more: Value, key: &str, runs: &[f64]) -> Value {
    let mut more = more.as_object().cloned().unwrap_or_default();
    more.insert(key.to_owned(), json!(runs));
    Value::Object(more)
}

fn serve(state: &Path, set: &Set, mtu: u16) -> Server {
    let mut command = Core::Server.command(forebay_system::program::forebay());
    let (memory, mtu) = (MEMORY.to_string(), mtu.to_string());
    Server::arguments(&mut command, &[(NAME, &set.pattern())], state, &["--memory", &memory, "--max-mtu", &mtu]);
    let mut server = Server::watch(command);
    server.running.line(forebay_system::program::PATIENCE, |line| line == format!("ready: {NAME}"));
    server
}

/// The epoch through a delay line.
fn long_path(pairing: &Pairing<'_>, figures: &Figures, passes: usize) {
    let target = pairing.server.url.trim_start_matches("https://").parse().expect("an address");
    let line = DelayLine::start(target, DelayConfig::round_trip(ROUND_TRIP)).expect("a delay line");
    let url = format!("https://{}/{NAME}", line.addr());
    let outcomes: Vec<Outcome> = (0..passes).map(|_| pairing.epoch(&url, 1)).collect();
    let path = format!("{} ms round trip", ROUND_TRIP.as_millis());
    let note = |figure: &str, unit: &str, of: &dyn Fn(&Outcome) -> f64| {
        let runs: Vec<f64> = outcomes.iter().map(of).collect();
        figures.note(&format!("{figure}, {path}"), median(&runs), unit, json!({ "runs": runs }));
    };
    note("epoch", "MB/s", &Outcome::rate);
    note("group latency p50", "ms", &|outcome| outcome.p50 * 1e3);
    note("group latency p99", "ms", &|outcome| outcome.p99 * 1e3);
    note("first batch, connecting included", "ms", &|outcome| outcome.first * 1e3);
}

/// The most memory that both ends ever held.
fn memory(pairing: &Pairing<'_>, figures: &Figures) {
    let client = pairing.epoch(&pairing.server.dataset(NAME), 1).peak;
    let server = place::peak(pairing.server.running.id());
    for (who, peak) in [("client", client), ("server", server)] {
        let Some(peak) = peak else { continue };
        figures.note(
            &format!("most memory of the {who}, of {} MiB given", MEMORY >> 20),
            peak / MIB,
            "MiB",
            Value::Null,
        );
        assert!(peak < MEMORY as f64, "the {who} held {peak} bytes, more than it was given");
    }
}

const MIB: f64 = (1 << 20) as f64;

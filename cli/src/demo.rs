//! `forebay demo`: the whole path on this machine, with the user's own shards.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_client::blocking::Client;
use forebay_client::transport::sim::delay::{DelayConfig, DelayLine};
use forebay_client::{ClientConfig, LoaderOptions, ServerUrl, Trust};

use crate::args::Demo;
use crate::failure::Failure;
use crate::output;
use crate::read::{self, Run};
use crate::table;
use crate::units::{count, size};
use crate::usage;

const NAME: &str = "demo";
/// The order shown is that of any other run with the same data.
const SEED: u64 = 7;

pub fn run(args: &Demo) -> Result<(), Failure> {
    let state = State::new(args.state_dir.as_deref())?;
    eprintln!("indexing and serving {} on loopback", args.shards.join(" "));
    let server = Server::start(args, &state.dir)?;
    let direct = pass(&server, server.address, args)?;
    let line = DelayLine::start(server.address, DelayConfig::round_trip(args.rtt))?;
    let distant = pass(&server, line.addr(), args)?;
    let milliseconds = args.rtt.as_secs_f64() * 1e3;
    let passes = [("loopback".to_owned(), direct), (format!("{milliseconds:.0} ms round trip"), distant)];
    if args.json {
        let rows: Vec<_> = passes.iter().map(|(path, pass)| pass.json(path, args.memory / 2)).collect();
        return output::json(&rows);
    }
    let header = [
        "path",
        "samples/s",
        "MB/s",
        "group p50 ms",
        "group p99 ms",
        "CPU s/GB",
        "client",
        "server",
        "samples verified",
    ];
    let rows: Vec<Vec<String>> = passes.iter().map(|(path, pass)| pass.row(path, args.memory / 2)).collect();
    let pool = args.memory / 2;
    let bytes = passes[0].1.run.bytes;
    output::text(&format!(
        "\none shuffled epoch over HTTP/3: {} of samples through a pool of {} ({:.1} times as much)\n\n{}",
        size(bytes),
        size(pool),
        bytes as f64 / pool as f64,
        table::render(&header, &rows)
    ))
}

/// One epoch over one path.
struct Pass {
    run: Run,
    /// CPU time of the server process during it.
    server: Duration,
}

fn pass(server: &Server, address: SocketAddr, args: &Demo) -> Result<Pass, Failure> {
    let url: ServerUrl = format!("https://{address}/{NAME}").parse().map_err(Failure::other)?;
    let trust = Trust::Pinned(server.fingerprint.parse().map_err(Failure::other)?);
    let client = Client::connect(&url, ClientConfig { trust, memory: args.memory, ..ClientConfig::default() })?;
    let dataset = client.dataset(NAME)?;
    let options = LoaderOptions { batch_size: args.batch_size, seed: SEED, ..LoaderOptions::default() };
    let before = server.cpu();
    let mut run = Run::default();
    read::epochs(&dataset, options, &mut run)?;
    if run.samples != dataset.description().samples {
        return Err(Failure::other(format!("{} samples of {} were read", run.samples, dataset.description().samples)));
    }
    Ok(Pass { run, server: server.cpu().saturating_sub(before) })
}

impl Pass {
    fn row(&self, path: &str, pool: u64) -> Vec<String> {
        let figures = self.run.figures(pool);
        let (client, server) = self.cpu_per_gb();
        vec![
            path.to_owned(),
            format!("{:.0}", figures.samples_per_second),
            format!("{:.1}", figures.megabytes_per_second),
            format!("{:.1}", figures.p50.as_secs_f64() * 1e3),
            format!("{:.1}", figures.p99.as_secs_f64() * 1e3),
            format!("{:.2}", client + server),
            format!("{client:.2}"),
            format!("{server:.2}"),
            count(self.run.samples),
        ]
    }

    fn json(&self, path: &str, pool: u64) -> serde_json::Value {
        let figures = self.run.figures(pool);
        let (client, server) = self.cpu_per_gb();
        serde_json::json!({
            "path": path,
            "samples_per_second": figures.samples_per_second,
            "megabytes_per_second": figures.megabytes_per_second,
            "group_latency_p50_ms": figures.p50.as_secs_f64() * 1e3,
            "group_latency_p99_ms": figures.p99.as_secs_f64() * 1e3,
            "cpu_seconds_per_gb": client + server,
            "client_cpu_seconds_per_gb": client,
            "server_cpu_seconds_per_gb": server,
            "samples_verified": self.run.samples,
            "bytes": self.run.bytes,
        })
    }

    fn cpu_per_gb(&self) -> (f64, f64) {
        let gb = (self.run.bytes as f64 / 1e9).max(1e-9);
        (self.run.cpu.as_secs_f64() / gb, self.server.as_secs_f64() / gb)
    }
}

/// `forebay serve` as a process of its own, so that its CPU time can be told from the client's. Ends with this value.
struct Server {
    child: Child,
    address: SocketAddr,
    fingerprint: String,
}

impl Server {
    fn start(args: &Demo, state: &Path) -> Result<Server, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").args(args.shards.iter().map(|shards| format!("{NAME}={shards}")));
        command.args(["--listen", "127.0.0.1:0", "--memory", &args.memory.to_string(), "--state-dir"]).arg(state);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        // From here on the process is ended however this function ends.
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Server { child, address: nowhere, fingerprint: String::new() };
        let out = server.child.stdout.take().ok_or_else(|| Failure::other("the server has no output"))?;
        for line in BufReader::new(out).lines() {
            let line = line?;
            if let Some(address) = line.strip_prefix("listening on https://") {
                server.address = address.trim().parse().map_err(Failure::other)?;
            } else if let Some(certificate) = line.strip_prefix("certificate ") {
                server.fingerprint = certificate.split_whitespace().next().unwrap_or_default().to_owned();
            } else if line == format!("ready: {NAME}") {
                return Ok(server);
            }
        }
        let status = server.child.wait()?;
        let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|&code| code != 0);
        Err(Failure::new(code.unwrap_or(crate::failure::OTHER), "the server ended before it was ready (see above)"))
    }

    fn cpu(&self) -> Duration {
        usage::cpu_of(self.child.id()).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to lose: its index is complete, and nobody else reads from it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the server of this run keeps its index and certificate.
struct State {
    dir: PathBuf,
    temporary: bool,
}

impl State {
    fn new(given: Option<&Path>) -> Result<State, Failure> {
        if let Some(dir) = given {
            return Ok(State { dir: dir.to_owned(), temporary: false });
        }
        let dir = std::env::temp_dir().join(format!("forebay-demo-{}", std::process::id()));
        // Not `create_dir_all`: a folder that is there already is somebody else's.
        std::fs::create_dir(&dir).map_err(|error| Failure::other(format!("cannot make {}: {error}", dir.display())))?;
        Ok(State { dir, temporary: true })
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.temporary {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

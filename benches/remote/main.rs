//! A server before shards that lie on nginx, against the same client that reads nginx itself: what the way through a server
//! costs, or saves, where everything is on one machine and all of it shares two cores.
//!
//! Both are the program as users run it, with the same order, memory and checks; the index lies beside the shards. The server's
//! clients are always encrypted, so nginx is read in both ways: by plain HTTP, and by TLS.

use std::process::Command;

use forebay_system::figures::{Figures, median};
use forebay_system::program::{PATIENCE, Running, Server, forebay};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use forebay_system::web::{Nginx, NginxOptions};
use serde_json::{Value, json};

/// Runs of each kind, in turn.
const PAIRS: usize = 7;
const ORDER: [&str; 6] = ["--shuffle", "full", "--seed", "7", "--json", "--memory=256MiB"];

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let figures = Figures::new("remote", smoke);
    let (samples, epochs, pairs) = if smoke { (200, 1, 1) } else { (6000, 4, PAIRS) };
    let scratch = Scratch::new("bench-remote");
    let data = scratch.join("data");
    std::fs::create_dir(&data).expect("a folder");
    let what = Shards { shards: 8, samples, sizes: Sizes::ImageNet, seed: 1 };
    tars::write(&data, &what, |_| {}).expect("room for shards");
    let made = Running::start(program(&["index", data.to_str().expect("UTF-8")], &scratch)).finish(PATIENCE);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let plain = Nginx::start(&data, &scratch.join("nginx"));
    let tls = Nginx::with(&data, &scratch.join("nginx-tls"), NginxOptions { tls: true, log: false });
    let server = Server::start(&[("bench", &plain.url("*.tar"))], &scratch.join("state"), &[]);
    let epochs = format!("--epochs={epochs}");
    let order = [&ORDER[..], &[&epochs]].concat();
    let direct = |nginx: &Nginx| {
        let mut command = program(&[&["read", &nginx.url("*.tar")], &order[..]].concat(), &scratch);
        command.envs(nginx.certificate.iter().map(|path| ("SSL_CERT_FILE", path)));
        rate(Running::start(command))
    };
    // Once for nothing, so that all find the shards in the page cache.
    direct(&plain);
    let mut rates: [Vec<f64>; 3] = Default::default();
    for _ in 0..pairs {
        rates[0].push(rate(server.client("read", "bench", &order)));
        rates[1].push(direct(&plain));
        rates[2].push(direct(&tls));
    }
    let [through, plain, tls] = rates;
    figures.note("server before nginx", median(&through), "MB/s", json!({ "runs": through, "samples": samples }));
    for (what, direct) in [("nginx", plain), ("nginx over TLS", tls)] {
        figures.note(&format!("client reading {what}"), median(&direct), "MB/s", json!({ "runs": direct }));
        let ratios: Vec<f64> = through.iter().zip(&direct).map(|(through, direct)| through / direct).collect();
        let figure = format!("server before nginx, of client reading {what}");
        figures.note(&figure, median(&ratios), "ratio", json!({ "ratios": ratios }));
    }
}

fn program(arguments: &[&str], scratch: &Scratch) -> Command {
    let mut command = Command::new(forebay());
    command.args(arguments).env("XDG_CACHE_HOME", scratch.join("cache"));
    command
}

fn rate(running: Running) -> f64 {
    let finished = running.finish(PATIENCE);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let summary: Value = serde_json::from_slice(&finished.stdout).expect("JSON");
    summary["megabytes_per_second"].as_f64().expect("a rate")
}

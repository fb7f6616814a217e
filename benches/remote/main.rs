//! A server before shards that lie on nginx, against the same client that reads nginx itself: what the way through a server
//! costs, or saves, where everything is on one machine.
//!
//! Both are the program as users run it, with the same order, memory and checks; the index is there already.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_system::figures::{Figures, median};
use forebay_system::program::{Running, Server, forebay};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use forebay_system::web::Nginx;
use serde_json::{Value, json};

/// Runs of each kind, in turn.
const PAIRS: usize = 7;
const ORDER: [&str; 6] = ["--shuffle", "full", "--seed", "7", "--json", "--memory=256MiB"];

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let figures = Figures::new("remote", smoke);
    let (samples, pairs) = if smoke { (200, 1) } else { (6000, PAIRS) };
    let scratch = Scratch::new("bench-remote");
    let data = scratch.join("data");
    std::fs::create_dir(&data).expect("a folder");
    let what = Shards { shards: 8, samples, sizes: Sizes::ImageNet, seed: 1 };
    tars::write(&data, &what, |_| {}).expect("room for shards");
    let nginx = Nginx::start(&data, &scratch.join("nginx"));
    let shards = nginx.url("*.tar");
    let server = Server::start(&[("bench", &shards)], &scratch.join("state"), &[]);
    let cache = scratch.join("cache");
    let (mut through, mut direct, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    // The first direct run indexes; what it says of its speed is not noted.
    rate(&read(&cache, &shards));
    for _ in 0..pairs {
        let server = rate(&json_of(server.client("read", "bench", &ORDER)));
        let nginx = rate(&read(&cache, &shards));
        through.push(server);
        direct.push(nginx);
        ratios.push(server / nginx);
    }
    let more = json!({ "server": through, "nginx": direct, "ratios": ratios, "samples": samples });
    figures.note("server before nginx", median(&through), "MB/s", json!({}));
    figures.note("client reading nginx", median(&direct), "MB/s", json!({}));
    figures.note("server before nginx, of client reading nginx", median(&ratios), "ratio", more);
}

fn read(cache: &Path, shards: &str) -> Value {
    let mut command = Command::new(forebay());
    command.args(["read", shards]).args(ORDER).env("XDG_CACHE_HOME", cache);
    json_of(Running::start(command))
}

fn json_of(running: Running) -> Value {
    let finished = running.finish(Duration::from_secs(600));
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_slice(&finished.stdout).expect("JSON")
}

fn rate(summary: &Value) -> f64 {
    summary["megabytes_per_second"].as_f64().expect("a rate")
}

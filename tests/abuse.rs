//! What should not happen, and does: nonsense on the command line, servers that die, peers that lie.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_system::program::{self, Finished, PATIENCE, Server};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use forebay_system::world::until;
use forebay_transport::sim::delay::{DelayConfig, DelayLine};
use serde_json::Value;

/// Shards with samples of these sizes.
fn shards(scratch: &Scratch, shards: usize, samples: usize, sizes: Sizes) -> String {
    let data = scratch.join("data");
    std::fs::create_dir_all(&data).unwrap();
    tars::write(&data, &Shards { shards, samples, sizes, seed: 1 }, |_| {}).unwrap();
    data.join("*.tar").to_str().unwrap().to_owned()
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(finished.text()).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// `forebay serve` on this address.
fn serve_on(listen: &str, shards: &str, state: &Path) -> Server {
    let mut command = Command::new(program::forebay());
    command.args(["serve", "--listen", listen, "--state-dir"]).arg(state).arg(format!("data={shards}"));
    let mut server = Server::watch(command);
    server.running.line(PATIENCE, |line| line == "ready: data");
    server
}

#[test]
fn nonsense_is_refused_before_anything_is_read() {
    let scratch = Scratch::new("nonsense");
    let shards = shards(&scratch, 1, 20, Sizes::Fixed(100_000));
    let server = Server::start(&[("data", &shards)], &scratch.join("state"), &[]);
    for (flags, code) in [
        (&["--memory", "1"][..], 2),
        (&["--memory", "16MiB"], 2),
        // More than the machine has: a configuration that makes no sense, too.
        (&["--memory", "1000TiB"], 2),
        (&["--batch-size", "0"], 2),
        (&["--batch-size", "4294967296"], 2),
        (&["--rank", "1"], 2),
        (&["--world-size", "0"], 2),
        (&["--fields", "nope"], 2),
        (&["--fields", ","], 2),
        (&["--log", "nonsense=x"], 2),
    ] {
        let ended = server.client("read", "data", flags).finish(PATIENCE);
        assert_eq!(ended.code, Some(code), "{flags:?}: {ended:?}");
        assert!(ended.stdout.is_empty(), "{flags:?}: figures of a run that never began: {}", ended.text());
        assert!(!ended.stderr.is_empty() && !ended.stderr.contains("panicked"), "{flags:?}: {}", ended.stderr);
    }
}

#[test]
fn extremes_that_make_sense_are_read() {
    let scratch = Scratch::new("extremes");
    let shards = shards(&scratch, 1, 20, Sizes::Cycle(vec![0, 1, 100_000]));
    let server = Server::start(&[("data", &shards)], &scratch.join("state"), &["--memory", "96MiB"]);
    for (flags, samples) in [
        (&["--epochs", "0"][..], 0),
        (&["--batch-size", "4294967295"], 20),
        (&["--batch-size", "1", "--keep-batches", "4294967295"], 20),
        (&["--world-size", "4294967295", "--rank", "4294967294"], 0),
        (&["--world-size", "4294967295", "--rank", "0", "--batch-size", "4294967295"], 20),
        (&["--drop-last", "--epochs", "18446744073709551615", "--batch-size", "21"], 0),
        (&["--on-error", "skip", "--max-skips", "18446744073709551615"], 20),
        (&["--fields", "jpg,jpg"], 20),
        (&["--memory", "32MiB", "--seed", "18446744073709551615"], 20),
    ] {
        let ended = server.client("read", "data", &[flags, &["--json"]].concat()).finish(PATIENCE);
        assert_eq!(ended.code, Some(0), "{flags:?}: {ended:?}");
        assert_eq!(json(&ended)["samples"], samples, "{flags:?}");
    }
}

#[test]
fn a_dataset_without_samples_is_read_in_no_time() {
    let scratch = Scratch::new("empty");
    let path = scratch.join("empty.tar");
    std::fs::write(&path, [0; 10_240]).unwrap();
    let server = Server::start(&[("data", path.to_str().unwrap())], &scratch.join("state"), &[]);
    let ended = server.client("read", "data", &["--json", "--epochs", "18446744073709551615"]).finish(PATIENCE);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(json(&ended)["batches"], 0);
    let named = server.client("read", "data", &["--fields", "jpg"]).finish(PATIENCE);
    assert_eq!(named.code, Some(2), "{named:?}");
}

#[test]
fn ranks_add_up_to_the_whole_within_their_memory() {
    let scratch = Scratch::new("ranks");
    let shards = shards(&scratch, 2, 997, Sizes::ImageNet);
    let server = Server::start(&[("data", &shards)], &scratch.join("state"), &[]);
    let read = |flags: &[&str]| server.client("read", "data", &[flags, &["--json", "--digest"]].concat());
    let whole = json(&read(&["--batch-size", "10"]).finish(PATIENCE));
    let number = |value: &Value| {
        let text = value["set_digest"].as_str().unwrap().to_owned();
        [0, 16, 32, 48].map(|at| u64::from_str_radix(&text[at..at + 16], 16).unwrap())
    };
    let add = |a: [u64; 4], b: [u64; 4]| {
        let (mut sum, mut carry) = ([0; 4], 0);
        for at in (0..4).rev() {
            let word = u128::from(a[at]) + u128::from(b[at]) + carry;
            (sum[at], carry) = (word as u64, word >> 64);
        }
        sum
    };
    // All at once: the server has several connections to be fair to.
    let ranks: Vec<_> = (0..7)
        .map(|rank| {
            read(&["--batch-size", "10", "--world-size", "7", "--memory", "64MiB", "--rank", &rank.to_string()])
        })
        .collect();
    let ranks: Vec<Value> = ranks.into_iter().map(|rank| json(&rank.finish(PATIENCE))).collect();
    assert_eq!(ranks.iter().map(|rank| rank["samples"].as_u64().unwrap()).sum::<u64>(), 997);
    assert_eq!(ranks.iter().map(number).fold([0; 4], add), number(&whole));
}

#[test]
fn a_server_killed_in_mid_epoch_and_started_again_is_found_at_once() {
    let scratch = Scratch::new("killed");
    let (shards, state) = (shards(&scratch, 4, 2000, Sizes::ImageNet), scratch.join("state"));
    let mut server = serve_on(&program::lasting_address(), &shards, &state);
    let flags = ["--json", "--digest", "--epochs", "6", "--batch-size", "64", "--memory", "128MiB"];
    let calm = json(&server.client("read", "data", &flags).finish(PATIENCE));
    let took = calm["seconds"].as_f64().unwrap();

    let started = Instant::now();
    let mut reader = server.client("read", "data", &flags);
    std::thread::sleep(Duration::from_secs_f64(took / 3.0));
    assert!(reader.ended().is_none(), "there is nothing left to disturb");
    server.running.signal("KILL");
    // Until it has ended its port is taken.
    until("the server has ended", || server.running.ended().is_some());
    let listen = server.url["https://".len()..].to_owned();
    server = serve_on(&listen, &shards, &state);
    let stormy = json(&reader.finish(PATIENCE));
    assert_eq!(stormy["order_digest"], calm["order_digest"]);
    assert_eq!(stormy["exit_code"], 0);
    // Without a word from the new server it would be the 30 s of the idle timeout.
    let lost = started.elapsed().as_secs_f64() - took;
    assert!(lost < 15.0, "{lost} s were lost");
    drop(server);
}

#[test]
fn memory_is_named_as_the_limit_of_a_path_only_where_it_is() {
    let scratch = Scratch::new("limit");
    let shards = shards(&scratch, 2, 4000, Sizes::ImageNet);
    let server = Server::start(&[("data", &shards)], &scratch.join("state"), &[]);
    let address = server.url["https://".len()..].parse().unwrap();
    let line = DelayLine::start(address, DelayConfig::round_trip(Duration::from_millis(150))).unwrap();
    let read = |port: u16| {
        let url = format!("https://127.0.0.1:{port}/data");
        let flags = ["--memory", "64MiB", "--batch-size", "16", "--trust", &server.trust];
        let ended = program::start(["read", &url].into_iter().chain(flags)).finish(PATIENCE);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stderr
    };
    let near = read(address.port());
    assert!(!near.contains("limits this path"), "{near}");
    let far = read(line.addr().port());
    assert_eq!(far.matches("MiB limits this path to").count(), 1, "{far}");
}

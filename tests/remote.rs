//! Shards on web servers: nginx, and one that behaves as badly as servers do.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use forebay_server::catalog::{self, BuildError, BuildRequest, Dataset, Monitor, Place, ShardFile, SourceFile};
use forebay_server::store::{Read, ReadError, RemoteConfig, RemoteStore, Store};
use forebay_system::program::{self, Finished, PATIENCE, Running, Server};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use forebay_system::web::{Nginx, Rude};
use forebay_transport::pool::{Account, Slab, SlabConfig};

const ORDER: [&str; 7] = ["--shuffle", "full", "--seed", "7", "--digest", "--json", "--memory=64MiB"];

fn data(scratch: &Scratch, shards: usize, samples: usize) -> std::path::PathBuf {
    let data = scratch.join("data");
    fs::create_dir(&data).expect("a folder");
    let what = Shards { shards, samples, sizes: Sizes::ImageNet, seed: 11 };
    tars::write(&data, &what, |_| {}).expect("written");
    data
}

/// Runs `forebay` with a cache folder of its own.
fn run(cache: &Path, arguments: &[&str]) -> Finished {
    let mut command = Command::new(program::forebay());
    command.args(arguments).env("XDG_CACHE_HOME", cache);
    Running::start(command).finish(PATIENCE)
}

fn json(finished: &Finished) -> serde_json::Value {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_slice(&finished.stdout).expect("JSON")
}

fn build(name: &str, sources: Vec<SourceFile>, index: &Path) -> Result<Dataset, BuildError> {
    let monitor = Monitor { progress: &|_| {}, cancel: &AtomicBool::new(false) };
    catalog::build(&BuildRequest::new(name, sources, index.to_owned()), monitor).map(|built| built.dataset)
}

#[test]
fn shards_behind_nginx_are_served_and_read_as_local_ones_are() {
    let scratch = Scratch::new("remote-nginx");
    let data = data(&scratch, 4, 300);
    let nginx = Nginx::start(&data, &scratch.join("nginx"));
    let local = json(&run(&scratch.join("cache"), &[&["read", data.to_str().expect("UTF-8")], &ORDER[..]].concat()));

    let state = scratch.join("state");
    let server = Server::start(&[("d", &nginx.url("*.tar"))], &state, &[]);
    let served = json(&server.client("read", "d", &ORDER).finish(PATIENCE));
    let braces = nginx.url("shard-{000000..000003}.tar");
    let without = json(&run(&scratch.join("cache"), &[&["read", &braces], &ORDER[..]].concat()));
    fs::write(data.join("index"), "# a list\nshard-000000.tar\nshard-000001.tar\nshard-000002.tar\nshard-000003.tar\n")
        .expect("a list");
    let deep = Nginx::start(scratch.path(), &scratch.join("nginx-deep"));
    let list = deep.url("data/index");
    let listed = json(&run(&scratch.join("cache"), &[&["read", &list], &ORDER[..]].concat()));
    for figure in ["samples", "bytes", "order_digest", "set_digest"] {
        for (way, found) in [("served", &served), ("brace lists", &without), ("a list", &listed)] {
            assert_eq!(found[figure], local[figure], "{figure} of {way}");
        }
    }
    assert_eq!(local["samples"], 300);

    // What is indexed is not read again.
    drop(server);
    let mut again = Server::start_unready(&[("d", &nginx.url("*.tar"))], &state, &[]);
    let line = again.running.line(PATIENCE, |line| line.contains("indexed in"));
    assert!(line.contains("(0 B read)"), "{line}");
}

#[test]
fn an_object_that_changes_under_a_server_stops_its_dataset() {
    let scratch = Scratch::new("remote-changes");
    let data = data(&scratch, 2, 60);
    let nginx = Nginx::start(&data, &scratch.join("nginx"));
    let server = Server::start(&[("d", &nginx.url("*.tar"))], &scratch.join("state"), &[]);
    json(&server.client("read", "d", &ORDER).finish(PATIENCE));
    let path = data.join("shard-000001.tar");
    let mut bytes = fs::read(&path).expect("there");
    bytes[1000] ^= 1;
    // nginx tells changes by seconds and sizes.
    bytes.extend_from_slice(&[0; 1024]);
    fs::write(&path, bytes).expect("written");
    let finished = server.client("read", "d", &ORDER).finish(PATIENCE);
    assert_eq!(finished.code, Some(4), "{}", finished.stderr);
    fs::remove_file(&path).expect("removed");
    let finished = run(&scratch.join("cache"), &["read", &nginx.url("shard-{000000,000001}.tar")]);
    assert!(finished.code == Some(1) && finished.stderr.contains("no such object"), "{}", finished.stderr);
}

/// The shard `a.tar` on the rude server, as it is indexed, and a store that is less patient than usual.
struct World {
    rude: Rude,
    dataset: Dataset,
    bytes: Vec<u8>,
    slab: Slab,
    scratch: Scratch,
}

impl World {
    fn new(name: &str) -> World {
        let scratch = Scratch::new(name);
        let data = data(&scratch, 1, 20);
        let bytes = fs::read(data.join("shard-000000.tar")).expect("there");
        let rude = Rude::start(&data);
        let sources = catalog::resolve(&rude.url("plain", "shard-000000.tar")).expect("a URL");
        let dataset = build("d", sources, &scratch.join("d.fbi")).expect("indexed");
        let slab = Slab::new(SlabConfig { capacity: 16 << 20, lock: false }).expect("memory");
        World { rude, dataset, bytes, slab, scratch }
    }

    fn shard(&self, mode: &str) -> ShardFile {
        let url = self.rude.url(mode, "shard-000000.tar");
        ShardFile { place: Place::Object(url.into()), ..self.dataset.shard_files().remove(0) }
    }

    /// Reads these ranges from the shard, answered in the given mode, and compares them.
    fn read(&self, mode: &str, patience: Duration, ranges: &[(usize, usize)]) -> Result<(), ReadError> {
        let config = RemoteConfig { patience, ..RemoteConfig::default() };
        let store = RemoteStore::new(vec![self.shard(mode)], config).expect("a URL");
        let mut at = 0;
        let reads = ranges.iter().map(|&(offset, len)| {
            at += len;
            Read { shard: 0, offset: offset as u64, len, at: at - len }
        });
        let reads: Vec<_> = reads.collect();
        let lease = self.slab.try_lease(&Account::new("test", usize::MAX), at).expect("room");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let done = runtime.block_on(store.read(reads, lease));
        done.result?;
        for read in &done.reads {
            let expected = &self.bytes[read.offset as usize..][..read.len];
            assert!(done.lease[read.at..][..read.len] == *expected, "{mode}: other bytes at {}", read.offset);
        }
        Ok(())
    }
}

#[test]
fn what_passes_is_tried_again() {
    let world = World::new("remote-passing");
    let patience = Duration::from_secs(20);
    let scattered = [(0, 512), (900_000, 70_000), (400_000, 100), (1_300_000, 300_000), (5, 0)];
    for mode in ["plain", "busy", "down", "cut", "drip", "stall"] {
        world.read(mode, patience, &scattered).unwrap_or_else(|error| panic!("{mode}: {error}"));
    }
    // Indexing too, from where it was cut.
    let cut = vec![SourceFile { name: "shard-000000.tar".into(), place: world.shard("cut").place }];
    let again = build("d", cut, &world.scratch.join("cut.fbi")).expect("indexed");
    assert_eq!(again.version(), world.dataset.version());
}

#[test]
fn what_does_not_pass_fails_in_time_and_says_how_often_it_was_tried() {
    let world = World::new("remote-failing");
    let begun = Instant::now();
    for (mode, part) in [("dead", "503"), ("later", "429"), ("denied", "403"), ("whole", "ignores Range")] {
        let error = world.read(mode, Duration::from_secs(2), &[(1000, 5000)]).expect_err(mode).to_string();
        assert!(error.contains(part) && error.contains("shard-000000.tar"), "{mode}: {error}");
        let tried = error.split("attempts: ").nth(1).and_then(|rest| rest.split(',').next());
        let tried: Option<u32> = tried.and_then(|tried| tried.parse().ok());
        match mode {
            "dead" => assert!(tried.is_some_and(|tried| (3..100).contains(&tried)), "{error}"),
            "whole" => {}
            _ => assert_eq!(tried, Some(1), "{error}"),
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // A server that cannot give parts is found out before anything is indexed.
    let whole = vec![SourceFile { name: "a.tar".into(), place: world.shard("whole").place }];
    let error = build("d", whole, &world.scratch.join("whole.fbi")).expect_err("no ranges").to_string();
    assert!(error.contains("ignores Range"), "{error}");
}

#[test]
fn without_tags_and_times_the_size_is_what_tells() {
    let world = World::new("remote-bare");
    let sources = vec![SourceFile { name: "shard-000000.tar".into(), place: world.shard("bare").place }];
    let bare = build("d", sources, &world.scratch.join("bare.fbi")).expect("indexed");
    assert_eq!(bare.version(), world.dataset.version(), "the version is of bytes, not of where they lie");
    assert!(matches!(world.read("bare", PATIENCE, &[(0, 10)]), Err(ReadError::Changed { .. })), "another identity");
}

//! A web server that behaves as badly as servers do: what passes is tried again, what does not is an error in time, and no
//! byte of another object is used.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use forebay_server::catalog::{self, BuildError, BuildRequest, Dataset, Monitor, Place, ShardFile, SourceFile};
use forebay_server::store::{Read, ReadError, RemoteConfig, RemoteStore, Store};
use forebay_system::program::{self, PATIENCE, Running, Server};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use forebay_system::web::{Nginx, Rude};
use forebay_transport::pool::{Account, Slab, SlabConfig};

fn data(scratch: &Scratch, shards: usize, samples: usize) -> std::path::PathBuf {
    let data = scratch.join("data");
    fs::create_dir(&data).expect("a folder");
    let what = Shards { shards, samples, sizes: Sizes::ImageNet, seed: 11 };
    tars::write(&data, &what, |_| {}).expect("written");
    data
}

fn build(name: &str, sources: Vec<SourceFile>, index: &Path) -> Result<Dataset, BuildError> {
    let monitor = Monitor { progress: &|_| {}, cancel: &AtomicBool::new(false) };
    catalog::build(&BuildRequest::new(name, sources, index.to_owned()), monitor).map(|built| built.dataset)
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
        let begun = Instant::now();
        world.read(mode, patience, &scattered).unwrap_or_else(|error| panic!("{mode}: {error}"));
        // As long as Retry-After asks for, which is longer than a pause of ours.
        assert!(mode != "busy" || begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
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

#[test]
fn what_lies_is_found_out_and_nothing_is_mixed() {
    let world = World::new("rude-lies");
    let patience = Duration::from_secs(2);
    let range = [(1000, 50_000)];
    for (mode, changed) in [
        // Another object after the first half: asked for by its tag, and answered regardless.
        ("shift", Some("entity tag")),
        ("mute", Some("entity tag")),
        ("liar", Some("bytes")),
        ("wrong", None),
        ("short", None),
    ] {
        let begun = Instant::now();
        let error = world.read(mode, patience, &range).expect_err(mode);
        match (&error, changed) {
            (ReadError::Changed { detail, .. }, Some(part)) => assert!(detail.contains(part), "{mode}: {detail}"),
            (ReadError::Io { .. }, None) => {}
            _ => panic!("{mode}: {error}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(8), "{mode}: {:?}", begun.elapsed());
    }
    // What is too long is cut: `read` compares the bytes.
    world.read("long", Duration::from_secs(20), &range).unwrap_or_else(|error| panic!("long: {error}"));
    // A size that nobody has memory for costs none.
    let grown = vec![SourceFile { name: "a.tar".into(), place: world.shard("grown").place }];
    assert!(matches!(build("d", grown, &world.scratch.join("grown.fbi")), Err(BuildError::Changed { .. })));
    let shift = vec![SourceFile { name: "a.tar".into(), place: world.shard("shift").place }];
    assert!(matches!(build("d", shift, &world.scratch.join("shift.fbi")), Err(BuildError::Changed { .. })));
}

#[test]
fn a_read_that_nobody_waits_for_ends_and_gives_its_lease_back() {
    let world = World::new("rude-dropped");
    let store = RemoteStore::new(vec![world.shard("stall")], RemoteConfig::default()).expect("a URL");
    let account = Account::new("test", usize::MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    for round in 0..3 {
        let all = world.slab.capacity();
        let until = Instant::now() + Duration::from_secs(5);
        let lease = loop {
            match world.slab.try_lease(&account, all) {
                Some(lease) => break lease,
                None => assert!(Instant::now() < until, "round {round}: the lease is held"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = Read { shard: 0, offset: 100 * round, len: 100_000, at: 0 };
        let waited = runtime
            .block_on(async { tokio::time::timeout(Duration::from_millis(300), store.read(vec![read], lease)).await });
        assert!(waited.is_err(), "the server has fallen silent");
    }
}

#[test]
fn a_server_before_a_rude_one_has_all_samples() {
    let scratch = Scratch::new("rude-served");
    let data = data(&scratch, 1, 40);
    let rude = Rude::start(&data);
    let order = ["--shuffle", "full", "--seed", "7", "--digest", "--json", "--memory=128MiB"];
    let read = |shards: &str, more: &[&str]| {
        let mut command = Command::new(program::forebay());
        command.args([&["read", shards], &order[..], more].concat()).env("XDG_CACHE_HOME", scratch.join("cache"));
        Running::start(command)
    };
    let json = |running: Running| -> serde_json::Value {
        let finished = running.finish(PATIENCE);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        serde_json::from_slice(&finished.stdout).expect("JSON")
    };
    // What cannot be had ends a run, after a while: it goes on beside the others.
    let index = scratch.join("d.fbi");
    build("d", catalog::resolve(&rude.url("plain", "shard-000000.tar")).expect("a URL"), &index).expect("indexed");
    let index = index.to_str().expect("UTF-8");
    let denied = rude.url("denied", "shard-000000.tar");
    let refused = Server::start(&[("d", &denied)], &scratch.join("denied"), &["--index", index]);
    let hopeless = [read(&denied, &["--index", index]), refused.client("read", "d", &order)];

    let expected = json(read(data.to_str().expect("UTF-8"), &[]));
    let shards = ["busy", "down", "cut"].map(|mode| (mode, rude.url(mode, "shard-000000.tar")));
    let datasets = shards.each_ref().map(|(mode, url)| (*mode, url.as_str()));
    let server = Server::start(&datasets, &scratch.join("state"), &[]);
    let running = datasets.map(|(mode, _)| (mode, server.client("read", mode, &order)));
    for (mode, running) in running {
        assert_eq!(json(running)["order_digest"], expected["order_digest"], "{mode}");
    }

    let [local, served] = hopeless.map(|running| running.finish(PATIENCE));
    assert!(local.code.is_some_and(|code| code > 0) && local.stderr.contains("403"), "{}", local.stderr);
    assert!(served.code.is_some_and(|code| code > 0), "{:?}", served.code);
    for finished in [&local, &served] {
        assert!(finished.stderr.contains("shard-000000.tar"), "{}", finished.stderr);
    }
    // What is no use for Range is no use for serving.
    let mut command = Command::new(program::forebay());
    Server::arguments(&mut command, &[("d", &rude.url("whole", "shard-000000.tar"))], &scratch.join("whole"), &[]);
    let finished = Running::start(command).finish(PATIENCE);
    assert!(finished.code == Some(1) && finished.stderr.contains("ignores Range"), "{}", finished.stderr);
}

#[test]
fn a_slow_store_takes_nothing_from_others() {
    let scratch = Scratch::new("rude-slow");
    let data = data(&scratch, 1, 60);
    let (rude, nginx) = (Rude::start(&data), Nginx::start(&data, &scratch.join("nginx")));
    let slow = rude.url("lame", "shard-000000.tar");
    let server =
        Server::start(&[("slow", &slow), ("d", &nginx.url("*.tar"))], &scratch.join("state"), &["--memory=256MiB"]);
    let mut behind = server.client("read", "slow", &["--shuffle", "full", "--memory=64MiB"]);
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    for _ in 0..3 {
        let finished = server.client("read", "d", &["--shuffle", "full", "--memory=64MiB"]).finish(PATIENCE);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    }
    let took = begun.elapsed();
    assert!(behind.ended().is_none(), "it was not slow enough to tell: {took:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    // It goes away in the midst of its reads, and what it held is given back.
    drop(behind);
    let finished = server.client("read", "d", &["--shuffle", "full", "--memory=64MiB"]).finish(PATIENCE);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
}

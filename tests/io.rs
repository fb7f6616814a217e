//! How the server reads its disk: by every means it delivers the same samples, and it says what it lacks.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::time::Duration;

use forebay_client::LoaderOptions;
use forebay_system::program::{self, PATIENCE, Server};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{Shards, Sizes, Written};
use forebay_system::world::{connect, read, shards, within};

const LIMIT: Duration = Duration::from_secs(120);

fn data(scratch: &Scratch) -> (Vec<Written>, String) {
    // From tiny to larger than the chunks that a server reads.
    let sizes = Sizes::Cycle(vec![60_000, 3, 130_000, 2_000, 511, 512, 1_500_000, 40_000, 0]);
    shards(&scratch.join("data"), &Shards { shards: 3, samples: 180, sizes, seed: 5 })
}

fn epoch(server: &Server, written: &[Written]) {
    let client = connect(server, 64 << 20);
    let dataset = client.dataset("set").unwrap();
    let options = LoaderOptions { batch_size: 32, seed: 3, ..LoaderOptions::default() };
    assert_eq!(read(&dataset, options, written, drop).unwrap().len(), written.len());
}

#[test]
fn every_means_delivers_the_same() {
    within(LIMIT, || {
        let scratch = Scratch::new("io");
        let (written, pattern) = data(&scratch);
        for flags in [&[][..], &["--direct", "on"], &["--io", "pread"], &["--direct", "off", "--read-threads", "1"]] {
            let server = Server::start(&[("set", &pattern)], &scratch.join("state"), flags);
            epoch(&server, &written);
        }
    });
}

#[test]
fn a_server_that_is_refused_io_uring_says_so_once_and_serves_as_well() {
    within(LIMIT, || {
        let scratch = Scratch::new("io-refused");
        let (written, pattern) = data(&scratch);
        let confined = |extra: &[&str]| {
            let mut command = Command::new("python3");
            command.arg(forebay_system::root().join("tests/python/confined.py"));
            command.args(["--no-uring", "1", "--"]).arg(program::forebay());
            Server::arguments(&mut command, &[("set", &pattern)], &scratch.join("state"), extra);
            command
        };
        let mut server = Server::watch(confined(&[]));
        server.running.line(PATIENCE, |line| line == "ready: set");
        epoch(&server, &written);
        let said = server.running.stderr();
        assert_eq!(said.matches("instead of io_uring").count(), 1, "{said}");
        assert!(said.contains("To mend it: "), "{said}");
        drop(server);
        let ended = program::Running::start(confined(&["--io", "uring"])).finish(PATIENCE);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("io_uring was asked for and cannot be had"), "{}", ended.stderr);
    });
}

/// Shards on this machine, read without a server, by the same means.
#[test]
fn every_means_reads_the_same_without_a_server() {
    let scratch = Scratch::new("io-local");
    let (written, _) = data(&scratch);
    let digests = |confined: &[&str], flags: &[&str]| {
        let mut command = Command::new("python3");
        command.arg(forebay_system::root().join("tests/python/confined.py")).args(confined).arg("--");
        command.arg(program::forebay()).arg("read").arg(scratch.join("data")).args(flags);
        command.args(["--memory", "32MiB", "--batch-size", "32", "--seed", "3", "--digest", "--json"]);
        command.env("XDG_CACHE_HOME", scratch.join("cache"));
        let ended = program::Running::start(command).finish(PATIENCE);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let summary: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("JSON");
        assert_eq!(summary["samples"], written.len());
        (summary["order_digest"].clone(), ended.stderr)
    };
    let (first, said) = digests(&[], &[]);
    assert!(!said.contains("To mend it"), "{said}");
    for flags in [&["--io", "uring"][..], &["--direct", "on"], &["--io", "pread"]] {
        assert_eq!(digests(&[], flags).0, first, "{flags:?}");
    }
    let (refused, said) = digests(&["--no-uring", "1"], &[]);
    assert_eq!((refused, said.matches("instead of io_uring").count()), (first, 1), "{said}");
}

//! Shards on this machine, read without a server: the same samples, in the same order, with the same ends.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use forebay_system::program::{self, Finished, PATIENCE, Running, Server};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};

/// Runs `forebay` with a cache folder of its own.
fn run(cache: &Path, arguments: &[&str]) -> Finished {
    start(cache, arguments).finish(PATIENCE)
}

fn start<S: AsRef<OsStr>>(cache: &Path, arguments: &[S]) -> Running {
    let mut command = Command::new(program::forebay());
    command.args(arguments).env("XDG_CACHE_HOME", cache);
    Running::start(command)
}

fn json(finished: &Finished) -> serde_json::Value {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_slice(&finished.stdout).expect("JSON")
}

#[test]
fn a_path_is_read_as_a_server_would_have_it_read() {
    let scratch = Scratch::new("local-read");
    let (data, cache) = (scratch.join("data"), scratch.join("cache"));
    fs::create_dir(&data).expect("a folder");
    let what = Shards { shards: 3, samples: 400, sizes: Sizes::ImageNet, seed: 5 };
    let mut first = None;
    tars::write(&data, &what, |written| _ = first.get_or_insert(written)).expect("written");
    let (first, data) = (first.expect("a sample"), data.to_str().expect("UTF-8"));
    let order = ["--shuffle", "full", "--seed", "7", "--batch-size", "32", "--digest", "--json", "--epochs", "2"];
    // A pool smaller than the data, so that its memory is used many times over.
    let arguments = [&["--memory", "40MiB"], &order[..]].concat();
    let local = json(&run(&cache, &[&["read", data], &arguments[..]].concat()));

    let server = Server::start(&[("d", data)], &scratch.join("state"), &[]);
    let remote = json(&server.client("read", "d", &arguments).finish(PATIENCE));
    for figure in ["samples", "bytes", "batches", "order_digest", "set_digest"] {
        assert_eq!(local[figure], remote[figure], "{figure}");
    }
    assert_eq!((&local["samples"], &local["corrupt"]), (&800.into(), &0.into()));

    let got = run(&cache, &["get", data, "--key", &first.key, "--field", "jpg"]);
    assert_eq!((got.code, got.stdout == first.jpg), (Some(0), true), "{}", got.stderr);
    let listed = json(&run(&cache, &["ls", data, "--json"]));
    let described = json(&server.client("ls", "d", &["--json"]).finish(PATIENCE));
    assert_eq!(listed["version"], described["version"]);

    // The index is in the cache, and nowhere else.
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).expect("there").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    assert!(names(Path::new(data)).iter().all(|name| name.ends_with(".tar")));
    let kept = names(&cache.join("forebay"));
    assert!(kept.iter().any(|name| name.starts_with("data-") && name.ends_with(".fbi")), "{kept:?}");
    // One beside the shards comes first.
    assert_eq!(run(&cache, &["index", data]).code, Some(0));
    fs::remove_dir_all(&cache).expect("removed");
    assert_eq!(json(&run(&cache, &["ls", data, "--json"]))["version"], described["version"]);
    assert!(!cache.exists(), "nothing was indexed");
}

/// A shard that changes while it is read ends the epoch with the code that says so.
#[test]
fn a_shard_that_changes_ends_the_epoch() {
    let scratch = Scratch::new("local-changed");
    let (data, cache) = (scratch.join("data"), scratch.join("cache"));
    fs::create_dir(&data).expect("a folder");
    let what = Shards { shards: 2, samples: 64, sizes: Sizes::Fixed(100_000), seed: 5 };
    let paths = tars::write(&data, &what, |_| {}).expect("written");
    let data = data.to_str().expect("UTF-8");
    let arguments = ["read", data, "--epochs", "1000000", "--batch-size", "8", "--memory", "8MiB", "--json"];
    let running = start(&cache, &arguments);
    let begun = std::time::Instant::now();
    let indexed = || {
        fs::read_dir(cache.join("forebay")).is_ok_and(|mut files| {
            files.any(|file| file.is_ok_and(|file| file.path().extension() == Some(OsStr::new("fbi"))))
        })
    };
    while !indexed() {
        assert!(begun.elapsed() < PATIENCE, "{}", running.stderr());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let bytes = fs::read(&paths[1]).expect("there");
    fs::write(&paths[1], &bytes).expect("written");
    let ended = running.finish(PATIENCE);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert!(ended.stderr.contains("shard-000001.tar"), "{}", ended.stderr);
}

/// What is no URL is a path, and what is wrong with it is told.
#[test]
fn paths_that_are_none() {
    let scratch = Scratch::new("local-none");
    let missing = scratch.join("nothing");
    let found = run(&scratch.join("cache"), &["read", missing.to_str().expect("UTF-8")]);
    assert_eq!(found.code, Some(2));
    assert!(found.stderr.contains("nothing matches"), "{}", found.stderr);
    let found = run(&scratch.join("cache"), &["read", "https://127.0.0.1:1/d", "--index", "x.fbi"]);
    assert_eq!(found.code, Some(2), "{}", found.stderr);
    let damaged = scratch.join("x.tar");
    fs::write(&damaged, b"this is no tar, whatever its name says").expect("written");
    let found = run(&scratch.join("cache"), &["read", damaged.to_str().expect("UTF-8")]);
    assert_eq!(found.code, Some(5), "{}", found.stderr);
}

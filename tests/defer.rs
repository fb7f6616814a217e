//! `--defer-checksums`: served before the content is read, and an epoch that runs while it is.

use std::fs;
use std::time::Duration;

use forebay_system::program::{PATIENCE, Server, run};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};

fn version(server: &Server) -> String {
    let listed = server.client("ls", "d", &["--json"]).finish(PATIENCE);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    let described: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    described["version"].as_str().expect("a version").to_owned()
}

#[test]
fn an_epoch_goes_on_while_the_version_becomes_final() {
    let scratch = Scratch::new("defer");
    let data = scratch.join("data");
    fs::create_dir(&data).expect("a folder");
    let what = Shards { shards: 4, samples: 400, sizes: Sizes::Fixed(50_000), seed: 1 };
    tars::write(&data, &what, |_| {}).expect("written");
    let data = data.to_str().expect("UTF-8");
    // 20 MB at 4 MB/s: some seconds, in which the provisional version is all there is.
    let flags = ["--defer-checksums", "--checksum-rate", "4MB"];
    let mut server = Server::start(&[("d", data)], &scratch.join("state"), &flags);
    assert!(version(&server).starts_with("hdr-"));
    let endless = ["--epochs", "1000000", "--batch-size", "64", "--json"];
    let reading = server.client("read", "d", &endless);
    server.running.line(PATIENCE, |line| line == "ready: d");
    let settled = version(&server);
    // Whoever watches a log sees how far it is, how fast it goes and how long that takes.
    let told = server.running.stderr();
    let line = told.lines().find(|line| line.contains("reading the content of d")).unwrap_or_else(|| panic!("{told}"));
    assert!(line.contains(" of 4 shards") && line.contains("0.00 GB/s") && line.ends_with(" s left"), "{line}");
    assert!(settled.starts_with("b3-"), "{settled}");
    std::thread::sleep(Duration::from_millis(500));
    reading.signal("INT");
    let ended = reading.finish(PATIENCE);
    // It read until it was told to stop, and nothing was wrong.
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    let summary: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    assert_eq!((&summary["corrupt"], &summary["skipped"]), (&0.into(), &0.into()));
    assert!(summary["unverified_fields"].as_u64() > Some(0), "it began without checksums");
    let read = server.client("read", "d", &["--json"]).finish(PATIENCE);
    let summary: serde_json::Value = serde_json::from_slice(&read.stdout).expect("JSON");
    assert_eq!((&summary["samples"], &summary["unverified_fields"]), (&400.into(), &0.into()));
    // What was learnt in the background is what indexing learns.
    let index = scratch.join("other.fbi");
    let indexed = run(["index", data, "--output", index.to_str().expect("UTF-8"), "--json"]);
    let indexed: serde_json::Value = serde_json::from_slice(&indexed.stdout).expect("JSON");
    assert_eq!(indexed["version"], settled);
}

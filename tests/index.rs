//! `forebay index` and `forebay verify` as their users meet them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use forebay_system::program::{self, PATIENCE, Server};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};

fn shards(scratch: &Scratch, count: usize, size: usize) -> String {
    let data = scratch.path().join("data");
    fs::create_dir_all(&data).expect("a folder");
    let what = Shards { shards: count, samples: 4 * count, sizes: Sizes::Fixed(size), seed: 1 };
    tars::write(&data, &what, |_| {}).expect("written");
    data.to_str().expect("UTF-8").to_owned()
}

fn json(stdout: &[u8]) -> serde_json::Value {
    serde_json::from_slice(stdout).expect("JSON")
}

/// An index is made once, found beside the shards by whoever serves them, and brought up to date by what is new.
#[test]
fn an_index_beside_the_shards_is_used() {
    let scratch = Scratch::new("index-beside");
    let data = shards(&scratch, 3, 10_000);
    let made = program::run(["index", &data, "--json"]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let made = json(&made.stdout);
    assert_eq!(made["index"], format!("{data}/forebay.fbi"));
    assert_eq!((&made["samples"], &made["shards"]), (&12.into(), &3.into()));

    let server = Server::start(&[("d", &data)], &scratch.path().join("state"), &[]);
    let described = server.client("ls", "d", &["--json"]).finish(PATIENCE);
    assert_eq!(json(&described.stdout)["version"], made["version"]);
    assert!(!scratch.path().join("state/indexes/d.fbi").exists(), "no index of its own");

    let elsewhere = scratch.path().join("more");
    fs::create_dir(&elsewhere).expect("a folder");
    let what = Shards { shards: 1, samples: 4, sizes: Sizes::Fixed(7), seed: 2 };
    let more = tars::write(&elsewhere, &what, |_| {}).expect("written");
    fs::rename(&more[0], scratch.path().join("data/x.tar")).expect("renamed");
    let again = program::run(["index", &data, "--json"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    let again = json(&again.stdout);
    assert_eq!(again["bytes_read"], fs::metadata(scratch.path().join("data/x.tar")).expect("there").len());
    assert_eq!(again["shards"], 4);
}

/// The index may lie anywhere; a build that is killed goes on where it was.
#[test]
fn a_killed_index_goes_on_where_it_was() {
    let scratch = Scratch::new("index-killed");
    let data = shards(&scratch, 24, 4_000_000);
    let output = scratch.path().join("elsewhere.fbi");
    let output = output.to_str().expect("UTF-8");
    let part = format!("{output}.part");
    let running = program::start(["index", &data, "--output", output, "--threads", "1"]);
    let begun = std::time::Instant::now();
    while fs::metadata(&part).map_or(0, |part| part.len()) == 0 {
        assert!(begun.elapsed() < PATIENCE, "no notes: {}", running.stderr());
        std::thread::sleep(Duration::from_millis(1));
    }
    running.signal("KILL");
    running.finish(PATIENCE);
    if !fs::exists(output).expect("a look") {
        let done = program::run(["index", &data, "--output", output, "--json"]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        let total: u64 =
            fs::read_dir(&data).expect("there").flatten().map(|e| e.metadata().expect("there").len()).sum();
        let read = json(&done.stdout)["bytes_read"].as_u64().expect("a number");
        assert!(read < total, "{read} of {total}");
    }
    assert!(!fs::exists(&part).expect("a look"), "no remains");
    let listed = program::run(["verify", &data, "--index", output]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
}

#[test]
fn rot_is_reported_with_its_place() {
    let scratch = Scratch::new("verify");
    let data = shards(&scratch, 2, 5000);
    assert_eq!(program::run(["verify", &data]).code, Some(2), "nothing to compare with");
    assert_eq!(program::run(["index", &data]).code, Some(0));
    let index = format!("{data}/forebay.fbi");
    let sound = program::run(["verify", "--index", &index]);
    assert_eq!((sound.code, sound.text().contains("all as it was indexed")), (Some(0), true), "{}", sound.stderr);
    let file = File::options().write(true).open(format!("{data}/shard-000001.tar")).expect("there");
    file.write_all_at(&[1, 2, 3, 4], 512 + 512 + 512 + 100).expect("written");
    let rotten = program::run(["verify", &data]);
    assert_eq!(rotten.code, Some(5), "{}", rotten.stderr);
    let line =
        "shard shard-000001.tar: sample 4 (key n0000004/img), field jpg, 5000 bytes at 1536: its bytes do not match";
    assert!(rotten.text().contains(line), "{}", rotten.text());
    let found = program::run(["verify", &data, "--json"]);
    let found = json(&found.stdout);
    assert_eq!((&found["found"], &found["rot"][0]["sample"]), (&1.into(), &4.into()));
}

//! `forebay pack`: what it writes is what the `webdataset` package reads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use forebay_system::program;
use forebay_system::python;
use forebay_system::scratch::Scratch;

fn json(arguments: &[&str]) -> serde_json::Value {
    let finished = program::run(arguments);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_slice(&finished.stdout).expect("JSON")
}

/// Each field's bytes, by key and name.
type Fields = BTreeMap<(String, String), Vec<u8>>;

/// A folder of pictures as people have them: capitals, dots and spaces in names, other alphabets, long paths.
fn photos(folder: &Path) -> Fields {
    let long = format!("dogs/{}/{}", "d".repeat(120), "n".repeat(90));
    let mut expected = BTreeMap::new();
    for (number, (file, key, field)) in [
        ("cats/one.jpg", "cats/one", "jpg"),
        ("cats/one.json", "cats/one", "json"),
        ("cats/IMG 2020.01.02.JPG", "cats/IMG 2020_01_02", "jpg"),
        ("dogs/ä.jpg", "dogs/ä", "jpg"),
        ("dogs/v1.5/x.jpg", "dogs/v1.5/x", "jpg"),
        ("dogs/empty.txt", "dogs/empty", "txt"),
        (&format!("{long}.jpg"), long.as_str(), "jpg"),
        (&format!("{long}.{}", "e".repeat(40)), long.as_str(), &"e".repeat(40)),
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        let bytes = vec![number as u8; if field == "txt" { 0 } else { 700 * number + 1 }];
        fs::write(path, &bytes).expect("written");
        expected.insert((key.to_owned(), field.to_owned()), bytes);
    }
    fs::write(folder.join("README"), "no sample").expect("written");
    fs::write(folder.join(".hidden.jpg"), "no sample").expect("written");
    expected
}

/// What the `webdataset` package reads from these shards: each field's bytes, and the keys in order.
fn package(shards: &Path) -> (Fields, Vec<String>) {
    let mut paths: Vec<_> = fs::read_dir(shards)
        .expect("there")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "tar"))
        .collect();
    paths.sort();
    let (mut fields, mut keys) = (BTreeMap::new(), Vec::new());
    for line in python::run("read_webdataset.py", &paths).lines() {
        let sample: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let key = sample["key"].as_str().expect("a key").to_owned();
        for (name, hex) in sample["fields"].as_object().expect("fields") {
            let hex = hex.as_str().expect("digits");
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("a digit");
            fields.insert((key.clone(), name.clone()), (0..hex.len()).step_by(2).map(byte).collect());
        }
        keys.push(key);
    }
    (fields, keys)
}

#[test]
fn the_webdataset_package_reads_what_was_packed() {
    let scratch = Scratch::new("pack");
    let (photos_at, out) = (scratch.join("photos"), scratch.join("out"));
    let mut expected = photos(&photos_at);
    let (from, to) = (photos_at.to_str().expect("UTF-8"), out.to_str().expect("UTF-8"));
    let packed = json(&["pack", from, to, "--labels", "folders", "--samples-per-shard", "2", "--json"]);
    assert_eq!((&packed["samples"], &packed["passed_over"]), (&6.into(), &1.into()));
    assert_eq!(packed["shards"].as_array().map(Vec::len), Some(3));
    assert_eq!(packed["classes"], serde_json::json!(["cats", "dogs"]));
    assert_eq!(fs::read_to_string(out.join("classes.txt")).expect("there"), "cats\ndogs\n");
    let keys: Vec<String> = expected.keys().map(|(key, _)| key.clone()).collect();
    for key in keys {
        let class = if key.starts_with("cats") { "0" } else { "1" };
        expected.insert((key, "cls".to_owned()), class.into());
    }
    let (fields, keys) = package(&out);
    assert_eq!(fields, expected);
    assert!(keys.is_sorted(), "{keys:?}");

    // Ours reads the same, and the same files pack to the same bytes.
    let read = json(&["ls", to, "--json"]);
    assert_eq!(read["samples"], 6);
    let again = scratch.join("again");
    json(&["pack", from, again.to_str().expect("UTF-8"), "--labels", "folders", "--samples-per-shard", "2", "--json"]);
    for number in 0..3 {
        let name = format!("shard-{number:06}.tar");
        assert!(fs::read(out.join(&name)).expect("there") == fs::read(again.join(&name)).expect("there"), "{name}");
    }

    // Shuffled: other orders by seed, the same samples.
    let mut orders = vec![keys];
    for seed in ["1", "2"] {
        let out = scratch.join(seed);
        json(&[
            "pack",
            from,
            out.to_str().expect("UTF-8"),
            "--labels",
            "folders",
            "--shuffle",
            "--seed",
            seed,
            "--json",
        ]);
        let (fields, keys) = package(&out);
        assert_eq!(fields, expected);
        orders.push(keys);
    }
    assert!(orders[0] != orders[1] && orders[1] != orders[2], "{orders:?}");
}

#[test]
fn labels_come_from_a_table() {
    let scratch = Scratch::new("pack-csv");
    let photos_at = scratch.join("photos");
    photos(&photos_at);
    let from = photos_at.to_str().expect("UTF-8");
    let table = scratch.join("labels.csv");
    let long = format!("dogs/{}/{}", "d".repeat(120), "n".repeat(90));
    let rows = format!(
        "file,label\ncats/one.jpg,7\n\"cats/IMG 2020.01.02.JPG\",8\ndogs/ä,9\n./dogs/v1.5/x.jpg, 10\ndogs/empty.txt,11\n{long}.jpg,12\n"
    );
    fs::write(&table, &rows).expect("written");
    let out = scratch.join("out");
    let (labels, to) = (table.to_str().expect("UTF-8"), out.to_str().expect("UTF-8"));
    let packed = json(&["pack", from, to, "--labels", labels, "--json"]);
    assert_eq!(packed["classes"], serde_json::json!([]), "numbers are taken as they are");
    let (fields, _) = package(&out);
    let class = |key: &str| fields.get(&(key.to_owned(), "cls".to_owned())).map(Vec::as_slice);
    assert_eq!(
        (class("dogs/ä"), class(&long), class("dogs/v1.5/x")),
        (Some(&b"9"[..]), Some(&b"12"[..]), Some(&b"10"[..]))
    );

    // What is not labelled, is there already, or cannot be is told.
    fs::write(&table, "cats/one,1\n").expect("written");
    let missing = program::run(["pack", from, scratch.join("x").to_str().expect("UTF-8"), "--labels", labels]);
    assert_eq!(
        (missing.code, missing.stderr.contains("5 samples have no label")),
        (Some(2), true),
        "{}",
        missing.stderr
    );
    let there = program::run(["pack", from, to]);
    assert_eq!((there.code, there.stderr.contains("is there already")), (Some(2), true), "{}", there.stderr);
    let inside = program::run(["pack", from, &format!("{from}/out")]);
    assert_eq!((inside.code, inside.stderr.contains("would lie in the folder")), (Some(2), true), "{}", inside.stderr);
    fs::write(photos_at.join("cats/one.JSON"), "").expect("written");
    let twice = program::run(["pack", from, scratch.join("y").to_str().expect("UTF-8")]);
    assert_eq!((twice.code, twice.stderr.contains("second field \"json\"")), (Some(2), true), "{}", twice.stderr);
}

/// From a folder of files to a server in two commands: the second is printed by the first.
#[test]
fn what_pack_prints_serves() {
    let scratch = Scratch::new("pack-serve");
    photos(&scratch.join("photos"));
    let out = scratch.join("my shards!");
    let (from, to) = (scratch.join("photos"), out.to_str().expect("UTF-8"));
    let packed = program::run(["pack", from.to_str().expect("UTF-8"), to, "--labels", "folders"]);
    assert_eq!(packed.code, Some(0), "{}", packed.stderr);
    assert!(packed.text().contains(&format!("forebay serve myshards={to}\n")), "{}", packed.text());
    let server = program::Server::start(&[("myshards", to)], &scratch.join("state"), &[]);
    let read = server.client("read", "myshards", &["--json"]).finish(program::PATIENCE);
    let read: serde_json::Value = serde_json::from_slice(&read.stdout).expect("JSON");
    assert_eq!((&read["samples"], &read["unverified_fields"]), (&6.into(), &0.into()));
}

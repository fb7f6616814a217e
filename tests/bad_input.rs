//! Shards and indexes that are not as they should be: a clear error or the right result, and nothing else is taken down.

use std::fs;
use std::path::Path;

use forebay_system::program::{self, Finished, PATIENCE, Server};
use forebay_system::scratch::Scratch;
use forebay_system::tars;
use forebay_system::world::until;

/// One member as the bytes of its name and of its size field say, whatever is true.
fn raw(name: &[u8], size: &[u8; 12], data: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    tars::member(&mut tar, "x", data).expect("written");
    tar[..100].fill(0);
    tar[..name.len()].copy_from_slice(name);
    tar[124..136].copy_from_slice(size);
    tar[148..156].fill(b' ');
    let sum: u32 = tar[..512].iter().map(|byte| u32::from(*byte)).sum();
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar
}

fn member(name: &[u8], data: &[u8]) -> Vec<u8> {
    let size = format!("{:011o}\0", data.len());
    raw(name, size.as_bytes().try_into().expect("twelve"), data)
}

/// A member whose name an extended header gives.
fn named_by_pax(name: &[u8], data: &[u8]) -> Vec<u8> {
    // Of the whole record: the length itself (two digits), " path=" and the line break.
    let len = 2 + 6 + name.len() + 1;
    assert!((10..100).contains(&len));
    let record = [len.to_string().as_bytes(), b" path=", name, b"\n"].concat();
    let mut tar = member(b"pax", &record);
    tar[156] = b'x';
    tar[148..156].fill(b' ');
    let sum: u32 = tar[..512].iter().map(|byte| u32::from(*byte)).sum();
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.extend(member(b"short.bin", data));
    tar
}

/// Twenty samples, each with a `bin` of 2000 bytes (1536 + 1536 * 2n is where the data of the n-th lies) and a `cls`.
fn good() -> Vec<u8> {
    let mut tar = Vec::new();
    for n in 0..20u8 {
        tar.extend(member(format!("k{n:02}.bin").as_bytes(), &[n; 2000]));
        tar.extend(member(format!("k{n:02}.cls").as_bytes(), &[n]));
    }
    ended(tar)
}

fn ended(mut tar: Vec<u8>) -> Vec<u8> {
    tar.extend([0; 1024]);
    tar
}

/// What is to come of a dataset.
enum Outcome {
    /// It has so many samples.
    Samples(u64),
    /// It is damaged; what is said of it contains all this.
    Damaged(&'static [&'static str]),
}
use Outcome::{Damaged, Samples};

/// A dataset of one shard `s.tar`, and what is to come of it.
fn cases() -> Vec<(&'static str, Vec<u8>, Outcome)> {
    // Each sample takes 512 + 2048 + 512 + 512 bytes.
    let cut = |at: usize| good()[..at].to_vec();
    let lying = |size: &[u8; 12]| {
        let mut tar = good();
        let lie = raw(b"k01.bin", size, &[1; 2000]);
        tar[3584..3584 + lie.len()].copy_from_slice(&lie);
        tar
    };
    let noise: Vec<u8> = (0..50_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let huge = [0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    vec![
        ("truncated", cut(5000), Damaged(&["s.tar", "byte 3584", "\"k01.bin\"", "truncated"])),
        ("cutheader", cut(3584 + 100), Damaged(&["s.tar", "byte 3584"])),
        ("garbage", noise, Damaged(&["s.tar", "byte 0", "this is no tar"])),
        ("liesmore", lying(b"77777777777\0"), Damaged(&["s.tar", "byte 3584", "8589934591", "header lies"])),
        ("lieshuge", lying(&huge), Damaged(&["s.tar", "byte 3584", "header lies"])),
        // What follows is taken for a header, and is none.
        ("liesless", lying(b"00000001000\0"), Damaged(&["s.tar", "byte 4608", "bad header checksum"])),
        ("samekey", ended([member(b"a.x", b"1"), member(b"b.x", b"2"), member(b"a.x", b"3")].concat()), Samples(3)),
        (
            "samefield",
            ended([member(b"a.x", b"1"), member(b"a.X", b"2")].concat()),
            Damaged(&["s.tar", "byte 1024", "second field \"x\""]),
        ),
        (
            "fieldless",
            ended([member(b"README", b"1"), member(b"a.x", b"2"), member(b"d/LICENSE", b"")].concat()),
            Samples(1),
        ),
        ("nofields", ended(member(b"README", b"1")), Samples(0)),
        (
            "dots",
            ended([member(b"../../etc/x.x", b"1"), member(b"/abs.x", b"2"), member(b"a/../b.x", b"3")].concat()),
            Samples(3),
        ),
        ("nul", ended([named_by_pax(b"a\0b.x", b"1"), member(b"c.x", b"2")].concat()), Samples(2)),
        ("steering", ended(member(b"a\x1b[2Jb\xc2\x9b.x", b"1")), Samples(1)),
        ("notutf8", ended([member(b"\xff\xfe.x", b"1"), member(b"c.x", b"2")].concat()), Samples(2)),
        ("fieldnotutf8", ended(member(b"a.\xff\xfe", b"1")), Damaged(&["s.tar", "byte 0", "not UTF-8"])),
        ("empty", ended(Vec::new()), Samples(0)),
        ("nothing", Vec::new(), Damaged(&["s.tar", "byte 0", "the file is empty"])),
    ]
}

fn put(folder: &Path, bytes: &[u8]) -> String {
    fs::create_dir_all(folder).expect("a folder");
    fs::write(folder.join("s.tar"), bytes).expect("written");
    folder.to_str().expect("UTF-8").to_owned()
}

fn contains_all(what: &str, text: &str, wanted: &[&str]) {
    wanted.iter().for_each(|wanted| assert!(text.contains(wanted), "{what}: no {wanted:?} in: {text}"));
}

fn json(finished: &Finished) -> serde_json::Value {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_slice(&finished.stdout).expect("JSON")
}

/// Each by itself: `index` and `read` say where the damage is and what can be done, or read what there is.
#[test]
fn each_bad_shard_is_read_right_or_told_of() {
    let scratch = Scratch::new("bad-alone");
    for (name, bytes, outcome) in cases() {
        let data = put(&scratch.join(name), &bytes);
        let indexed = program::run(["index", &data]);
        let read = program::run(["read", &data, "--json", "--batch-size", "4"]);
        match outcome {
            Samples(samples) => {
                assert_eq!(indexed.code, Some(0), "{name}: {}", indexed.stderr);
                assert_eq!(json(&read)["samples"], samples, "{name}");
                assert_eq!(indexed.stderr.contains("no sample in these shards"), samples == 0, "{name}");
            }
            Damaged(said) => {
                for done in [indexed, read] {
                    assert_eq!(done.code, Some(5), "{name}: {}", done.stderr);
                    contains_all(name, &done.stderr, said);
                    contains_all(name, &done.stderr, &["--skip-damaged"]);
                    assert_eq!(done.stderr.matches("s.tar").count(), 1, "{name}: said once: {}", done.stderr);
                }
            }
        }
    }
}

/// All of them in one server: what can be read is, what cannot says why, and the good dataset is served.
#[test]
fn bad_shards_take_no_other_dataset_down() {
    let scratch = Scratch::new("bad-served");
    let cases: Vec<_> =
        cases().into_iter().map(|(name, bytes, outcome)| (name, put(&scratch.join(name), &bytes), outcome)).collect();
    let good = put(&scratch.join("good"), &good());
    let mut datasets: Vec<(&str, &str)> = cases.iter().map(|(name, data, _)| (*name, data.as_str())).collect();
    datasets.push(("good", &good));
    let mut server = Server::start_unready(&datasets, &scratch.join("state"), &[]);
    server.running.line(PATIENCE, |line| line == "ready: good");
    let read = |name: &str| server.client("read", name, &["--json", "--batch-size", "4"]).finish(PATIENCE);
    let list = program::run(["ls", &server.url, "--trust", &server.trust, "--json"]);
    let list = json(&list);
    for (name, _, outcome) in &cases {
        let listed = list["datasets"].as_array().expect("a list").iter().find(|one| one["name"] == **name);
        let listed = listed.unwrap_or_else(|| panic!("{name} is not listed"));
        match outcome {
            Samples(samples) => {
                assert_eq!((&listed["state"], &listed["samples"]), (&"ready".into(), &(*samples).into()), "{name}");
                assert_eq!(json(&read(name))["samples"], *samples, "{name}");
            }
            Damaged(said) => {
                assert_eq!(listed["state"], "damaged", "{name}");
                contains_all(name, listed["error"].as_str().expect("why"), said);
                let refused = read(name);
                assert!(refused.code.is_some_and(|code| code != 0), "{name}");
                contains_all(name, &refused.stderr, said);
            }
        }
    }
    let whole = json(&read("good"));
    assert_eq!((&whole["samples"], &whole["bytes"]), (&20.into(), &(20 * 2001).into()));
}

/// Keys are bytes of the shard's: found as they are, and never let loose on a terminal.
#[test]
fn odd_keys_are_found_and_shown_safely() {
    let scratch = Scratch::new("bad-keys");
    let data = |wanted: &str| {
        let (name, bytes, _) = cases().into_iter().find(|(name, ..)| *name == wanted).expect("a case");
        put(&scratch.join(name), &bytes)
    };
    let twice = program::run(["get", &data("samekey"), "--key", "a"]);
    assert_eq!(twice.code, Some(1), "{}", twice.stderr);
    contains_all("samekey", &twice.stderr, &["2 samples with the key \"a\"", "0", "2"]);
    let dots = program::run(["get", &data("dots"), "--key", "../../etc/x", "--field", "x"]);
    assert_eq!((dots.code, dots.text()), (Some(0), "1"), "{}", dots.stderr);
    for (name, shown) in
        [("nul", r"key a\u{0}b"), ("steering", r"key a\u{1b}[2Jb\u{9b}"), ("notutf8", "key \u{fffd}\u{fffd}")]
    {
        let got = program::run(["get", &data(name), "--sample", "0"]);
        assert_eq!(got.code, Some(0), "{name}: {}", got.stderr);
        contains_all(name, got.text(), &[shown]);
        assert!(!got.text().contains(['\0', '\x1b', '\u{9b}']), "{name}: {:?}", got.text());
    }
}

/// An index whose records are damaged is found out when they are asked for: told at once and for good, by name; other
/// datasets are served, and the next start makes it anew.
#[test]
fn an_index_damaged_under_a_server() {
    let scratch = Scratch::new("bad-index");
    let (a, b) = (put(&scratch.join("a"), &good()), put(&scratch.join("b"), &good()));
    let state = scratch.join("state");
    drop(Server::start(&[("a", &a), ("b", &b)], &state, &[]));
    let index = state.join("indexes/a.fbi");
    let mut bytes = fs::read(&index).expect("there");
    bytes[4096 + 300] ^= 1;
    fs::write(&index, bytes).expect("written");

    let server = Server::start(&[("a", &a), ("b", &b)], &state, &[]);
    let begun = std::time::Instant::now();
    let refused = server.client("read", "a", &["--batch-size", "4"]).finish(PATIENCE);
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    contains_all("read", &refused.stderr, &["the index is damaged: bytes 4096 to", "makes it anew"]);
    assert!(begun.elapsed().as_secs() < 4, "it was asked for again and again");
    assert_eq!(json(&server.client("read", "b", &["--json"]).finish(PATIENCE))["samples"], 20);
    let told = server.running.stderr();
    assert_eq!(told.matches("do not match their checksum").count(), 1, "once: {told}");
    drop(server);
    let server = Server::start(&[("a", &a), ("b", &b)], &state, &[]);
    assert_eq!(json(&server.client("read", "a", &["--json"]).finish(PATIENCE))["samples"], 20);
    assert!(server.running.stderr().contains("was of no use and was made anew"), "{}", server.running.stderr());
}

/// An index that a newer program wrote is left alone, by everybody.
#[test]
fn an_index_of_the_future() {
    let scratch = Scratch::new("future-index");
    let (a, b) = (put(&scratch.join("a"), &good()), put(&scratch.join("b"), &good()));
    assert_eq!(program::run(["index", &a]).code, Some(0));
    let index = scratch.join("a/forebay.fbi");
    let mut bytes = fs::read(&index).expect("there");
    bytes[8] = 200;
    let crc = crc32c::crc32c(&bytes[..4092]);
    bytes[4092..4096].copy_from_slice(&crc.to_le_bytes());
    fs::write(&index, &bytes).expect("written");
    let file = index.to_str().expect("UTF-8");
    for arguments in [vec!["index", &a], vec!["verify", "--index", file], vec!["read", &a, "--index", file]] {
        let done = program::run(&arguments);
        assert_eq!(done.code, Some(1), "{arguments:?}: {}", done.stderr);
        contains_all("future", &done.stderr, &["forebay.fbi", "format 200", "newer program"]);
    }
    let state = scratch.join("state");
    fs::create_dir_all(state.join("indexes")).expect("a folder");
    fs::write(state.join("indexes/a.fbi"), &bytes).expect("written");
    fs::remove_file(&index).expect("removed");
    let mut server = Server::start_unready(&[("a", &a), ("b", &b)], &state, &[]);
    server.running.line(PATIENCE, |line| line == "ready: b");
    assert_eq!(json(&server.client("read", "b", &["--json"]).finish(PATIENCE))["samples"], 20);
    contains_all("served", &server.running.stderr(), &["dataset a", "format 200"]);
    assert!(fs::read(state.join("indexes/a.fbi")).expect("there") == bytes, "it is as it was");
}

/// Two at once into one file: one builds, the other waits, says so, and finds it done.
#[test]
fn two_builds_of_one_index() {
    let scratch = Scratch::new("two-builds");
    let data = scratch.join("data");
    fs::create_dir(&data).expect("a folder");
    let what = tars::Shards { shards: 8, samples: 800, sizes: tars::Sizes::Fixed(200_000), seed: 1 };
    let bytes: u64 = tars::write(&data, &what, |_| {})
        .expect("written")
        .iter()
        .map(|path| path.metadata().expect("there").len())
        .sum();
    let data = data.to_str().expect("UTF-8");
    let index = || program::start(["index", data, "--threads", "1", "--json"]);
    let first = index();
    until("the first has begun", || fs::exists(format!("{data}/forebay.fbi.part")).expect("a look"));
    first.signal("STOP");
    let second = index();
    until("the second says that it waits", || second.stderr().contains("is building it: waiting"));
    contains_all("the second", &second.stderr(), &[&format!("process {}", first.id())]);
    first.signal("CONT");
    let both = [first.finish(PATIENCE), second.finish(PATIENCE)].map(|done| json(&done));
    assert_eq!((&both[0]["bytes_read"], &both[1]["bytes_read"]), (&bytes.into(), &0.into()));
    assert_eq!(both[0]["version"], both[1]["version"]);
    assert_eq!(program::run(["verify", data]).code, Some(0));
}

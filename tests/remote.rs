//! Shards on nginx: read and served as those on this machine are, with few requests, and without a byte written.

use std::fs;
use std::path::Path;
use std::process::Command;

use forebay_system::program::{self, Finished, PATIENCE, Running, Server};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use forebay_system::web::{Nginx, NginxOptions};

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

#[test]
fn an_index_on_the_web_server_is_used_as_it_lies() {
    let scratch = Scratch::new("remote-index");
    let (data, cache) = (data(&scratch, 3, 90), scratch.join("cache"));
    let path = data.to_str().expect("UTF-8");
    let expected = json(&run(&cache, &[&["read", path], &ORDER[..]].concat()));
    let nginx = Nginx::with(scratch.path(), &scratch.join("nginx"), NginxOptions { log: true, tls: false });
    // Made where the shards are, and one under a name that says nothing.
    assert_eq!(run(&cache, &["index", path]).code, Some(0));
    fs::copy(data.join("forebay.fbi"), data.join("index")).expect("copied");
    // Names that are not as they stand in a URL.
    let odd = scratch.join("odd");
    fs::create_dir(&odd).expect("a folder");
    for number in 0..3 {
        let odd = odd.join(format!("a b%{number}.tar"));
        let from = data.join(format!("shard-00000{number}.tar"));
        fs::hard_link(from, odd).expect("linked");
    }
    assert_eq!(run(&cache, &["index", odd.to_str().expect("UTF-8"), "--output", path_in(&odd, "i.fbi")]).code, Some(0));
    for way in ["data/", "data/*.tar", "data/index", "data/forebay.fbi", "odd/i.fbi", "odd/"] {
        let before = nginx.requests().len();
        let finished = run(&cache, &[&["read", &nginx.url(way)], &ORDER[..]].concat());
        let found = json(&finished);
        for figure in ["samples", "bytes", "set_digest"] {
            assert_eq!(found[figure], expected[figure], "{figure} of {way}");
        }
        // Shards of other names are another version, and a seed orders another version otherwise.
        assert_eq!(found["order_digest"] == expected["order_digest"], way.starts_with("data"), "{way}");
        assert_eq!(finished.stderr, "", "{way}");
        let whole =
            |(_, path, range): &&(String, String, String)| path.ends_with(".tar") && range.starts_with("bytes=0-");
        let wholes = nginx.requests()[before..].iter().filter(whole).count();
        assert!(wholes <= 3, "{way}: {wholes} requests from the start of a shard: only samples are read");
    }
    // An index that fits no more is no reason to read what it does not know: one shard is read again.
    let shard = data.join("shard-000001.tar");
    let mut bytes = fs::read(&shard).expect("there");
    bytes.extend_from_slice(&[0; 1024]);
    fs::write(&shard, &bytes).expect("written");
    let finished = run(&cache, &[&["read", &nginx.url("data/index")], &ORDER[..]].concat());
    let said = format!("{:.1} MiB were read to index", bytes.len() as f64 / f64::from(1 << 20));
    assert!(finished.code == Some(0) && finished.stderr.contains(&said), "{said}: {}", finished.stderr);
    // What begins like an index and is none.
    fs::write(data.join("index"), [&fs::read(data.join("forebay.fbi")).expect("there")[..5000], &[7; 100]].concat())
        .expect("written");
    let finished = run(&cache, &["read", &nginx.url("data/index")]);
    assert!(finished.code == Some(2) && finished.stderr.contains("the index is damaged"), "{}", finished.stderr);
}

/// A path below a folder, as text that lives as long as the test.
fn path_in(folder: &Path, name: &str) -> &'static str {
    folder.join(name).into_os_string().into_string().expect("UTF-8").leak()
}

#[test]
fn certificates_are_checked() {
    let scratch = Scratch::new("remote-tls");
    let data = data(&scratch, 2, 60);
    let expected = json(&run(&scratch.join("cache"), &[&["read", data.to_str().expect("UTF-8")], &ORDER[..]].concat()));
    let nginx = Nginx::with(&data, &scratch.join("nginx"), NginxOptions { tls: true, log: false });
    let url = nginx.url("*.tar");
    let certificate = nginx.certificate.as_ref().expect("it speaks TLS");
    let read = |trusted: bool| {
        let mut command = Command::new(program::forebay());
        command.args([&["read", &url], &ORDER[..]].concat()).env("XDG_CACHE_HOME", scratch.join("cache"));
        if trusted {
            command.env("SSL_CERT_FILE", certificate);
        }
        Running::start(command).finish(PATIENCE)
    };
    let found = json(&read(true));
    assert_eq!(found["order_digest"], expected["order_digest"]);
    let finished = read(false);
    assert!(finished.code == Some(2) && finished.stderr.contains("certificate"), "{}", finished.stderr);
    let mut command = Command::new(program::forebay());
    Server::arguments(&mut command, &[("d", &url)], &scratch.join("state"), &[]);
    command.env("SSL_CERT_FILE", certificate);
    let mut server = Server::watch(command);
    server.running.line(PATIENCE, |line| line == "ready: d");
    let served = json(&server.client("read", "d", &ORDER).finish(PATIENCE));
    assert_eq!(served["order_digest"], expected["order_digest"]);
}

#[test]
fn neighbours_are_asked_for_together() {
    let scratch = Scratch::new("remote-requests");
    let data = data(&scratch, 2, 400);
    let nginx = Nginx::with(scratch.path(), &scratch.join("nginx"), NginxOptions { log: true, tls: false });
    assert_eq!(run(&scratch.join("cache"), &["index", data.to_str().expect("UTF-8")]).code, Some(0));
    let gets = |shards: &str, shuffle: &str| {
        let before = nginx.requests().len();
        let arguments = ["read", shards, "--shuffle", shuffle, "--batch-size=64", "--memory=128MiB", "--json"];
        let found = json(&run(&scratch.join("cache"), &arguments));
        assert_eq!(found["samples"], 400);
        let requests = nginx.requests();
        let gets = requests[before..].iter().filter(|(method, path, _)| method == "GET" && path.ends_with(".tar"));
        (gets.count() as u64, found["bytes"].as_u64().expect("bytes"))
    };
    let (ordered, bytes) = gets(&nginx.url("data/"), "none");
    // The loader asks for groups of about 1 MiB: each is one request, whatever samples and fields are in it.
    assert!(ordered * 700_000 <= bytes, "{ordered} requests for {bytes} bytes in order");
    let (shuffled, _) = gets(&nginx.url("data/"), "full");
    assert!(shuffled <= 400, "{shuffled} requests: label and picture of a sample lie together");
    // The server asks for as few.
    let server = Server::start(&[("d", &nginx.url("data/"))], &scratch.join("state"), &[]);
    let before = nginx.requests().len();
    json(&server.client("read", "d", &["--shuffle", "none", "--json", "--memory=128MiB"]).finish(PATIENCE));
    let served = (nginx.requests().len() - before) as u64;
    assert!(served * 700_000 <= bytes, "{served} requests of the server for {bytes} bytes in order");
}

#[test]
fn reading_opens_nothing_for_writing_and_stays_within_its_memory() {
    let scratch = Scratch::new("remote-writes");
    let data = data(&scratch, 4, 1600);
    let nginx = Nginx::start(&data, &scratch.join("nginx"));
    let trace = scratch.join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-s", "300", "-o"]).arg(&trace);
    command
        .args(["-e", "trace=open,openat,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,link,linkat,"]);
    let calls = command.get_args().last().expect("just given").to_string_lossy().trim_end_matches(',').to_owned();
    let mut command = Command::new("strace");
    command
        .args(["-f", "-qq", "-s", "300", "-o"])
        .arg(&trace)
        .args(["-e", &format!("{calls},symlink,symlinkat,memfd_create")]);
    command.arg(program::forebay()).args(["read", &nginx.url("*.tar")]).args(ORDER).env("HOME", scratch.join("home"));
    assert_eq!(Running::start(command).finish(PATIENCE).code, Some(0));
    let text = fs::read_to_string(&trace).expect("a trace");
    assert!(text.contains("memfd_create("), "the index is in memory");
    let harmless = |line: &&str| {
        let reads = line.contains("open") && !["O_WRONLY", "O_RDWR", "O_CREAT"].iter().any(|flag| line.contains(flag));
        reads || line.contains("memfd_create(") || line.contains("= -1 ") || line.contains("\"/dev/null\"")
    };
    let written: Vec<&str> = text.lines().filter(|line| !line.contains("+++") && !harmless(line)).collect();
    assert_eq!(written, [] as [&str; 0]);

    // The most memory that it had: half of 64 MiB is the pool, a quarter requests; the rest is the program and the index.
    let mut command = Command::new(program::forebay());
    command.args(["read", &nginx.url("*.tar"), "--epochs", "3"]).args(ORDER).env("HOME", scratch.join("home"));
    let mut running = Running::start(command);
    let (status, mut most) = (format!("/proc/{}/status", running.id()), 0);
    while running.ended().is_none() {
        let line = |text: String| text.lines().find(|line| line.starts_with("VmHWM:")).map(str::to_owned);
        let kib = fs::read_to_string(&status).ok().and_then(line);
        let kib = kib.and_then(|line| line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()));
        most = most.max(kib.unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let bytes: u64 =
        fs::read_dir(&data).expect("there").flatten().map(|file| file.metadata().expect("there").len()).sum();
    assert!(bytes > 150 << 20, "{bytes} bytes are too few to tell");
    assert!((20 << 10..128 << 10).contains(&most), "{most} KiB");
}

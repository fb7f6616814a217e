//! Other people's writers, readers and clients: real photographs packed by the `webdataset` package, by GNU tar and by
//! Python's tarfile; read by our library, by our program, and by HTTP/3 clients that share no code with us. Every byte is
//! compared with what Python reads from the same files.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use forebay_client::{LoaderOptions, Sample};
use forebay_system::program::{PATIENCE, Server, run};
use forebay_system::python;
use forebay_system::scratch::Scratch;
use forebay_system::world::{connect, within};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(300);
const WRITERS: [&str; 3] = ["webdataset", "tarfile", "gnutar"];
const SAMPLES: usize = 90;

/// A sample as Python reads it: its key, and of each field its length and SHA-256.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Expected {
    key: String,
    fields: BTreeMap<String, (u64, String)>,
}

/// One dataset for each writer, all on one server.
struct World {
    server: Server,
    expected: BTreeMap<&'static str, Vec<Expected>>,
    scratch: Scratch,
}

/// Made once for all tests that run at the same time, and gone with the last of them.
fn world() -> Arc<World> {
    static WORLD: Mutex<Weak<World>> = Mutex::new(Weak::new());
    let mut shared = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let world = Arc::new(World::new());
        *shared = Arc::downgrade(&world);
        world
    })
}

impl World {
    fn new() -> World {
        let scratch = Scratch::new("third-party");
        let mut expected = BTreeMap::new();
        let mut datasets = Vec::new();
        for writer in WRITERS {
            let folder = scratch.join(writer);
            let mut arguments = vec![folder.to_str().unwrap(), "--writer", writer, "--shards", "3", "--distinct", "30"];
            let count = SAMPLES.to_string();
            arguments.extend(["--count", &count]);
            if writer != "webdataset" {
                arguments.push("--long-names");
            }
            python::run("make_dataset.py", arguments);
            let shards = shards(&folder);
            let together = [PathBuf::from("--together")].into_iter().chain(shards.iter().cloned());
            let read = by_webdataset(&python::run("dump_webdataset.py", together));
            // Two readers that know nothing of each other agree, before anything of ours is measured by them.
            assert_eq!(documents(&python::run("dump_tarfile.py", &shards)), read, "{writer}");
            assert_eq!(read.len(), SAMPLES, "{writer}");
            expected.insert(writer, read);
            datasets.push((writer, folder.join("*.tar").to_str().unwrap().to_owned()));
        }
        let datasets: Vec<(&str, &str)> = datasets.iter().map(|(name, shards)| (*name, shards.as_str())).collect();
        let server = Server::start(&datasets, &scratch.join("state"), &[]);
        World { scratch, server, expected }
    }
}

fn shards(folder: &Path) -> Vec<PathBuf> {
    let mut shards: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "tar"))
        .collect();
    shards.sort();
    shards
}

/// What `dump_webdataset.py` printed.
fn by_webdataset(printed: &str) -> Vec<Expected> {
    let sample = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["error"].is_null(), "{line}");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let field = |field: &Value| (text(&field["name"]), (field["bytes"].as_u64().unwrap(), text(&field["sha256"])));
        Expected { key: text(&line["key"]), fields: line["fields"].as_array().unwrap().iter().map(field).collect() }
    };
    printed.lines().map(sample).collect()
}

/// What the other scripts print: a document for each sample, in order.
fn documents(printed: &str) -> Vec<Expected> {
    let sample = |(at, line): (usize, &str)| {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["ordinal"].is_null() || line["ordinal"] == at, "{line}");
        let field = |(name, field): (&String, &Value)| {
            (name.clone(), (field["bytes"].as_u64().unwrap(), field["sha256"].as_str().unwrap().to_owned()))
        };
        let fields = line["fields"].as_object().unwrap().iter().map(field).collect();
        Expected { key: line["key"].as_str().unwrap().to_owned(), fields }
    };
    printed.lines().enumerate().map(sample).collect()
}

/// SHA-256 by the system's own program.
fn sha256(bytes: &[u8]) -> String {
    let mut command = Command::new("sha256sum");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sha256sum");
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

fn same(sample: &Sample, expected: &Expected) {
    let names: BTreeSet<&str> = expected.fields.keys().map(String::as_str).collect();
    for name in sample.fields() {
        let field = sample.field_by_name(name);
        let Some((bytes, digest)) = expected.fields.get(&**name) else {
            assert!(field.is_none(), "{}: no {name} in the source", expected.key);
            continue;
        };
        let field = field.unwrap_or_else(|| panic!("{}: {name} is missing", expected.key));
        assert_eq!(field.len() as u64, *bytes, "{}: length of {name}", expected.key);
        assert_eq!(sha256(field), *digest, "{}: bytes of {name}", expected.key);
    }
    assert!(names.iter().all(|name| sample.fields().iter().any(|field| &**field == *name)), "{}", expected.key);
}

#[test]
fn a_shuffled_epoch_through_our_library() {
    let world = world();
    for writer in WRITERS {
        let world = world.clone();
        within(LIMIT, move || {
            let expected = &world.expected[writer];
            let dataset = connect(&world.server, 64 << 20).dataset(writer).unwrap();
            assert_eq!(dataset.description().samples, SAMPLES as u64);
            let mut order = Vec::new();
            for batch in dataset.loader(LoaderOptions { batch_size: 16, seed: 5, ..LoaderOptions::default() }).unwrap()
            {
                for sample in batch.unwrap().iter() {
                    same(&sample, &expected[sample.ordinal() as usize]);
                    order.push(sample.ordinal());
                }
            }
            assert!(!order.is_sorted(), "it is shuffled");
            order.sort_unstable();
            assert!(order.into_iter().eq(0..SAMPLES as u64), "{writer}: each sample exactly once");
        });
    }
}

#[test]
fn fields_through_our_program() {
    let world = world();
    for writer in WRITERS {
        let (url, trust) = (world.server.dataset(writer), world.server.trust.as_str());
        for (ordinal, expected) in world.expected[writer].iter().enumerate().step_by(SAMPLES / 4) {
            let ordinal = ordinal.to_string();
            for (name, (_, digest)) in &expected.fields {
                for which in [["--sample", &ordinal], ["--key", &expected.key]] {
                    let done = run(["get", &url, "--trust", trust, "--field", name].iter().chain(&which));
                    assert_eq!(done.code, Some(0), "{writer} {which:?} {name}: {}", done.stderr);
                    assert_eq!(sha256(&done.stdout), *digest, "{writer} {which:?} {name}");
                }
            }
        }
    }
}

fn authority(world: &World) -> &str {
    world.server.url.trim_start_matches("https://")
}

/// Their certificate authority is the server's own certificate, as it lies in the state directory.
fn authorities(world: &World) -> String {
    world.scratch.join("state/certificate.pem").to_str().unwrap().to_owned()
}

#[test]
fn everything_through_aioquic() {
    let world = world();
    for writer in WRITERS {
        let read = python::run("h3_get.py", [authority(&world), writer, &authorities(&world)]);
        assert_eq!(documents(&read), world.expected[writer], "{writer}");
    }
}

fn through_curl(client: &str) {
    let world = world();
    for writer in WRITERS {
        let read = python::run("curl_get.py", [client, &world.server.url, writer, &authorities(&world)]);
        assert_eq!(documents(&read), world.expected[writer], "{writer} through {client}");
    }
}

#[test]
fn everything_through_pycurl() {
    through_curl("pycurl");
}

#[test]
fn everything_through_curl_cffi() {
    through_curl("curl_cffi");
}

/// Three of them and a loader of ours at once: nobody gets what another asked for.
#[test]
fn all_of_them_at_once() {
    let world = world();
    std::thread::scope(|scope| {
        for client in ["pycurl", "curl_cffi"] {
            scope.spawn(move || through_curl(client));
        }
        scope.spawn(|| {
            let read = python::run("h3_get.py", [authority(&world), "gnutar", &authorities(&world)]);
            assert_eq!(documents(&read), world.expected["gnutar"]);
        });
        let flags = ["--epochs", "20", "--batch-size", "16", "--memory", "64MiB", "--json"];
        let done = world.server.client("read", "tarfile", &flags).finish(PATIENCE);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        let summary: Value = serde_json::from_str(done.text()).unwrap();
        assert_eq!(summary["samples"], 20 * SAMPLES);
    });
}

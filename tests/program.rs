//! The program as its users meet it: what it prints, how it ends, what it leaves alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use forebay_client::blocking::Client;
use forebay_client::transport::sim::delay::{DelayConfig, DelayLine};
use forebay_client::{Batch, Error};
use forebay_system::program::{PATIENCE, Running, Server, forebay, run, start};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{Shards, Sizes, Written};
use forebay_system::world::{config, shards, until, within};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

struct World {
    scratch: Scratch,
    written: Vec<Written>,
    pattern: String,
    server: Server,
}

impl World {
    fn new(name: &str, samples: usize, sizes: Sizes, extra: &[&str]) -> World {
        let scratch = Scratch::new(name);
        let (written, pattern) = shards(&scratch.join("data"), &Shards { shards: 4, samples, sizes, seed: 5 });
        let server = Server::start(&[("set", &pattern)], &scratch.join("state"), extra);
        World { scratch, written, pattern, server }
    }

    fn small(name: &str) -> World {
        World::new(name, 40, Sizes::Cycle(vec![1, 900, 0, 30_000]), &[])
    }

    /// Waits until this many more bytes were read for somebody.
    fn served(&self, bytes: u64) {
        let before = self.server.running.bytes_read();
        until("samples are read", || self.server.running.bytes_read() > before + bytes);
    }

    fn certificate(&self) -> String {
        self.scratch.join("state/certificate.pem").to_str().unwrap().to_owned()
    }
}

/// `forebay serve` with this listen address, and the lines it prints until its dataset is ready.
fn lines_of_serve(pattern: &str, state: &Path, extra: &[&str]) -> (Running, Vec<String>) {
    let dataset = format!("set={pattern}");
    let arguments = ["serve", &dataset, "--state-dir", state.to_str().unwrap()];
    let mut running = start(arguments.iter().chain(extra));
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line: &String| line != "ready: set") {
        lines.push(running.line(PATIENCE, |_| true));
    }
    (running, lines)
}

#[test]
fn what_serve_prints_works_when_it_is_pasted() {
    within(LIMIT, || {
        let scratch = Scratch::new("lines");
        let what = Shards { shards: 2, samples: 10, sizes: Sizes::Fixed(1_000), seed: 1 };
        let (_, pattern) = shards(&scratch.join("data"), &what);
        let (_running, lines) = lines_of_serve(&pattern, &scratch.join("state"), &["--listen", "127.0.0.1:0"]);
        let url = lines[0].strip_prefix("listening on ").unwrap_or_else(|| panic!("{lines:?}"));
        assert!(url.starts_with("https://127.0.0.1:"), "{lines:?}");
        assert!(lines[1].starts_with("certificate SHA256:"), "{lines:?}");
        let pasted = lines[2].trim();
        assert!(pasted.starts_with("forebay ls https://"), "{lines:?}");
        // As a shell reads it, with the program in its path.
        let path = format!("{}:/usr/bin:/bin", forebay().parent().unwrap().display());
        let mut shell = Command::new("sh");
        shell.args(["-c", pasted]).env("PATH", path).env_remove("FOREBAY_TRUST").env_remove("FOREBAY_CA");
        let done = Running::start(shell).finish(PATIENCE);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert!(done.text().lines().any(|line| line.starts_with("set ") && line.contains("ready")), "{}", done.text());
        let summary = lines.iter().find(|line| line.starts_with("set: 10 samples")).unwrap();
        assert!(summary.contains("2 shards") && summary.contains("version b3-"), "{summary}");
    });
}

#[test]
fn every_way_to_trust() {
    within(LIMIT, || {
        let world = World::small("trust");
        let url = world.server.dataset("set");
        let get = |trust: &[&str]| run(["get", &url, "--sample", "1", "--field", "jpg"].iter().chain(trust));
        let served = |done: forebay_system::program::Finished| {
            assert_eq!(done.code, Some(0), "{}", done.stderr);
            assert!(done.stdout == world.written[1].jpg, "the bytes of the field and no others");
            done.stderr
        };
        assert_eq!(served(get(&["--trust", &world.server.trust])), "");
        assert_eq!(served(get(&["--ca", &world.certificate()])), "");
        assert!(served(get(&["--insecure"])).contains("warning: --insecure"), "it says so each time");
        assert!(served(get(&["--insecure"])).contains("warning: --insecure"), "it says so each time");
        for (name, value) in [("FOREBAY_TRUST", world.server.trust.clone()), ("FOREBAY_CA", world.certificate())] {
            let mut command = Command::new(forebay());
            command.args(["get", &url, "--sample", "1", "--field", "jpg"]);
            command.env_remove("FOREBAY_TRUST").env_remove("FOREBAY_CA").env(name, value);
            assert_eq!(served(Running::start(command).finish(PATIENCE)), "", "{name}");
        }
        let done = get(&[]);
        assert_eq!(done.code, Some(3), "not by the system's authorities: {}", done.stderr);
        assert!(done.stderr.contains("certificate"), "{}", done.stderr);
        let other = format!("SHA256:{}", "00".repeat(32));
        let done = get(&["--trust", &other]);
        assert!(done.code.is_some_and(|code| code != 0) && done.stdout.is_empty(), "{}", done.stderr);
        // Several ways at once make no sense, nor does a file that holds no certificate.
        assert_eq!(get(&["--insecure", "--trust", &world.server.trust]).code, Some(2));
        let nonsense = world.scratch.join("nonsense.pem");
        fs::write(&nonsense, "no certificate").unwrap();
        assert_eq!(get(&["--ca", nonsense.to_str().unwrap()]).code, Some(2));
        assert_eq!(get(&["--trust", "SHA256:no"]).code, Some(2));
    });
}

#[test]
fn command_lines_that_make_no_sense_end_with_2() {
    within(LIMIT, || {
        let world = World::small("usage");
        let (dataset, state) = (format!("set={}", world.pattern), world.scratch.join("state-2"));
        let serve = |extra: &[&str]| {
            let arguments = ["serve", &dataset, "--state-dir", state.to_str().unwrap()];
            run(arguments.iter().chain(extra))
        };
        let done = serve(&["--listen", "0.0.0.0:0"]);
        assert_eq!(done.code, Some(2), "{}", done.stderr);
        assert!(done.stderr.contains("--open"), "{}", done.stderr);
        assert!(!state.exists(), "refused before anything was made");
        assert_eq!(serve(&["--listen", "[::]:0"]).code, Some(2));
        let done = serve(&["--listen", "127.0.0.1:0", "--memory", "1MiB"]);
        assert_eq!(done.code, Some(2), "{}", done.stderr);
        assert!(done.stderr.contains("memory budget is 1048576 bytes, but pool"), "with the sum: {}", done.stderr);
        assert_eq!(serve(&["--cert", "only.pem"]).code, Some(2));
        let done = serve(&["--listen", "127.0.0.1:0", "--rdma", "sett"]);
        assert_eq!(done.code, Some(2), "{}", done.stderr);
        assert!(done.stderr.contains("no dataset sett is to be served"), "{}", done.stderr);
        let done = run(["serve", "set=/no/such/*.tar", "--state-dir", state.to_str().unwrap()]);
        assert_eq!(done.code, Some(2), "{}", done.stderr);
        assert!(done.stderr.contains("/no/such"), "{}", done.stderr);

        let url = world.server.dataset("set");
        let trust = world.server.trust.as_str();
        for arguments in [
            &["frobnicate"] as &[&str],
            &["read"],
            &["read", &url, "--batch-size", "0"],
            &["read", &url, "--trust", trust, "--rank", "3", "--world-size", "3"],
            &["read", &url, "--memory", "lots"],
            &["read", &world.server.url, "--trust", trust],
            &["read", "http://127.0.0.1:1/set"],
            &["get", &url, "--trust", trust],
            &["get", &url, "--trust", trust, "--sample", "1", "--key", "a"],
            &["ls", "not a url"],
        ] {
            let done = run(arguments);
            assert_eq!(done.code, Some(2), "{arguments:?}: {}", done.stderr);
            assert!(!done.stderr.is_empty() && done.stdout.is_empty(), "{arguments:?}");
        }
    });
}

#[test]
fn a_server_that_is_not_there_ends_with_3() {
    within(LIMIT, || {
        // A port that was free a moment ago.
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let url = format!("https://127.0.0.1:{}/set", socket.local_addr().unwrap().port());
        let started = Instant::now();
        let done = run(["read", &url, "--insecure"]);
        assert_eq!(done.code, Some(3), "{}", done.stderr);
        assert!(done.stderr.contains("127.0.0.1"), "{}", done.stderr);
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    });
}

#[test]
fn a_server_lost_for_good_ends_a_read_with_3() {
    within(LIMIT, || {
        let world = World::small("lost");
        let flags = ["--epochs", "1000000", "--stall-timeout", "2s", "--json", "--batch-size", "4"];
        let reader = world.server.client("read", "set", &flags);
        // So much that batches were delivered by then.
        world.served(100_000_000);
        drop(world.server);
        let done = reader.finish(PATIENCE);
        assert_eq!(done.code, Some(3), "{}", done.stderr);
        let summary: Value = serde_json::from_str(done.text()).unwrap();
        assert!(summary["samples"].as_u64().unwrap() > 0 && summary["error"].is_string(), "{summary}");
    });
}

#[test]
fn ls_and_get_show_what_there_is() {
    within(LIMIT, || {
        let world = World::small("shown");
        let trust = world.server.trust.as_str();
        let ok = |arguments: &[&str]| {
            let done = run(arguments.iter().chain(&["--trust", trust]));
            assert_eq!(done.code, Some(0), "{arguments:?}: {}", done.stderr);
            done.text().to_owned()
        };
        let list = ok(&["ls", &world.server.url]);
        assert!(list.starts_with("dataset") && list.contains("\nset ") && list.contains("ready"), "{list}");
        let json: Value = serde_json::from_str(&ok(&["ls", &world.server.url, "--json"])).unwrap();
        assert_eq!(json["datasets"][0]["samples"], 40, "{json}");

        let url = world.server.dataset("set");
        let text = ok(&["ls", &url]);
        for wanted in ["samples   40\n", "shards    4\n", "largest   ", "version   b3-", "cls", "jpg"] {
            assert!(text.contains(wanted), "{wanted} in {text}");
        }
        let json: Value = serde_json::from_str(&ok(&["ls", &url, "--json"])).unwrap();
        let bytes: usize = world.written.iter().map(|one| one.jpg.len() + one.cls.len()).sum();
        assert_eq!(json["bytes"], bytes);
        assert_eq!(
            json["largest_sample"],
            world.written.iter().map(|one| one.jpg.len() + one.cls.len()).max().unwrap()
        );

        let seventh = &world.written[7];
        let text = ok(&["get", &url, "--sample", "7"]);
        assert!(text.contains(&format!("key {}", seventh.key)) && text.contains("30,000"), "{text}");
        let done = run(["get", &url, "--trust", trust, "--key", &seventh.key, "--field", "jpg"]);
        assert!(done.code == Some(0) && done.stdout == seventh.jpg, "{}", done.stderr);
        // An empty field is no bytes, and no error.
        let done = run(["get", &url, "--trust", trust, "--sample", "2", "--field", "jpg"]);
        assert!(done.code == Some(0) && done.stdout.is_empty(), "{}", done.stderr);
        for (arguments, said) in [
            (["--sample", "40", "--field", "jpg"], "40 samples"),
            (["--key", "nobody", "--field", "jpg"], "nobody"),
            (["--sample", "1", "--field", "mask"], "mask"),
        ] {
            let done = run(["get", &url, "--trust", trust].iter().chain(&arguments));
            assert!(done.code.is_some_and(|code| code != 0) && done.stdout.is_empty(), "{arguments:?}");
            assert!(done.stderr.contains(said), "{arguments:?}: {}", done.stderr);
        }
        let done = run(["ls", &world.server.dataset("nothing"), "--trust", trust]);
        assert!(done.code.is_some_and(|code| code != 0) && done.stderr.contains("nothing"), "{}", done.stderr);
    });
}

#[test]
fn the_summary_of_read_for_machines() {
    within(LIMIT, || {
        let world = World::small("json");
        let done =
            world.server.client("read", "set", &["--json", "--epochs", "2", "--batch-size", "9"]).finish(PATIENCE);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        let summary: Value = serde_json::from_str(done.text()).unwrap();
        let bytes: usize = world.written.iter().map(|one| one.jpg.len() + one.cls.len()).sum();
        for (name, value) in
            [("epochs", 2), ("rank", 0), ("world_size", 1), ("batches", 10), ("samples", 80), ("bytes", 2 * bytes)]
        {
            assert_eq!(summary[name], value, "{name}: {summary}");
        }
        for name in ["corrupt", "storage_errors", "skipped", "exit_code"] {
            assert_eq!(summary[name], 0, "{name}: {summary}");
        }
        for name in [
            "seconds",
            "first_batch_seconds",
            "samples_per_second",
            "megabytes_per_second",
            "group_latency_p50_ms",
            "group_latency_p99_ms",
            "cpu_seconds",
            "cpu_seconds_per_gb",
            "pool_bytes",
            "groups",
        ] {
            assert!(summary[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {summary}");
        }
        assert!(summary["error"].is_null() && summary["set_digest"].is_null(), "{summary}");
        assert_eq!(summary["url"], world.server.dataset("set"));
    });
}

#[test]
fn read_ends_at_ctrl_c_and_says_what_it_did() {
    within(LIMIT, || {
        let world = World::small("interrupted");
        let reader = world.server.client("read", "set", &["--epochs", "1000000", "--json"]);
        world.served(3_000_000);
        reader.signal("INT");
        let done = reader.finish(PATIENCE);
        assert_eq!(done.code, Some(130), "{}", done.stderr);
        let summary: Value = serde_json::from_str(done.text()).unwrap();
        assert!(summary["exit_code"] == 130 && summary["samples"].as_u64().unwrap() > 0, "{summary}");
    });
}

/// Every file under a folder, with what would tell that it was touched.
fn listing(folder: &Path) -> BTreeMap<String, (u64, SystemTime, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let about = entry.metadata().unwrap();
        let changed = {
            use std::os::unix::fs::MetadataExt;
            SystemTime::UNIX_EPOCH + Duration::new(about.ctime() as u64, about.ctime_nsec() as u32)
        };
        let name = entry.file_name().to_str().unwrap().to_owned();
        found.insert(name, (about.len(), about.modified().unwrap(), changed));
    }
    let about = fs::metadata(folder).unwrap();
    found.insert(".".into(), (0, about.modified().unwrap(), about.modified().unwrap()));
    found
}

#[test]
fn the_data_folder_is_never_written_to() {
    within(LIMIT, || {
        let scratch = Scratch::new("read-only");
        let what = Shards { shards: 3, samples: 30, sizes: Sizes::Fixed(5_000), seed: 2 };
        let (_, pattern) = shards(&scratch.join("data"), &what);
        let before = listing(&scratch.join("data"));
        for _ in 0..2 {
            let server = Server::start(&[("set", &pattern)], &scratch.join("state"), &[]);
            assert_eq!(server.client("read", "set", &[]).finish(PATIENCE).code, Some(0));
            server.running.signal("TERM");
            let started = Instant::now();
            assert_eq!(server.running.finish(PATIENCE).code, Some(0));
            assert!(started.elapsed() < Duration::from_secs(10), "a reader that is gone is not waited for");
        }
        assert_eq!(listing(&scratch.join("data")), before);
        let state = listing(&scratch.join("state"));
        assert!(state.contains_key("certificate.pem") && state.contains_key("indexes"), "{state:?}");
    });
}

#[test]
fn a_restart_reads_only_what_changed() {
    within(LIMIT, || {
        let scratch = Scratch::new("incremental");
        let what = Shards { shards: 4, samples: 40, sizes: Sizes::Fixed(100_000), seed: 2 };
        let (_, pattern) = shards(&scratch.join("data"), &what);
        let figures = || {
            let (running, lines) = lines_of_serve(&pattern, &scratch.join("state"), &["--listen", "127.0.0.1:0"]);
            running.signal("TERM");
            assert_eq!(running.finish(PATIENCE).code, Some(0));
            let line = lines.iter().find(|line| line.starts_with("set: ")).unwrap().clone();
            let version = line.split("version ").nth(1).unwrap().split(',').next().unwrap().to_owned();
            let read = line.split('(').nth(1).unwrap().split(" read)").next().unwrap().to_owned();
            (version, read)
        };
        let (version, read) = figures();
        assert!(read.contains("MiB"), "everything: {read}");
        assert_eq!(figures(), (version.clone(), "0 B".to_owned()));
        // Another shard in the place of one: only that is read.
        let folder = scratch.join("data");
        let other = scratch.join("other");
        let fresh = Shards { shards: 1, samples: 2, sizes: Sizes::Fixed(1_000), seed: 3 };
        shards(&other, &fresh);
        fs::rename(other.join("shard-000000.tar"), folder.join("shard-000002.tar")).unwrap();
        let (changed, read) = figures();
        assert_ne!(changed, version);
        let size = fs::metadata(folder.join("shard-000002.tar")).unwrap().len();
        assert_eq!(read, format!("{:.1} KiB", size as f64 / 1024.0), "of {size} bytes");
        assert_eq!(figures(), (changed, "0 B".to_owned()));
    });
}

/// A server and a reader that gets its 30 MB over a wire of 10 MB/s, and is in the middle of it.
fn a_slow_reader(name: &str, grace: &str) -> (World, SlowReader) {
    let world = World::new(name, 4, Sizes::Fixed(30_000_000), &["--grace", grace]);
    let target = world.server.url.trim_start_matches("https://").parse().unwrap();
    let wire = DelayConfig { rate: Some(10_000_000), queue: 1 << 20, ..DelayConfig::default() };
    let line = DelayLine::start(target, wire).unwrap();
    let url = format!("https://{}", line.addr()).parse().unwrap();
    let client = Client::connect(&url, config(&world.server, 128 << 20)).unwrap();
    let dataset = client.dataset("set").unwrap();
    let thread = std::thread::spawn(move || dataset.fetch(&[2], Some(&["jpg"])));
    until("a tenth is there", || line.stats().1.bytes > 3_000_000);
    (world, SlowReader { thread, line })
}

struct SlowReader {
    thread: std::thread::JoinHandle<Result<Batch, Error>>,
    line: DelayLine,
}

#[test]
fn what_is_in_flight_may_finish_after_sigterm() {
    within(LIMIT, || {
        let (world, reader) = a_slow_reader("grace", "90s");
        world.server.running.signal("TERM");
        assert!(!reader.thread.is_finished(), "too fast for this test");
        let batch = reader.thread.join().unwrap().unwrap();
        assert!(batch.field(0, 0) == Some(&world.written[2].jpg), "the whole answer");
        let started = Instant::now();
        assert_eq!(world.server.running.finish(PATIENCE).code, Some(0));
        assert!(
            started.elapsed() < Duration::from_secs(45),
            "it ends once nothing is in flight, or the reader counts as gone"
        );
        drop(reader.line);
    });
}

#[test]
fn grace_ends() {
    within(LIMIT, || {
        let (world, reader) = a_slow_reader("grace-ends", "500ms");
        world.server.running.signal("TERM");
        assert_eq!(world.server.running.finish(PATIENCE).code, Some(0));
        assert!(!reader.thread.is_finished() || reader.thread.join().unwrap().is_err(), "it was not waited for");
        drop(reader.line);
    });
}

#[test]
fn a_second_signal_ends_at_once() {
    within(LIMIT, || {
        let (world, reader) = a_slow_reader("second", "600s");
        let mut server = world.server.running;
        server.signal("TERM");
        until("it says that it ends", || server.stderr().contains("ending"));
        std::thread::sleep(Duration::from_millis(300));
        assert!(server.ended().is_none());
        server.signal("TERM");
        assert_eq!(server.finish(Duration::from_secs(10)).code, Some(130));
        assert!(!reader.thread.is_finished() || reader.thread.join().unwrap().is_err(), "it was not waited for");
        drop(reader.line);
    });
}

//! Disks that are full or broken, and samples of extreme sizes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_system::program::{self, Finished, PATIENCE, Running, Server, forebay};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use forebay_system::world::within;

fn json(finished: &Finished) -> serde_json::Value {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_slice(&finished.stdout).expect("JSON")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn shards(folder: &Path, shards: usize, samples: usize, size: usize) -> String {
    fs::create_dir_all(folder).expect("a folder");
    let what = Shards { shards, samples, sizes: Sizes::Fixed(size), seed: 1 };
    tars::write(folder, &what, |_| {}).expect("written");
    text(folder).to_owned()
}

/// Runs a shell script in a mount namespace of its own, where a file system of `size` bytes is mounted on `folder`; `$F` is
/// the program. `None` where this machine does not allow that.
fn on_a_small_disk(folder: &Path, size: &str, script: &str) -> Option<Finished> {
    let mount = format!("mount -t tmpfs -o size={size} tmpfs {}", text(folder));
    let alone = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", script]).env("F", forebay());
        command
    };
    if !alone(&mount).output().is_ok_and(|output| output.status.success()) {
        eprintln!("!! SKIPPED: a full disk: this machine lets nobody mount one");
        return None;
    }
    Some(Running::start(alone(&format!("{mount} && {script}"))).finish(PATIENCE))
}

/// An index, its notes, a reader's cache, packed shards: each says what could not be written and leaves no half of it.
#[test]
fn full_disks_are_told_of() {
    let scratch = Scratch::new("full");
    let data = shards(&scratch.join("data"), 4, 8000, 1);
    let disk = scratch.join("disk");
    fs::create_dir(&disk).expect("a folder");
    let at = text(&disk);
    let left = "; code=$?; find DISK -type f -exec basename {} \\; | sort; exit $code".replace("DISK", at);

    let run = |size: &str, script: &str| on_a_small_disk(&disk, size, &format!("{script}{left}"));
    let Some(index) = run("256k", &format!("$F index {data} --threads 1 -o {at}/x.fbi")) else { return };
    assert_eq!(index.code, Some(1), "{}", index.stderr);
    for said in ["cannot write its index", "x.fbi", "No space left on device", "Make room and run it again"] {
        assert!(index.stderr.contains(said), "no {said:?} in {}", index.stderr);
    }
    assert_eq!(index.text(), "x.fbi.lock\nx.fbi.part\n", "the notes, and no half of an index");

    // There is room again: what was noted is not read again.
    let script = format!(
        "$F index {data} --threads 1 -o {at}/x.fbi 2>/dev/null; mount -o remount,size=16m {at} && \
         $F index {data} -o {at}/x.fbi --json"
    );
    let again = on_a_small_disk(&disk, "512k", &script).expect("it was allowed before");
    let total: u64 = fs::read_dir(&data).expect("there").flatten().map(|e| e.metadata().expect("there").len()).sum();
    let read = json(&again)["bytes_read"].as_u64().expect("a number");
    assert!(read < total, "{read} of {total}");

    let cache = run("64k", &format!("XDG_CACHE_HOME={at} $F read {data}")).expect("allowed");
    assert_eq!(cache.code, Some(1), "{}", cache.stderr);
    assert!(cache.stderr.contains(at) && cache.stderr.contains("No space left on device"), "{}", cache.stderr);
    assert!(!cache.text().contains(".tmp"), "{}", cache.text());

    let photos = scratch.join("photos");
    fs::create_dir(&photos).expect("a folder");
    (0..20).for_each(|n| fs::write(photos.join(format!("{n:02}.jpg")), vec![n; 30_000]).expect("written"));
    let pack = format!("$F pack {} {at}/out --samples-per-shard 4", text(&photos));
    let packed = run("300k", &pack).expect("allowed");
    assert_eq!(packed.code, Some(1), "{}", packed.stderr);
    assert!(packed.stderr.contains("cannot write") && packed.stderr.contains("shard-000002.tar"), "{}", packed.stderr);
    assert_eq!(packed.text(), "shard-000000.tar\nshard-000001.tar\n", "whole shards stay");
}

/// A dataset whose index finds no room is not served; another one of the same server is.
#[test]
fn a_full_state_folder_takes_only_one_dataset_down() {
    let scratch = Scratch::new("full-state");
    let (large, small) = (shards(&scratch.join("large"), 4, 8000, 1), shards(&scratch.join("small"), 1, 20, 1000));
    let state = scratch.join("state");
    fs::create_dir(&state).expect("a folder");
    let script = format!(
        "$F serve large={large} small={small} --listen 127.0.0.1:0 --state-dir {0} >{0}.out & pid=$!; \
         until grep -qs 'ready: small' {0}.out; do kill -0 $pid || exit 9; sleep 0.05; done; \
         url=$(sed -n 's/listening on //p' {0}.out); \
         $F ls $url --insecure --json; $F read $url/small --insecure --json >{0}.read; code=$?; kill $pid; wait $pid; exit $code",
        text(&state)
    );
    let Some(done) = on_a_small_disk(&state, "256k", &script) else { return };
    let listed = json(&done);
    let of =
        |name: &str| listed["datasets"].as_array().expect("a list").iter().find(|one| one["name"] == name).cloned();
    let (large, small) = (of("large").expect("listed"), of("small").expect("listed"));
    assert_eq!((&large["state"], &small["state"]), (&"damaged".into(), &"ready".into()));
    assert!(large["error"].as_str().is_some_and(|why| why.contains("No space left on device")), "{large}");
}

/// `forebay` with the system's answer `EIO` to reads of one file: the n-th such call, and with `+` all after it.
fn with_bad_disk(file: &Path, calls: &str, when: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-P"]).arg(file);
    command.args([
        "-e".to_owned(),
        format!("trace={calls}"),
        "-e".to_owned(),
        format!("inject={calls}:error=EIO:when={when}"),
    ]);
    command.arg(forebay()).args(arguments.iter().map(OsStr::new));
    command
}

/// Where the disk fails, indexing ends and says where, and verifying goes on and says what is lost.
#[test]
fn a_bad_disk_is_told_of_with_its_place() {
    let scratch = Scratch::new("eio");
    let data = shards(&scratch.join("data"), 2, 120, 100_000);
    let bad = scratch.join("data/shard-000000.tar");
    let run =
        |calls, when, arguments: &[&str]| Running::start(with_bad_disk(&bad, calls, when, arguments)).finish(PATIENCE);
    let read = "read,pread64";
    let failed = run(read, "2+", &["index", &data]);
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    let said = "cannot read shard shard-000000.tar at byte 2097152: Input/output error";
    assert!(failed.stderr.contains(said), "{}", failed.stderr);

    assert_eq!(program::run(["index", &data]).code, Some(0), "a disk that is well again");
    let found = run(read, "2", &["verify", &data, "--json"]);
    assert_eq!(found.code, Some(5), "{}", found.stderr);
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).expect("JSON");
    let lost = &found["rot"][0];
    assert_eq!((&found["found"], &lost["shard"]), (&1.into(), &"shard-000000.tar".into()), "{found}");
    let (offset, bytes) = (lost["offset"].as_u64().expect("a number"), lost["bytes"].as_u64().expect("a number"));
    assert!((offset..offset + bytes).contains(&(2 << 20)), "{lost}");
    assert!(lost["key"].as_str().is_some_and(|key| key.starts_with('n')) && lost["field"] == "jpg", "{lost}");
    assert!(lost["problem"].as_str().is_some_and(|why| why.contains("Input/output error")), "{lost}");

    // Once: asked for again, and read. For good: the sample is named; its neighbours in other shards can be had.
    let reads = "pread64,preadv,preadv2";
    let once = run(reads, "3", &["read", &data, "--json", "--io", "pread"]);
    assert_eq!(json(&once)["samples"], 120);
    let for_good = run(reads, "1+", &["read", &data, "--io", "pread"]);
    assert_eq!(for_good.code, Some(5), "{}", for_good.stderr);
    assert!(for_good.stderr.contains("shard-000000.tar"), "{}", for_good.stderr);
    let skip = ["read", &data, "--json", "--io", "pread", "--on-error", "skip", "--max-skips", "60"];
    let skipped = json(&run(reads, "1+", &skip));
    assert_eq!((&skipped["samples"], &skipped["skipped"]), (&120.into(), &60.into()));
}

/// A server whose disk fails under one dataset serves the other.
#[test]
fn a_bad_disk_takes_only_its_samples_down() {
    let scratch = Scratch::new("eio-served");
    let (sick, well) = (shards(&scratch.join("sick"), 2, 40, 50_000), shards(&scratch.join("well"), 1, 40, 50_000));
    let state = scratch.join("state");
    drop(Server::start(&[("sick", &sick), ("well", &well)], &state, &[]));
    let mut command = with_bad_disk(&scratch.join("sick/shard-000001.tar"), "pread64,preadv,preadv2", "1+", &[]);
    Server::arguments(&mut command, &[("sick", &sick), ("well", &well)], &state, &["--io", "pread"]);
    let mut server = Server::watch(command);
    server.running.line(PATIENCE, |line| line == "ready: well");
    let read = |name: &str, extra: &[&str]| server.client("read", name, extra).finish(PATIENCE);
    let failed = read("sick", &["--batch-size", "4"]);
    assert_eq!(failed.code, Some(5), "{}", failed.stderr);
    assert!(failed.stderr.contains("shard-000001.tar"), "{}", failed.stderr);
    let skipped = json(&read("sick", &["--json", "--on-error", "skip", "--max-skips", "20"]));
    assert_eq!((&skipped["samples"], &skipped["skipped"]), (&40.into(), &20.into()));
    assert_eq!(json(&read("well", &["--json"]))["samples"], 40);
}

/// The most memory that a process has had so far, in MiB, without what it mapped of files.
fn peak(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let of = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
    };
    Some((of("VmHWM:")?.saturating_sub(of("RssFile:")?)) >> 10)
}

/// Runs to the end; what it left, and the most memory that was seen.
fn watched(mut running: Running) -> (Finished, u64) {
    let mut most = 0;
    while running.ended().is_none() {
        most = peak(running.id()).unwrap_or(0).max(most);
        std::thread::sleep(Duration::from_millis(3));
    }
    (running.finish(PATIENCE), most)
}

/// One sample of 300 MB, over HTTP/3 and from this machine: whole, within the budgets, or refused with the figures.
#[test]
fn a_sample_of_300_megabytes() {
    within(Duration::from_secs(180), || {
        const SIZE: u64 = 300_000_000;
        let scratch = Scratch::new("large");
        fs::create_dir(scratch.join("data")).expect("a folder");
        let mut tar = Vec::new();
        tars::member(&mut tar, "big.bin", &vec![7; SIZE as usize]).expect("written");
        tars::member(&mut tar, "small.bin", b"1").expect("written");
        let path = scratch.join("data/s.tar");
        let mut file = File::create(&path).expect("created");
        file.write_all(&tar).and_then(|()| file.write_all(&[0; 1024])).expect("written");
        file.write_all_at(b"last", 512 + SIZE - 4).expect("written");
        drop(tar);
        let data = text(&scratch.join("data")).to_owned();
        assert_eq!(program::run(["index", &data]).code, Some(0));

        // The server's budget is a third of the sample.
        let server = Server::start(&[("d", &data)], &scratch.join("state"), &["--memory", "96MiB"]);
        let url = server.dataset("d");
        let trust = ["--trust", &server.trust];
        for (place, extra) in [(url.as_str(), &trust[..]), (data.as_str(), &[])] {
            let arguments = |verb: &'static str, more: &[&'static str]| {
                let all = [verb, place].into_iter().chain(more.iter().copied()).chain(extra.iter().copied());
                all.map(str::to_owned).collect::<Vec<_>>()
            };
            let (read, most) = watched(program::start(arguments("read", &["--json", "--memory", "700MiB"])));
            let summary = json(&read);
            assert_eq!((&summary["samples"], &summary["bytes"]), (&2.into(), &(SIZE + 1).into()), "{place}");
            assert!(most < 700 + 32, "{place}: {most} MiB");
            let refused = program::run(arguments("read", &["--memory", "400MiB"]));
            assert_eq!(refused.code, Some(6), "{place}: {}", refused.stderr);
            assert!(refused.stderr.contains("300000000"), "{place}: the figure is missing: {}", refused.stderr);
        }
        let get = ["get", &url, "--trust", &server.trust, "--sample", "0", "--field", "bin", "--memory", "700MiB"];
        let got = program::run(get);
        assert_eq!(got.code, Some(0), "{}", got.stderr);
        assert!(got.stdout.len() as u64 == SIZE && got.stdout.ends_with(b"last"));
        let most = peak(server.running.id()).expect("it runs");
        assert!(most < 96 + 32, "the server: {most} MiB");
    });
}

/// A hundred thousand samples of a byte or two, over HTTP/3 and from this machine, in two shards.
#[test]
fn a_hundred_thousand_tiny_samples() {
    let scratch = Scratch::new("tiny");
    let data = shards(&scratch.join("data"), 2, 100_000, 1);
    let server = Server::start(&[("d", &data)], &scratch.join("state"), &[]);
    let options = ["--json", "--digest", "--batch-size", "1000", "--seed", "3"];
    let remote = json(&server.client("read", "d", &options).finish(PATIENCE));
    let local = json(&program::run(["read", &data].into_iter().chain(options)));
    assert_eq!((&remote["samples"], &local["samples"]), (&100_000.into(), &100_000.into()));
    assert!(remote["order_digest"].is_string() && remote["order_digest"] == local["order_digest"], "{remote}{local}");
}

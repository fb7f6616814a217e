//! Shards that change under a server, or while it is away: no byte of another version is ever delivered, and what did not
//! change is served on.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use forebay_client::blocking::{Client, Dataset, Loader};
use forebay_client::{Error, LoaderError, LoaderOptions, Shuffle};
use forebay_system::program::{self, PATIENCE, Server};
use forebay_system::scratch::Scratch;
use forebay_system::tars;
use forebay_system::world::{connect, until, within};

const LIMIT: Duration = Duration::from_secs(120);
const SHARDS: usize = 6;
const PER_SHARD: usize = 40;
const SIZE: usize = 300_000;
/// Half of it is the pool: the data is four times as much, so a loader cannot have everything before the change.
const MEMORY: u64 = 36 << 20;

/// Every byte of an old sample is OLD, of a new one NEW: one byte is enough to tell them apart.
const OLD: u8 = 0x11;
const NEW: u8 = 0xEE;

fn shard(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("s-{index:02}.tar"))
}

fn write_shard(path: &Path, index: usize, mark: u8) {
    let mut tar = BufWriter::new(File::create(path).expect("a shard"));
    for sample in 0..PER_SHARD {
        let key = format!("{index:02}{sample:04}");
        tars::member(&mut tar, &format!("{key}.bin"), &vec![mark; SIZE]).expect("written");
        tars::member(&mut tar, &format!("{key}.txt"), &[mark; 5]).expect("written");
    }
    tar.write_all(&[0; 1024]).expect("written");
    tar.flush().expect("written");
}

/// Two datasets, `set` and `other`, of the same kind; the second never changes.
struct World {
    scratch: Scratch,
    data: PathBuf,
    server: Server,
}

impl World {
    fn new(name: &str) -> World {
        let scratch = Scratch::new(name);
        let data = scratch.join("data");
        for folder in ["data", "other"] {
            fs::create_dir(scratch.join(folder)).unwrap();
            for index in 0..if folder == "data" { SHARDS } else { 1 } {
                write_shard(&shard(&scratch.join(folder), index), index, OLD);
            }
        }
        // A test may start it again at the same address.
        let server = World::serve(&scratch, &["--listen", &program::lasting_address()]);
        World { scratch, data, server }
    }

    fn serve(scratch: &Scratch, extra: &[&str]) -> Server {
        let pattern = |folder: &str| scratch.join(folder).join("*.tar").to_str().unwrap().to_owned();
        Server::start(&[("set", &pattern("data")), ("other", &pattern("other"))], &scratch.join("state"), extra)
    }

    fn open(&self, name: &str) -> (Client, Dataset) {
        let client = connect(&self.server, MEMORY);
        let dataset = client.dataset(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        (client, dataset)
    }

    /// The other dataset can be read whole.
    fn other_is_well(&self) {
        let (_client, dataset) = self.open("other");
        let mut loader = dataset.loader(options()).unwrap();
        assert_eq!(read_old(&mut loader).unwrap(), PER_SHARD);
    }

    /// `forebay ls` says that `set` changed, with the shard's name, and that the other is ready.
    fn listed_as_changed(&self, shard: &str) {
        let list = forebay_system::program::run(["ls", &self.server.url, "--trust", &self.server.trust]);
        assert_eq!(list.code, Some(0), "{}", list.stderr);
        let text = list.text();
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
        assert!(line("set ").contains("changed") && line("other").contains("ready"), "{text}");
        assert!(line("set:").contains(shard), "{text}");
    }
}

fn options() -> LoaderOptions {
    LoaderOptions { batch_size: 8, seed: 3, stall_timeout: Duration::from_secs(40), ..LoaderOptions::default() }
}

/// Reads on until the end or an error; every byte delivered must be an old one. Returns how many samples came.
fn read_old(loader: &mut Loader) -> Result<usize, Error> {
    let mut samples = 0;
    for batch in loader {
        for sample in batch?.iter() {
            let (bin, txt) = (sample.field_by_name("bin").unwrap(), sample.field_by_name("txt").unwrap());
            assert!(
                bin.len() == SIZE && bin.iter().all(|&byte| byte == OLD),
                "{sample:?} has bytes of another version"
            );
            assert_eq!(txt, [OLD; 5]);
            samples += 1;
        }
    }
    Ok(samples)
}

fn assert_changed(result: &Result<usize, Error>) {
    match result {
        Err(Error::Loader(LoaderError::DatasetChanged { dataset, .. })) => assert_eq!(&**dataset, "set"),
        other => panic!("not noticed: {other:?}"),
    }
}

/// Does something to every shard while a loader is in mid-epoch, with `change(path, index)`.
fn under_a_running_server(name: &'static str, change: fn(&Path, usize)) {
    within(LIMIT, move || {
        let world = World::new(name);
        let (client, dataset) = world.open("set");
        let mut loader = dataset.loader(options()).unwrap();
        drop(loader.next().unwrap().unwrap());
        for index in 0..SHARDS {
            change(&shard(&world.data, index), index);
        }
        assert_changed(&read_old(&mut loader));
        assert!(loader.next().is_none(), "it has ended");
        drop(loader);
        until("the pool is whole again", || client.pool().free == client.pool().capacity);
        // Whoever asks for the old version later is refused as well, and so is who asks for the dataset.
        let refused = dataset.fetch(&[0], None).unwrap_err();
        assert!(matches!(refused, Error::Loader(LoaderError::DatasetChanged { .. })), "{refused}");
        let Error::Refused { problem, .. } = client.dataset("set").unwrap_err() else { panic!("refused") };
        assert_eq!((problem.status, problem.kind.as_str()), (412, "urn:forebay:problem:dataset-changed"));
        let done = world.server.client("read", "set", &[]).finish(PATIENCE);
        assert_eq!(done.code, Some(4), "{}", done.stderr);
        world.listed_as_changed("s-0");
        world.other_is_well();
    });
}

#[test]
fn shards_replaced_under_a_server() {
    under_a_running_server("replaced", |path, index| {
        let fresh = path.with_extension("new");
        write_shard(&fresh, index, NEW);
        fs::rename(fresh, path).unwrap();
    });
}

#[test]
fn shards_rewritten_in_place_with_their_old_times() {
    under_a_running_server("rewritten", |path, index| {
        let times = fs::metadata(path).unwrap().modified().unwrap();
        let fresh = path.with_extension("new");
        write_shard(&fresh, index, NEW);
        let bytes = fs::read(&fresh).unwrap();
        fs::remove_file(fresh).unwrap();
        let mut file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all(&bytes).unwrap();
        file.set_modified(times).unwrap();
    });
}

#[test]
fn shards_truncated_under_a_server() {
    under_a_running_server("truncated", |path, _| {
        OpenOptions::new().write(true).open(path).unwrap().set_len(SIZE as u64 * 3).unwrap();
    });
}

#[test]
fn shards_appended_to_under_a_server() {
    under_a_running_server("appended", |path, _| {
        OpenOptions::new().append(true).open(path).unwrap().write_all(&[NEW; 512]).unwrap();
    });
}

#[test]
fn shards_touched_under_a_server() {
    under_a_running_server("touched", |path, _| {
        File::options().append(true).open(path).unwrap().set_modified(SystemTime::now()).unwrap();
    });
}

#[test]
fn shards_removed_under_a_server() {
    within(LIMIT, || {
        let world = World::new("removed");
        let (_client, dataset) = world.open("set");
        let mut loader = dataset.loader(options()).unwrap();
        drop(loader.next().unwrap().unwrap());
        (0..SHARDS).for_each(|index| fs::remove_file(shard(&world.data, index)).unwrap());
        // Open files outlive their names: it may finish or be told, but never deliver anything else.
        match read_old(&mut loader) {
            Ok(samples) => assert_eq!(samples, SHARDS * PER_SHARD - 8),
            Err(Error::Loader(LoaderError::DatasetChanged { .. })) => {}
            Err(error) => panic!("{error}"),
        }
        world.other_is_well();
    });
}

/// One shard of many: the epoch ends when its first sample is due, and not one sample of it slips through.
#[test]
fn read_ends_with_its_exit_code_in_mid_epoch() {
    within(LIMIT, || {
        let world = World::new("exit-code");
        let flags = ["--epochs", "100000", "--json", "--batch-size", "8", "--memory", "36MiB"];
        let before = world.server.running.bytes_read();
        let reader = world.server.client("read", "set", &flags);
        until("samples are read", || world.server.running.bytes_read() > before + 20_000_000);
        let fresh = world.data.join("new");
        write_shard(&fresh, 3, NEW);
        fs::rename(fresh, shard(&world.data, 3)).unwrap();
        let done = reader.finish(PATIENCE);
        assert_eq!(done.code, Some(4), "{}", done.stderr);
        assert!(done.stderr.contains("dataset set changed"), "{}", done.stderr);
        let summary: serde_json::Value = serde_json::from_str(done.text()).unwrap();
        assert_eq!(summary["exit_code"], 4);
        world.listed_as_changed("s-03.tar");
        world.other_is_well();
    });
}

/// Ends the server in mid-epoch, does something to the shards, and starts it again on the same port.
fn restarted(name: &'static str, change: fn(&Path)) -> (World, Loader, Dataset) {
    let mut world = World::new(name);
    let (_client, dataset) = world.open("set");
    let mut loader = dataset.loader(options()).unwrap();
    drop(loader.next().unwrap().unwrap());
    let port = world.server.url.rsplit(':').next().unwrap().to_owned();
    let trust = world.server.trust.clone();
    world.server.running.signal("KILL");
    until("the server has ended", || world.server.running.ended().is_some());
    change(&world.data);
    world.server = World::serve(&world.scratch, &["--listen", &format!("127.0.0.1:{port}")]);
    assert_eq!(world.server.trust, trust, "the certificate is kept");
    (world, loader, dataset)
}

#[test]
fn a_server_restarted_on_changed_shards_in_mid_epoch() {
    within(LIMIT, || {
        let (world, mut loader, dataset) = restarted("restart-changed", |data| {
            (0..SHARDS).for_each(|index| write_shard(&shard(data, index), index, NEW));
        });
        assert_changed(&read_old(&mut loader));
        let refused = dataset.fetch(&[0], None).unwrap_err();
        assert!(matches!(refused, Error::Loader(LoaderError::DatasetChanged { .. })), "{refused}");
        // The new version is there for whoever asks for it.
        let (_client, fresh) = world.open("set");
        assert_ne!(fresh.description().version, dataset.description().version);
        let batch = fresh.fetch(&[5], None).unwrap();
        assert!(batch.sample(0).field_by_name("bin").unwrap().iter().all(|&byte| byte == NEW));
        world.other_is_well();
    });
}

#[test]
fn a_server_restarted_on_the_same_shards_goes_unnoticed() {
    within(LIMIT, || {
        let (world, mut loader, _dataset) = restarted("restart-same", |data| {
            // Another file with the same bytes is the same version.
            write_shard(&shard(data, 2), 2, OLD);
        });
        assert_eq!(read_old(&mut loader).unwrap(), SHARDS * PER_SHARD - 8, "exactly once, across the restart");
        world.other_is_well();
    });
}

/// Flips a bit in the header of the first member after `at`, and returns the member's offset.
fn damage(path: &Path, at: u64) -> u64 {
    let mut bytes = fs::read(path).unwrap();
    let member = at.next_multiple_of(512) as usize;
    let header = (member..).step_by(512).find(|&at| &bytes[at + 257..at + 262] == b"ustar").unwrap();
    bytes[header] ^= 0x40;
    fs::write(path, bytes).unwrap();
    header as u64
}

#[test]
fn a_damaged_shard_keeps_only_its_dataset_away() {
    within(LIMIT, || {
        let mut world = World::new("damaged");
        let (_client, dataset) = world.open("set");
        let whole = dataset.description().clone();
        drop((_client, dataset));
        world.server.running.signal("TERM");
        until("the server has ended", || world.server.running.ended().is_some());
        let offset = damage(&shard(&world.data, 4), 1_000_000);

        let pattern = |folder: &str| world.scratch.join(folder).join("*.tar").to_str().unwrap().to_owned();
        let (set, other) = (pattern("data"), pattern("other"));
        let datasets = [("set", set.as_str()), ("other", other.as_str())];
        let mut server = Server::start_unready(&datasets, &world.scratch.join("state"), &[]);
        server.running.line(PATIENCE, |line| line == "ready: other");
        until("it says what is damaged", || server.running.stderr().contains("s-04.tar"));
        assert!(server.running.stderr().contains(&offset.to_string()), "{}", server.running.stderr());
        world.server = server;
        world.other_is_well();
        let client = connect(&world.server, MEMORY);
        let list = client.datasets().unwrap();
        let said = list.datasets.iter().find(|one| one.name == "set").unwrap().error.clone().unwrap();
        assert!(said.contains("s-04.tar") && said.contains(&offset.to_string()), "{said}");
        let done = world.server.client("read", "set", &[]).finish(PATIENCE);
        assert!(done.code.is_some_and(|code| code != 0), "{}", done.stderr);
        assert!(done.stderr.contains("s-04.tar"), "{}", done.stderr);
        drop(client);

        world.server = World::serve(&world.scratch, &["--skip-damaged"]);
        let (_client, rest) = world.open("set");
        let rest_is = rest.description();
        assert_ne!(rest_is.version, whole.version);
        assert_eq!(rest_is.samples, whole.samples - PER_SHARD as u64);
        assert!(rest_is.shards.iter().all(|shard| !shard.name.contains("s-04")), "{:?}", rest_is.shards);
        assert!(world.server.running.stderr().contains("s-04.tar"), "{}", world.server.running.stderr());
        let plain = LoaderOptions { shuffle: Shuffle::None, ..options() };
        assert_eq!(read_old(&mut rest.loader(plain).unwrap()).unwrap(), (SHARDS - 1) * PER_SHARD);
    });
}

#[test]
fn a_server_with_nothing_but_damage_ends() {
    within(LIMIT, || {
        let scratch = Scratch::new("all-damaged");
        let path = scratch.join("s.tar");
        write_shard(&path, 0, OLD);
        let offset = damage(&path, 700_000);
        let (state, dataset) = (scratch.join("state"), format!("set={}", path.display()));
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--state-dir", state.to_str().unwrap(), &dataset];
        let done = forebay_system::program::run(arguments);
        assert_eq!(done.code, Some(5), "{}", done.stderr);
        assert!(done.stderr.contains("s.tar") && done.stderr.contains(&offset.to_string()), "{}", done.stderr);
    });
}

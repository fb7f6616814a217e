//! Whole epochs through the program's server and the library: who gets what, in which order, in how much memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use forebay_client::blocking::{Client, Dataset};
use forebay_client::{Batch, Error, LoaderError, LoaderOptions, Shuffle};
use forebay_system::program::{Server, start};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{Shards, Sizes, Written};
use forebay_system::world::{Delivered, connect, read, shards, until, within};

const LIMIT: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;

/// A server with one dataset, `set`.
struct World {
    scratch: Scratch,
    written: Vec<Written>,
    server: Server,
}

impl World {
    fn new(name: &str, samples: usize, sizes: Sizes) -> World {
        let scratch = Scratch::new(name);
        let what = Shards { shards: 5, samples, sizes, seed: 11 };
        let (written, pattern) = shards(&scratch.join("data"), &what);
        let server = Server::start(&[("set", &pattern)], &scratch.join("state"), &[]);
        World { scratch, written, server }
    }

    fn open(&self, memory: usize) -> (Client, Dataset) {
        let client = connect(&self.server, memory as u64);
        let dataset = client.dataset("set").expect("a dataset");
        (client, dataset)
    }
}

fn small(name: &str, samples: usize) -> World {
    World::new(name, samples, Sizes::Cycle(vec![1, 700, 4_000, 0, 20_000, 513]))
}

fn options(batch_size: u32) -> LoaderOptions {
    LoaderOptions { batch_size, seed: 7, ..LoaderOptions::default() }
}

fn ordinals(delivered: &[Delivered]) -> Vec<u64> {
    delivered.iter().map(|one| one.ordinal).collect()
}

fn all(count: usize) -> Vec<u64> {
    (0..count as u64).collect()
}

fn sorted(mut ordinals: Vec<u64>) -> Vec<u64> {
    ordinals.sort_unstable();
    ordinals
}

/// What a sample's bytes hash to.
fn hash(written: &Written) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (&written.jpg, &written.cls, &written.key).hash(&mut hasher);
    hasher.finish()
}

#[test]
fn ranks_share_an_epoch_without_overlap() {
    within(LIMIT, || {
        let world = small("ranks", 317);
        let (_client, dataset) = world.open(32 * MIB);
        let whole = read(&dataset, options(8), &world.written, drop).unwrap();
        assert_eq!(sorted(ordinals(&whole)), all(317));
        let everything: BTreeSet<u64> = world.written.iter().map(hash).collect();
        assert_eq!(everything.len(), 317, "no two samples are alike");
        for world_size in [2u32, 3, 8] {
            let mut union = BTreeSet::new();
            let mut by_position = BTreeMap::new();
            for rank in 0..world_size {
                let options = LoaderOptions { rank, world_size, ..options(8) };
                let part = read(&dataset, options, &world.written, drop).unwrap();
                for one in part {
                    // The rank rule: step s of rank r is positions [(sW + r)B, (sW + r + 1)B).
                    let first = (one.step * u64::from(world_size) + u64::from(rank)) * 8;
                    assert!((first..first + 8).contains(&one.position), "rank {rank} of {world_size}: {one:?}");
                    let digest = hash(&world.written[one.ordinal as usize]);
                    assert!(union.insert(digest), "{one:?} was delivered to two ranks of {world_size}");
                    by_position.insert(one.position, one.ordinal);
                }
            }
            assert_eq!(union, everything, "the ranks of {world_size} together read everything");
            // All ranks share one sequence, whatever their number.
            assert_eq!(by_position.into_values().collect::<Vec<_>>(), ordinals(&whole), "{world_size} ranks");
        }
    });
}

/// The same by the program's own digests, as whoever runs several machines would check it.
#[test]
fn the_digests_of_two_ranks_add_up() {
    within(LIMIT, || {
        let world = small("digests", 150);
        let digest = |extra: &[&str]| {
            let flags = ["--json", "--digest", "--batch-size", "16", "--memory", "32MiB"];
            let all: Vec<&str> = flags.iter().chain(extra).copied().collect();
            let done = world.server.client("read", "set", &all).finish(LIMIT);
            assert_eq!(done.code, Some(0), "{}", done.stderr);
            let summary: serde_json::Value = serde_json::from_str(done.text()).unwrap();
            let text = |name: &str| summary[name].as_str().unwrap_or_else(|| panic!("{name} in {summary}")).to_owned();
            (text("order_digest"), text("set_digest"))
        };
        let whole = digest(&[]);
        let (first, second) = (digest(&["--world-size", "2"]), digest(&["--world-size", "2", "--rank", "1"]));
        assert_eq!(sum(&first.1, &second.1), whole.1);
        assert_ne!(first.1, second.1);
        // Another seed is another order of the same set; the same one is the same.
        let other = digest(&["--seed", "1"]);
        assert_eq!(other.1, whole.1);
        assert_ne!(other.0, whole.0);
        assert_eq!(digest(&["--seed", "0"]), whole);
    });
}

/// Of two 256-bit numbers in hexadecimal.
fn sum(one: &str, other: &str) -> String {
    let (mut carry, mut digits) = (0, Vec::new());
    for (a, b) in one.chars().rev().zip(other.chars().rev()) {
        let digit = a.to_digit(16).unwrap() + b.to_digit(16).unwrap() + carry;
        carry = digit / 16;
        digits.push(char::from_digit(digit % 16, 16).unwrap());
    }
    digits.iter().rev().collect()
}

#[test]
fn order_is_a_function_of_seed_and_epoch() {
    within(LIMIT, || {
        let world = small("order", 211);
        let (_client, dataset) = world.open(32 * MIB);
        let three = LoaderOptions { epochs: Some(3), ..options(16) };
        let delivered = read(&dataset, three, &world.written, drop).unwrap();
        let epoch = |n| -> Vec<u64> { delivered.iter().filter(|d| d.epoch == n).map(|d| d.ordinal).collect() };
        for n in 0..3 {
            assert_eq!(sorted(epoch(n)), all(211), "epoch {n} is the whole set");
            assert_ne!(epoch(n), all(211), "epoch {n} is shuffled");
        }
        assert!(epoch(0) != epoch(1) && epoch(1) != epoch(2) && epoch(0) != epoch(2));
        // A later epoch does not depend on those before it, nor on the size of batches.
        let third = LoaderOptions { first_epoch: 2, ..options(5) };
        assert_eq!(ordinals(&read(&dataset, third, &world.written, drop).unwrap()), epoch(2));
        let seeded = LoaderOptions { seed: 8, ..options(16) };
        assert_ne!(ordinals(&read(&dataset, seeded, &world.written, drop).unwrap()), epoch(0));
        // Unshuffled is the order in which the shards hold them.
        let plain = LoaderOptions { shuffle: Shuffle::None, ..options(16) };
        let delivered = read(&dataset, plain, &world.written, drop).unwrap();
        assert_eq!(ordinals(&delivered), all(211));
        let keys: Vec<String> = (0..211).map(|ordinal| dataset.sample(ordinal).unwrap().key).collect();
        assert!(keys.iter().eq(world.written.iter().map(|sample| &sample.key)), "{keys:?}");
    });
}

#[test]
fn copied_shards_are_the_same_version_in_the_same_order() {
    within(LIMIT, || {
        let world = small("copies", 120);
        let elsewhere = Scratch::new("copies-elsewhere");
        let folder = elsewhere.join("other/name");
        fs::create_dir_all(&folder).unwrap();
        for entry in fs::read_dir(world.scratch.join("data")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
        let pattern = folder.join("*.tar").to_str().unwrap().to_owned();
        let second = Server::start(&[("copy", &pattern)], &elsewhere.join("state"), &[]);
        let (_client, here) = world.open(32 * MIB);
        let there = connect(&second, 32 << 20).dataset("copy").unwrap();
        assert_eq!(here.description().version, there.description().version);
        let read = |dataset| read(dataset, options(16), &world.written, drop).unwrap();
        assert_eq!(read(&here), read(&there));
        // One byte less somewhere, and it is another version.
        let first = folder.join("shard-000000.tar");
        let whole = fs::read(&first).unwrap();
        fs::write(&first, &whole[..whole.len() - 1]).unwrap();
        let third = Server::start(&[("copy", &pattern)], &elsewhere.join("state-2"), &[]);
        let changed = connect(&third, 32 << 20).dataset("copy").unwrap();
        assert_ne!(changed.description().version, here.description().version);
    });
}

#[test]
fn last_batches_are_short_or_left_out() {
    within(LIMIT, || {
        let world = small("last", 103);
        let (_client, dataset) = world.open(32 * MIB);
        let lengths = |rank, world_size, drop_last| {
            let options = LoaderOptions { rank, world_size, drop_last, ..options(10) };
            let mut lengths = Vec::new();
            read(&dataset, options, &world.written, |batch| lengths.push(batch.len())).unwrap();
            lengths
        };
        let full = |n| vec![10; n];
        assert_eq!(lengths(0, 1, false), [full(10), vec![3]].concat());
        assert_eq!(lengths(0, 1, true), full(10));
        // 103 = 3 × 30 + 13: rank 0 fills one more batch, rank 1 has 3 samples, rank 2 none.
        assert_eq!(lengths(0, 3, false), full(4));
        assert_eq!(lengths(1, 3, false), [full(3), vec![3]].concat());
        assert_eq!(lengths(2, 3, false), full(3));
        for rank in 0..3 {
            assert_eq!(lengths(rank, 3, true), full(3), "rank {rank}");
        }
        // More ranks than there are samples for: nothing, and no hang.
        assert_eq!(lengths(11, 12, false), Vec::<usize>::new());
        assert_eq!(lengths(0, 12, true), Vec::<usize>::new());
    });
}

#[test]
fn only_the_fields_asked_for_travel() {
    within(LIMIT, || {
        let world = World::new("fields", 60, Sizes::Fixed(50_000));
        let (_client, dataset) = world.open(32 * MIB);
        let with = |names: &[&str]| LoaderOptions {
            fields: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..options(20)
        };
        let mut loader = dataset.loader(with(&["cls"])).unwrap();
        let mut seen = 0;
        for batch in &mut loader {
            for sample in batch.unwrap().iter() {
                assert_eq!(sample.field_by_name("jpg"), None);
                assert_eq!(sample.field(0).unwrap(), world.written[sample.ordinal() as usize].cls);
                assert!(sample.field(1).is_none());
                seen += 1;
            }
        }
        assert_eq!(seen, 60);
        assert!(loader.stats().bytes < 60 * 4, "{:?}", loader.stats());
        // In the order asked for, not the dataset's.
        let batch = dataset.loader(with(&["jpg", "cls"])).unwrap().next().unwrap().unwrap();
        assert!(batch.fields().iter().map(|name| &**name).eq(["jpg", "cls"]));
        let ordinal = batch.sample(3).ordinal() as usize;
        assert!(batch.field(3, 0) == Some(&world.written[ordinal].jpg), "jpg comes first");
        // A field that there is not is named, before anything is read.
        let error = dataset.loader(with(&["cls", "mask"])).unwrap_err();
        assert!(matches!(error, Error::Source(_)) && error.to_string().contains("mask"), "{error}");
        let done = world.server.client("read", "set", &["--fields", "cls,mask"]).finish(LIMIT);
        assert_eq!(done.code, Some(2), "{}", done.stderr);
        assert!(done.stderr.contains("mask"), "{}", done.stderr);
    });
}

#[test]
fn a_dataset_eight_times_the_pool() {
    within(LIMIT, || {
        let world = World::new("eight", 600, Sizes::Cycle(vec![30_000, 115_000, 400_000, 90_000, 2_000_000, 111]));
        let (client, dataset) = world.open(32 * MIB);
        let pool = client.pool().capacity as u64;
        let bytes = dataset.description().bytes;
        assert!(bytes >= 8 * pool, "{bytes} of data, a pool of {pool}");
        let delivered = read(&dataset, options(16), &world.written, drop).unwrap();
        assert_eq!(sorted(ordinals(&delivered)), all(600));
        assert!(delivered.iter().enumerate().all(|(at, one)| one.position == at as u64), "in exact order");
        until("the pool is whole again", || client.pool().free == client.pool().capacity);
    });
}

#[test]
fn a_pool_barely_larger_than_the_largest_sample() {
    within(LIMIT, || {
        let pool = 16 * MIB;
        let largest = pool - 64 * 1024;
        let world = World::new("barely", 42, Sizes::Cycle(vec![1, 3 * MIB, 20_000, largest, 700, 200_000]));
        let (client, dataset) = world.open(2 * pool);
        let delivered = read(&dataset, LoaderOptions { epochs: Some(2), ..options(1) }, &world.written, drop).unwrap();
        assert_eq!(sorted(ordinals(&delivered)), sorted([all(42), all(42)].concat()));
        until("the pool is whole again", || client.pool().free == client.pool().capacity);
        // One that cannot hold it is refused before anything is read, with the figures.
        let (_client, dataset) = world.open(2 * pool - 4 * MIB);
        let error = dataset.loader(options(1)).unwrap_err();
        let Error::PoolTooSmall { needed, pool, .. } = &error else { panic!("{error}") };
        assert!(*needed as usize >= largest && pool < needed, "{error}");
        let done = world.server.client("read", "set", &["--memory", "28MiB", "--batch-size", "1"]).finish(LIMIT);
        assert_eq!(done.code, Some(6), "{}", done.stderr);
        assert!(done.stderr.contains(&needed.to_string()), "{}", done.stderr);
    });
}

/// Batches that cannot all be in the pool at once, with one whose samples are larger than a quarter of it.
fn crowded(name: &str) -> World {
    World::new(name, 120, Sizes::Cycle(vec![500_000, 100, 300_000, 1_000, 2_500_000, 9_000]))
}

#[test]
fn a_consumer_that_keeps_four_batches_finishes_or_is_told() {
    within(LIMIT, || {
        let world = crowded("keeps");
        // Four batches of 4 have room in a pool of 32 MiB, whichever they are.
        let (client, dataset) = world.open(64 * MIB);
        let mut kept: Vec<Batch> = Vec::new();
        let delivered = read(&dataset, options(4), &world.written, |batch| {
            if kept.len() == 4 {
                kept.remove(0);
            }
            kept.push(batch);
        });
        assert_eq!(sorted(ordinals(&delivered.unwrap())), all(120));
        for batch in &kept {
            batch
                .iter()
                .for_each(|sample| forebay_system::world::same(&sample, &world.written[sample.ordinal() as usize]));
        }
        drop(kept);
        until("the pool is whole again", || client.pool().free == client.pool().capacity);

        // A pool of 13 MiB has none for four of 9 (each with 5 MB on average): the loader ends, and names what is kept.
        let (client, dataset) = world.open(26 * MIB);
        let mut kept: Vec<Batch> = Vec::new();
        let impatient = LoaderOptions { pool_timeout: Duration::from_millis(300), ..options(9) };
        let error = read(&dataset, impatient, &world.written, |batch| kept.push(batch)).unwrap_err();
        let Error::Loader(LoaderError::PoolExhausted(exhausted)) = &error else { panic!("{error}") };
        assert_eq!(&*exhausted.dataset, "set");
        let mine: Vec<(u64, u64)> = kept.iter().map(|batch| (batch.epoch(), batch.step())).collect();
        assert_eq!(exhausted.kept, mine, "{error}");
        assert!(exhausted.consumer > 0 && exhausted.batch > exhausted.free, "{error}");
        for (epoch, step) in mine {
            assert!(error.to_string().contains(&format!("{epoch}/{step}")), "{error}");
        }
        // What was delivered before is still good, and the pool is whole once it is given back.
        for batch in &kept {
            batch
                .iter()
                .for_each(|sample| forebay_system::world::same(&sample, &world.written[sample.ordinal() as usize]));
        }
        drop(kept);
        until("the pool is whole again", || client.pool().free == client.pool().capacity);
        read(&dataset, options(6), &world.written, drop).unwrap();
    });
}

#[test]
fn read_says_that_the_pool_is_exhausted() {
    within(LIMIT, || {
        let world = crowded("exhausted");
        let read = |memory, batch| {
            let flags =
                ["--keep-batches", "4", "--pool-timeout", "500ms", "--json", "--memory", memory, "--batch-size"];
            let all: Vec<&str> = flags.into_iter().chain([batch]).collect();
            world.server.client("read", "set", &all).finish(LIMIT)
        };
        let done = read("64MiB", "4");
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        let done = read("26MiB", "9");
        assert_eq!(done.code, Some(6), "{}", done.stderr);
        assert!(done.stderr.contains("dataset set") && done.stderr.contains("epoch/step 0/"), "{}", done.stderr);
        let summary: serde_json::Value = serde_json::from_str(done.text()).unwrap();
        assert_eq!(summary["exit_code"], 6, "{summary}");
    });
}

/// A reader that is stopped for a while and goes on, beside one that is killed.
#[test]
fn readers_that_stop_or_die_do_not_disturb_others() {
    within(LIMIT, || {
        let world = crowded("stop");
        let url = world.server.dataset("set");
        let flags = ["read", &url, "--trust", &world.server.trust, "--memory", "32MiB", "--batch-size", "6"];
        let epochs = ["--epochs", "6"];
        let stopped = start(flags.iter().chain(&epochs));
        let killed = start(flags.iter().chain(&["--epochs", "1000"]));
        std::thread::sleep(Duration::from_millis(200));
        stopped.signal("STOP");
        drop(killed);
        let done = start(flags).finish(LIMIT);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        stopped.signal("CONT");
        let done = stopped.finish(LIMIT);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert!(done.text().contains("720 in 120 batches"), "{}", done.text());
    });
}

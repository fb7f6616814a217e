//! The library as a training program uses it: async and blocking, several loaders at once, and things dropped half-way.

use std::future::Future;
use std::time::Duration;

use forebay_client::blocking;
use forebay_client::{Client, Dataset, Error, LoaderOptions, Sample, ServerUrl, Shuffle};
use forebay_system::program::Server;
use forebay_system::scratch::Scratch;
use forebay_system::tars::{Shards, Sizes, Written};
use forebay_system::world::{config, connect, read, same, shards, until, within};

const LIMIT: Duration = Duration::from_secs(120);
const MEMORY: u64 = 32 << 20;

struct World {
    written: Vec<Written>,
    server: Server,
    _scratch: Scratch,
}

impl World {
    fn new(name: &str, samples: usize, sizes: Sizes) -> World {
        let scratch = Scratch::new(name);
        let (written, pattern) = shards(&scratch.join("data"), &Shards { shards: 3, samples, sizes, seed: 9 });
        let server = Server::start(&[("set", &pattern)], &scratch.join("state"), &[]);
        World { written, server, _scratch: scratch }
    }

    /// From 1 byte to more than a quarter of a pool of 16 MiB.
    fn varied(name: &str) -> World {
        World::new(name, 90, Sizes::Cycle(vec![1, 5_000_000, 70_000, 300, 1_100_000, 64, 65, 0, 400_000]))
    }

    async fn connect(&self) -> (Client, Dataset) {
        let url: ServerUrl = self.server.url.parse().unwrap();
        let client = Client::connect(&url, config(&self.server, MEMORY)).await.unwrap();
        let dataset = client.dataset("set").await.unwrap();
        (client, dataset)
    }
}

fn options(batch_size: u32) -> LoaderOptions {
    LoaderOptions { batch_size, ..LoaderOptions::default() }
}

fn is_whole(client: &Client) {
    until("the pool is whole again", || {
        let usage = client.pool();
        usage.free == usage.capacity && usage.leases == 0 && usage.quarantined == 0
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Reads to the end in async code; returns how many samples came.
async fn drain(dataset: &Dataset, options: LoaderOptions, written: &[Written]) -> Result<usize, Error> {
    let mut loader = dataset.loader(options).await?;
    let mut samples = 0;
    while let Some(batch) = loader.next().await {
        for sample in batch?.iter() {
            same(&sample, &written[sample.ordinal() as usize]);
            samples += 1;
        }
    }
    Ok(samples)
}

#[test]
fn several_loaders_in_one_client_at_once() {
    within(LIMIT, || {
        let world = World::varied("several");
        runtime().block_on(async {
            let (client, dataset) = world.connect().await;
            let ranked = |rank| LoaderOptions { rank, world_size: 2, seed: 4, ..options(3) };
            let only = LoaderOptions { fields: Some(vec!["cls".into()]), epochs: Some(3), ..options(50) };
            let plain = LoaderOptions { shuffle: Shuffle::None, ..options(1) };
            let written = &world.written;
            let (one, two, three, four) = tokio::join!(
                drain(&dataset, ranked(0), written),
                drain(&dataset, ranked(1), written),
                drain(&dataset, only, written),
                drain(&dataset, plain, written),
            );
            assert_eq!((one.unwrap() + two.unwrap(), three.unwrap(), four.unwrap()), (90, 270, 90));
            is_whole(&client);
        });
    });
}

#[test]
fn several_loaders_on_threads_of_their_own() {
    within(LIMIT, || {
        let world = World::varied("threads");
        let client = connect(&world.server, MEMORY);
        let dataset = client.dataset("set").unwrap();
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (dataset, written) = (&dataset, &world.written);
                let options = LoaderOptions { rank, world_size: 3, epochs: Some(2), ..options(2) };
                scope.spawn(move || assert_eq!(read(dataset, options, written, drop).unwrap().len(), 60));
            }
        });
        is_whole(client.inner());
    });
}

#[test]
fn samples_of_any_size_by_ordinal_and_by_key() {
    within(LIMIT, || {
        let world = World::varied("fetch");
        let client = connect(&world.server, MEMORY);
        let dataset = client.dataset("set").unwrap();
        // In the order asked for, repetitions included.
        let wanted = [8, 1, 0, 8, 89, 2];
        let batch = dataset.fetch(&wanted, None).unwrap();
        assert!(batch.ordinals().eq(wanted));
        batch.iter().for_each(|sample| same(&sample, &world.written[sample.ordinal() as usize]));
        drop(batch);
        for (ordinal, written) in world.written.iter().enumerate().step_by(7) {
            assert_eq!(dataset.ordinal(&written.key).unwrap(), ordinal as u64);
            let batch = dataset.fetch(&[ordinal as u64], Some(&["jpg"])).unwrap();
            assert!(batch.field(0, 0) == Some(&written.jpg), "{}", written.key);
            let described = dataset.sample(ordinal as u64).unwrap();
            assert_eq!(described.key, written.key);
        }
        assert!(dataset.find("nobody").unwrap().is_empty());
        assert!(matches!(dataset.ordinal("nobody"), Err(Error::NoSuchKey { .. })));
        assert!(matches!(dataset.fetch(&[90], None), Err(Error::NoSuchSample { ordinal: 90, samples: 90, .. })));
        assert!(matches!(client.dataset("nothing"), Err(Error::Refused { .. })));
        is_whole(client.inner());
    });
}

#[test]
fn a_loader_dropped_in_mid_epoch_leaves_nothing_behind() {
    within(LIMIT, || {
        let world = World::varied("dropped-loader");
        let client = connect(&world.server, MEMORY);
        let dataset = client.dataset("set").unwrap();
        for taken in [0, 1, 1, 2, 5, 13] {
            let mut loader = dataset.loader(LoaderOptions { seed: taken, ..options(3) }).unwrap();
            for _ in 0..taken {
                let batch = loader.next().unwrap().unwrap();
                batch.iter().for_each(|sample| same(&sample, &world.written[sample.ordinal() as usize]));
            }
            drop(loader);
            is_whole(client.inner());
        }
        // Nothing that was under way is written into what others get afterwards.
        read(&dataset, options(3), &world.written, drop).unwrap();
    });
}

#[test]
fn a_future_dropped_half_way_loses_nothing() {
    within(LIMIT, || {
        let world = World::varied("dropped-future");
        runtime().block_on(async {
            let (client, dataset) = world.connect().await;
            // A fetch given up at any moment.
            for micros in [0, 200, 1_000, 5_000, 20_000] {
                let given_up =
                    tokio::time::timeout(Duration::from_micros(micros), dataset.fetch(&[1, 10, 19], None)).await;
                drop(given_up);
                is_whole(&client);
            }
            // A wait for the next batch given up again and again: the epoch is whole all the same.
            let mut loader = dataset.loader(LoaderOptions { shuffle: Shuffle::None, ..options(4) }).await.unwrap();
            let (mut next, mut given_up) = (0, 0);
            loop {
                match tokio::time::timeout(Duration::from_micros(300), loader.next()).await {
                    Err(_) => given_up += 1,
                    Ok(None) => break,
                    Ok(Some(batch)) => {
                        for sample in batch.unwrap().iter() {
                            assert_eq!(sample.ordinal(), next);
                            same(&sample, &world.written[next as usize]);
                            next += 1;
                        }
                    }
                }
            }
            assert_eq!(next, 90);
            assert!(given_up > 0, "no wait was ever given up");
            is_whole(&client);
            // A connection given up.
            let url: ServerUrl = world.server.url.parse().unwrap();
            let connecting = Client::connect(&url, config(&world.server, MEMORY));
            drop(tokio::time::timeout(Duration::from_micros(500), connecting).await);
            assert_eq!(drain(&dataset, options(9), &world.written).await.unwrap(), 90);
        });
    });
}

/// The driver's reply is under way, and nobody waits for it any more.
#[test]
fn a_loader_given_up_while_it_opens_leaves_nothing_behind() {
    within(LIMIT, || {
        let world = World::varied("given-up");
        runtime().block_on(async {
            let (client, dataset) = world.connect().await;
            let endless = LoaderOptions { epochs: None, ..options(3) };
            let mut opening = Box::pin(dataset.loader(endless));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(opening.as_mut().poll(&mut context).is_pending());
            until("it prefetches", || client.pool().leases > 0);
            drop(opening);
            is_whole(&client);
        });
    });
}

#[test]
fn a_task_aborted_in_mid_epoch_leaves_nothing_behind() {
    within(LIMIT, || {
        let world = World::varied("aborted");
        runtime().block_on(async {
            let (client, dataset) = world.connect().await;
            for millis in [1, 10, 40] {
                let (dataset, written) = (dataset.clone(), world.written.clone());
                let endless = LoaderOptions { epochs: None, ..options(3) };
                let task = tokio::spawn(async move { drain(&dataset, endless, &written).await });
                tokio::time::sleep(Duration::from_millis(millis)).await;
                task.abort();
                assert!(task.await.unwrap_err().is_cancelled());
                is_whole(&client);
            }
        });
    });
}

#[test]
fn samples_outlive_their_batch_their_loader_and_their_client() {
    within(LIMIT, || {
        let world = World::new("outlive", 60, Sizes::Cycle(vec![1, 200_000, 3_000, 0]));
        let kept: Vec<Sample> = {
            let client = connect(&world.server, MEMORY);
            let mut loader = client.dataset("set").unwrap().loader(options(10)).unwrap();
            let mut kept = Vec::new();
            for _ in 0..3 {
                kept.extend(loader.next().unwrap().unwrap().iter().step_by(3));
            }
            let used = client.pool();
            assert!(used.free < used.capacity && used.leases > 0, "{used:?}");
            kept
        };
        drop(world.server);
        assert_eq!(kept.len(), 12);
        for sample in &kept {
            same(sample, &world.written[sample.ordinal() as usize]);
            let jpg = sample.view(sample.fields().iter().position(|name| &**name == "jpg").unwrap()).unwrap();
            assert!(*jpg == *world.written[sample.ordinal() as usize].jpg);
        }
        // Their memory may go back on any thread, in any order.
        std::thread::spawn(move || drop(kept)).join().unwrap();
    });
}

#[test]
fn batches_given_back_in_any_order() {
    within(LIMIT, || {
        let world = World::new("any-order", 240, Sizes::Cycle(vec![9_000, 200_000, 1, 64_000]));
        let client = connect(&world.server, MEMORY);
        let dataset = client.dataset("set").unwrap();
        let mut kept = Vec::new();
        let mut random = fastrand::Rng::with_seed(1);
        read(&dataset, LoaderOptions { epochs: Some(3), ..options(8) }, &world.written, |batch| {
            kept.push(batch);
            while kept.len() > 6 {
                kept.swap_remove(random.usize(..kept.len()));
            }
        })
        .unwrap();
        for batch in kept {
            batch.iter().for_each(|sample| same(&sample, &world.written[sample.ordinal() as usize]));
        }
        is_whole(client.inner());
    });
}

/// The client's thread ends with its last handle, and a loader is a handle.
#[test]
fn a_loader_outlives_the_handles_it_was_made_from() {
    within(LIMIT, || {
        let world = World::new("handles", 60, Sizes::Fixed(100_000));
        let loader: blocking::Loader = {
            let client = connect(&world.server, MEMORY);
            client.dataset("set").unwrap().loader(options(7)).unwrap()
        };
        let samples: usize = loader.map(|batch| batch.unwrap().len()).sum();
        assert_eq!(samples, 60);
        let threads = || {
            std::fs::read_dir("/proc/self/task")
                .unwrap()
                .filter(|task| {
                    let name = std::fs::read_to_string(task.as_ref().unwrap().path().join("comm"));
                    name.is_ok_and(|name| name.starts_with("forebay"))
                })
                .count()
        };
        // Other tests of this program have clients of their own: theirs end too.
        until("the client's thread ends", || threads() == 0);
    });
}

#[test]
fn a_client_that_is_closed_ends_what_is_left_of_it() {
    within(LIMIT, || {
        let world = World::varied("closed");
        let client = connect(&world.server, MEMORY);
        let dataset = client.dataset("set").unwrap();
        let mut loader = dataset.loader(LoaderOptions { epochs: None, ..options(2) }).unwrap();
        let kept = loader.next().unwrap().unwrap();
        client.close();
        assert!(loader.find_map(Result::err).is_some_and(|error| matches!(error, Error::Closed)));
        assert!(matches!(dataset.fetch(&[1], None), Err(Error::Closed)));
        assert!(matches!(dataset.sample(1), Err(Error::Closed)));
        kept.iter().for_each(|sample| same(&sample, &world.written[sample.ordinal() as usize]));
        // The server is not kept from ending, and its grace is half a minute.
        world.server.running.signal("TERM");
        assert_eq!(world.server.running.finish(Duration::from_secs(10)).code, Some(0));
    });
}

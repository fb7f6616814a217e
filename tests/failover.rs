//! A faster fabric beside HTTP/3: tried, used, left without losing a sample, and tried again.
//!
//! The rail is the local fabric here, reading the same shards as the server does, with faults put in: what is proved is what the
//! client does about a rail, whichever it is.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use forebay_client::blocking::{Client, Dataset};
use forebay_client::transport::dial::{Asking, RailDialer, RailDialling, RailError};
use forebay_client::transport::link::{Completion, Fetch, Link, LinkError, LinkStats, Tag};
use forebay_client::transport::pool::Slab;
use forebay_client::{ClientConfig, Error, Fabric, InUse, LoaderOptions, ServerUrl};
use forebay_server::catalog::resolve;
use forebay_server::local::LocalFabric;
use forebay_server::publish::{Publish, publish};
use forebay_server::serve::Registry;
use forebay_server::store::PreadConfig;
use forebay_system::program::{Server, lasting_address};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{Shards, Sizes, Written};
use forebay_system::world::{Delivered, config, read, shards, within};

const LIMIT: Duration = Duration::from_secs(120);
const SAMPLES: u64 = 300;
/// Both are of the same shards.
const DATASETS: [&str; 2] = ["set", "other"];

/// What becomes of a try.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Works,
    /// The link dies when so many operations have completed on it.
    Dies(u64),
    /// From so many on, a byte of each answer is wrong.
    Damages(u64),
    Fails,
    Refuses,
    Hangs,
}

/// A rail whose tries have these fates in turn, and the last of them from then on.
struct Rail {
    fabric: LocalFabric,
    fates: Mutex<Vec<Fate>>,
    dialled: Mutex<Vec<Instant>>,
    completed: Arc<AtomicU64>,
    /// A try that hangs was given up.
    dropped: Arc<AtomicBool>,
}

impl Rail {
    fn new(index: &Path, pattern: &str, fates: &[Fate]) -> Arc<Rail> {
        let registry = Arc::new(Registry::new());
        for name in DATASETS {
            let work = Publish {
                name: name.into(),
                sources: resolve(pattern).expect("shards"),
                index: index.to_owned(),
                in_memory: false,
                portable: None,
                skip_damaged: false,
                defer: None,
            };
            publish(&registry, &work, &PreadConfig::default().into(), &|_| {}, &AtomicBool::new(false))
                .expect("intact shards");
        }
        Arc::new(Rail {
            fabric: LocalFabric::new("rail", registry).expect("a page"),
            fates: Mutex::new(fates.iter().rev().copied().collect()),
            dialled: Mutex::default(),
            completed: Arc::default(),
            dropped: Arc::default(),
        })
    }

    fn dials(&self) -> usize {
        self.dialled.lock().unwrap().len()
    }

    fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }
}

impl RailDialer for Rail {
    fn fabric(&self) -> &str {
        "rdma"
    }

    fn dial(&self, offer: Asking, _: &Slab) -> RailDialling {
        self.dialled.lock().unwrap().push(Instant::now());
        let mut fates = self.fates.lock().unwrap();
        let fate = if fates.len() > 1 { fates.pop().unwrap() } else { fates[0] };
        let link = self.fabric.link(tokio::runtime::Handle::current());
        let (completed, dropped) = (self.completed.clone(), self.dropped.clone());
        Box::pin(async move {
            // The server under test allows nothing, and says so: the offer was asked for where it should be.
            let answer = offer.await.map_err(|error| RailError::Failed(error.to_string()))?;
            assert_eq!(answer.status, 403);
            match fate {
                Fate::Fails => Err(RailError::Failed("out of luck".into())),
                Fate::Refuses => Err(RailError::Refused("not for you".into())),
                Fate::Hangs => {
                    let _on_drop = OnDrop(dropped);
                    std::future::pending().await
                }
                Fate::Works | Fate::Dies(_) | Fate::Damages(_) => {
                    let link: Box<dyn Link> = Box::new(Fated { link: Box::new(link), fate, count: 0, completed });
                    Ok(link)
                }
            }
        })
    }
}

struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Fated {
    link: Box<dyn Link>,
    fate: Fate,
    count: u64,
    completed: Arc<AtomicU64>,
}

impl Fated {
    fn is_dead(&self) -> bool {
        matches!(self.fate, Fate::Dies(after) if self.count >= after)
    }
}

impl Link for Fated {
    fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        if self.is_dead() { Err(fetch) } else { self.link.submit(fetch) }
    }

    fn flush(&mut self) {
        self.link.flush();
    }

    fn cancel(&mut self, tag: Tag) {
        self.link.cancel(tag);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        let dead = self.is_dead();
        let Poll::Ready(mut completion) = self.link.poll(cx) else { return Poll::Pending };
        match self.fate {
            _ if dead => completion.result = Err(LinkError::Closed("the rail was torn out".into())),
            Fate::Damages(after) if self.count >= after => {
                if let Some(byte) = completion.lease.as_mut_slice().first_mut() {
                    *byte ^= 1;
                }
            }
            _ => _ = self.completed.fetch_add(1, Ordering::Relaxed),
        }
        self.count += 1;
        Poll::Ready(completion)
    }

    fn is_alive(&self) -> bool {
        !self.is_dead() && self.link.is_alive()
    }

    fn stats(&self) -> LinkStats {
        self.link.stats()
    }
}

struct World {
    written: Vec<Written>,
    pattern: String,
    server: Option<Server>,
    address: String,
    rail: Arc<Rail>,
    client: Client,
    dataset: Dataset,
    scratch: Scratch,
}

impl World {
    fn new(name: &str, fabric: Fabric, fates: &[Fate]) -> World {
        let scratch = Scratch::new(name);
        let what =
            Shards { shards: 3, samples: SAMPLES as usize, sizes: Sizes::Cycle(vec![1000, 1, 40_000, 300]), seed: 9 };
        let (written, pattern) = shards(&scratch.join("data"), &what);
        assert_eq!(written.len() as u64, SAMPLES);
        let address = lasting_address();
        let server = serve(&pattern, &scratch.join("state"), &address);
        let rail = Rail::new(&scratch.join("rail.fbi"), &pattern, fates);
        let config = ClientConfig { fabric, ..config(&server, 32 << 20) };
        let url: ServerUrl = server.url.parse().unwrap();
        let client = Client::connect_beside(&url, config, rail.clone()).unwrap();
        let dataset = client.dataset("set").unwrap();
        World { written, pattern, server: Some(server), address, rail, client, dataset, scratch }
    }

    /// Reads epochs slowly, until `enough` says so, and checks that each sample came once in each.
    fn read_until(&self, mut enough: impl FnMut(&Delivered) -> bool) -> Vec<Delivered> {
        let mut all = Vec::new();
        for epoch in 0..1000 {
            let options = LoaderOptions { batch_size: 10, first_epoch: epoch, ..LoaderOptions::default() };
            let delivered =
                read(&self.dataset, options, &self.written, |_| std::thread::sleep(Duration::from_millis(5)));
            let delivered = delivered.unwrap_or_else(|error| panic!("epoch {epoch}: {error}"));
            let positions: Vec<u64> = delivered.iter().map(|one| one.position).collect();
            assert_eq!(positions, (0..SAMPLES).collect::<Vec<_>>(), "each position once, in order");
            let mut ordinals: Vec<u64> = delivered.iter().map(|one| one.ordinal).collect();
            ordinals.sort_unstable();
            assert_eq!(ordinals, positions, "each sample once");
            let done = enough(delivered.last().unwrap());
            all.extend(delivered);
            if done {
                self.is_whole();
                return all;
            }
        }
        panic!("a thousand epochs were not enough: {:?}", self.in_use());
    }

    fn read(&self) -> Vec<Delivered> {
        self.read_until(|_| true)
    }

    fn in_use(&self) -> InUse {
        self.dataset.in_use().unwrap()
    }

    fn settled(&self) -> InUse {
        self.dataset.settled().unwrap()
    }

    fn is_whole(&self) {
        forebay_system::world::until("the pool is whole again", || {
            let usage = self.client.pool();
            usage.free == usage.capacity && usage.leases == 0 && usage.quarantined == 0
        });
    }
}

fn serve(pattern: &str, state: &Path, address: &str) -> Server {
    Server::start(&DATASETS.map(|name| (name, pattern)), state, &["--listen", address])
}

#[test]
fn each_dataset_has_a_rail_of_its_own_and_loaders_of_one_share_it() {
    within(LIMIT, || {
        let world = World::new("rail-each", Fabric::Auto, &[Fate::Works]);
        let other = world.client.dataset("other").unwrap();
        assert_eq!(other.settled().unwrap().fabric.as_deref(), Some("rdma"));
        assert_eq!((world.rail.dials(), world.in_use().promotions), (1, 0), "nobody reads the first");
        std::thread::scope(|scope| {
            for dataset in [&world.dataset, &world.dataset, &other, &other] {
                let written = &world.written;
                scope.spawn(move || {
                    let options = LoaderOptions { batch_size: 7, epochs: Some(3), ..LoaderOptions::default() };
                    assert_eq!(read(dataset, options, written, drop).unwrap().len() as u64, 3 * SAMPLES);
                });
                scope.spawn(move || {
                    // Leaves in the middle, with operations under way.
                    let options = LoaderOptions { batch_size: 7, ..LoaderOptions::default() };
                    assert_eq!(dataset.loader(options).unwrap().take(9).filter(|batch| batch.is_ok()).count(), 9);
                });
            }
        });
        for in_use in [world.settled(), other.settled().unwrap()] {
            assert_eq!((in_use.fabric.as_deref(), in_use.promotions, in_use.failovers), (Some("rdma"), 1, 0));
        }
        assert_eq!(world.rail.dials(), 2);
        world.is_whole();
    });
}

#[test]
fn a_rail_that_works_is_used() {
    within(LIMIT, || {
        let world = World::new("rail-works", Fabric::Auto, &[Fate::Works]);
        assert_eq!(world.in_use().to_string(), "come over h3: rdma has not been tried yet");
        let in_use = world.settled();
        assert_eq!((in_use.fabric.as_deref(), in_use.promotions), (Some("rdma"), 1), "{in_use}");
        world.read();
        assert!(world.rail.completed() >= 3 && world.rail.dials() == 1, "{}", world.rail.completed());
        let in_use = world.in_use();
        assert_eq!(in_use.to_string(), "come over rdma: rdma has proved itself");
        assert_eq!((in_use.promotions, in_use.failovers), (1, 0));
    });
}

#[test]
fn a_rail_that_dies_again_and_again_loses_nothing() {
    within(LIMIT, || {
        let fates = [Fate::Dies(2), Fate::Fails, Fate::Dies(1), Fate::Works];
        let world = World::new("rail-dies", Fabric::Auto, &fates);
        world.read_until(|_| world.in_use().promotions >= 3);
        let in_use = world.in_use();
        assert_eq!((in_use.fabric.as_deref(), in_use.failovers), (Some("rdma"), 2), "{in_use}");
        // Pauses: half a second at least, then more.
        let dialled = world.rail.dialled.lock().unwrap().clone();
        assert_eq!(dialled.len(), 4);
        for (at, pair) in dialled.windows(2).enumerate() {
            let pause = pair[1] - pair[0];
            assert!(pause >= Duration::from_millis(500 << at), "{at}: {pause:?}");
        }
    });
}

#[test]
fn damaged_bytes_are_never_delivered_and_end_the_use_of_the_rail() {
    within(LIMIT, || {
        let world = World::new("rail-damages", Fabric::Auto, &[Fate::Damages(1), Fate::Fails]);
        world.settled();
        world.read_until(|_| world.in_use().failovers == 1);
        let in_use = world.in_use();
        assert_eq!(in_use.fabric.as_deref(), Some("h3"));
        assert!(in_use.reason.contains("checksum") || in_use.reason.contains("out of luck"), "{in_use}");
    });
}

#[test]
fn a_try_that_hangs_is_given_up_after_a_second_and_nothing_waits_for_it() {
    within(LIMIT, || {
        let world = World::new("rail-hangs", Fabric::Auto, &[Fate::Hangs]);
        let started = Instant::now();
        let mut loader = world.dataset.loader(LoaderOptions::default()).unwrap();
        assert!(loader.next().is_some_and(|batch| batch.is_ok()));
        assert!(world.rail.dials() == 1 && !world.rail.dropped.load(Ordering::Relaxed), "it is still being tried");
        drop(loader);
        let in_use = world.settled();
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert_eq!(in_use.to_string(), "come over h3: rdma is not used: it did not prove itself within 1s");
        assert!(world.rail.dropped.load(Ordering::Relaxed));
    });
}

#[test]
fn a_rail_goes_with_the_server_and_comes_back_with_it() {
    within(LIMIT, || {
        let mut world = World::new("rail-server", Fabric::Auto, &[Fate::Works]);
        assert_eq!(world.settled().fabric.as_deref(), Some("rdma"));
        world.read();
        drop(world.server.take());
        world.server = Some(serve(&world.pattern, &world.scratch.join("state"), &world.address));
        // Whatever the client had noticed by then, it goes on.
        world.read_until(|_| world.in_use().promotions == 2);
        assert_eq!((world.in_use().failovers, world.rail.dials()), (1, 2));
    });
}

#[test]
fn who_wants_nothing_else_gets_it_or_is_told_why_not() {
    within(LIMIT, || {
        let refused = |name, fate, why: &str| {
            let world = World::new(name, Fabric::Rdma, &[fate]);
            let error = world.dataset.loader(LoaderOptions::default()).unwrap_err();
            assert!(matches!(&error, Error::Fabric { fabric, .. } if fabric == "rdma"), "{error}");
            assert!(error.to_string().contains(why), "{error}");
            assert!(world.dataset.fetch(&[1], None).is_err());
        };
        refused("only-refused", Fate::Refuses, "rdma is not used: not for you");
        refused("only-hangs", Fate::Hangs, "did not prove itself within 1s");
        let world = World::new("only-works", Fabric::Rdma, &[Fate::Dies(2), Fate::Works]);
        world.read_until(|_| world.in_use().promotions == 2);
        let groups = world.rail.completed();
        let loader = world.dataset.loader(LoaderOptions::default()).unwrap();
        let stats =
            std::iter::once(loader).map(|mut loader| (loader.by_ref().count(), loader.stats()).1).next().unwrap();
        assert_eq!(world.rail.completed() - groups, stats.completed, "all of it over the rail");
    });
}

#[test]
fn where_it_is_the_only_way_its_loss_is_waited_for_and_then_told() {
    within(LIMIT, || {
        let world = World::new("only-lost", Fabric::Rdma, &[Fate::Dies(1), Fate::Fails]);
        let stall_timeout = Duration::from_secs(3);
        let options = LoaderOptions { batch_size: 10, stall_timeout, ..LoaderOptions::default() };
        let started = Instant::now();
        let error = world.dataset.loader(options).unwrap().find_map(Result::err).expect("it cannot end well");
        let says = error.to_string();
        assert!(says.contains("over rdma for") && says.contains("the rail was torn out"), "{says}");
        assert!(started.elapsed() >= stall_timeout && started.elapsed() < Duration::from_secs(30));
        assert!(world.rail.dials() > 1, "it was tried again");
        // Whoever comes now is not turned away: it was there, and may be again.
        assert!(world.dataset.loader(LoaderOptions::default()).is_ok());
        world.is_whole();
    });
}

#[test]
fn who_does_not_want_it_does_not_try_it() {
    within(LIMIT, || {
        let world = World::new("h3-only", Fabric::H3, &[Fate::Works]);
        world.read();
        assert_eq!((world.rail.dials(), world.settled().fabric.as_deref()), (0, Some("h3")));
    });
}

//! The same service over real HTTP/3 on loopback, and the link that reads it.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use forebay_server::serve::Service;
use forebay_transport::h3::client::{AskLimits, ConnectConfig};
use forebay_transport::h3::{Connection, Connector, Identity, Server, ServerConfig, Trust};
use forebay_transport::link::{Completion, Fetch, Link, LinkError, Status, Tag};
use forebay_transport::pool::{Account, Slab, SlabConfig};
use forebay_transport::wire::problem;

use crate::world::{Samples, World, noise, sample};

const POOL: usize = 16 << 20;

/// A connection to the world's service, which serves until the test's runtime ends.
async fn connect(world: &World) -> Connection {
    let identity = Identity::self_signed(world.folder.path(), &["localhost".into()]).unwrap();
    let trust = Trust::Pinned(identity.fingerprint());
    let server = Server::bind(ServerConfig::new(([127, 0, 0, 1], 0).into(), identity, POOL)).unwrap();
    let port = server.local_addr().port();
    let service: Arc<Service> = world.service.clone();
    tokio::spawn(server.serve(service, std::future::pending(), Duration::ZERO));
    let connector = Connector::new(ConnectConfig { trust, ..ConnectConfig::default() }).unwrap();
    connector.connect("127.0.0.1", port).await.unwrap()
}

/// Groups of every eighth sample, each in a lease of a mebibyte of the client's.
fn fetches(world: &World, slab: &Slab, account: &Account) -> Vec<Fetch> {
    let served = world.served("d");
    let field = |name| served.dataset.field_id(name).unwrap();
    let fields: Arc<[_]> = [field("jpg"), field("cls")].into();
    let fetch = |first: u64| Fetch {
        tag: Tag(first),
        dataset: "d".into(),
        version: served.dataset.version(),
        ordinals: (first..served.dataset.samples()).step_by(8).collect(),
        fields: fields.clone(),
        lease: slab.try_lease(account, 1 << 20).unwrap(),
        entries: Vec::new(),
        deadline: Duration::from_secs(10),
    };
    (0..8).map(fetch).collect()
}

async fn completions(link: &mut impl Link, fetches: Vec<Fetch>) -> Vec<Completion> {
    let count = fetches.len();
    fetches.into_iter().for_each(|fetch| link.submit(fetch).expect("the window has room"));
    link.flush();
    let mut done = Vec::new();
    for _ in 0..count {
        let completion = tokio::time::timeout(Duration::from_secs(20), poll_fn(|cx| link.poll(cx)));
        done.push(completion.await.expect("a completion in time"));
    }
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_reads_what_lies_in_the_shards_until_they_change() {
    let one = |n: u64| sample(format!("{n:04}"), &[("jpg", noise(n, 60_000)), ("cls", n.to_string().into_bytes())]);
    let samples: Samples = (0..96).map(one).collect();
    let world = World::new(POOL, crate::world::quick());
    world.serve(world.index("d", &samples, 20), |store| store);
    let connection = connect(&world).await;
    let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(POOL) }).unwrap();
    let account = Account::new("client", POOL);
    let mut link = connection.link(8);

    for completion in completions(&mut link, fetches(&world, &slab, &account)).await {
        let entries = completion.result.unwrap();
        assert_eq!(entries.len(), 24);
        for (sample, pair) in completion.ordinals.iter().map(|&n| &samples[n as usize].1).zip(entries.chunks(2)) {
            for (entry, bytes) in pair.iter().zip([&sample["jpg"], &sample["cls"]]) {
                assert_eq!((entry.status, entry.crc), (Status::Ok, Some(crc32c::crc32c(bytes))));
                assert!(completion.lease[entry.offset as usize..][..entry.len as usize] == bytes[..]);
            }
        }
    }
    let answer = connection.get("/v1/datasets/d/samples/9/cls", AskLimits::default()).await.unwrap();
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"9"[..]));
    let answer = connection.get("/v1/datasets/none", AskLimits::default()).await.unwrap();
    assert_eq!(problem::parse(answer.status.as_u16(), &answer.body).kind, "urn:forebay:problem:not-found");

    // A shard is rewritten: whoever still asks for the old version is told, and gets none of the new bytes.
    let old = fetches(&world, &slab, &account);
    let again = fetches_like(&old, &slab, &account);
    std::fs::write(world.shard("d", 1), crate::world::tar(&samples[..20])).unwrap();
    let failed = completions(&mut link, old).await;
    // Some may have been broken off in mid-answer; asked again, all are told.
    assert!(failed.iter().all(|completion| completion.result.is_err()));
    for completion in completions(&mut link, again).await {
        assert!(matches!(completion.result, Err(LinkError::DatasetChanged(_))), "{:?}", completion.result);
    }
    drop(link);
    world.assert_nothing_held().await;
}

fn fetches_like(fetches: &[Fetch], slab: &Slab, account: &Account) -> Vec<Fetch> {
    let like = |fetch: &Fetch| Fetch {
        tag: Tag(fetch.tag.0 + 100),
        dataset: fetch.dataset.clone(),
        version: fetch.version,
        ordinals: fetch.ordinals.clone(),
        fields: fetch.fields.clone(),
        lease: slab.try_lease(account, 1 << 20).unwrap(),
        entries: Vec::new(),
        deadline: fetch.deadline,
    };
    fetches.iter().map(like).collect()
}

//! What is asked in plain HTTP: documents, single fields, and what is wrong with a request.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use forebay_server::serve::State;
use forebay_server::store::Faulty;
use forebay_transport::exchange::memory::Ask;
use forebay_transport::link::Version;
use forebay_transport::wire::describe::{DatasetList, DatasetState, Description, SampleDescription};
use forebay_transport::wire::{MAX_REQUEST, date};
use http::Method;

use crate::world::{Samples, World, kind, noise, problem, quick, sample};

fn samples() -> Samples {
    vec![
        sample("a/0", &[("jpg", noise(1, 3000)), ("cls", b"7".to_vec())]),
        sample("a/1", &[("jpg", noise(2, 10))]),
        sample("ü %", &[("jpg", vec![]), ("json", b"{}".to_vec())]),
        // The same key again, in another shard.
        sample("a/0", &[("cls", b"9".to_vec())]),
    ]
}

#[tokio::test]
async fn datasets_are_listed_and_described() {
    let world = World::with(&samples(), 3);
    world.service.registry().set("later", State::Indexing { progress: 0.25 });
    world.service.registry().set("broken", State::Damaged { error: "shard 7 at 512".into() });
    let list: DatasetList = serde_json::from_slice(&world.get("/v1/datasets").await.body()).unwrap();
    let states: Vec<_> = list.datasets.iter().map(|line| (line.name.as_str(), line.state)).collect();
    use DatasetState::{Damaged, Indexing, Ready};
    assert_eq!(states, [("broken", Damaged), ("d", Ready), ("later", Indexing)]);
    assert_eq!(list.datasets[0].error.as_deref(), Some("shard 7 at 512"));
    assert_eq!((list.datasets[1].samples, list.datasets[1].bytes), (Some(4), Some(3014)));
    assert_eq!(list.datasets[2].progress, Some(0.25));

    let answer = world.get("/v1/datasets/d").await;
    let version = world.served("d").dataset.version().to_string();
    assert_eq!(answer.head.headers()["forebay-version"], *version);
    assert_eq!(answer.head.headers()["content-type"], "application/json");
    let described: Description = serde_json::from_slice(&answer.body()).unwrap();
    assert_eq!((described.version, described.samples, described.largest_sample), (version, 4, 3001));
    let fields: Vec<_> = described.fields.iter().map(|field| (field.name.as_str(), field.count)).collect();
    assert_eq!(fields, [("cls", 2), ("jpg", 3), ("json", 1)]);
    assert_eq!(described.shards.len(), 2);
}

#[tokio::test]
async fn documents_and_problems_say_when_they_were_written() {
    let world = World::with(&samples(), 3);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for path in ["/v1/datasets", "/v1/datasets/d", "/v1/datasets/d/samples/0", "/v1/datasets/other"] {
        let before = now();
        let answer = world.get(path).await;
        let said = answer.head.headers()["date"].to_str().unwrap();
        let date = date::parse(said).unwrap_or_else(|| panic!("{said}"));
        assert!((before..=now()).contains(&date), "{path}: {said}");
    }
}

#[tokio::test]
async fn samples_are_found_by_ordinal_and_key() {
    let world = World::with(&samples(), 3);
    let answer = world.get("/v1/datasets/d/samples/0").await;
    let one: SampleDescription = serde_json::from_slice(&answer.body()).unwrap();
    assert_eq!((one.ordinal, one.key.as_str(), one.fields.len()), (0, "a/0", 2));
    // Whoever reads at that place in the shard finds the field.
    let jpg = one.fields.iter().find(|field| field.name == "jpg").unwrap();
    let shard = std::fs::read(world.shard("d", 0)).unwrap();
    let bytes = &shard[jpg.offset as usize..][..jpg.bytes as usize];
    assert_eq!(bytes, noise(1, 3000));
    assert_eq!(jpg.crc32c.as_deref(), Some(&*format!("{:08x}", crc32c::crc32c(bytes))));

    for (path, ordinals) in [("a/0", &[0, 3][..]), ("a%2F0", &[0, 3]), ("%C3%BC%20%25", &[2])] {
        let answer = world.get(&format!("/v1/datasets/d/keys/{path}")).await;
        let found: Vec<SampleDescription> = serde_json::from_slice(&answer.body()).unwrap();
        assert_eq!(found.iter().map(|sample| sample.ordinal).collect::<Vec<_>>(), ordinals, "{path}");
    }
    assert_eq!(kind(&world.get("/v1/datasets/d/keys/a").await), "not-found");
}

#[tokio::test]
async fn fields_are_plain_bytes() {
    let world = World::with(&samples(), 3);
    for (ordinal, (_, fields)) in samples().iter().enumerate() {
        for (name, bytes) in fields {
            let answer = world.get(&format!("/v1/datasets/d/samples/{ordinal}/{name}")).await;
            assert_eq!((answer.status(), &answer.end, &answer.body()), (200, &Ok(()), bytes));
            let headers = answer.head.headers();
            assert_eq!(headers["content-length"], *bytes.len().to_string());
            assert_eq!(headers["forebay-crc32c"], *format!("{:08x}", crc32c::crc32c(bytes)));
            assert_eq!(headers["forebay-version"], *world.served("d").dataset.version().to_string());
        }
    }
    world.assert_nothing_held().await;
}

/// A field much larger than a chunk comes in pieces, which are the pool's own memory.
#[tokio::test]
async fn large_fields_are_streamed_from_the_pool() {
    let bytes = noise(3, (5 << 20) + 17);
    let world = World::new(4 << 20, quick());
    world.serve(world.index("d", &vec![sample("0", &[("bin", bytes.clone())])], 1), |store| store);
    let ask = Ask { account: world.account.clone(), ..Ask::get("/v1/datasets/d/samples/0/bin") };
    let mut reading = forebay_transport::exchange::memory::start(world.service.clone(), ask);
    let (mut got, (base, len)) = (Vec::new(), world.slab.region());
    let pool = base.as_ptr() as usize..base.as_ptr() as usize + len;
    while let Some(event) = reading.next().await {
        if let forebay_transport::exchange::memory::Event::Chunk(chunk) = event {
            assert!(pool.contains(&(chunk.as_ptr() as usize)), "a copy was sent");
            assert!(world.account.held() <= 1 << 20);
            got.extend_from_slice(&chunk);
        }
    }
    assert!(got == bytes);
    world.assert_nothing_held().await;
}

#[tokio::test]
async fn head_reads_nothing() {
    let world = World::new(4 << 20, quick());
    world.serve(world.index("d", &samples(), 3), |store| Faulty::new(store, |_, read| panic!("reads {read:?}")));
    for path in ["", "/d", "/d/samples/0", "/d/samples/0/jpg", "/d/keys/a/1"] {
        let answer = world.method(Method::HEAD, &format!("/v1/datasets{path}")).await;
        assert_eq!((answer.status(), answer.end, answer.body().len()), (200, Ok(()), 0), "{path}");
        let len: u64 = answer.head.headers()["content-length"].to_str().unwrap().parse().unwrap();
        assert!(len > 0);
    }
    let answer = world.method(Method::HEAD, "/v1/datasets/d/samples/0/jpg").await;
    assert_eq!(answer.head.headers()["content-length"], "3000");
}

#[tokio::test]
async fn what_is_not_there_is_a_problem() {
    let world = World::with(&samples(), 3);
    let missing = ["/", "/v1", "/v1/datasets/", "/v1/datasets/e", "/v1/datasets/e/samples/0", "/v1/datasets/d/x"];
    let missing =
        missing.into_iter().chain(["/v1/datasets/d/samples/4", "/v1/datasets/d/samples/18446744073709551615"]);
    let missing = missing.chain(["/v1/datasets/d/samples/1/cls", "/v1/datasets/d/samples/0/png"]);
    for path in missing {
        assert_eq!(kind(&world.get(path).await), "not-found", "{path}");
    }
    for path in ["/v1/datasets/%zz", "/v1/datasets/d/samples/-1", "/v1/datasets/%ff"] {
        assert_eq!(kind(&world.get(path).await), "bad-request", "{path}");
    }
    for (method, path, allow) in [
        (Method::POST, "/v1/datasets", "GET, HEAD"),
        (Method::DELETE, "/v1/datasets/d", "GET, HEAD"),
        (Method::GET, "/v1/datasets/d/fetch", "POST"),
    ] {
        let answer = world.method(method, path).await;
        assert_eq!(kind(&answer), "method-not-allowed");
        assert_eq!(answer.head.headers()["allow"], allow);
    }
    let counts = world.service.metrics().counts();
    assert_eq!((counts.requests, counts.refused), (16, 16));
}

#[tokio::test]
async fn datasets_that_are_not_ready_say_so() {
    let world = World::with(&samples(), 3);
    let ask = world.asking("d", &[0], &["jpg"], 4096);
    let registry = world.service.registry();
    registry.set("d", State::Indexing { progress: 0.5 });
    let answer = world.ask(Ask { account: world.account.clone(), ..Ask::post("/v1/datasets/d/fetch", ask.body) }).await;
    assert_eq!(kind(&answer), "not-ready");
    assert_eq!(answer.head.headers()["retry-after"], "1");
    registry.set("d", State::Damaged { error: "0001.tar at 1024".into() });
    let answer = world.get("/v1/datasets/d").await;
    assert_eq!(kind(&answer), "damaged");
    assert!(problem(&answer).detail.unwrap().contains("0001.tar at 1024"));
    registry.set("d", State::Changed { version: Version([1; 32]), error: "0001.tar was replaced".into() });
    assert_eq!(kind(&world.get("/v1/datasets/d/samples/0/jpg").await), "dataset-changed");
}

#[tokio::test]
async fn requests_can_be_pinned_to_a_version() {
    let world = World::with(&samples(), 3);
    let asked = |version: &str| {
        let mut ask = Ask::get("/v1/datasets/d/samples/0/jpg");
        ask.headers.insert("forebay-version", version.parse().unwrap());
        world.ask(ask)
    };
    assert_eq!(asked(&world.served("d").dataset.version().to_string()).await.status(), 200);
    assert_eq!(kind(&asked(&Version([1; 32]).to_string()).await), "dataset-changed");
    assert_eq!(kind(&asked("b3-12").await), "bad-request");
}

#[tokio::test]
async fn fetches_that_make_no_sense_are_refused() {
    let world = World::with(&samples(), 3);
    let good = world.asking("d", &[0, 1], &["jpg"], 4096).body;
    let fetch = |body: Vec<u8>| world.ask(Ask::post("/v1/datasets/d/fetch", body));
    let patched = |at: usize, with: &[u8]| {
        let mut body = good.to_vec();
        body[at..at + with.len()].copy_from_slice(with);
        body
    };
    assert_eq!(kind(&fetch(vec![]).await), "bad-request");
    assert_eq!(kind(&fetch(good[..good.len() - 1].to_vec()).await), "bad-request");
    assert_eq!(kind(&fetch(patched(4, &[9])).await), "wire-version");
    assert_eq!(kind(&fetch(patched(8, &[0; 32])).await), "dataset-changed");
    // A field and an ordinal that the dataset does not have.
    assert_eq!(kind(&fetch(patched(60, &[3, 0])).await), "not-found");
    let run = good.len() - 2;
    assert_eq!(kind(&fetch(patched(run, &[3 << 2 | 1])).await), "not-found");
    assert_eq!(kind(&fetch(vec![0; MAX_REQUEST + 1]).await), "too-large");

    let mut typed = Ask::post("/v1/datasets/d/fetch", good.clone());
    typed.headers.insert("content-type", "application/json".parse().unwrap());
    assert_eq!(kind(&world.ask(typed).await), "unsupported-type");
    let mut typed = Ask::post("/v1/datasets/d/fetch", good.clone());
    typed.headers.insert("content-type", "application/vnd.forebay.fetch".parse().unwrap());
    assert_eq!(world.ask(typed).await.status(), 200);
    assert_eq!(kind(&world.ask(Ask::post("/v1/datasets/e/fetch", good)).await), "not-found");
}

/// A store that never answers costs no more than the patience.
#[tokio::test]
async fn a_store_that_hangs_is_given_up() {
    struct Hung;
    impl forebay_server::store::Store for Hung {
        fn read(
            &self,
            _: Vec<forebay_server::store::Read>,
            lease: forebay_transport::pool::Lease,
        ) -> forebay_server::store::Reading<'_> {
            Box::pin(async move {
                std::future::pending::<()>().await;
                drop(lease);
                unreachable!()
            })
        }
    }
    let config = forebay_server::serve::ServiceConfig { patience: Duration::from_millis(50), ..quick() };
    let world = World::new(4 << 20, config);
    world.serve(world.index("d", &samples(), 3), |_| Hung);
    assert_eq!(kind(&world.get("/v1/datasets/d/samples/0/jpg").await), "storage");
    let ask = world.asking("d", &[0], &["jpg"], 4096);
    let body: Bytes = ask.body.clone();
    assert_eq!(kind(&world.ask(Ask::post("/v1/datasets/d/fetch", body)).await), "storage");
    world.assert_nothing_held().await;
}

//! Peers that lie: a server whose descriptions are absurd against our client, a client that asks for absurd things against
//! our server. Whoever is lied to ends with an error, in bounded time and memory, and the others are served.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use forebay_client::{Client, ClientConfig, Error, LoaderOptions, ServerUrl, Trust};
use forebay_system::program::Server as Program;
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use forebay_transport::Version;
use forebay_transport::exchange::{Request, Responder};
use forebay_transport::h3::client::{AskLimits, ConnectConfig};
use forebay_transport::h3::{Connector, Identity, Server, ServerConfig};
use http::{HeaderMap, Method};
use serde_json::{Value, json};

/// What an honest server would say.
fn honest() -> Value {
    json!({
        "wire": { "min": 1, "max": 1 }, "name": "data", "version": Version([7; 32]).to_string(),
        "samples": 1000, "bytes": 1_000_000, "largest_sample": 1000, "max_group_bytes": 8 << 20,
        "fields": [{ "name": "jpg", "count": 1000, "min": 1000, "max": 1000, "bytes": 1_000_000 }],
        "shards": [{ "name": "a.tar", "bytes": 2_000_000, "samples": 1000, "digest": "00" }],
    })
}

fn with(change: impl FnOnce(&mut Value)) -> Bytes {
    let mut description = honest();
    change(&mut description);
    description.to_string().into()
}

/// Starts a server that describes its dataset so and answers every fetch with garbage; reads an epoch from it.
async fn read_from(description: Bytes) -> Result<(), Error> {
    let state = Scratch::new("liar");
    let identity = Identity::self_signed(state.path(), &["127.0.0.1".to_owned()]).unwrap();
    let trust = Trust::Pinned(identity.fingerprint());
    let server = Server::bind(ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity, 64 << 20)).unwrap();
    let url: ServerUrl = format!("https://{}", server.local_addr()).parse().unwrap();
    let lie = move |request: Request, responder: Responder| {
        let body = if request.method == Method::POST { Bytes::from_static(&[0xa5; 5000]) } else { description.clone() };
        async move { drop(responder.send(http::Response::new(()), body).await) }
    };
    let serving = tokio::spawn(server.serve(Arc::new(lie), std::future::pending(), Duration::ZERO));
    let client =
        Client::connect(&url, ClientConfig { trust, memory: 32 << 20, ..ClientConfig::default() }).await.unwrap();
    let outcome = async {
        let mut loader = client.dataset("data").await?.loader(LoaderOptions::default()).await?;
        while let Some(batch) = loader.next().await {
            batch?;
        }
        Ok(())
    };
    let outcome = tokio::time::timeout(Duration::from_secs(30), outcome).await.expect("it ends");
    let until = Instant::now() + Duration::from_secs(5);
    while client.pool().free < client.pool().capacity {
        assert!(Instant::now() < until, "the pool's memory does not come back: {:?}", client.pool());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    serving.abort();
    outcome
}

#[tokio::test(flavor = "multi_thread")]
async fn absurd_descriptions_end_in_errors() {
    let field = honest()["fields"][0].clone();
    let lies = [
        ("honest, but for its answers", with(|_| {})),
        ("2^63 samples", with(|it| it["samples"] = json!(1u64 << 63))),
        ("2^64 - 1 samples", with(|it| it["samples"] = json!(u64::MAX))),
        ("samples in no shard", with(|it| it["shards"] = json!([]))),
        ("a negative number", with(|it| it["samples"] = json!(-1))),
        ("a largest sample of nothing", with(|it| it["largest_sample"] = json!(0))),
        ("a largest sample of everything", with(|it| it["largest_sample"] = json!(u64::MAX))),
        ("fields of everything", with(|it| it["fields"][0]["bytes"] = json!(u64::MAX))),
        ("a mean above the largest", with(|it| it["fields"][0]["bytes"] = json!(1u64 << 40))),
        (
            "fields of nothing",
            with(|it| it["fields"][0] = json!({ "name": "", "count": 0, "min": 9, "max": 0, "bytes": 0 })),
        ),
        ("groups of nothing", with(|it| it["max_group_bytes"] = json!(0))),
        ("no fields", with(|it| it["fields"] = json!([]))),
        ("100,000 fields", with(|it| it["fields"] = vec![field.clone(); 100_000].into())),
        (
            "256 fields of nothing",
            with(|it| {
                it["fields"] = vec![json!({ "name": "x", "count": 0, "min": 0, "max": 0, "bytes": 0 }); 256].into();
                it["samples"] = json!(1u64 << 40);
            }),
        ),
        (
            "2^64 samples in each shard",
            with(|it| {
                it["shards"] =
                    vec![json!({ "name": "", "bytes": u64::MAX, "samples": u64::MAX, "digest": "" }); 9].into();
            }),
        ),
        ("no version", with(|it| it["version"] = json!("b3-"))),
        ("another wire", with(|it| it["wire"] = json!({ "min": 9, "max": 3 }))),
        ("no document", Bytes::from_static(b"\xff\x00{")),
        ("brackets", Bytes::from(vec![b'['; 1 << 20])),
        ("nothing", Bytes::new()),
    ];
    // All at once: most of the time goes into trying again.
    let lies = lies.map(|(what, description)| (what, tokio::spawn(read_from(description))));
    for (what, reading) in lies {
        let error = reading.await.unwrap().expect_err(what);
        assert!(!matches!(error, Error::Panicked(_) | Error::Closed), "{what}: {error}");
    }
}

/// A fetch of `count` ordinals, from 0 on in one run, of each of `fields`.
fn request(version: Version, capacity: u64, count: u32, fields: &[u16]) -> Bytes {
    let mut body = BytesMut::new();
    body.put_slice(b"FBYQ");
    body.put_u16_le(1);
    body.put_u16_le(0);
    body.put_slice(&version.0);
    body.put_u64_le(capacity);
    body.put_u32_le(60_000);
    body.put_u16_le(fields.len() as u16);
    body.put_u16_le(0);
    body.put_u32_le(count);
    fields.iter().for_each(|field| body.put_u16_le(*field));
    body.put_u8(1);
    let mut more = u64::from(count) - 2;
    while more > 0x7f {
        body.put_u8(more as u8 | 0x80);
        more >>= 7;
    }
    body.put_u8(more as u8);
    body.freeze()
}

fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_for_everything_and_reads_nothing_costs_others_little() {
    const MEMORY: u64 = 128 << 20;
    let scratch = Scratch::new("greedy");
    let samples = 65_536;
    let shards = Shards { shards: 1, samples, sizes: Sizes::Fixed(1000), seed: 1 };
    let path = tars::write(scratch.path(), &shards, |_| {}).unwrap().remove(0);
    let server = Program::start(&[("data", path.to_str().unwrap())], &scratch.join("state"), &["--memory", "128MiB"]);
    let idle = peak(server.running.id());
    let trust = Trust::Pinned(server.trust.parse().unwrap());
    let connector = Connector::new(ConnectConfig { trust: trust.clone(), ..ConnectConfig::default() }).unwrap();
    let url: ServerUrl = server.url.parse().unwrap();
    let client =
        Client::connect(&url, ClientConfig { trust, memory: 64 << 20, ..ClientConfig::default() }).await.unwrap();
    let dataset = client.dataset("data").await.unwrap();
    let version = Version::parse(&dataset.description().version).unwrap();
    // Both fields again and again: 16,777,216 entries in a request of less than a kilobyte.
    let fields: Vec<u16> = (0..256).map(|at| at % 2).collect();
    let (host, port) = (url.host.clone(), url.port);
    let mut lies = Vec::new();
    for _ in 0..2 {
        let connection = connector.connect(&host, port).await.unwrap();
        for _ in 0..60 {
            let (connection, body) = (connection.clone(), request(version, u64::MAX, samples as u32, &fields));
            let mut headers = HeaderMap::new();
            headers.insert("content-type", forebay_transport::wire::TYPE_FETCH.parse().unwrap());
            // One byte of the answer is wanted: the rest stays with the server, or in the window.
            let limits = AskLimits { body: 0, time: Duration::from_secs(20) };
            lies.push(tokio::spawn(async move {
                connection.ask(Method::POST, "/v1/datasets/data/fetch", headers, body, limits).await
            }));
        }
    }
    let started = Instant::now();
    let mut loader = dataset.loader(LoaderOptions { batch_size: 512, ..LoaderOptions::default() }).await.unwrap();
    let mut read = 0;
    while let Some(batch) = loader.next().await {
        read += batch.unwrap().len();
    }
    assert_eq!(read, samples);
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    for lie in lies {
        assert!(!lie.await.unwrap().is_ok_and(|answer| answer.status == 500));
    }
    let grown = peak(server.running.id()) - idle;
    assert!(grown <= MEMORY, "{} MiB more than when idle", grown >> 20);
    assert!(!server.running.stderr().contains("panicked"), "{}", server.running.stderr());
}

//! An HTTP/3 connection as a link: the contract that all links keep, and what is HTTP/3's own.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use forebay_transport::exchange::{BodyWriter, Request, Responder, SendError};
use forebay_transport::h3::client::ConnectConfig;
use forebay_transport::h3::{Connection, Connector, H3Link, TransportConfig, Trust};
use forebay_transport::link::{Completion, Fetch, Link, LinkError, Status, Tag};
use forebay_transport::place::Placer;
use forebay_transport::pool::{Account, Slab, SlabConfig};
use forebay_transport::sim::conformance::{Rig, check_all};
use forebay_transport::sim::delay::{DelayConfig, DelayLine};
use forebay_transport::sim::{Content, Known};
use forebay_transport::wire::answer::AnswerEncoder;
use forebay_transport::wire::problem::{self, Kind};
use forebay_transport::wire::{ALIGN, FetchBody, MAX_REQUEST};
use tokio::runtime::Runtime;

use super::support::*;

/// Serves a generated dataset.
#[derive(Clone)]
struct Source {
    content: Content,
    /// Answer nothing.
    stall: Arc<AtomicBool>,
    /// Requests being answered.
    running: Arc<AtomicUsize>,
}

impl Source {
    fn new(content: Content) -> Source {
        Source { content, stall: Arc::default(), running: Arc::default() }
    }

    async fn answer(self, mut request: Request, mut responder: Responder) {
        self.running.fetch_add(1, Ordering::SeqCst);
        if self.stall.load(Ordering::SeqCst) {
            responder.gone().await;
        } else {
            let _ = self.try_answer(&mut request, responder).await;
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    async fn try_answer(&self, request: &mut Request, responder: Responder) -> Result<(), SendError> {
        let content = &self.content;
        let Ok(body) = request.read_body(MAX_REQUEST).await else { return Err(SendError::Gone) };
        let Ok(asked) = FetchBody::decode(body) else { return refuse(responder, Kind::BadRequest).await };
        if request.path != format!("/v1/datasets/{}/fetch", content.dataset) {
            return refuse(responder, Kind::NotFound).await;
        }
        if asked.version != content.version {
            return refuse(responder, Kind::DatasetChanged).await;
        }
        if asked.ordinals.iter().any(|ordinal| ordinal >= content.samples) {
            return refuse(responder, Kind::NotFound).await;
        }
        let mut writer = responder.send_head(ok()).await?;
        let mut records = BytesMut::new();
        let mut encoder = AnswerEncoder::begin(asked.ordinals.len() * asked.fields.len(), &mut records);
        let mut placer = Placer::new(asked.capacity, ALIGN);
        let (mut entry, mut offsets) = (0, Vec::new());
        for ordinal in asked.ordinals.iter() {
            let lens: Vec<_> = asked.fields.iter().map(|&field| content.len(ordinal, field)).collect();
            offsets.clear();
            let placed = placer.sample(&lens, &mut offsets);
            for (i, (&field, &len)) in asked.fields.iter().zip(&lens).enumerate() {
                match len {
                    None => encoder.absent(entry, 1, &mut records),
                    Some(len) if !placed => encoder.not_placed(entry, &[len], &mut records),
                    Some(len) => {
                        let mut payload = vec![0; len as usize];
                        content.fill(ordinal, field, &mut payload);
                        let crc = (ordinal % 2 == 0).then(|| crc32c::crc32c(&payload));
                        encoder.ok(entry, crc, offsets[i], len, &mut records);
                        writer.write_all(&mut [records.split().freeze(), payload.into()]).await?;
                    }
                }
                entry += 1;
            }
        }
        encoder.end(&mut records);
        writer.write(records.freeze()).await?;
        writer.finish().await
    }
}

async fn refuse(responder: Responder, kind: Kind) -> Result<(), SendError> {
    let head = http::Response::builder().status(kind.status()).header("content-type", problem::CONTENT_TYPE);
    let document = serde_json::to_vec(&kind.problem("for a reason")).unwrap();
    responder.send(head.body(()).unwrap(), document.into()).await
}

fn serve(source: &Source) -> Running {
    let source = source.clone();
    start_with(move |request, responder| source.clone().answer(request, responder), Duration::ZERO, |_| {})
}

struct H3Rig {
    runtime: Runtime,
    server: Running,
    source: Source,
    window: usize,
    /// Where paths go through, if they are to end without a word.
    line: Option<DelayLine>,
    made: Vec<Connection>,
}

impl H3Rig {
    fn new(window: usize, silent: bool) -> H3Rig {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let source = Source::new(Content { fields: 2, absent: 0.1, ..Content::new(3, 100, 1, 16 << 10) });
        let server = runtime.block_on(async { serve(&source) });
        let line = silent.then(|| DelayLine::start(server.address, DelayConfig::default()).unwrap());
        H3Rig { runtime, server, source, window, line, made: Vec::new() }
    }
}

impl Rig for H3Rig {
    fn content(&self) -> &dyn Known {
        &self.source.content
    }

    fn link(&mut self) -> Box<dyn Link> {
        let mut transport = TransportConfig::client();
        transport.idle_timeout = Duration::from_secs(1);
        transport.keep_alive = Duration::from_millis(300);
        let trust = Trust::Pinned(self.server.fingerprint);
        let config = ConnectConfig { trust, transport, ..ConnectConfig::default() };
        let port = self.line.as_ref().map_or(self.server.address, DelayLine::addr).port();
        let connecting = async { Connector::new(config).unwrap().connect("127.0.0.1", port).await.unwrap() };
        let connection = self.runtime.block_on(connecting);
        self.made.push(connection.clone());
        let _inside = self.runtime.enter();
        Box::new(connection.link(self.window))
    }

    fn pass(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
    }

    fn cut(&mut self) {
        match self.line.take() {
            Some(line) => drop(line),
            None => self.made.iter().for_each(Connection::close),
        }
    }

    fn stall(&mut self) -> bool {
        self.source.stall.store(true, Ordering::SeqCst);
        true
    }
}

#[test]
fn an_http3_link_keeps_the_contract() {
    check_all(|| H3Rig::new(16, false));
}

#[test]
fn an_http3_link_keeps_the_contract_on_a_path_that_ends_in_silence() {
    check_all(|| H3Rig::new(2000, true));
}

/// A slab, a link to `source`, and what they are made of.
struct Bench {
    server: Running,
    slab: Slab,
    account: Account,
    link: H3Link,
    content: Content,
    next: u64,
}

impl Bench {
    async fn new(source: &Source, window: usize, pool: usize) -> Bench {
        let server = serve(source);
        let connection = server.connect().await;
        let slab = Slab::new(SlabConfig { capacity: pool, lock: false }).unwrap();
        let account = Account::new("test", usize::MAX);
        let content = source.content.clone();
        Bench { server, slab, account, link: connection.link(window), content, next: 0 }
    }

    fn fetch(&mut self, ordinals: Vec<u64>, lease: usize) -> Fetch {
        self.next += 1;
        Fetch {
            tag: Tag(self.next),
            dataset: self.content.dataset.clone(),
            version: self.content.version,
            ordinals,
            fields: (0..self.content.fields).collect(),
            lease: self.slab.try_lease(&self.account, lease).unwrap(),
            entries: Vec::new(),
            deadline: Duration::from_secs(10),
        }
    }

    async fn completion(&mut self) -> Completion {
        let next = poll_fn(|cx| self.link.poll(cx));
        tokio::time::timeout(Duration::from_secs(20), next).await.expect("it completes")
    }

    /// Whether all entries were placed and are right.
    fn check(&self, completion: &Completion) {
        let fields = self.content.fields as usize;
        let entries = completion.result.as_ref().unwrap();
        for (i, entry) in entries.iter().enumerate() {
            assert_eq!(entry.status, Status::Ok);
            let bytes = &completion.lease[entry.offset as usize..][..entry.len as usize];
            assert!(self.content.check(completion.ordinals[i / fields], (i % fields) as u16, bytes));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_of_a_byte_and_of_megabytes() {
    for (min, max, samples, group) in [(1, 100, 20_000, 4000), (5 << 20, 6 << 20, 8, 2)] {
        let source = Source::new(Content::new(1, samples, min, max));
        let mut bench = Bench::new(&source, 4, 64 << 20).await;
        let mut at = 0;
        while at < samples || bench.link.stats().in_flight > 0 {
            while at < samples && bench.link.stats().in_flight < 4 {
                let fetch = bench.fetch((at..(at + group).min(samples)).collect(), 13 << 20);
                bench.link.submit(fetch).unwrap();
                at += group;
            }
            let completion = bench.completion().await;
            bench.check(&completion);
        }
        assert!(bench.link.stats().bytes >= samples * min && bench.link.stats().rtt > Duration::ZERO);
        assert_eq!(bench.account.held(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_cancellations_leaves_nothing_behind() {
    let source = Source::new(Content::new(1, 1000, 20_000, 200_000));
    let mut bench = Bench::new(&source, 64, 64 << 20).await;
    let mut random = fastrand::Rng::with_seed(11);
    let mut open = BTreeMap::new();
    let (mut whole, mut cancelled) = (0, 0);
    for round in 0..600u64 {
        while open.len() < 40 {
            let fetch = bench.fetch(vec![random.u64(0..1000)], 200_000);
            open.insert(fetch.tag, ());
            bench.link.submit(fetch).unwrap();
        }
        if round % 3 == 0 {
            tokio::time::sleep(Duration::from_micros(random.u64(0..3000))).await;
        }
        let victims: Vec<_> = open.keys().copied().filter(|_| random.u8(0..3) == 0).collect();
        victims.iter().for_each(|&tag| bench.link.cancel(tag));
        for _ in 0..victims.len().max(1) {
            let completion = bench.completion().await;
            open.remove(&completion.tag).expect("once");
            match completion.result {
                Ok(_) => {
                    bench.check(&completion);
                    whole += 1;
                }
                Err(LinkError::Cancelled) => cancelled += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(whole > 100 && cancelled > 100, "{whole} whole, {cancelled} cancelled");
    while !open.is_empty() {
        open.remove(&bench.completion().await.tag).expect("once");
    }
    assert_eq!(bench.account.held(), 0);
    eventually("the server is rid of them", || source.running.load(Ordering::SeqCst) == 0).await;
    assert!(bench.link.is_alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_link_gives_the_leases_back() {
    let source = Source::new(Content::new(1, 1000, 100_000, 200_000));
    source.stall.store(true, Ordering::SeqCst);
    let mut bench = Bench::new(&source, 64, 64 << 20).await;
    for i in 0..64 {
        let fetch = bench.fetch(vec![i], 200_000);
        bench.link.submit(fetch).unwrap();
    }
    let fetch = bench.fetch(vec![0], 1);
    let fetch = bench.link.submit(fetch).expect_err("the window is full");
    assert!(bench.link.is_alive());
    drop(fetch);
    let Bench { link, account, server: _server, .. } = bench;
    drop(link);
    eventually("all leases are back", || account.held() == 0).await;
}

#[test]
fn the_end_of_the_runtime_completes_everything() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let source = Source::new(Content::new(1, 1000, 100_000, 200_000));
    source.stall.store(true, Ordering::SeqCst);
    let mut bench = runtime.block_on(Bench::new(&source, 8, 8 << 20));
    for i in 0..8 {
        let fetch = bench.fetch(vec![i], 200_000);
        bench.link.submit(fetch).unwrap();
    }
    runtime.shutdown_timeout(Duration::from_secs(5));
    for _ in 0..8 {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(completion) = bench.link.poll(&mut cx) else { panic!("not completed") };
        assert!(matches!(completion.result, Err(LinkError::Closed(_))));
    }
    assert_eq!(bench.account.held(), 0);
}

/// A link to a server that runs `handler`.
async fn against<F, A>(handler: F) -> Bench
where
    F: Fn(BodyWriter, Bytes) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = ()> + Send + 'static,
{
    let content = Content::new(1, 1000, 1000, 1000);
    let server = start_with(
        move |mut request: Request, responder: Responder| {
            let handler = handler.clone();
            async move {
                let body = request.read_body(MAX_REQUEST).await.unwrap();
                let writer = responder.send_head(ok()).await.unwrap();
                handler(writer, body).await;
            }
        },
        Duration::ZERO,
        |_| {},
    );
    let connection = server.connect().await;
    let slab = Slab::new(SlabConfig { capacity: 16 << 20, lock: false }).unwrap();
    let account = Account::new("test", usize::MAX);
    Bench { server, slab, account, link: connection.link(8), content, next: 0 }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_make_no_sense_cost_one_operation() {
    async fn nonsense(mut writer: BodyWriter, asked: Bytes) {
        let ordinal = FetchBody::decode(asked).unwrap().ordinals.iter().next().unwrap();
        let mut records = BytesMut::new();
        let mut encoder = AnswerEncoder::begin(1, &mut records);
        match ordinal {
            // Not an answer at all; nothing; cut short in the header and in the payload; out of bounds.
            0 => records = BytesMut::from(&b"<html>"[..]),
            1 => records.clear(),
            2 => records.truncate(7),
            3 => encoder.ok(0, None, 0, 1000, &mut records),
            4 => encoder.ok(0, None, 1 << 40, 1000, &mut records),
            5 => {
                encoder.absent(0, 1, &mut records);
                let _ = writer.write(records.split().freeze()).await;
                return writer.reset(0x102);
            }
            6 => drop(writer.write(records.split().freeze()).await),
            _ => {
                encoder.absent(0, 1, &mut records);
                encoder.end(&mut records);
            }
        }
        let _ = writer.write(records.freeze()).await;
        // The sixth is dropped without an end.
        if ordinal != 6 {
            let _ = writer.finish().await;
        }
    }
    let mut bench = against(nonsense).await;
    for ordinal in 0..8 {
        let fetch = bench.fetch(vec![ordinal], 4096);
        bench.link.submit(fetch).unwrap();
        let completion = bench.completion().await;
        match (ordinal, completion.result) {
            (0..=4, Err(LinkError::Protocol(_))) | (5 | 6, Err(LinkError::Server { .. })) | (7, Ok(_)) => {}
            (_, other) => panic!("{ordinal}: {other:?}"),
        }
    }
    assert!(bench.link.is_alive());
}

/// Answers with 1000 bytes, a tenth every `step`.
async fn trickle(mut writer: BodyWriter, step: Duration) -> Result<(), SendError> {
    let mut records = BytesMut::new();
    let mut encoder = AnswerEncoder::begin(1, &mut records);
    encoder.ok(0, None, 0, 1000, &mut records);
    for _ in 0..10 {
        records.extend_from_slice(&[1; 100]);
        writer.write(records.split().freeze()).await?;
        tokio::time::sleep(step).await;
    }
    encoder.end(&mut records);
    writer.write(records.freeze()).await?;
    writer.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_are_of_progress() {
    let mut bench = against(|writer, asked: Bytes| async move {
        match FetchBody::decode(asked).unwrap().ordinals.iter().next().unwrap() {
            0 => drop(trickle(writer, Duration::from_millis(50)).await),
            // Never.
            _ => std::future::pending().await,
        }
    })
    .await;
    // Half a second in all, within a deadline of 200 ms: there is progress.
    let mut fetch = bench.fetch(vec![0], 4096);
    fetch.deadline = Duration::from_millis(200);
    bench.link.submit(fetch).unwrap();
    assert!(bench.completion().await.result.is_ok());
    // One that gets nothing lives from the progress of the other, and no longer.
    let started = Instant::now();
    for (ordinal, deadline) in [(0, 5000), (1, 200)] {
        let mut fetch = bench.fetch(vec![ordinal], 4096);
        fetch.deadline = Duration::from_millis(deadline);
        bench.link.submit(fetch).unwrap();
    }
    let first = bench.completion().await;
    assert!(first.result.is_ok(), "{:?}", first.result);
    let second = bench.completion().await;
    assert_eq!(second.result, Err(LinkError::Deadline(Duration::from_millis(200))));
    assert!(started.elapsed() > Duration::from_millis(650), "{:?}", started.elapsed());
    // One that is forgotten while the link is busy ends all the same.
    let mut fetch = bench.fetch(vec![1], 100);
    (fetch.tag, fetch.deadline) = (Tag(1 << 40), Duration::from_millis(100));
    bench.link.submit(fetch).unwrap();
    loop {
        assert!(started.elapsed() < Duration::from_secs(20), "it is never given up");
        let fetch = bench.fetch(vec![0], 1000);
        bench.link.submit(fetch).unwrap();
        let completion = bench.completion().await;
        if completion.tag == Tag(1 << 40) {
            assert_eq!(completion.result, Err(LinkError::Deadline(Duration::from_millis(100))));
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_in_mid_answer_ends_every_operation() {
    let source = Source::new(Content::new(1, 1000, 100_000, 200_000));
    let mut bench = Bench::new(&source, 32, 64 << 20).await;
    for round in 0..50u64 {
        while bench.link.stats().in_flight < 32 {
            let fetch = bench.fetch(vec![round, round + 1], 500_000);
            bench.link.submit(fetch).unwrap();
        }
        let completion = bench.completion().await;
        bench.check(&completion);
    }
    // The answers under way may all have arrived when the end does; this one never comes.
    source.stall.store(true, Ordering::SeqCst);
    let fetch = bench.fetch(vec![0], 500_000);
    bench.link.submit(fetch).unwrap();
    bench.server.serving.abort();
    let mut failed = 0;
    while bench.link.stats().in_flight > 0 {
        match bench.completion().await.result {
            Ok(_) => {}
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0);
    eventually("the link is dead", || !bench.link.is_alive()).await;
    let fetch = bench.fetch(vec![0], 1);
    assert!(bench.link.submit(fetch).is_err());
    assert_eq!(bench.account.held(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_larger_than_the_server_has_streams_still_completes() {
    let source = Source::new(Content::new(1, 1000, 10, 20));
    let mut bench = Bench::new(&source, 1000, 64 << 20).await;
    for i in 0..1000 {
        let fetch = bench.fetch(vec![i], 20);
        bench.link.submit(fetch).unwrap();
    }
    for _ in 0..1000 {
        let completion = bench.completion().await;
        bench.check(&completion);
    }
}

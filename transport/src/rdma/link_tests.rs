//! A link over a device, and what answers it. They need one, as `device_tests` say.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::area::Pinned;
use super::client::{Config, Error, RdmaLink};
use super::device_tests::{is_here, resources, slab};
use super::hello::{Reason, Ticket};
use super::manager::Id;
use super::server::{self, Counters};
use super::tickets::{Grant, Tickets};
use crate::exchange::{Request, Responder, SendError, Session, SessionLife};
use crate::link::{Completion, Fetch, Link, LinkError, Status, Tag};
use crate::place::Placer;
use crate::pool::{Account, Slab};
use crate::sim::conformance::{Rig, check_all};
use crate::sim::{Content, Known};
use crate::wire::answer::AnswerEncoder;
use crate::wire::problem::Kind;
use crate::wire::{ALIGN, FetchBody, MAX_REQUEST};

/// Either end takes the other for dead after three of these.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Serves a generated dataset, half of it from the pool and half from elsewhere.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) content: Content,
    pool: Slab,
    account: Account,
    /// Answer nothing.
    pub(super) stall: Arc<AtomicBool>,
    /// Requests being answered.
    running: Arc<AtomicUsize>,
}

impl Source {
    pub(super) fn new(content: Content) -> Source {
        let account = Account::new("server", usize::MAX);
        Source { content, pool: slab(64 << 20), account, stall: Arc::default(), running: Arc::default() }
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
        let mut writer = responder.send_head(http::Response::new(())).await?;
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
                        let payload = self.payload(ordinal, field, len as usize).await;
                        let crc = (ordinal % 2 == 0).then(|| crc32c::crc32c(&payload));
                        encoder.ok(entry, crc, offsets[i], len, &mut records);
                        writer.write_all(&mut [records.split().freeze(), payload]).await?;
                    }
                }
                entry += 1;
            }
        }
        encoder.end(&mut records);
        writer.write(records.freeze()).await?;
        writer.finish().await
    }

    async fn payload(&self, ordinal: u64, field: u16, len: usize) -> Bytes {
        if ordinal % 4 < 2 {
            let mut lease = self.pool.lease(&self.account, len).await;
            self.content.fill(ordinal, field, lease.as_mut_slice());
            return lease.freeze().into_bytes();
        }
        let mut payload = vec![0; len];
        self.content.fill(ordinal, field, &mut payload);
        payload.into()
    }
}

async fn refuse(responder: Responder, kind: Kind) -> Result<(), SendError> {
    let mut head = http::Response::new(());
    *head.status_mut() = http::StatusCode::from_u16(kind.status()).expect("a status");
    let document = serde_json::to_vec(&kind.problem("for a reason")).expect("JSON");
    responder.send(head, document.into()).await
}

/// A server in the background.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) tickets: Arc<Tickets>,
    pub(super) counters: Arc<Counters>,
    source: Source,
    session: Session,
    life: Option<SessionLife>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl Running {
    /// Must be called within a runtime.
    pub(super) fn start(source: &Source) -> Running {
        let tickets = Arc::new(Tickets::new());
        let mut config = server::Config::new("10.7.0.1:0".parse().expect("an address"));
        (config.credits, config.heartbeat) = (16, HEARTBEAT);
        let server = server::Server::bind(config, tickets.clone(), &source.pool).expect("a server");
        let address = ([10, 7, 0, 1], server.port()).into();
        let counters = server.counters();
        let (stop, stopped) = oneshot::channel::<()>();
        let answering = source.clone();
        let handler = Arc::new(move |request, responder| answering.clone().answer(request, responder));
        let serving = tokio::spawn(server.serve(handler, async move { drop(stopped.await) }));
        let (life, session) = Session::begin();
        let source = source.clone();
        Running { address, tickets, counters, source, session, life: Some(life), stop: Some(stop), serving }
    }

    pub(super) fn ticket(&self) -> Ticket {
        let dataset = self.source.content.dataset.clone();
        let account = Account::new("connection", self.source.pool.capacity() / 4);
        let peer = ([10, 7, 0, 1], 4433).into();
        let grant = Grant { dataset, session: self.session.clone(), connection: 1, peer, account };
        self.tickets.issue(Instant::now(), grant).expect("a ticket")
    }

    pub(super) async fn link(&self, pool: &Slab, windows: bool) -> Result<RdmaLink, Error> {
        let config = Config { windows, credits: 16 };
        let pinned = Arc::new(Pinned::new(pool, config.rights()));
        let dataset = Some(self.source.content.dataset.clone());
        let mut link = RdmaLink::connect(&config, &pinned, self.address, self.ticket(), dataset).await?;
        link.prove().await?;
        Ok(link)
    }
}

struct RdmaRig {
    runtime: Runtime,
    server: Running,
    windows: bool,
    /// Carries the server, until it stands still.
    frozen: Frozen,
    /// Whether paths end without a word.
    silent: bool,
    pool: Slab,
}

/// A runtime that one thread drives until it is told to stop, and that stays as it is then: whoever it carries is there and does
/// nothing.
struct Frozen {
    handle: tokio::runtime::Handle,
    freeze: Option<oneshot::Sender<()>>,
    thaw: Option<oneshot::Sender<()>>,
}

impl Frozen {
    fn new() -> Frozen {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let handle = runtime.handle().clone();
        let ((freeze, frozen), (thaw, thawed)) = (oneshot::channel::<()>(), oneshot::channel::<()>());
        std::thread::spawn(move || {
            let _ = runtime.block_on(frozen);
            let _ = thawed.blocking_recv();
        });
        Frozen { handle, freeze: Some(freeze), thaw: Some(thaw) }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop((self.freeze.take(), self.thaw.take()));
    }
}

impl RdmaRig {
    fn new(windows: bool, silent: bool) -> RdmaRig {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let source = Source::new(Content { fields: 2, absent: 0.1, ..Content::new(3, 100, 1, 16 << 10) });
        let frozen = Frozen::new();
        let inside = frozen.handle.enter();
        let server = Running::start(&source);
        drop(inside);
        RdmaRig { runtime, server, windows, frozen, silent, pool: slab(1 << 20) }
    }
}

impl Rig for RdmaRig {
    fn content(&self) -> &dyn Known {
        &self.server.source.content
    }

    fn link(&mut self) -> Box<dyn Link> {
        let link = self.runtime.block_on(self.server.link(&self.pool, self.windows));
        Box::new(link.expect("a link that has proved itself"))
    }

    fn pass(&mut self) {
        // Descriptors are looked at, and timers.
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    }

    fn cut(&mut self) {
        match self.silent {
            true => drop(self.frozen.freeze.take()),
            false => drop(self.server.life.take()),
        }
    }

    fn stall(&mut self) -> bool {
        self.server.source.stall.store(true, Ordering::SeqCst);
        true
    }
}

#[test]
fn an_rdma_link_keeps_the_contract() {
    if is_here() {
        check_all(|| RdmaRig::new(true, false));
    }
}

#[test]
fn an_rdma_link_keeps_the_contract_without_windows() {
    if is_here() {
        check_all(|| RdmaRig::new(false, false));
    }
}

#[test]
fn an_rdma_link_keeps_the_contract_on_a_path_that_ends_in_silence() {
    if is_here() {
        check_all(|| RdmaRig::new(true, true));
    }
}

/// Runs a test's body where there is a device, with a server of this content.
pub(super) fn run<F: Future<Output = ()>>(content: Content, body: impl FnOnce(Running, Source) -> F) {
    if !is_here() {
        return;
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    // The manager opens each device once, and for good.
    drop(runtime.block_on(Id::resolve(([10, 7, 0, 1], 1).into())).expect("a way"));
    let before = resources();
    runtime.block_on(async {
        let source = Source::new(content);
        let body = body(Running::start(&source), source);
        tokio::time::timeout(Duration::from_secs(60), body).await.expect("in time");
    });
    drop(runtime);
    assert_eq!(resources(), before, "all is given back");
}

/// A link, and what is asked over it.
pub(super) struct Bench {
    pub(super) link: RdmaLink,
    content: Content,
    pub(super) pool: Slab,
    pub(super) account: Account,
    next: u64,
}

impl Bench {
    pub(super) async fn new(server: &Running, pool: usize, windows: bool) -> Bench {
        let pool = slab(pool);
        let link = server.link(&pool, windows).await.expect("a link");
        let account = Account::new("client", usize::MAX);
        Bench { link, content: server.source.content.clone(), pool, account, next: 0 }
    }

    /// A link to whatever listens there, which is not tried.
    pub(super) async fn reaching(address: SocketAddr, content: &Content, ticket: Ticket) -> Bench {
        let pool = slab(1 << 20);
        let config = Config { windows: true, credits: 8 };
        let pinned = Arc::new(Pinned::new(&pool, config.rights()));
        let link = RdmaLink::connect(&config, &pinned, address, ticket, None).await.expect("a link");
        Bench { link, content: content.clone(), pool, account: Account::new("client", usize::MAX), next: 0 }
    }

    fn fetch(&mut self, ordinals: Vec<u64>, lease: usize) -> Fetch {
        self.next += 1;
        Fetch {
            tag: Tag(self.next),
            dataset: self.content.dataset.clone(),
            version: self.content.version,
            ordinals,
            fields: (0..self.content.fields).collect(),
            lease: self.pool.try_lease(&self.account, lease).expect("the pool is large enough"),
            entries: Vec::new(),
            deadline: Duration::from_secs(10),
        }
    }

    pub(super) fn submit(&mut self, ordinals: Vec<u64>, lease: usize) -> Tag {
        let fetch = self.fetch(ordinals, lease);
        let tag = fetch.tag;
        self.link.submit(fetch).expect("the window has room");
        self.link.flush();
        tag
    }

    pub(super) async fn completion(&mut self) -> Completion {
        let next = poll_fn(|cx| self.link.poll(cx));
        tokio::time::timeout(Duration::from_secs(20), next).await.expect("it completes")
    }

    /// That all entries were placed and are right.
    pub(super) fn check(&self, completion: &Completion) {
        let fields = self.content.fields as usize;
        let entries = completion.result.as_ref().expect("an answer");
        for (i, entry) in entries.iter().enumerate() {
            assert_eq!(entry.status, Status::Ok);
            let bytes = &completion.lease[entry.offset as usize..][..entry.len as usize];
            assert!(self.content.check(completion.ordinals[i / fields], (i % fields) as u16, bytes), "entry {i}");
        }
    }
}

#[test]
fn samples_of_a_byte_and_of_megabytes_arrive() {
    for (min, max, samples, group) in [(1, 100, 12_000, 4000), (5 << 20, 6 << 20, 8, 2)] {
        run(Content::new(1, samples, min, max), |server, _| async move {
            let mut bench = Bench::new(&server, 64 << 20, true).await;
            let mut at = 0;
            while at < samples || bench.link.stats().in_flight > 0 {
                while at < samples && bench.link.stats().in_flight < 4 {
                    bench.submit((at..(at + group).min(samples)).collect(), 13 << 20);
                    at += group;
                }
                let completion = bench.completion().await;
                bench.check(&completion);
            }
            assert!(bench.link.stats().bytes >= samples * min);
            assert_eq!(bench.account.held(), 0);
        });
    }
}

#[test]
fn a_fetch_of_many_frames_is_placed_as_one() {
    run(Content { absent: 0.2, fields: 3, ..Content::new(1, 1 << 40, 0, 100) }, |server, _| async move {
        let mut bench = Bench::new(&server, 16 << 20, true).await;
        // So far apart that each ordinal takes six bytes: a frame has room for some 2700 of them, a table for 909 samples.
        let mut random = fastrand::Rng::with_seed(5);
        let ordinals: Vec<u64> = (0..4000).map(|_| random.u64(0..1 << 40)).collect();
        let mut before = 0;
        for lease in [0, 1000, 200_000, 4 << 20] {
            bench.submit(ordinals.clone(), lease);
            let completion = bench.completion().await;
            let entries = completion.result.as_ref().expect("an answer");
            assert_eq!(entries.len(), 12_000);
            crate::place::check_table(entries, lease as u64).expect("within bounds, and without overlaps");
            let there = entries.iter().filter(|entry| entry.status != Status::Absent);
            let placed = there.clone().filter(|entry| entry.status == Status::Ok).count();
            assert!(there.map(|entry| entry.status == Status::Ok).is_sorted_by(|a, b| a >= b), "a prefix is placed");
            assert!(placed > before || lease == 0, "{placed} entries in {lease} bytes");
            before = placed;
            for (at, entry) in entries.iter().enumerate() {
                let (ordinal, field) = (ordinals[at / 3], (at % 3) as u16);
                let len = bench.content.len(ordinal, field);
                match entry.status {
                    Status::Absent => assert_eq!(len, None),
                    Status::NotPlaced => assert_eq!(Some(entry.len), len),
                    Status::Ok => {
                        let bytes = &completion.lease[entry.offset as usize..][..entry.len as usize];
                        assert!(bench.content.check(ordinal, field, bytes), "entry {at}");
                    }
                    Status::Failed(failure) => panic!("{failure:?}"),
                }
            }
        }
        assert!(before > 9000, "{before}");
        // Cancelled anywhere on its way, it ends.
        for passes in 0..6 {
            let tag = bench.submit(ordinals.clone(), 4 << 20);
            let _ = tokio::time::timeout(Duration::from_millis(passes * 5), poll_fn(|cx| bench.link.poll(cx))).await;
            bench.link.cancel(tag);
            if bench.link.stats().in_flight > 0 {
                let completion = bench.completion().await;
                assert!(completion.result.is_ok() || completion.result == Err(LinkError::Cancelled));
            }
        }
        assert!(bench.link.is_alive());
    });
}

#[test]
fn a_storm_of_cancellations_leaves_nothing_behind() {
    run(Content::new(1, 1000, 20_000, 100_000), |server, source| async move {
        let mut bench = Bench::new(&server, 64 << 20, true).await;
        let mut random = fastrand::Rng::with_seed(11);
        let (mut open, mut whole, mut cancelled) = (std::collections::BTreeSet::new(), 0, 0);
        for round in 0..200_u64 {
            while open.len() < 12 {
                let fetch = bench.fetch(vec![random.u64(0..1000)], 200_000);
                let tag = fetch.tag;
                if bench.link.submit(fetch).is_err() {
                    break;
                }
                open.insert(tag);
            }
            bench.link.flush();
            if round % 3 == 0 {
                tokio::time::sleep(Duration::from_micros(random.u64(0..3000))).await;
            }
            let victims: Vec<_> = open.iter().copied().filter(|_| random.u8(0..3) == 0).collect();
            victims.iter().for_each(|&tag| bench.link.cancel(tag));
            for _ in 0..victims.len().max(1) {
                let completion = bench.completion().await;
                assert!(open.remove(&completion.tag), "once");
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
        assert!(whole > 50 && cancelled > 50, "{whole} whole, {cancelled} cancelled");
        while !open.is_empty() {
            assert!(open.remove(&bench.completion().await.tag), "once");
        }
        assert_eq!(bench.account.held(), 0);
        until("the server is rid of them", || source.running.load(Ordering::SeqCst) == 0).await;
        assert!(bench.link.is_alive());
    });
}

/// Waits until `condition` holds.
pub(super) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[test]
fn dropping_a_link_in_mid_answer_gives_the_leases_back() {
    run(Content::new(1, 1000, 900_000, 1_000_000), |server, source| async move {
        for windows in [true, false] {
            let mut bench = Bench::new(&server, 16 << 20, windows).await;
            for i in 0..14 {
                bench.submit(vec![i], 1 << 20);
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
            let Bench { link, account, pool, .. } = bench;
            drop(link);
            assert_eq!((account.held(), pool.usage().quarantined), (0, 0));
        }
        until("the server is rid of them", || source.running.load(Ordering::SeqCst) == 0).await;
        until("and so is its pool", || source.account.held() == 0).await;
    });
}

#[test]
fn an_idle_link_lives_by_its_heartbeats_and_ends_with_the_session() {
    run(Content::new(1, 10, 100, 200), |mut server, _| async move {
        let mut bench = Bench::new(&server, 1 << 20, true).await;
        // Much longer than it takes either end to take the other for dead.
        let idle = tokio::time::timeout(HEARTBEAT * 8, poll_fn(|cx| bench.link.poll(cx))).await;
        assert!(idle.is_err() && bench.link.is_alive() && bench.link.stats().rtt > Duration::ZERO);
        bench.submit(vec![1], 4096);
        let completion = bench.completion().await;
        bench.check(&completion);
        drop(server.life.take());
        let over = tokio::time::timeout(Duration::from_secs(1), async {
            while bench.link.is_alive() {
                let _ = tokio::time::timeout(Duration::from_millis(10), poll_fn(|cx| bench.link.poll(cx))).await;
            }
        });
        over.await.expect("the end of the session ends it");
    });
}

#[test]
fn tickets_let_in_once_and_others_not_at_all() {
    run(Content::new(1, 10, 100, 200), |mut server, _| async move {
        let pool = slab(1 << 20);
        let config = Config { windows: true, credits: 16 };
        let pinned = Arc::new(Pinned::new(&pool, config.rights()));
        let connect = |ticket| RdmaLink::connect(&config, &pinned, server.address, ticket, None);
        let reason = |result: Result<RdmaLink, Error>| match result {
            Err(Error::Rejected(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(connect(Ticket::new([7; 32])).await), Reason::UnknownTicket);
        let ticket = server.ticket();
        let link = connect(ticket.clone()).await.expect("a good ticket");
        assert_eq!(reason(connect(ticket).await), Reason::UsedTicket);
        let late = server.ticket();
        assert_eq!(server.counters.rejected.load(Ordering::Relaxed), 2);
        drop(server.life.take());
        let connect = |ticket| RdmaLink::connect(&config, &pinned, server.address, ticket, None);
        assert_eq!(reason(connect(late).await), Reason::SessionOver);
        drop(link);
    });
}

#[test]
fn a_server_that_stops_ends_its_links_and_one_that_starts_again_is_reached() {
    run(Content::new(1, 100, 100_000, 200_000), |mut server, source| async move {
        let mut bench = Bench::new(&server, 16 << 20, true).await;
        for i in 0..10 {
            bench.submit(vec![i], 200_000);
        }
        drop(server.stop.take());
        for _ in 0..10 {
            match bench.completion().await {
                completion if completion.result.is_ok() => bench.check(&completion),
                completion => {
                    assert!(matches!(completion.result, Err(LinkError::Closed(_))), "{:?}", completion.result)
                }
            }
        }
        (&mut server.serving).await.expect("it stops");
        drop(server);
        let server = Running::start(&source);
        let mut bench = Bench::new(&server, 16 << 20, true).await;
        bench.submit(vec![5], 200_000);
        let completion = bench.completion().await;
        bench.check(&completion);
    });
}

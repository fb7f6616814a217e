//! Who gets a ticket for RDMA, and what it says.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_server::serve::rdma::Rdma;
use forebay_server::serve::{Service, State};
use forebay_transport::exchange::Session;
use forebay_transport::exchange::memory::{Answer, Ask, exchange};
use forebay_transport::h3::client::{AskLimits, ConnectConfig};
use forebay_transport::h3::{Connection, Connector, Identity, Server, ServerConfig, Trust};
use forebay_transport::rdma::hello::{Reason, Ticket};
use forebay_transport::rdma::tickets::{PER_SESSION, Tickets};
use forebay_transport::wire::describe::{RdmaEndpoint, RdmaOffer, WireRange};
use http::{HeaderMap, Method};

use crate::world::{Samples, World, kind, noise, problem, sample};

type Where = Arc<Mutex<Result<Vec<RdmaEndpoint>, String>>>;

fn endpoint(last: u8, mbps: u64) -> RdmaEndpoint {
    let (gid, fabric) = ("roce-v2".to_owned(), "10.7.0.0/24".to_owned());
    RdmaEndpoint { address: [10, 7, 0, last].into(), port: 4434, mbps, mtu: 4096, gid, fabric }
}

/// Datasets `d`, which may go out by RDMA, and `secret`, which may not.
fn world() -> (World, Arc<Tickets>, Where) {
    let samples: Samples = vec![sample("a", &[("jpg", noise(1, 3000))])];
    let mut world = World::with(&samples, 3);
    world.serve(world.index("secret", &samples, 3), |store| store);
    let (tickets, endpoints): (Arc<Tickets>, Where) =
        (Arc::default(), Arc::new(Mutex::new(Ok(vec![endpoint(1, 25_000), endpoint(2, 100_000)]))));
    let now = endpoints.clone();
    let rdma =
        Rdma::new(["d".to_owned(), "gone".to_owned()], tickets.clone(), Arc::new(move || now.lock().unwrap().clone()));
    let registry = world.service.registry().clone();
    world.service = Arc::new(Service::new(registry, world.slab.clone(), crate::world::quick()).with_rdma(rdma));
    (world, tickets, endpoints)
}

async fn ask(world: &World, session: &Session, dataset: &str) -> Answer {
    let ask = Ask { session: session.clone(), ..Ask::post(format!("/v1/datasets/{dataset}/rdma"), "") };
    exchange(world.service.clone(), ask).await
}

fn offer(answer: &Answer) -> (RdmaOffer, Ticket) {
    assert_eq!(answer.status(), 200);
    let offer: RdmaOffer = serde_json::from_slice(&answer.body()).unwrap();
    let ticket = Ticket::parse(&offer.ticket).unwrap();
    (offer, ticket)
}

#[tokio::test]
async fn a_ticket_says_where_to_go_and_names_its_dataset() {
    let (world, tickets, _) = world();
    let (life, session) = Session::begin();
    let answer = ask(&world, &session, "d").await;
    assert_eq!(answer.head.headers()["forebay-version"], *world.served("d").dataset.version().to_string());
    let (offer, ticket) = offer(&answer);
    assert_eq!((offer.wire, offer.expires_ms, offer.ticket.len()), (WireRange { min: 1, max: 1 }, 5000, 64));
    assert_eq!(offer.endpoints, [endpoint(2, 100_000), endpoint(1, 25_000)], "the fastest first");
    assert!(!format!("{offer:?}").contains(&offer.ticket));
    assert_eq!(world.service.metrics().counts().tickets, 1);
    let grant = tickets.redeem(Instant::now(), &ticket).unwrap();
    assert_eq!(&*grant.dataset, "d");
    assert!(!grant.session.is_over());
    drop(life);
    assert!(grant.session.is_over());
}

#[tokio::test]
async fn who_may_not_or_cannot_is_told_why() {
    let (world, tickets, endpoints) = world();
    let (_life, session) = Session::begin();
    let refused = async |dataset: &str| {
        let answer = ask(&world, &session, dataset).await;
        (answer.status(), kind(&answer), problem(&answer).detail.unwrap_or_default())
    };
    let (status, kind, detail) = refused("secret").await;
    assert_eq!((status, &*kind), (403, "forbidden"));
    assert!(detail.contains("--rdma secret"), "{detail}");
    assert_eq!(refused("nobody").await.0, 404);
    world.service.registry().set("gone", State::Indexing { progress: 0.5 });
    assert_eq!(refused("gone").await.0, 503);
    *endpoints.lock().unwrap() = Ok(Vec::new());
    let (status, kind, detail) = refused("d").await;
    assert_eq!((status, &*kind), (501, "unavailable"));
    assert!(detail.contains("port that is up"), "{detail}");
    *endpoints.lock().unwrap() = Err("libibverbs.so.1 is missing".into());
    assert!(refused("d").await.2.contains("libibverbs.so.1 is missing"));
    assert_eq!(world.get("/v1/datasets/d/rdma").await.status(), 405);
    assert_eq!(world.service.metrics().counts().tickets, 0);
    assert!(format!("{tickets:?}").contains("remembered: 0"));

    // Nobody is let in who did not ask for it.
    let plain = World::with(&vec![sample("a", &[("jpg", noise(1, 10))])], 1);
    assert_eq!(ask(&plain, &session, "d").await.status(), 403);
}

#[tokio::test]
async fn one_session_gets_a_few_at_a_time() {
    let (world, ..) = world();
    let (_life, session) = Session::begin();
    for _ in 0..PER_SESSION {
        offer(&ask(&world, &session, "d").await);
    }
    let answer = ask(&world, &session, "d").await;
    assert_eq!((answer.status(), &*kind(&answer)), (503, "busy"));
    assert!(answer.head.headers().contains_key("retry-after"));
}

async fn connect(world: &World) -> Connection {
    let identity = Identity::self_signed(world.folder.path(), &["localhost".into()]).unwrap();
    let trust = Trust::Pinned(identity.fingerprint());
    let server = Server::bind(ServerConfig::new(([127, 0, 0, 1], 0).into(), identity, 16 << 20)).unwrap();
    let port = server.local_addr().port();
    tokio::spawn(server.serve(world.service.clone(), std::future::pending(), Duration::ZERO));
    let connector = Connector::new(ConnectConfig { trust, ..ConnectConfig::default() }).unwrap();
    connector.connect("127.0.0.1", port).await.unwrap()
}

/// Over a real connection: its end revokes what it got, used or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_connection_revokes_its_tickets() {
    let (world, tickets, _) = world();
    let connection = connect(&world).await;
    let ticket = async || {
        let (path, limits) = ("/v1/datasets/d/rdma", AskLimits::default());
        let answer = connection.ask(Method::POST, path, HeaderMap::new(), bytes::Bytes::new(), limits).await.unwrap();
        let offer: RdmaOffer = serde_json::from_slice(&answer.body).unwrap();
        Ticket::parse(&offer.ticket).unwrap()
    };
    let (used, unused) = (ticket().await, ticket().await);
    let mut grant = tickets.redeem(Instant::now(), &used).unwrap();
    assert!(!grant.session.is_over());
    connection.close();
    tokio::time::timeout(Duration::from_secs(10), grant.session.over())
        .await
        .expect("the session ends with its connection");
    assert_eq!(tickets.redeem(Instant::now(), &unused).err(), Some(Reason::SessionOver));
    assert_eq!(tickets.redeem(Instant::now(), &used).err(), Some(Reason::UsedTicket));
}

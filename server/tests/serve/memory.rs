//! What requests hold of the pool, and what happens when there is none.

use std::time::Duration;

use bytes::BytesMut;
use forebay_transport::exchange::memory::{Ask, Event, exchange, start};
use forebay_transport::pool::Account;
use forebay_transport::wire::FetchRequest;

use crate::world::{Group, Samples, World, kind, noise, quick, sample};

fn samples() -> Samples {
    (0..64).map(|n| sample(format!("{n:03}"), &[("bin", noise(n, 200_000))])).collect()
}

fn world() -> World {
    let world = World::new(8 << 20, quick());
    world.serve(world.index("d", &samples(), 16), |store| store);
    world
}

const ALL: [u64; 64] = {
    let mut all = [0; 64];
    let mut at = 0;
    while at < 64 {
        all[at] = (at as u64 * 29) % 64;
        at += 1;
    }
    all
};

/// A client that stops reading holds its share of the pool at most, and gives it back when it goes.
#[tokio::test]
async fn a_client_that_stops_reading_holds_its_share_at_most() {
    let world = world();
    let stalled: Vec<_> =
        (0..8).map(|_| start(world.service.clone(), world.asking("d", &ALL, &["bin"], 16 << 20))).collect();
    // Which of them get memory is not said; that some do is.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(world.account.held() > 0);
    assert!(world.account.held() <= 2 << 20, "{:?}", world.account);
    assert!(world.slab.usage().free >= 6 << 20);
    // Another connection has its own share.
    let ask = world.asking("d", &ALL, &["bin"], 16 << 20);
    let answer = world.ask_as(Account::new("other", 2 << 20), ask).await;
    assert_eq!((answer.status(), answer.end), (200, Ok(())));
    drop(stalled);
    world.assert_nothing_held().await;
    assert_eq!(world.service.metrics().counts().abandoned, 8);
}

/// Many groups at once through a share that holds two chunks: all of them come, whole.
#[tokio::test]
async fn many_groups_share_little_memory() {
    let world = world();
    let mut answers = Vec::new();
    for n in 0..16 {
        let mut ordinals = ALL;
        ordinals.rotate_left(n);
        let mut reading = start(world.service.clone(), world.asking("d", &ordinals, &["bin"], 16 << 20));
        answers.push(tokio::spawn(async move {
            let mut body = Vec::new();
            while let Some(event) = reading.next().await {
                match event {
                    // As the network does: copied out, and the memory given back.
                    Event::Chunk(chunk) => body.extend_from_slice(&chunk),
                    Event::Reset(code) => panic!("reset with {code:#x}"),
                    _ => {}
                }
            }
            (ordinals, body)
        }));
    }
    let samples = samples();
    for answer in answers {
        let (ordinals, body) = answer.await.unwrap();
        let group = Group::read(&body, 64, 16 << 20);
        let expected: Vec<_> = ordinals.iter().map(|&n| Some(samples[n as usize].1["bin"].as_slice())).collect();
        assert!(group.bytes() == expected);
    }
    world.assert_nothing_held().await;
}

/// Payload is sent from where it was read to, never copied.
#[tokio::test]
async fn payload_is_not_copied() {
    let world = world();
    let answer = exchange(world.service.clone(), world.asking("d", &[3, 1], &["bin"], 1 << 20)).await;
    let (base, len) = world.slab.region();
    let pool = base.as_ptr() as usize..base.as_ptr() as usize + len;
    let from_pool: Vec<_> = answer.chunks.iter().filter(|chunk| pool.contains(&(chunk.as_ptr() as usize))).collect();
    assert_eq!(from_pool.iter().map(|chunk| chunk.len()).collect::<Vec<_>>(), [200_000, 200_000]);
    drop(answer);
    world.assert_nothing_held().await;
}

/// No memory in the client's time: it is told to come again.
#[tokio::test]
async fn without_memory_the_server_is_busy() {
    let world = world();
    let all_of_it = world.slab.try_lease(&world.account, 2 << 20).expect("nothing else is held");
    let served = world.served("d");
    let mut body = BytesMut::new();
    let request = FetchRequest {
        version: served.dataset.version(),
        capacity: 1 << 20,
        remaining: Duration::from_millis(40),
        fields: &[0],
        ordinals: &[1],
    };
    request.encode(&mut body).unwrap();
    let body = body.freeze();
    let started = std::time::Instant::now();
    let answer = world.ask(Ask::post("/v1/datasets/d/fetch", body.clone())).await;
    assert!((40..2000).contains(&started.elapsed().as_millis()));
    assert_eq!(kind(&answer), "busy");
    assert_eq!(answer.head.headers()["retry-after"], "1");
    drop(all_of_it);
    assert_eq!(world.ask(Ask::post("/v1/datasets/d/fetch", body)).await.status(), 200);
    assert_eq!(world.service.metrics().counts().busy, 1);
}

/// A client that goes away while the server waits for memory is not waited for.
#[tokio::test]
async fn a_client_that_goes_is_forgotten() {
    let world = world();
    let all_of_it = world.slab.try_lease(&world.account, 2 << 20).expect("nothing else is held");
    let reading = start(world.service.clone(), world.asking("d", &[1], &["bin"], 1 << 20));
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(reading);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.service.metrics().counts().abandoned, 1);
    drop(all_of_it);
    world.assert_nothing_held().await;
}

//! How a server goes.

use std::time::{Duration, Instant};

use forebay_transport::exchange::{Request, Responder};
use forebay_transport::h3::client::AskError;

use super::support::*;

async fn slow(request: Request, responder: Responder) {
    let mut writer = responder.send_head(ok()).await.unwrap();
    let parts = if request.path == "/endless" { u32::MAX } else { 10 };
    for _ in 0..parts {
        if writer.write(pattern(50_000, 3)).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let _ = writer.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_finishes_and_nothing_new_begins() {
    let mut server = start(slow);
    let client = server.connect().await;
    let asks: Vec<_> = (0..20)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get("/", limits(10)).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop.take().unwrap().send(()).unwrap();
    eventually("the client is told", || !client.is_alive()).await;
    let refused = client.get("/", limits(5)).await;
    assert!(matches!(refused, Err(AskError::Closed { .. })), "{refused:?}");
    for ask in asks {
        assert_eq!(ask.await.unwrap().unwrap().body.len(), 500_000);
    }
    tokio::time::timeout(Duration::from_secs(5), server.serving).await.expect("the server ends").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_finish_in_time_is_cut() {
    let mut server = start_with(slow, Duration::from_millis(200), |_| {});
    let client = server.connect().await;
    let ask = tokio::spawn(async move { client.get("/endless", limits(20)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    server.stop.take().unwrap().send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(5), server.serving).await.expect("the server ends").unwrap();
    assert!(started.elapsed() < Duration::from_secs(3));
    assert!(matches!(ask.await.unwrap(), Err(AskError::Closed { .. } | AskError::Reset { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_ends_at_once() {
    let mut server = start(slow);
    let client = server.connect().await;
    let started = Instant::now();
    server.stop.take().unwrap().send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(5), server.serving).await.expect("the server ends").unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    eventually("the client notices", || !client.is_alive()).await;
}

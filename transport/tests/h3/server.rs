//! What a server does for friends, strangers and vandals.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_transport::exchange::{Request, Responder, SendError};
use forebay_transport::h3::client::{AskError, AskLimits};
use forebay_transport::pool::{Account, Slab, SlabConfig};
use http::{HeaderMap, Method};
use quinn::VarInt;

use super::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_every_size_come_and_go() {
    let server = start(echo);
    let client = server.connect().await;
    for len in [0, 1, 63, 64, 1023, 1024, 16_383, 65_536, 1 << 20, (1 << 20) + 1, 9 << 20] {
        let answer = client.get(&format!("/bytes/{len}"), limits(20)).await.unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["content-length"], len.to_string().as_str());
        assert!(answer.body == pattern(len, 7), "GET {len}");
        let body = pattern(len, 9);
        let answer = client.ask(Method::POST, "/", HeaderMap::new(), body.clone(), limits(20)).await.unwrap();
        assert!(answer.body == body, "POST {len}");
    }
    assert!(client.rtt() > Duration::ZERO && client.is_alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_requests_at_once() {
    let server = start(echo);
    let client = server.connect().await;
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..1000usize {
        let client = client.clone();
        tasks.spawn(async move {
            let body = pattern(i * 37 % 20_000, i as u64);
            let answer = client.ask(Method::POST, "/", HeaderMap::new(), body.clone(), limits(30)).await.unwrap();
            assert!(answer.body == body);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn a_request_says_where_it_comes_from() {
    let server = start(|request: Request, responder: Responder| async move {
        let text = format!(
            "{} {} {:?} {} {} {}",
            request.method,
            request.path,
            request.query,
            request.headers["x-y"].to_str().unwrap(),
            request.peer.ip(),
            request.account.limit(),
        );
        let _ = responder.send(ok(), text.into()).await;
    });
    let client = server.connect().await;
    let mut headers = HeaderMap::new();
    headers.insert("x-y", "z".parse().unwrap());
    let ask = client.ask(Method::GET, "/a%20b?c=d&e", headers, Bytes::new(), limits(5));
    assert_eq!(ask.await.unwrap().body, format!("GET /a%20b Some(\"c=d&e\") z 127.0.0.1 {}", 16 << 20));
}

#[tokio::test]
async fn head_has_no_body_and_no_body_means_no_body() {
    let server = start(|request: Request, responder: Responder| async move {
        let mut head = ok();
        if request.path == "/none" {
            *head.status_mut() = http::StatusCode::NO_CONTENT;
        }
        let mut writer = responder.send_head(head).await.unwrap();
        let head_only = request.method == Method::HEAD;
        assert_eq!(writer.has_body(), !head_only && request.path != "/none");
        writer.write(Bytes::from_static(b"body")).await.unwrap();
        writer.finish().await.unwrap();
    });
    let client = server.connect().await;
    let ask = |method, path| client.ask(method, path, HeaderMap::new(), Bytes::new(), limits(5));
    assert_eq!(ask(Method::HEAD, "/").await.unwrap().body, "");
    assert_eq!(ask(Method::GET, "/none").await.unwrap().body, "");
    assert_eq!(ask(Method::GET, "/").await.unwrap().body, "body");
}

#[tokio::test]
async fn an_answer_that_has_no_end_is_not_taken_for_whole() {
    let server = start(|request: Request, responder: Responder| async move {
        match request.path.as_str() {
            "/panic" => panic!("on purpose"),
            "/silent" => drop(responder),
            "/half" | "/half-panic" => {
                let mut writer = responder.send_head(ok()).await.unwrap();
                writer.write(pattern(100_000, 1)).await.unwrap();
                assert!(request.path == "/half", "on purpose");
            }
            "/reset" => responder.reset(0x10c),
            // The halves outlive the handler.
            _ => drop(tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let _ = responder.send(ok(), "late".into()).await;
            })),
        }
    });
    let client = server.connect().await;
    let ask = |path: &'static str| client.get(path, limits(5));
    assert_eq!(ask("/panic").await.unwrap().status, 500);
    assert_eq!(ask("/silent").await.unwrap().status, 500);
    assert!(matches!(ask("/half").await, Err(AskError::Reset { .. })));
    assert!(matches!(ask("/half-panic").await, Err(AskError::Reset { .. })));
    assert!(matches!(ask("/reset").await, Err(AskError::Reset { .. })));
    assert_eq!(ask("/late").await.unwrap().body, "late");
}

#[tokio::test]
async fn bodies_are_bounded_both_ways() {
    let server = start(|mut request: Request, responder: Responder| async move {
        let mut head = ok();
        if let Err(error) = request.read_body(1000).await {
            *head.status_mut() = error.status();
        }
        let _ = responder.send(head, pattern(5000, 1)).await;
    });
    let client = server.connect().await;
    let ask = |len| client.ask(Method::POST, "/", HeaderMap::new(), pattern(len, 1), limits(5));
    assert_eq!(ask(1000).await.unwrap().status, 200);
    assert_eq!(ask(1001).await.unwrap().status, 413);
    // More than the server drains: the rest is declined, and the answer arrives all the same.
    assert_eq!(ask(8 << 20).await.unwrap().status, 413);
    let small = AskLimits { body: 4999, ..limits(5) };
    assert!(matches!(client.get("/", small).await, Err(AskError::TooLarge { limit: 4999, .. })));
    assert!(client.is_alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_travel_without_a_copy_and_come_back() {
    let slab = Slab::new(SlabConfig { capacity: 32 << 20, lock: false }).unwrap();
    let account = Account::new("test", usize::MAX);
    let from = (slab.clone(), account.clone());
    let server = start(move |_: Request, responder: Responder| {
        let (slab, account) = from.clone();
        async move {
            let mut writer = responder.send_head(ok()).await.unwrap();
            for seed in 0..8 {
                let mut lease = slab.lease(&account, 3 << 20).await;
                lease.as_mut_slice().copy_from_slice(&pattern(3 << 20, seed));
                let view = lease.freeze();
                let mut parts: Vec<Bytes> = (0..3).map(|i| view.slice(i << 20, 1 << 20).into_bytes()).collect();
                writer.write_all(&mut parts).await.unwrap();
                assert!(parts.iter().all(Bytes::is_empty));
            }
            writer.finish().await.unwrap();
        }
    });
    let client = server.connect().await;
    let answer = client.get("/", limits(20)).await.unwrap();
    let want: Vec<u8> = (0..8).flat_map(|seed| pattern(3 << 20, seed)).collect();
    assert!(answer.body == want);
    eventually("all leases are back", || slab.usage().leases == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_slows_its_own_answer_only() {
    let written = Arc::new(AtomicUsize::new(0));
    let count = written.clone();
    let handler = move |request: Request, responder: Responder| {
        let count = count.clone();
        async move {
            let mut writer = responder.send_head(ok()).await.unwrap();
            let chunks = if request.path == "/slow" { 100 } else { 1 };
            for _ in 0..chunks {
                writer.write(pattern(1 << 20, 1)).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
            writer.finish().await.unwrap();
        }
    };
    let server = start_with(handler, Duration::ZERO, |config| config.transport.send_window = 4 << 20);
    let (_endpoint, conn) = raw(&server).await;
    let (mut driver, mut sender) = h3::client::new(h3_quinn::Connection::new(conn)).await.unwrap();
    let driving = tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
    let request = http::Request::get("https://localhost/slow").body(()).unwrap();
    let mut slow = sender.send_request(request).await.unwrap();
    slow.finish().await.unwrap();
    slow.recv_response().await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let stuck = written.load(Ordering::Relaxed);
    assert!(stuck < 100, "the writer waits for its reader, after {stuck} MiB");
    // Another connection is not held up.
    let other = server.connect().await;
    assert_eq!(other.get("/fast", limits(5)).await.unwrap().body.len(), 1 << 20);
    let mut got = 0;
    while let Some(chunk) = slow.recv_data().await.unwrap() {
        got += bytes::Buf::remaining(&chunk);
    }
    assert_eq!(got, 100 << 20);
    driving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_is_noticed() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let server = start(move |request: Request, responder: Responder| {
        let tell = tell.clone();
        async move {
            if request.path == "/wait" {
                let mut responder = responder;
                responder.gone().await;
                tell.send(Err(SendError::Gone)).unwrap();
                return;
            }
            let mut writer = responder.send_head(ok()).await.unwrap();
            loop {
                if let Err(error) = writer.write(pattern(1 << 20, 1)).await {
                    tell.send(Err::<(), _>(error)).unwrap();
                    writer.gone().await;
                    return;
                }
            }
        }
    });
    // One request is given up, the connection stays.
    let client = server.connect().await;
    for path in ["/stream", "/wait"] {
        let limits = AskLimits { time: Duration::from_millis(200), body: usize::MAX };
        assert!(matches!(client.get(path, limits).await, Err(AskError::Timeout { .. })));
        assert_eq!(told.recv().await.unwrap(), Err(SendError::Gone));
        assert!(client.is_alive());
    }
    // The connection goes.
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.get("/stream", AskLimits { body: usize::MAX, ..limits(5) }).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    client.close();
    assert!(matches!(asking.await.unwrap(), Err(AskError::Closed { .. })));
    assert_eq!(told.recv().await.unwrap(), Err(SendError::Gone));
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |_: Request, responder: Responder| {
        let tell = tell.clone();
        async move {
            let mut writer = responder.send_head(ok()).await.unwrap();
            let error = loop {
                if let Err(error) = writer.write(pattern(1 << 20, 1)).await {
                    break error;
                }
            };
            tell.send(error).unwrap();
        }
    };
    let server = start_with(handler, Duration::ZERO, |config| config.patience = Duration::from_millis(300));
    let (_endpoint, conn) = raw(&server).await;
    let (mut send, _recv) = conn.open_bi().await.unwrap();
    send.write_all(&get_frame()).await.unwrap();
    send.finish().unwrap();
    assert_eq!(told.recv().await.unwrap(), SendError::Stalled(Duration::from_millis(300)));
}

/// `GET https://localhost/` as one HEADERS frame: indices of QPACK's static table and one literal.
fn get_frame() -> Vec<u8> {
    let mut block = vec![0, 0, 0xd1, 0xd7, 0xc1, 0x50, 9];
    block.extend_from_slice(b"localhost");
    let mut frame = vec![1, block.len() as u8];
    frame.extend(block);
    frame
}

#[tokio::test]
async fn heads_and_bodies_that_do_not_come_are_not_waited_for() {
    let handler = |mut request: Request, responder: Responder| async move {
        let mut head = ok();
        if let Err(error) = request.read_body(1000).await {
            *head.status_mut() = error.status();
        }
        let _ = responder.send(head, Bytes::new()).await;
    };
    let server = start_with(handler, Duration::ZERO, |config| config.patience = Duration::from_millis(200));
    let (_endpoint, conn) = raw(&server).await;
    // Half a head.
    let (mut send, mut recv) = conn.open_bi().await.unwrap();
    send.write_all(&get_frame()[..5]).await.unwrap();
    let code = recv.received_reset().await.unwrap();
    assert_eq!(code, Some(VarInt::from_u32(0x10d)), "H3_REQUEST_INCOMPLETE");
    // No body: 408, as one HEADERS frame and an end.
    let (mut send, mut recv) = conn.open_bi().await.unwrap();
    send.write_all(&get_frame()).await.unwrap();
    send.write_all(&[0, 10, 1, 2, 3]).await.unwrap();
    let answer = recv.read_to_end(1000).await.unwrap();
    assert!(answer.windows(3).any(|three| three == [0x68, 0x0f, 0x7f]), "{answer:?}");
    assert!(conn.close_reason().is_none());
}

#[tokio::test]
async fn heads_are_bounded() {
    let server = start(echo);
    let client = server.connect().await;
    let ask = |len| {
        let mut headers = HeaderMap::new();
        headers.insert("x", "a".repeat(len).parse().unwrap());
        client.ask(Method::GET, "/", headers, Bytes::new(), limits(5))
    };
    assert_eq!(ask(15 << 10).await.unwrap().status, 200);
    // The server has said what it takes, so that our client does not even send more.
    assert!(ask(17 << 10).await.is_err());
    assert!(client.is_alive());
    // One that does is told so, or cut off; its connection stays.
    let (_endpoint, conn) = raw(&server).await;
    let literal = |len: usize| {
        let mut frame = get_frame();
        frame.extend([0x50, 0x7f]);
        let mut rest = len - 127;
        while rest >= 128 {
            frame.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        frame.push(rest as u8);
        frame.extend(vec![b'a'; len]);
        let mut whole = vec![1];
        whole.extend(((frame.len() - 2) as u32 | 0x8000_0000).to_be_bytes());
        whole.extend(&frame[2..]);
        whole
    };
    let (mut send, mut recv) = conn.open_bi().await.unwrap();
    send.write_all(&literal(20 << 10)).await.unwrap();
    let answer = recv.read_to_end(1000).await.unwrap();
    assert!(answer.windows(3).any(|three| three == [0x69, 0x90, 0xff]), "{answer:?}");
    let (mut send, mut recv) = conn.open_bi().await.unwrap();
    let _ = send.write_all(&literal(1 << 20)).await;
    assert_eq!(recv.received_reset().await.unwrap(), Some(VarInt::from_u32(0x107)), "H3_EXCESSIVE_LOAD");
    assert!(conn.close_reason().is_none());
}

#[tokio::test]
async fn what_breaks_the_protocol_closes_the_connection_with_the_code_for_it() {
    let server = start(echo);
    let cases: [(&str, Vec<u8>, bool, u32); 7] = [
        ("DATA first", vec![0, 1, 9], false, 0x105),
        ("SETTINGS on a request stream", vec![4, 0], false, 0x105),
        ("HTTP/2 PING", vec![6, 0], false, 0x105),
        ("SETTINGS in a body", [get_frame(), vec![4, 0]].concat(), false, 0x105),
        ("DATA after trailers", [get_frame(), vec![0, 1, 9, 1, 2, 0, 0, 0, 1, 9]].concat(), false, 0x105),
        ("DATA cut short", [get_frame(), vec![0, 10, 1]].concat(), true, 0x106),
        ("not QPACK", vec![1, 4, 0xff, 0xff, 0xff, 0xff], false, 0x200),
    ];
    for (what, bytes, finish, code) in cases {
        let (_endpoint, conn) = raw(&server).await;
        let (mut send, _recv) = conn.open_bi().await.unwrap();
        send.write_all(&bytes).await.unwrap();
        if finish {
            send.finish().unwrap();
        }
        let closed = tokio::time::timeout(Duration::from_secs(5), conn.closed()).await.expect(what);
        let quinn::ConnectionError::ApplicationClosed(close) = closed else { panic!("{what}: {closed}") };
        assert_eq!(close.error_code, VarInt::from_u32(code), "{what}: {close}");
    }
    // Frames of no meaning are no offence, wherever they are and however long they say they are.
    let (_endpoint, conn) = raw(&server).await;
    let (mut send, mut recv) = conn.open_bi().await.unwrap();
    let frames = [vec![0x21, 3, 1, 2, 3], get_frame(), vec![0x40, 0x4f, 0], vec![0, 2, 7, 8], vec![0x21, 0]].concat();
    for byte in frames {
        // In pieces as small as can be.
        send.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    send.finish().unwrap();
    let answer = recv.read_to_end(1000).await.unwrap();
    assert!(answer.ends_with(&[0, 2, 7, 8]), "{answer:?}");
}

#[tokio::test]
async fn a_control_stream_without_end_is_cut() {
    let server = start(echo);
    let (_endpoint, conn) = raw(&server).await;
    let mut control = conn.open_uni().await.unwrap();
    // Control stream, SETTINGS of a gigabyte.
    control.write_all(&[0, 4, 0xc0, 0, 0, 0, 0x40, 0, 0, 0]).await.unwrap();
    let flood = async {
        loop {
            if control.write_all(&[0; 4096]).await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), flood).await.expect("it is cut");
    assert!(conn.close_reason().is_some());
}

#[tokio::test]
async fn one_connection_too_many_is_refused() {
    let server = start_with(echo, Duration::ZERO, |config| config.max_connections = 2);
    let first = server.connect().await;
    let _second = server.connect().await;
    let error = server.connector().connect("127.0.0.1", server.address.port()).await.unwrap_err();
    assert!(error.to_string().contains("takes no more connections"), "{error}");
    first.close();
    let mut again = Err(error);
    for _ in 0..100 {
        again = server.connector().connect("127.0.0.1", server.address.port()).await;
        if again.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(again.unwrap().get("/bytes/3", limits(5)).await.unwrap().body.len(), 3);
}

#[tokio::test]
async fn requests_reset_in_a_storm_cost_little() {
    let running = Arc::new(AtomicUsize::new(0));
    let peak = Arc::new(AtomicUsize::new(0));
    let (now, most) = (running.clone(), peak.clone());
    let server = start(move |_: Request, responder: Responder| {
        let (now, most) = (now.clone(), most.clone());
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            let _ = responder.send(ok(), Bytes::new()).await;
            now.fetch_sub(1, Ordering::SeqCst);
        }
    });
    let (_endpoint, conn) = raw(&server).await;
    for _ in 0..3000 {
        let (mut send, mut recv) = conn.open_bi().await.unwrap();
        send.write_all(&get_frame()).await.unwrap();
        let _ = send.reset(VarInt::from_u32(0x10c));
        let _ = recv.stop(VarInt::from_u32(0x10c));
    }
    eventually("all are over", || running.load(Ordering::SeqCst) == 0).await;
    assert!(peak.load(Ordering::SeqCst) <= 512, "{peak:?} handlers at once");
    assert!(conn.close_reason().is_none());
}

#[tokio::test]
async fn what_a_server_may_hold_is_known() {
    let server = start(echo);
    let sum: u64 = server.claims.iter().map(|claim| claim.bytes).sum();
    assert!(sum > 16 << 20 && sum < 512 << 20, "{:?}", server.claims);
    assert!(server.connector().claims().iter().any(|claim| claim.name == "QUIC receive window"));
}

#[tokio::test]
async fn a_request_that_is_answered_unread_is_not_called_a_failure() {
    let server = start(|_: Request, responder: Responder| async move {
        let _ = responder.send(ok(), "done".into()).await;
    });
    let (_endpoint, conn) = raw(&server).await;
    // Whole, but not read by the handler: taken to its end, so that a strict client sees nothing wrong.
    let (mut send, mut recv) = conn.open_bi().await.unwrap();
    send.write_all(&[get_frame(), vec![0, 4, 1, 2, 3, 4]].concat()).await.unwrap();
    send.finish().unwrap();
    assert!(recv.read_to_end(1000).await.unwrap().ends_with(b"done"));
    assert_eq!(send.stopped().await.unwrap(), None);
    // Of a body without end the server takes a part, and says without reproach that it wants no more.
    let (mut send, mut recv) = conn.open_bi().await.unwrap();
    send.write_all(&[get_frame(), vec![0, 0xc0, 0, 0, 0, 0x40, 0, 0, 0]].concat()).await.unwrap();
    let mut sent = 0;
    let error = loop {
        match send.write(&[0; 10_000]).await {
            Ok(some) => sent += some,
            Err(error) => break error,
        }
        assert!(sent < 64 << 20, "it takes everything");
    };
    assert_eq!(error, quinn::WriteError::Stopped(VarInt::from_u32(0x100)), "H3_NO_ERROR");
    assert!(recv.read_to_end(1000).await.unwrap().ends_with(b"done"));
}

#[tokio::test]
async fn a_write_that_is_given_up_is_the_end_of_the_answer() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |_: Request, responder: Responder| {
        let tell = tell.clone();
        async move {
            let mut writer = responder.send_head(ok()).await.unwrap();
            let much = writer.write(pattern(32 << 20, 1));
            assert!(tokio::time::timeout(Duration::from_millis(100), much).await.is_err(), "the client reads nothing");
            tell.send(writer.write("more".into()).await).unwrap();
            tell.send(writer.finish().await).unwrap();
        }
    };
    let server = start_with(handler, Duration::ZERO, |config| config.transport.send_window = 1 << 20);
    let (_endpoint, conn) = raw(&server).await;
    let (mut send, mut recv) = conn.open_bi().await.unwrap();
    send.write_all(&get_frame()).await.unwrap();
    send.finish().unwrap();
    assert_eq!(told.recv().await.unwrap(), Err(SendError::Gone));
    assert_eq!(told.recv().await.unwrap(), Err(SendError::Gone));
    assert_eq!(recv.received_reset().await.unwrap(), Some(VarInt::from_u32(0x102)), "H3_INTERNAL_ERROR");
}

//! With the plain `h3` and `h3-quinn` crates on the other side.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use forebay_transport::h3::client::ConnectConfig;
use forebay_transport::h3::{Connector, Trust};
use http::{HeaderMap, Method};
use rustls_pki_types::PrivateKeyDer;

use super::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_client_reads_our_server() {
    let server = start(echo);
    let (_endpoint, conn) = raw(&server).await;
    let (mut driver, mut sender) = h3::client::new(h3_quinn::Connection::new(conn)).await.unwrap();
    let driving = tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
    for len in [0, 1, 5000, 3 << 20] {
        // Bodies in both directions, with trailers and frames of no meaning.
        let request = http::Request::post("https://localhost/").body(()).unwrap();
        let mut stream = sender.send_request(request).await.unwrap();
        let body = pattern(len, 4);
        for chunk in body.chunks(40_000) {
            stream.send_data(Bytes::copy_from_slice(chunk)).await.unwrap();
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x", "y".parse().unwrap());
        stream.send_trailers(trailers).await.unwrap();
        stream.finish().await.unwrap();
        let answer = stream.recv_response().await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut got = Vec::new();
        while let Some(mut chunk) = stream.recv_data().await.unwrap() {
            got.extend_from_slice(&chunk.copy_to_bytes(chunk.remaining()));
        }
        assert!(got == body);
    }
    driving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_reads_a_plain_server() {
    let generated = rcgen::generate_simple_self_signed(names()).unwrap();
    let key = PrivateKeyDer::Pkcs8(generated.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![generated.cert.der().clone()], key)
        .unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let endpoint = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    let port = endpoint.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let conn = h3_quinn::Connection::new(incoming.await.unwrap());
            let mut conn = h3::server::Connection::<_, Bytes>::new(conn).await.unwrap();
            while let Ok(Some(resolver)) = conn.accept().await {
                tokio::spawn(async move {
                    let (_, mut stream) = resolver.resolve_request().await.unwrap();
                    let mut body = Vec::new();
                    while let Some(mut chunk) = stream.recv_data().await.unwrap() {
                        body.extend_from_slice(&chunk.copy_to_bytes(chunk.remaining()));
                    }
                    // An informational head first: it is not the answer.
                    let hint = http::Response::builder().status(103).body(()).unwrap();
                    stream.send_response(hint).await.unwrap();
                    stream.send_response(http::Response::new(())).await.unwrap();
                    for chunk in body.chunks(70_000) {
                        stream.send_data(Bytes::copy_from_slice(chunk)).await.unwrap();
                    }
                    stream.send_trailers(HeaderMap::new()).await.unwrap();
                    stream.finish().await.unwrap();
                });
            }
        }
    });
    let config = ConnectConfig { trust: Trust::Insecure, ..ConnectConfig::default() };
    let client = Connector::new(config).unwrap().connect("127.0.0.1", port).await.unwrap();
    for len in [0, 1, 5000, 3 << 20] {
        let body = pattern(len, 5);
        let answer = client.ask(Method::POST, "/x", HeaderMap::new(), body.clone(), limits(10)).await.unwrap();
        assert_eq!(answer.status, 200);
        assert!(answer.body == body, "{len}");
    }
}

//! Who is believed, and what is said to those who are not.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use forebay_transport::h3::client::{ConnectConfig, ConnectError};
use forebay_transport::h3::tls::TlsError;
use forebay_transport::h3::{Connection, Connector, Fingerprint, Trust};

use super::support::*;

async fn connect(address: SocketAddr, host: &str, trust: Trust) -> Result<Connection, ConnectError> {
    let config = ConnectConfig { trust, timeout: Duration::from_secs(3), ..ConnectConfig::default() };
    Connector::new(config).unwrap().connect(host, address.port()).await
}

#[tokio::test]
async fn every_way_to_trust_works() {
    let server = start(echo);
    let ca = Trust::CaFile(server.state.path().join("certificate.pem"));
    let pin: Fingerprint = server.fingerprint.to_string().parse().unwrap();
    for trust in [Trust::Pinned(pin), ca, Trust::Insecure] {
        for host in ["localhost", "127.0.0.1"] {
            let client = connect(server.address, host, trust.clone()).await.unwrap();
            assert_eq!(client.presented(), server.fingerprint);
            assert_eq!(client.get("/bytes/5", limits(5)).await.unwrap().body.len(), 5);
        }
    }
}

#[tokio::test]
async fn a_stranger_is_refused_with_the_line_that_would_trust_it() {
    let server = start(echo);
    let other = start(echo);
    let ca = Trust::CaFile(other.state.path().join("certificate.pem"));
    let wrong = [Trust::Pinned(other.fingerprint), ca, Trust::System];
    for trust in wrong {
        let config = ConnectConfig { trust: trust.clone(), ..ConnectConfig::default() };
        if matches!((&trust, Connector::new(config)), (Trust::System, Err(TlsError::NoRoots(_)))) {
            continue;
        }
        let error = connect(server.address, "localhost", trust).await.unwrap_err();
        assert!(matches!(error, ConnectError::Untrusted { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("--trust {}", server.fingerprint)), "{text}");
        assert!(text.contains("localhost:"), "{text}");
    }
    // The right authority, the wrong name.
    let pem = server.state.path().join("certificate.pem");
    let hosts = tokio::net::lookup_host(("ip6-localhost", 1)).await;
    if hosts.is_ok_and(|mut hosts| hosts.any(|host| host.is_ipv4())) {
        assert!(connect(server.address, "ip6-localhost", Trust::CaFile(pem)).await.is_err());
    }
}

#[tokio::test]
async fn files_that_are_no_authorities_are_refused_at_once() {
    let new = |path: PathBuf| {
        Connector::new(ConnectConfig { trust: Trust::CaFile(path), ..ConnectConfig::default() }).unwrap_err()
    };
    assert!(matches!(new("/nonexistent/ca.pem".into()), TlsError::Read { .. }));
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "nothing here").unwrap();
    assert!(matches!(new(empty), TlsError::NoCertificate(_)));
}

#[tokio::test]
async fn a_port_where_nothing_listens_is_told_from_one_that_says_nothing() {
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    // Bound, and silent.
    let error = connect(address, "127.0.0.1", Trust::Insecure).await.unwrap_err();
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("UDP is blocked"), "{error}");
    // Closed.
    drop(free);
    let started = std::time::Instant::now();
    let error = connect(address, "127.0.0.1", Trust::Insecure).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(2), "known at once");
    let error = connect(address, "no-such-host.invalid", Trust::Insecure).await.unwrap_err();
    assert!(matches!(error, ConnectError::Resolve { .. }), "{error}");
}

#[tokio::test]
async fn the_other_address_of_a_host_is_tried() {
    // Listens on IPv4 only, while `localhost` may be IPv6 first.
    let server = start(echo);
    let client = connect(server.address, "localhost", Trust::Pinned(server.fingerprint)).await.unwrap();
    assert!(client.peer().is_ipv4());
}

#[tokio::test]
async fn ipv6_works() {
    let listen = "[::1]:0".parse().unwrap();
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    let server = start_with(echo, Duration::ZERO, |config| config.listen = listen);
    for host in ["::1", "[::1]"] {
        let client = connect(server.address, host, Trust::Pinned(server.fingerprint)).await.unwrap();
        assert_eq!(client.get("/bytes/5", limits(5)).await.unwrap().body.len(), 5);
    }
}

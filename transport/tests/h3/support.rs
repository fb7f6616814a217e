//! A server to talk to, and ways to talk to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_transport::exchange::{Handler, Request, Responder};
use forebay_transport::h3::client::{AskLimits, ConnectConfig};
use forebay_transport::h3::{Connection, Connector, Fingerprint, Identity, Server, ServerConfig, Trust};
use forebay_transport::pool::Claim;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server in the background. Dropped, it is told to stop.
pub struct Running {
    pub address: SocketAddr,
    pub fingerprint: Fingerprint,
    pub claims: Vec<Claim>,
    pub state: tempfile::TempDir,
    pub stop: Option<oneshot::Sender<()>>,
    pub serving: JoinHandle<()>,
}

pub fn names() -> Vec<String> {
    ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec()
}

/// Starts a server that lets requests finish within `grace`.
pub fn start_with(handler: impl Handler, grace: Duration, adjust: impl FnOnce(&mut ServerConfig)) -> Running {
    let state = tempfile::tempdir().unwrap();
    let identity = Identity::self_signed(state.path(), &names()).unwrap();
    let fingerprint = identity.fingerprint();
    let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity, 64 << 20);
    adjust(&mut config);
    let server = Server::bind(config).unwrap();
    let (address, claims) = (server.local_addr(), server.claims());
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(Arc::new(handler), async move { drop(stopped.await) }, grace));
    Running { address, fingerprint, claims, state, stop: Some(stop), serving }
}

pub fn start(handler: impl Handler) -> Running {
    start_with(handler, Duration::from_secs(5), |_| {})
}

impl Running {
    pub fn connector(&self) -> Connector {
        let trust = Trust::Pinned(self.fingerprint);
        Connector::new(ConnectConfig { trust, ..ConnectConfig::default() }).unwrap()
    }

    pub async fn connect(&self) -> Connection {
        self.connector().connect("127.0.0.1", self.address.port()).await.unwrap()
    }
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u64) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes.into()
}

pub fn limits(seconds: u64) -> AskLimits {
    AskLimits { time: Duration::from_secs(seconds), ..AskLimits::default() }
}

pub fn ok() -> http::Response<()> {
    http::Response::new(())
}

/// Answers `POST` with the body, and `GET /bytes/N` with N bytes of a pattern.
pub async fn echo(mut request: Request, responder: Responder) {
    let body = match request.path.strip_prefix("/bytes/") {
        Some(len) => pattern(len.parse().unwrap(), 7),
        None => match request.read_body(64 << 20).await {
            Ok(body) => body,
            Err(error) => {
                let mut head = ok();
                *head.status_mut() = error.status();
                let _ = responder.send(head, Bytes::from(error.to_string())).await;
                return;
            }
        },
    };
    let _ = responder.send(ok(), body).await;
}

/// A plain quinn connection to `server`, with whatever it presents taken for good.
pub async fn raw(server: &Running) -> (quinn::Endpoint, quinn::Connection) {
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(server.state.path().join("certificate.pem")).unwrap();
    use rustls_pki_types::pem::PemObject;
    roots.add(rustls_pki_types::CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
    let conn = endpoint.connect(server.address, "localhost").unwrap().await.unwrap();
    (endpoint, conn)
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    // A minute: what a lost packet would have said is found out by silence.
    for _ in 0..6000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

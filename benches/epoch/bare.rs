//! The yardstick: QUIC alone, with the same sockets, settings and TLS.
//!
//! The sender has all shards in memory, as one piece, and answers each request with slices of it, without a copy. The receiver
//! keeps [`STREAMS`] requests going, and copies what comes into leases. A request is a list of (offset, length).

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use forebay_system::program::Server;
use forebay_transport::h3::tls::{Identity, Trust};
use forebay_transport::h3::{TransportConfig, bare};
use forebay_transport::pool::{Account, Slab, SlabConfig};
use tokio::sync::Mutex;

use crate::loader::Outcome;
use crate::place::{self, Core};
use crate::set::{self, Set};
use crate::{MEMORY, STREAMS};

/// Samples in one request: as many as the loader has in its groups at this mean size.
pub const GROUP: usize = 9;
/// Pieces taken from quinn at once.
const BATCH: usize = 32;
const MAX_REQUEST: usize = 64 << 10;

/// A process that runs [`send`].
pub fn sender(set: &Set, state: &Path, mtu: u16) -> Command {
    let mut command = Core::Server.role("sender");
    command.arg(set.folder()).arg(state).arg(mtu.to_string());
    command
}

/// A process that runs [`receive`].
pub fn receiver(sender: &Server, set: &Set, mtu: u16, per_stream: usize) -> Command {
    let mut command = Core::Client.role("receiver");
    command.args([sender.url.trim_start_matches("https://"), &sender.trust, &mtu.to_string(), &per_stream.to_string()]);
    command.arg(set.folder());
    command
}

fn run<F: Future>(body: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(body)
}

pub fn send(arguments: &[String]) {
    let [folder, state, mtu] = arguments else { panic!("{arguments:?}") };
    let data = shards(Path::new(folder));
    let transport = TransportConfig { max_mtu: mtu.parse().expect("a size"), ..TransportConfig::server() };
    let identity = Identity::self_signed(Path::new(state), &["localhost".into()]).expect("an identity");
    run(async move {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let endpoint = bare::listen(any, &identity, &transport).expect("a socket");
        println!("listening on https://{}", endpoint.local_addr().expect("an address"));
        println!("certificate {}", identity.fingerprint());
        while let Some(incoming) = endpoint.accept().await {
            let data = data.clone();
            tokio::spawn(async move {
                let connection = incoming.await.expect("a connection");
                while let Ok((send, receive)) = connection.accept_bi().await {
                    tokio::spawn(answer(data.clone(), send, receive));
                }
            });
        }
    });
}

/// All shards, one after the other.
fn shards(folder: &Path) -> Bytes {
    let entries = std::fs::read_dir(folder).expect("the shards' folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "tar"));
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        all.extend(std::fs::read(path).expect("a shard"));
    }
    all.into()
}

async fn answer(data: Bytes, mut send: quinn::SendStream, mut receive: quinn::RecvStream) {
    let Ok(request) = receive.read_to_end(MAX_REQUEST).await else { return };
    let mut request = request.as_slice();
    while request.has_remaining() {
        let (offset, length) = (request.get_u64() as usize, request.get_u64() as usize);
        if send.write_chunk(data.slice(offset..offset + length)).await.is_err() {
            return;
        }
    }
    let _ = send.finish();
}

/// What the receiver's streams share.
struct Receiver {
    connection: quinn::Connection,
    slab: Slab,
    account: Account,
    /// Lengths of the samples not yet asked for, by request.
    left: Mutex<Vec<Vec<u64>>>,
    /// Bytes of the sender's memory.
    total: u64,
}

pub fn receive(arguments: &[String]) {
    let [address, trust, mtu, per_stream, folder] = arguments else { panic!("{arguments:?}") };
    let address = address.parse().expect("an address");
    let trust = Trust::Pinned(trust.parse().expect("a fingerprint"));
    let transport = TransportConfig { max_mtu: mtu.parse().expect("a size"), ..TransportConfig::client() };
    let transport = transport.within(MEMORY / 2);
    let sizes = set::sizes(Path::new(folder));
    let requests: Vec<Vec<u64>> = sizes.chunks(per_stream.parse().expect("a number")).map(<[u64]>::to_vec).collect();
    let slab = Slab::new(SlabConfig::new(MEMORY as usize / 2)).expect("a slab");
    let account = Account::new("bare", slab.capacity());
    let outcome = run(async move {
        let (_endpoint, connection) = bare::connect(address, &trust, &transport).await.expect("a connection");
        let (total, left) = (sizes.iter().sum(), Mutex::new(requests));
        let receiver = Arc::new(Receiver { connection, slab, account, left, total });
        let me = std::process::id();
        let (started, used) = (Instant::now(), place::cpu(me));
        let mut streams = tokio::task::JoinSet::new();
        for number in 0..STREAMS as u64 {
            streams.spawn(receiver.clone().stream(number));
        }
        let mut outcome = Outcome::default();
        for (samples, bytes) in streams.join_all().await {
            outcome.samples += samples;
            outcome.bytes += bytes;
        }
        outcome.seconds = started.elapsed().as_secs_f64();
        outcome.cpu = place::cpu(me).zip(used).map(|(after, before)| after - before);
        outcome
    });
    let outcome = Outcome { peak: place::peak(std::process::id()), ..outcome };
    println!("{}", serde_json::to_string(&outcome).expect("JSON"));
}

impl Receiver {
    /// One request after the other, until there are none left; samples and bytes received.
    async fn stream(self: Arc<Self>, number: u64) -> (u64, u64) {
        let mut random = fastrand::Rng::with_seed(number);
        let (mut samples, mut bytes) = (0, 0);
        loop {
            let Some(lengths) = self.left.lock().await.pop() else { return (samples, bytes) };
            let mut request = BytesMut::new();
            for length in &lengths {
                // Anywhere: an epoch's order is shuffled too.
                request.put_u64(random.u64(0..=self.total - length));
                request.put_u64(*length);
            }
            let (mut send, mut receive) = self.connection.open_bi().await.expect("a stream");
            send.write_chunk(request.freeze()).await.expect("a request is sent");
            send.finish().expect("a request ends");
            let wanted = lengths.iter().sum::<u64>();
            let mut lease = self.slab.lease(&self.account, wanted as usize).await;
            let (mut at, mut pieces) = (0, [const { Bytes::new() }; BATCH]);
            while let Some(count) = receive.read_chunks(&mut pieces).await.expect("an answer") {
                for piece in &mut pieces[..count] {
                    let piece = std::mem::take(piece);
                    lease.as_mut_slice()[at..at + piece.len()].copy_from_slice(&piece);
                    at += piece.len();
                }
            }
            assert_eq!(at as u64, wanted, "the answer is whole");
            samples += lengths.len() as u64;
            bytes += wanted;
        }
    }
}

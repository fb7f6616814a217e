//! Sockets, windows, congestion control, and what all that may hold in memory.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quinn::congestion::{BbrConfig, CubicConfig};
use quinn::udp::UdpSocketState;
use quinn::{AsyncUdpSocket, IdleTimeout, MtuDiscoveryConfig, VarInt};
use socket2::{Domain, Protocol, Socket, Type};

use super::socket::Clamped;
use super::tls::Identity;
use crate::pool::Claim;

/// How a sender finds out how fast it may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Congestion {
    /// CUBIC towards this machine itself, BBR towards any other.
    ///
    /// On long paths a loss rate of one packet in ten thousand costs CUBIC nine tenths of the wire and BBR next to
    /// nothing (150 ms, 0.01%: 11 against 83 MB/s); with no loss they are equals. On loopback BBR can collapse when the
    /// kernel's socket buffers are small, and there is nothing it could gain.
    #[default]
    Auto,
    Cubic,
    Bbr,
}

/// What a QUIC endpoint may use.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// Bytes a peer may have under way to us on one connection: what we hold for them until they are read.
    /// Default 16 MiB for a client, 512 KiB for a server, which receives nothing but requests.
    /// Caps the speed of a path at `receive_window / round trip`.
    pub receive_window: u64,
    /// Bytes we may have under way to a peer on one connection: what stays pinned until it is acknowledged.
    /// Default 1 MiB for a client, 64 MiB for a server.
    pub send_window: u64,
    /// Requests a peer may have open at once on one connection. Default 256.
    pub streams: u32,
    /// Bytes sent before the first acknowledgement. Default 1 MiB, paced over a round trip. Costs nothing but, on a path
    /// that cannot carry it, that many bytes sent twice.
    pub initial_window: u64,
    /// The largest UDP payload to look for by path MTU discovery, in bytes. Default 8952 (jumbo frames); a path that
    /// carries only 1452 is found out by a few lost probes.
    pub max_mtu: u16,
    pub congestion: Congestion,
    /// What to ask the kernel for as each socket's send and receive buffer, in bytes. Default 4 MiB.
    pub socket_buffer: usize,
    /// How often to say something on a silent path, so that no box on it forgets us, and that a client that waits for a
    /// server learns soon when it has been started anew. Default 3 s for a client, 10 s for a server.
    pub keep_alive: Duration,
    /// How long a peer may be silent before it counts as gone. Default 30 s.
    pub idle_timeout: Duration,
    /// Hand the kernel many packets at once (generic segmentation offload). Default true; some network cards and
    /// drivers break on it.
    pub offload: bool,
}

impl TransportConfig {
    pub fn client() -> TransportConfig {
        let keep_alive = Duration::from_secs(3);
        TransportConfig { receive_window: 16 << 20, send_window: 1 << 20, keep_alive, ..TransportConfig::server() }
    }

    pub fn server() -> TransportConfig {
        TransportConfig {
            receive_window: 512 << 10,
            send_window: 64 << 20,
            streams: 256,
            initial_window: 1 << 20,
            max_mtu: 8952,
            congestion: Congestion::Auto,
            socket_buffer: 4 << 20,
            keep_alive: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(30),
            offload: true,
        }
    }
}

impl Congestion {
    /// What `Auto` means towards `peer`.
    fn towards(self, peer: SocketAddr) -> Congestion {
        match self {
            Congestion::Auto if peer.ip().to_canonical().is_loopback() => Congestion::Cubic,
            Congestion::Auto => Congestion::Bbr,
            chosen => chosen,
        }
    }
}

impl TransportConfig {
    /// What quinn is to be told for a connection with `peer`. `streams` is how many requests the peer may have open.
    pub(super) fn quinn(&self, peer: SocketAddr, streams: u32) -> Arc<quinn::TransportConfig> {
        let window = |bytes: u64| VarInt::from_u64(bytes).unwrap_or(VarInt::MAX);
        let mut config = quinn::TransportConfig::default();
        config
            .receive_window(window(self.receive_window))
            // One large answer may use all of it: those who ask bound what they ask for.
            .stream_receive_window(window(self.receive_window))
            .send_window(self.send_window)
            .max_concurrent_bidi_streams(streams.into())
            .max_concurrent_uni_streams(UNI_STREAMS.into())
            .datagram_receive_buffer_size(None)
            .enable_segmentation_offload(self.offload)
            .keep_alive_interval(Some(self.keep_alive))
            .max_idle_timeout(Some(IdleTimeout::try_from(self.idle_timeout).unwrap_or(VarInt::MAX.into())));
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.max_mtu);
        config.mtu_discovery_config(Some(discovery));
        match self.congestion.towards(peer) {
            Congestion::Bbr => {
                let mut bbr = BbrConfig::default();
                bbr.initial_window(self.initial_window);
                config.congestion_controller_factory(Arc::new(bbr));
            }
            _ => {
                let mut cubic = CubicConfig::default();
                cubic.initial_window(self.initial_window);
                config.congestion_controller_factory(Arc::new(cubic));
            }
        }
        Arc::new(config)
    }

    /// What one connection may hold in memory besides the pool, at worst: quinn keeps what it received in buffers that may
    /// be half as large again as what is in them.
    pub(super) fn receive_bytes(&self) -> u64 {
        self.receive_window.saturating_add(self.receive_window / 2)
    }

    /// This, with the largest receive window for which all that a client may hold fits in `budget` bytes; never less
    /// than a megabyte, which may then be more than the budget: whoever keeps the ledger refuses it.
    pub fn within(self, budget: u64) -> TransportConfig {
        let send_window = self.send_window.min(budget / 16);
        let rest = budget.saturating_sub(self.socket_claim().bytes + send_window);
        let with = |receive_window| TransportConfig { receive_window, send_window, ..self.clone() };
        // What is held grows with the window by a constant factor.
        let sample = with(MIN_RECEIVE).receive_bytes();
        let window = u128::from(rest) * u128::from(MIN_RECEIVE) / u128::from(sample);
        with(u64::try_from(window).unwrap_or(u64::MAX).max(MIN_RECEIVE))
    }

    /// What one socket holds in memory: the kernel's two buffers and quinn's batch of datagrams.
    pub(super) fn socket_claim(&self) -> Claim {
        let batch = self.payload() as u64 * self.segments() as u64 * BATCH;
        Claim { name: "UDP socket", bytes: 2 * self.socket_buffer as u64 + batch }
    }

    /// The largest UDP payload we receive.
    fn payload(&self) -> u16 {
        self.max_mtu.clamp(1472, 65_527)
    }

    /// How many datagrams the kernel may join into one: it never gives more than 64 KiB at once.
    fn segments(&self) -> usize {
        65_536usize.div_ceil(self.payload().into())
    }
}

/// The smallest receive window [`TransportConfig::within`] gives: below it a path crawls.
const MIN_RECEIVE: u64 = 1 << 20;
/// Unidirectional streams a peer may open: control, two of QPACK, and a few without meaning.
const UNI_STREAMS: u32 = 8;
/// Datagrams (or joined ones) that quinn receives at once.
const BATCH: u64 = 32;

/// A bound socket, with buffers as large as the kernel lets them be, as a quinn endpoint.
/// Must be called within a tokio runtime.
pub(super) fn endpoint(
    address: SocketAddr,
    config: &TransportConfig,
    server: Option<(&Identity, quinn::ServerConfig)>,
) -> io::Result<quinn::Endpoint> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Where the system forbids it, IPv6 alone has to do.
        let _ = socket.set_only_v6(false);
    }
    enlarge(&socket, config.socket_buffer);
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(address);
    let (mut endpoint, server) = match server {
        Some((identity, server)) => (identity.endpoint_config(bound), Some(server)),
        None => (quinn::EndpointConfig::default(), None),
    };
    let runtime = quinn::default_runtime().ok_or_else(|| io::Error::other("no tokio runtime"))?;
    let socket: Arc<dyn AsyncUdpSocket> = runtime.wrap_udp_socket(socket.into())?;
    let socket = Arc::new(Clamped::new(socket, config.segments()));
    endpoint.max_udp_payload_size(config.payload()).map_err(io::Error::other)?;
    quinn::Endpoint::new_with_abstract_socket(endpoint, server, socket, runtime)
}

/// What the kernel gives a UDP socket of ours, tried out on one that sends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketProbe {
    /// Bytes that were asked for as each buffer.
    pub wanted: usize,
    /// Bytes that the buffer for receiving got.
    pub receive_buffer: usize,
    /// Bytes that the buffer for sending got.
    pub send_buffer: usize,
    /// The kernel cuts what it is handed into datagrams (generic segmentation offload).
    pub cuts: bool,
    /// The kernel joins the datagrams of one sender before it hands them out (generic receive offload).
    pub joins: bool,
}

impl SocketProbe {
    /// Binds a socket, asks for what `config` says, and closes it.
    ///
    /// # Errors
    /// When this process gets no UDP socket.
    pub fn take(config: &TransportConfig) -> io::Result<SocketProbe> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        let (receive_buffer, send_buffer) = buffers(&socket, config.socket_buffer);
        let state = UdpSocketState::new((&socket).into())?;
        let (cuts, joins) = (state.max_gso_segments() > 1, state.gro_segments() > 1);
        Ok(SocketProbe { wanted: config.socket_buffer, receive_buffer, send_buffer, cuts, joins })
    }
}

/// Asks for buffers of `wanted` bytes, and says what there is: for receiving, and for sending.
fn buffers(socket: &Socket, wanted: usize) -> (usize, usize) {
    // Linux answers with twice what was asked for, of which half is for its own bookkeeping.
    let share = if cfg!(target_os = "linux") { 2 } else { 1 };
    let _ = socket.set_recv_buffer_size(wanted);
    let _ = socket.set_send_buffer_size(wanted);
    (socket.recv_buffer_size().unwrap_or(0) / share, socket.send_buffer_size().unwrap_or(0) / share)
}

/// Asks for large buffers. The kernel may give less: said once.
fn enlarge(socket: &Socket, wanted: usize) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let (receive, send) = buffers(socket, wanted);
    let got = receive.min(send);
    if got < wanted && !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            wanted,
            got,
            "the kernel gives UDP sockets small buffers, so that packets are lost at high rates; \
             raise them: sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_cubic_at_home_and_bbr_abroad() {
        let to = |peer: &str| Congestion::Auto.towards(peer.parse().unwrap());
        assert_eq!(to("127.0.0.1:1"), Congestion::Cubic);
        assert_eq!(to("[::1]:1"), Congestion::Cubic);
        assert_eq!(to("[::ffff:127.0.0.1]:1"), Congestion::Cubic);
        assert_eq!(to("192.0.2.1:1"), Congestion::Bbr);
        assert_eq!(Congestion::Cubic.towards("192.0.2.1:1".parse().unwrap()), Congestion::Cubic);
    }

    #[test]
    fn a_batch_of_datagrams_holds_what_the_kernel_may_join() {
        for max_mtu in [1200, 1452, 8952, u16::MAX] {
            let config = TransportConfig { max_mtu, ..TransportConfig::client() };
            assert!(config.payload() as usize * config.segments() >= 65_536);
            assert!(config.socket_claim().bytes < 16 << 20);
        }
    }

    #[test]
    fn a_budget_is_kept_and_used() {
        for budget in [32u64 << 20, 64 << 20, 256 << 20, 1 << 30, 1 << 36] {
            let config = TransportConfig::client().within(budget);
            let held = config.socket_claim().bytes + config.receive_bytes() + config.send_window;
            assert!(held <= budget && held > budget / 100 * 99, "{held} of {budget}");
        }
        assert_eq!(TransportConfig::client().within(0).receive_window, MIN_RECEIVE);
    }

    #[test]
    fn a_probe_says_what_the_kernel_gives_and_no_more() {
        let probe =
            |socket_buffer| SocketProbe::take(&TransportConfig { socket_buffer, ..TransportConfig::client() }).unwrap();
        let small = probe(16 << 10);
        assert_eq!((small.wanted, small.receive_buffer, small.send_buffer), (16 << 10, 16 << 10, 16 << 10));
        let limit = |name| std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse().ok();
        let (Some(receive), Some(send)) = (limit("rmem_max"), limit("wmem_max")) else { return };
        let large = probe(1 << 30);
        assert_eq!((large.receive_buffer, large.send_buffer), (receive, send), "what sysctl says, and no more");
    }

    #[tokio::test]
    async fn sockets_get_the_buffers_asked_for() {
        let config = TransportConfig { socket_buffer: 64 << 10, ..TransportConfig::client() };
        let endpoint = endpoint("127.0.0.1:0".parse().unwrap(), &config, None).unwrap();
        assert_ne!(endpoint.local_addr().unwrap().port(), 0);
    }
}

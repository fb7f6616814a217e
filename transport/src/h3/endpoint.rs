//! Sockets, windows, congestion control, and what all that may hold in memory.

use std::time::Duration;

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
    /// How often to say something on a silent path, so that no box on it forgets us. Default 10 s.
    pub keep_alive: Duration,
    /// How long a peer may be silent before it counts as gone. Default 30 s.
    pub idle_timeout: Duration,
    /// Hand the kernel many packets at once (generic segmentation offload). Default true; some network cards and
    /// drivers break on it.
    pub offload: bool,
}

impl TransportConfig {
    pub fn client() -> TransportConfig {
        TransportConfig { receive_window: 16 << 20, send_window: 1 << 20, ..TransportConfig::server() }
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

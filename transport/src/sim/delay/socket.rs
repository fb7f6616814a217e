//! A UDP socket that blocks, with the offloads that make it fast.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};

use super::WAKE;

/// What the kernel is asked to keep for us while we are busy; it may give less (`net.core.rmem_max`).
const KERNEL_BUFFER: usize = 4 << 20;
/// The most a UDP datagram, or a train of them handed over in one call, may hold.
const LARGEST_SEND: usize = 65_507;

#[derive(Debug)]
pub(super) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl Socket {
    pub(super) fn bind(ip: IpAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind((ip, 0))?;
        let state = UdpSocketState::new((&socket).into())?;
        let buffers = socket2::SockRef::from(&socket);
        buffers.set_recv_buffer_size(KERNEL_BUFFER)?;
        buffers.set_send_buffer_size(KERNEL_BUFFER)?;
        // The state above makes sockets non-blocking, for event loops. Here a thread waits in the kernel.
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(WAKE))?;
        Ok(Self { socket, state })
    }

    pub(super) fn addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// One datagram, or a train of them of one size. Waits for at most [`WAKE`].
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<RecvMeta> {
        let mut meta = [RecvMeta::default()];
        self.state.recv((&self.socket).into(), &mut [IoSliceMut::new(buffer)], &mut meta)?;
        Ok(meta[0])
    }

    /// Sends `bytes` as datagrams of `stride`. What the kernel refuses is lost, as on any network.
    pub(super) fn send(&self, bytes: &[u8], stride: usize, ecn: Option<EcnCodepoint>, destination: SocketAddr) {
        let segments = self.state.max_gso_segments().min(LARGEST_SEND / stride).max(1);
        for contents in bytes.chunks(segments * stride) {
            let segment_size = (contents.len() > stride).then_some(stride);
            let transmit = Transmit { destination, ecn, contents, segment_size, src_ip: None };
            let _ = self.state.try_send((&self.socket).into(), &transmit);
        }
    }
}

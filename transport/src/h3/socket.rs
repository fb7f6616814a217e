//! The UDP socket beneath quinn, kept from a trap.
//!
//! quinn hands the kernel ten packets at a time, to be cut into datagrams there. Ten packets of more than 6550 bytes are
//! more than a UDP send can carry: the kernel says EMSGSIZE, quinn takes the packets as sent and lost, its detector of MTU
//! black holes wakes, and a jumbo path ends up slower than any other. So the number of packets is limited by
//! the size of the largest one seen: MTU discovery probes a size with a single packet before it is used for many.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

/// The most bytes that one UDP send can carry (over IPv4, the smaller of the two).
const MAX_SEND: usize = 65_507;

#[derive(Debug)]
pub(super) struct Clamped {
    inner: Arc<dyn AsyncUdpSocket>,
    /// Bytes of the largest datagram sent so far.
    largest: AtomicUsize,
    /// The most datagrams that one received buffer may hold.
    receive_segments: usize,
}

impl Clamped {
    pub(super) fn new(inner: Arc<dyn AsyncUdpSocket>, receive_segments: usize) -> Clamped {
        let receive_segments = receive_segments.min(inner.max_receive_segments());
        Clamped { inner, largest: AtomicUsize::new(1200), receive_segments }
    }
}

impl AsyncUdpSocket for Clamped {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let size = transmit.segment_size.unwrap_or(transmit.contents.len());
        if size > self.largest.load(Ordering::Relaxed) {
            self.largest.fetch_max(size, Ordering::Relaxed);
        }
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        let fit = MAX_SEND / self.largest.load(Ordering::Relaxed).max(1);
        self.inner.max_transmit_segments().min(fit.max(1))
    }

    fn max_receive_segments(&self) -> usize {
        self.receive_segments
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fake;

    impl AsyncUdpSocket for Fake {
        fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
            unreachable!("nobody waits to send")
        }

        fn try_send(&self, _: &Transmit<'_>) -> io::Result<()> {
            Ok(())
        }

        fn poll_recv(
            &self,
            _: &mut Context<'_>,
            _: &mut [IoSliceMut<'_>],
            _: &mut [RecvMeta],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(([127, 0, 0, 1], 1).into())
        }

        fn max_transmit_segments(&self) -> usize {
            64
        }

        fn max_receive_segments(&self) -> usize {
            64
        }
    }

    fn send(socket: &Clamped, bytes: usize, segment_size: Option<usize>) {
        let contents = vec![0; bytes];
        let transmit = Transmit {
            destination: ([127, 0, 0, 1], 2).into(),
            ecn: None,
            contents: &contents,
            segment_size,
            src_ip: None,
        };
        socket.try_send(&transmit).unwrap();
    }

    #[test]
    fn no_batch_is_larger_than_a_udp_send_can_be() {
        let socket = Clamped::new(Arc::new(Fake), 45);
        assert_eq!(socket.max_transmit_segments(), 54);
        assert_eq!(socket.max_receive_segments(), 45);
        for mtu in [1452, 4096, 6550, 6551, 8952, 32_754, 65_507] {
            // The probe, alone; then data.
            send(&socket, mtu, None);
            let segments = socket.max_transmit_segments();
            assert!(segments >= 1 && segments * mtu <= MAX_SEND, "{segments} × {mtu}");
            send(&socket, segments * 1200, Some(1200));
            assert_eq!(socket.max_transmit_segments(), segments, "small packets undo nothing");
        }
    }
}

//! Packets as a TUN device with `IFF_VNET_HDR` hands them over, and how a large one is cut into parts.
//!
//! A packet is preceded by the ten bytes of `virtio_net_hdr`. It may stand for many segments on the wire (`gso_size` bytes of
//! payload in each), which the kernel leaves together as long as nobody needs them apart. So do we: only when some segments of a
//! packet have another fate than the rest it is cut, into runs of segments with the same one.

/// Bytes of `virtio_net_hdr`.
pub const HEADER: usize = 10;
/// The most bytes of one, with the packet.
pub const MOST: usize = HEADER + 65_536;

const NEEDS_CSUM: u8 = 1;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Where the parts of a packet are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    v6: bool,
    protocol: u8,
    /// Of the transport's header, in the packet.
    transport: usize,
    /// Of the payload, in the packet.
    payload: usize,
    /// Bytes of payload in a segment.
    size: usize,
    /// Bytes of the packet.
    len: usize,
}

fn get16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

impl Layout {
    /// Of what a device handed over, its header first. `None` when it stands for one segment, or for something unknown
    /// that is left as it is.
    pub fn of(bytes: &[u8]) -> Option<Layout> {
        let (header, packet) = bytes.split_at_checked(HEADER)?;
        let size = usize::from(u16::from_ne_bytes([header[4], header[5]]));
        let protocol = match header[1] & !GSO_ECN {
            GSO_TCP4 | GSO_TCP6 => TCP,
            GSO_UDP => UDP,
            _ => return None,
        };
        let (v6, transport) = match packet.first()? >> 4 {
            4 => (false, usize::from(packet[0] & 15) * 4),
            // Extension headers do not come here: the kernel makes none by itself.
            6 => (true, 40),
            _ => return None,
        };
        let named = packet.get(if v6 { 6 } else { 9 })?;
        let (payload, least) = match protocol {
            TCP => (transport + usize::from(packet.get(transport + 12)? >> 4) * 4, 20),
            _ => (transport + 8, 8),
        };
        let whole =
            size > 0 && *named == protocol && transport >= 20 && payload >= transport + least && packet.len() > payload;
        whole.then_some(Layout { v6, protocol, transport, payload, size, len: packet.len() })
    }

    /// How many segments it stands for.
    pub fn segments(&self) -> usize {
        (self.len - self.payload).div_ceil(self.size)
    }

    /// Bytes of segment `n` on the wire, headers of IP and transport included.
    pub fn bytes(&self, n: usize) -> u64 {
        let rest = self.len - self.payload - n * self.size;
        (self.payload + rest.min(self.size)) as u64
    }

    /// Writes the packet of the segments `from..to` to `out`, its header first.
    pub fn cut(&self, bytes: &[u8], from: usize, to: usize, out: &mut Vec<u8>) {
        let (header, packet) = bytes.split_at(HEADER);
        let start = self.payload + from * self.size;
        let end = (self.payload + to * self.size).min(self.len);
        let (first, last) = (from == 0, end == self.len);
        out.clear();
        out.extend_from_slice(header);
        out.extend_from_slice(&packet[..self.payload]);
        out.extend_from_slice(&packet[start..end]);
        if to - from == 1 {
            // No more than one: nothing is left to be cut.
            out[1] = 0;
            out[4..6].fill(0);
        }
        // The checksum is left to whoever needs it, as it was.
        out[0] |= NEEDS_CSUM;
        out[6..8].copy_from_slice(&(self.transport as u16).to_ne_bytes());
        let check = if self.protocol == TCP { 16u16 } else { 6 };
        out[8..10].copy_from_slice(&check.to_ne_bytes());
        let packet = &mut out[HEADER..];
        let len = packet.len();
        self.address(packet, from);
        let transport = self.transport;
        match self.protocol {
            TCP => {
                let at = transport + 4;
                let sequence = u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]);
                let sequence = sequence.wrapping_add((from * self.size) as u32);
                packet[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
                // FIN and PSH are of the last segment, CWR is of the first.
                packet[transport + 13] &= if last { 0xff } else { !0x09 };
                packet[transport + 13] &= if first { 0xff } else { !0x80 };
            }
            _ => put16(packet, transport + 4, (len - transport) as u16),
        }
        let pseudo = self.pseudo(packet);
        put16(packet, transport + usize::from(check), pseudo);
    }

    /// Puts right what the network's header says of length and order.
    fn address(&self, packet: &mut [u8], from: usize) {
        let len = packet.len();
        if self.v6 {
            return put16(packet, 4, (len - 40) as u16);
        }
        put16(packet, 2, len as u16);
        let id = get16(packet, 4) as u16;
        put16(packet, 4, id.wrapping_add(from as u16));
        put16(packet, 10, 0);
        let sum = !fold(sum(&packet[..self.transport]));
        put16(packet, 10, sum);
    }

    /// The sum over the pseudo header, which is what stands in the place of a checksum that is yet to be completed.
    fn pseudo(&self, packet: &[u8]) -> u16 {
        let addresses = if self.v6 { &packet[8..40] } else { &packet[12..20] };
        fold(sum(addresses) + u64::from(self.protocol) + (packet.len() - self.transport) as u64)
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A packet of TCP over IPv4 with `payload` bytes, to be cut into segments of `size`.
    fn tcp(payload: usize, size: u16) -> Vec<u8> {
        let mut bytes = vec![NEEDS_CSUM, GSO_TCP4, 54, 0, 0, 0, 20, 0, 16, 0];
        bytes[4..6].copy_from_slice(&size.to_ne_bytes());
        let len = (40 + payload) as u16;
        let mut packet = vec![0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, TCP, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
        put16(&mut packet, 2, len);
        packet.extend([0x12, 0x34, 0, 80, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 1, 0x50, 0x99, 1, 0, 0, 0, 0, 0]);
        packet.extend((0..payload).map(|n| n as u8));
        bytes.extend(packet);
        bytes
    }

    #[test]
    fn segments_are_what_the_kernel_would_make_of_it() {
        let bytes = tcp(2500, 1000);
        let layout = Layout::of(&bytes).unwrap();
        assert_eq!((layout.segments(), layout.bytes(0), layout.bytes(2)), (3, 1040, 540));
        let mut out = Vec::new();
        layout.cut(&bytes, 0, 1, &mut out);
        assert_eq!((out.len(), out[1], out[HEADER + 33]), (HEADER + 1040, 0, 0x90), "without FIN and PSH");
        assert_eq!(fold(sum(&out[HEADER..][..20])), 0xffff, "the header's checksum is right");
        layout.cut(&bytes, 1, 3, &mut out);
        let packet = &out[HEADER..];
        assert_eq!((packet.len(), get16(packet, 2), get16(packet, 4)), (1540, 1540, 8));
        assert_eq!(packet[24..28], 0xffff_fff0u32.wrapping_add(1000).to_be_bytes(), "the sequence number goes round");
        assert_eq!((out[1], packet[33]), (GSO_TCP4, 0x19), "without CWR");
        assert_eq!(packet[40..], bytes[HEADER + 1040..]);
    }

    #[test]
    fn one_segment_is_left_alone() {
        let mut bytes = tcp(10, 1000);
        bytes[1] = 0;
        assert_eq!(Layout::of(&bytes), None);
        assert_eq!(Layout::of(&[]), None);
        assert_eq!(Layout::of(&bytes[..HEADER]), None);
    }

    proptest! {
        /// Whatever comes: no panic, and lengths that add up.
        #[test]
        fn nothing_that_comes_is_trusted(mut bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..8) {
            if bytes.len() > HEADER {
                bytes[1] = kind;
                bytes[HEADER] = if kind % 2 == 0 { 0x45 } else { 0x60 };
            }
            if let Some(layout) = Layout::of(&bytes) {
                let mut out = Vec::new();
                let mut payload = 0;
                for n in 0..layout.segments() {
                    layout.cut(&bytes, n, n + 1, &mut out);
                    prop_assert_eq!(out.len() as u64, HEADER as u64 + layout.bytes(n));
                    payload += out.len() - HEADER - layout.payload;
                }
                prop_assert_eq!(payload, layout.len - layout.payload);
            }
        }
    }
}

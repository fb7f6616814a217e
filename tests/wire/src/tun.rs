//! A TUN device whose packets keep their offloads: large segments pass whole.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
/// Checksums, TCP over IPv4 and IPv6, with ECN.
const OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;
/// UDP over both: of kernels from 6.2 on.
const UDP_OFFLOADS: libc::c_ulong = 0x20 | 0x40;

/// `struct ifreq`, as far as it is asked for here.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// One end of the wire, on this side of the kernel.
pub(crate) struct Tun(OwnedFd);

impl Tun {
    /// Makes the device in the network namespace of this thread. It is gone when this is dropped.
    pub(crate) fn new(name: &str) -> io::Result<Tun> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
        let mut request = Request { name: [0; 16], flags: IFF_TUN | IFF_NO_PI | IFF_VNET_HDR, rest: [0; 22] };
        // The last byte stays 0.
        request.name.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
        // SAFETY: the request is as large as the kernel's `struct ifreq` (40 bytes), which it reads and writes.
        let made = unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETIFF as _, &raw mut request) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        let offload = |offloads: libc::c_ulong| {
            // SAFETY: the argument is a number.
            match unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD as _, offloads) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        offload(OFFLOADS | UDP_OFFLOADS).or_else(|_| offload(OFFLOADS))?;
        Ok(Tun(fd))
    }

    /// The next packet, with its header before it; `None` when there is none now.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.0, buffer) {
            Ok(len) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the kernel took the packet. It does not when the device is down, or when it finds the packet wrong.
    pub(crate) fn write(&self, packet: &[u8]) -> bool {
        rustix::io::write(&self.0, packet).is_ok()
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

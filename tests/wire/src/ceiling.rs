//! How much a wire without limits carries on this machine.
#![allow(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::{NEAR_ADDRESS, Settings, Wire, WireError};

/// For how long each protocol is poured through the wire.
const RUN: Duration = Duration::from_millis(1000);
/// Datagrams of this many bytes fit one packet.
const DATAGRAM: usize = 1400;
/// Datagrams sent by one call, as QUIC does.
const TOGETHER: usize = 40;

/// What a wire carries at most, in bits of payload per second.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    pub tcp: f64,
    /// Sent in large segments, as QUIC sends.
    pub udp: f64,
}

/// Measures it, in about two seconds, with other processes' load as it is. A bench whose wire has a rate above half of this
/// measures the wire.
///
/// # Errors
/// When there can be no wire, or its ends do not find each other.
pub fn ceiling() -> Result<Ceiling, WireError> {
    let wire = Wire::new(Settings::default())?;
    let tcp = tcp(&wire)?;
    Ok(Ceiling { tcp, udp: udp(&wire)? })
}

fn tcp(wire: &Wire) -> io::Result<f64> {
    let listener = wire.near().inside(|| TcpListener::bind((NEAR_ADDRESS, 0)))??;
    let address = listener.local_addr()?;
    let mut sender = wire.far().inside(|| TcpStream::connect_timeout(&address, Duration::from_secs(5)))??;
    let (mut receiver, _) = listener.accept()?;
    sender.set_write_timeout(Some(RUN))?;
    receiver.set_read_timeout(Some(RUN))?;
    std::thread::scope(|scope| {
        let pouring = scope.spawn(move || {
            let (begun, piece) = (Instant::now(), vec![0x55; 1 << 18]);
            while begun.elapsed() < RUN && sender.write_all(&piece).is_ok() {}
        });
        let (begun, mut bytes, mut buffer) = (Instant::now(), 0, vec![0; 1 << 18]);
        while begun.elapsed() < RUN {
            match receiver.read(&mut buffer)? {
                0 => break,
                count => bytes += count,
            }
        }
        let rate = bytes as f64 * 8.0 / begun.elapsed().as_secs_f64();
        drop(receiver);
        drop(pouring.join());
        Ok(rate)
    })
}

fn udp(wire: &Wire) -> io::Result<f64> {
    let receiver = wire.near().inside(|| UdpSocket::bind((NEAR_ADDRESS, 0)))??;
    let sender = wire.far().inside(|| UdpSocket::bind(("0.0.0.0", 0)))??;
    sender.connect(receiver.local_addr()?)?;
    option(&sender, libc::UDP_SEGMENT, DATAGRAM as libc::c_int)?;
    option(&receiver, libc::UDP_GRO, 1)?;
    receiver.set_read_timeout(Some(RUN))?;
    std::thread::scope(|scope| {
        let pouring = scope.spawn(move || {
            let (begun, piece) = (Instant::now(), vec![0x55; TOGETHER * DATAGRAM]);
            // A full queue of this end's own device is no error.
            while begun.elapsed() < RUN {
                drop(sender.send(&piece));
            }
        });
        let (begun, mut bytes, mut buffer) = (Instant::now(), 0, vec![0; 1 << 16]);
        while begun.elapsed() < RUN {
            bytes += receiver.recv(&mut buffer).unwrap_or(0);
        }
        let rate = bytes as f64 * 8.0 / begun.elapsed().as_secs_f64();
        drop(pouring.join());
        Ok(rate)
    })
}

fn option(socket: &UdpSocket, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an `int`, as these options want it, and lives through the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, name, (&raw const value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

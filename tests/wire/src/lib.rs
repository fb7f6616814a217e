//! A wire of a given delay, rate, loss and queue between two network namespaces of this machine, for every protocol over IP.
//!
//! Where the kernel has `netem` that does the same; many kernels do not. Here each end is a TUN device in a namespace of its
//! own, and a thread for each direction carries packets between them. Segments that the kernel leaves together (TSO, USO) pass
//! whole, so that the wire is not what limits; rate, queue and loss count each of them by itself. [`ceiling`] says how much
//! the wire can carry on this machine at most: measure below half of it.
//!
//! ```no_run
//! use std::time::Duration;
//! let settings = forebay_wire::Settings { delay: Duration::from_millis(75), rate: Some(400_000_000), ..Default::default() };
//! let wire = forebay_wire::Wire::new(settings)?;
//! let server = wire.near().command("nc").args(["-l", "-p", "7000"]).spawn();
//! let client = wire.far().command("nc").args([forebay_wire::NEAR, "7000"]).spawn();
//! # Ok::<(), forebay_wire::WireError>(())
//! ```
//!
//! It takes root, `ip` of iproute2, and `/dev/net/tun`. Namespaces and devices go when the wire is dropped; those of a process
//! that was killed, when the next wire is made.

mod carry;
mod ceiling;
mod line;
mod namespace;
mod packet;
mod settings;
mod tun;

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use carry::{Carrier, Shared};
pub use ceiling::{Ceiling, ceiling};
pub use line::{Fate, Line};
pub use namespace::Namespace;
pub use settings::{Burst, Settings, burst, rate, share, time};
use tun::Tun;

/// The ends' addresses.
pub const NEAR: &str = "10.77.0.1";
pub const FAR: &str = "10.77.0.2";
/// [`NEAR`].
pub const NEAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const DEVICE: &str = "wire0";

/// Why there is no wire.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    #[error("{command}: {detail}")]
    Ip { command: String, detail: String },
    #[error("cannot make a TUN device: {0}")]
    Tun(io::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A wire, until it is dropped.
#[derive(Debug)]
pub struct Wire {
    near: Namespace,
    far: Namespace,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What went over the wire in one direction so far, in segments, and bytes of IP packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub segments: u64,
    pub bytes: u64,
    pub lost: u64,
    /// Found the queue full.
    pub overflown: u64,
    /// Came behind others. They count as segments too.
    pub late: u64,
}

impl Wire {
    /// Makes both ends and connects them.
    ///
    /// # Errors
    /// When namespaces or devices cannot be made here.
    pub fn new(settings: Settings) -> Result<Wire, WireError> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        let ends = Arc::new((end(&near, NEAR, settings.mtu)?, end(&far, FAR, settings.mtu)?));
        let mut wire = Wire { near, far, shared: Arc::default(), threads: Vec::new() };
        for which in 0..2 {
            let (ends, shared) = (ends.clone(), wire.shared.clone());
            let carry = move || {
                let (from, to) = if which == 0 { (&ends.0, &ends.1) } else { (&ends.1, &ends.0) };
                let line = Line::new(settings, settings.seed.wrapping_mul(2).wrapping_add(which as u64));
                if let Err(error) = Carrier::new(line, (from, to), &shared, which).run() {
                    eprintln!("wire: {error}");
                }
            };
            wire.threads.push(std::thread::Builder::new().name(format!("wire-{which}")).spawn(carry)?);
        }
        Ok(wire)
    }

    /// The end at [`NEAR`].
    pub fn near(&self) -> &Namespace {
        &self.near
    }

    /// The end at [`FAR`].
    pub fn far(&self) -> &Namespace {
        &self.far
    }

    /// Cuts the wire, or mends it. Nobody is told: packets are lost.
    pub fn set_down(&self, down: bool) {
        self.shared.down.store(down, Ordering::Relaxed);
    }

    /// What went from the near end to the far one, and back.
    pub fn carried(&self) -> [Carried; 2] {
        [0, 1].map(|which| {
            let counts = &self.shared.counts[which];
            let late = counts.late.load(Ordering::Relaxed);
            Carried {
                segments: counts.arrived.load(Ordering::Relaxed) + late,
                bytes: counts.bytes.load(Ordering::Relaxed),
                lost: counts.lost.load(Ordering::Relaxed),
                overflown: counts.overflown.load(Ordering::Relaxed),
                late,
            }
        })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// An end of the wire in its namespace.
fn end(namespace: &Namespace, address: &str, mtu: u32) -> Result<Tun, WireError> {
    let tun = namespace.inside(|| Tun::new(DEVICE))?.map_err(WireError::Tun)?;
    // No chatter of IPv6's own on the wire.
    namespace.ip(&["link", "set", DEVICE, "addrgenmode", "none"])?;
    namespace.ip(&["link", "set", DEVICE, "mtu", &mtu.to_string(), "up"])?;
    namespace.ip(&["addr", "add", &format!("{address}/24"), "dev", DEVICE])?;
    Ok(tun)
}

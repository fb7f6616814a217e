//! What a machine has for RDMA: devices, their ports, the ports' addresses. Looked up anew each time: a port that flaps may
//! come back with its addresses at other indexes.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::ptr::NonNull;

use rdma_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_port_attr};

pub use super::library::Missing;
use super::library::Verbs;

/// Why devices cannot be looked up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Missing(#[from] Missing),
    /// Memory that is registered stays in place, and the system lets this process keep only so much there.
    #[error(
        "RDMA: {bytes} bytes cannot be registered with {device}: raise RLIMIT_MEMLOCK (ulimit -l) to that and some more"
    )]
    Limit { bytes: usize, device: String },
    /// The system refused.
    #[error("RDMA: {what}: {source}")]
    System { what: String, source: io::Error },
}

/// A device as it was when it was looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// As the system names it: `mlx5_0`.
    pub name: String,
    /// The ports that answer, numbered from 1.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// Whether it carries data now.
    pub active: bool,
    /// Bytes of a packet's payload now: 256 to 4096. `None` if the device says nothing that we know.
    pub mtu: Option<u32>,
    /// Megabits per second, all lanes together. `None` if the device says nothing that we know.
    pub speed: Option<u32>,
    /// Its addresses, by index.
    pub gids: Vec<Gid>,
}

/// One of a port's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// Where it is in the port's table.
    pub index: u32,
    /// What packets from it look like.
    pub kind: GidKind,
    /// The 16 bytes as they are.
    pub raw: Ipv6Addr,
}

impl Gid {
    /// The address, IPv4 if it is a mapped one.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.raw.to_canonical()
    }
}

/// What packets from an address look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand's own: no Ethernet, no IP.
    InfiniBand,
    /// Ethernet frames that no router passes on.
    RoceV1,
    /// UDP: the one that we use on Ethernet.
    RoceV2,
    /// A kind that we do not know, with its number.
    Other(u32),
}

/// All devices of this machine, in the system's order; none is no error.
///
/// # Errors
/// [`Error::Missing`] without rdma-core's libraries, [`Error::System`] if a device that is there cannot be opened or asked.
pub fn devices() -> Result<Vec<Device>, Error> {
    let verbs = Verbs::get()?;
    let list = List::get(verbs)?;
    list.devices().iter().map(|&device| look(verbs, device)).collect()
}

/// What `device`, of a list that is not freed yet, says of itself.
fn look(verbs: &'static Verbs, device: *mut ibv_device) -> Result<Device, Error> {
    let name = name(verbs, device);
    let context = Context::open(verbs, device, &name)?;
    let gids = context.gids(&name)?;
    // A port that does not answer hides none of the others.
    let ports = (1..=context.port_count(&name)?).filter_map(|number| context.port(number, &gids)).collect();
    Ok(Device { name, ports })
}

/// The name of `device`, of a list that is not freed yet or of a context that is open.
pub(super) fn name(verbs: &Verbs, device: *mut ibv_device) -> String {
    // SAFETY: the device is of a list or a context that lives; its name is text that ends with a zero, in the device itself.
    let name = unsafe { CStr::from_ptr((verbs.get_device_name)(device)) };
    name.to_string_lossy().into_owned()
}

/// The system's list of devices; freed when dropped.
struct List {
    verbs: &'static Verbs,
    /// None where the kernel knows nothing of RDMA.
    first: Option<NonNull<*mut ibv_device>>,
    count: usize,
}

impl List {
    fn get(verbs: &'static Verbs) -> Result<Self, Error> {
        let mut count = 0;
        // SAFETY: `count` is ours to be written.
        let first = NonNull::new(unsafe { (verbs.get_device_list)(&raw mut count) });
        match first {
            Some(_) => Ok(Self { verbs, first, count: usize::try_from(count).unwrap_or(0) }),
            // The kernel has nothing of the kind, or its module is not loaded.
            None if io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) => {
                Ok(Self { verbs, first, count: 0 })
            }
            None => Err(system("listing devices")),
        }
    }

    fn devices(&self) -> &[*mut ibv_device] {
        // SAFETY: the list has `count` devices (and a null after them), and lives until we are dropped.
        self.first.map_or(&[], |first| unsafe { std::slice::from_raw_parts(first.as_ptr(), self.count) })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Some(first) = self.first {
            // SAFETY: it came from `get_device_list`, and is freed once. Contexts that were opened outlive it.
            unsafe { (self.verbs.free_device_list)(first.as_ptr()) }
        }
    }
}

/// An open device; closed when dropped.
pub(super) struct Context {
    pub(super) verbs: &'static Verbs,
    pub(super) raw: NonNull<ibv_context>,
}

// SAFETY: rdma-core's calls may be made from any thread, and from several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The device that the system names so.
    pub(super) fn open_named(name: &str) -> Result<Context, Error> {
        let verbs = Verbs::get()?;
        let list = List::get(verbs)?;
        let found = list.devices().iter().find(|&&device| self::name(verbs, device) == name);
        match found {
            Some(&device) => Self::open(verbs, device, name),
            None => Err(Error::System { what: format!("opening {name}"), source: io::ErrorKind::NotFound.into() }),
        }
    }

    fn open(verbs: &'static Verbs, device: *mut ibv_device, name: &str) -> Result<Self, Error> {
        // SAFETY: the device is of a list that lives.
        let raw = NonNull::new(unsafe { (verbs.open_device)(device) });
        raw.map(|raw| Self { verbs, raw }).ok_or_else(|| system(&format!("opening {name}")))
    }

    /// How many ports there are, numbered from 1.
    fn port_count(&self, name: &str) -> Result<u8, Error> {
        // SAFETY: numbers and text alone, for which zeros are a value.
        let mut found: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `found` is ours to be written.
        let asked = unsafe { (self.verbs.query_device)(self.raw.as_ptr(), &raw mut found) };
        checked(&format!("asking {name}"), asked).map(|()| found.phys_port_cnt)
    }

    /// Port `number`, with those of `gids` that are its own; `None` if it does not answer.
    fn port(&self, number: u8, gids: &[ibv_gid_entry]) -> Option<Port> {
        // SAFETY: numbers alone, for which zeros are a value. An older library writes fewer of them: the rest stays zero.
        let mut found: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `found` is ours to be written.
        let failed = unsafe { (self.verbs.query_port)(self.raw.as_ptr(), number, &raw mut found) };
        (failed == 0).then(|| Port {
            number,
            active: found.state == rdma_sys::ibv_port_state::IBV_PORT_ACTIVE,
            mtu: mtu(found.active_mtu),
            speed: speed(found.active_speed, found.active_width),
            gids: gids.iter().filter(|gid| gid.port_num == u32::from(number)).map(gid).collect(),
        })
    }

    /// The addresses of all ports, without empty entries.
    fn gids(&self, name: &str) -> Result<Vec<ibv_gid_entry>, Error> {
        /// More than any device has: mlx5 has 256 to a port.
        const MOST: usize = 1024;
        // SAFETY: numbers alone, for which zeros are a value.
        let mut entries: Vec<_> = (0..MOST).map(|_| unsafe { std::mem::zeroed::<ibv_gid_entry>() }).collect();
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the context is open; there is room for `MOST` entries of `size` bytes.
        let count = unsafe { (self.verbs.query_gid_table)(self.raw.as_ptr(), entries.as_mut_ptr(), MOST, 0, size) };
        let what = || format!("asking {name} for its addresses");
        let errno = || i32::try_from(-count).unwrap_or(libc::EIO);
        let count = usize::try_from(count)
            .map_err(|_| Error::System { what: what(), source: io::Error::from_raw_os_error(errno()) })?;
        entries.truncate(count);
        Ok(entries)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: open, closed once, and nothing that was made of it lives: whatever is made of it keeps it. Failing would leave
        // a descriptor open.
        let _ = unsafe { (self.verbs.close_device)(self.raw.as_ptr()) };
    }
}

/// What the system said just now.
pub(super) fn system(what: &str) -> Error {
    Error::System { what: what.to_owned(), source: io::Error::last_os_error() }
}

/// Of a call that gives 0, or errno.
pub(super) fn checked(what: &str, errno: c_int) -> Result<(), Error> {
    match errno {
        0 => Ok(()),
        errno => Err(Error::System { what: what.to_owned(), source: io::Error::from_raw_os_error(errno) }),
    }
}

fn gid(entry: &ibv_gid_entry) -> Gid {
    let kind = match entry.gid_type {
        0 => GidKind::InfiniBand,
        1 => GidKind::RoceV1,
        2 => GidKind::RoceV2,
        other => GidKind::Other(other),
    };
    // SAFETY: all 16 bytes are written, by us or by the library, and any value is an address.
    let raw = unsafe { entry.gid.raw };
    Gid { index: entry.gid_index, kind, raw: Ipv6Addr::from(raw) }
}

/// Bytes, of the number that stands for them.
fn mtu(code: u32) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}

/// Megabits per second, of the numbers that stand for a lane's speed and for how many lanes there are.
fn speed(code: u8, width: u8) -> Option<u32> {
    let lane = match code {
        1 => 2_500,
        2 => 5_000,
        4 => 10_000,
        8 => 10_312,
        16 => 14_062,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => return None,
    };
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    Some(lane * lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_for_bytes_and_speeds() {
        assert_eq!([0, 1, 3, 5, 6].map(mtu), [None, Some(256), Some(1024), Some(4096), None]);
        // 100 Gb/s Ethernet: EDR, four lanes. 400: NDR, four.
        assert_eq!([speed(32, 2), speed(128, 2)], [Some(100_000), Some(400_000)]);
        assert_eq!([speed(0, 2), speed(3, 2), speed(32, 0)], [None; 3]);
    }

    #[test]
    fn an_ipv4_address_is_told_as_one() {
        let raw = "::ffff:10.7.0.1".parse().expect("an address");
        let gid = Gid { index: 1, kind: GidKind::RoceV2, raw };
        assert_eq!(gid.address().to_string(), "10.7.0.1");
    }
}

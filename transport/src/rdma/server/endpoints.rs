//! Where clients find a server: the addresses of devices that are up, as they are now.
#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::null_mut;

use super::super::device::{Device, GidKind, devices};
use crate::wire::describe::RdmaEndpoint;

/// The fewest bytes of payload that every port can carry.
const LEAST_MTU: u32 = 256;

/// Where a server that listens at `listen` is found. Only by RoCE v2: on InfiniBand, an address of IP over it is needed, which
/// devices know nothing of.
///
/// # Errors
/// Why devices cannot be looked up.
pub fn endpoints(listen: SocketAddr) -> Result<Vec<RdmaEndpoint>, String> {
    let devices = devices().map_err(|error| error.to_string())?;
    Ok(of(&devices, listen, &networks()))
}

/// An address of an interface, and how many of its bits are the network's.
type Network = (IpAddr, u32);

fn of(devices: &[Device], listen: SocketAddr, networks: &[Network]) -> Vec<RdmaEndpoint> {
    let asked = listen.ip().to_canonical();
    let ports = devices.iter().flat_map(|device| &device.ports).filter(|port| port.active);
    let mut found: Vec<RdmaEndpoint> = Vec::new();
    for (port, gid) in ports.flat_map(|port| port.gids.iter().map(move |gid| (port, gid))) {
        let address = gid.address();
        let known = found.iter().any(|endpoint| endpoint.address == address);
        // Of a link-local address nobody elsewhere can tell by which interface it is meant.
        let useful = gid.kind == GidKind::RoceV2 && !gid.raw.is_unicast_link_local() && !address.is_unspecified();
        if known || !useful || !(asked.is_unspecified() || asked == address) {
            continue;
        }
        let bits = networks.iter().find(|(of, _)| *of == address).map(|&(_, bits)| bits);
        found.push(RdmaEndpoint {
            address,
            port: listen.port(),
            mbps: port.speed.unwrap_or(0).into(),
            mtu: port.mtu.unwrap_or(LEAST_MTU),
            gid: "roce-v2".to_owned(),
            fabric: network(address, bits),
        });
    }
    found
}

/// The network that an address is in; the address itself if that is not known.
fn network(address: IpAddr, bits: Option<u32>) -> String {
    let (whole, masked) = match address {
        IpAddr::V4(ip) => {
            let bits = bits.unwrap_or(32).min(32);
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            (bits, IpAddr::from(Ipv4Addr::from_bits(ip.to_bits() & mask)))
        }
        IpAddr::V6(ip) => {
            let bits = bits.unwrap_or(128).min(128);
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            (bits, IpAddr::from(Ipv6Addr::from_bits(ip.to_bits() & mask)))
        }
    };
    format!("{masked}/{whole}")
}

/// The addresses of this machine's interfaces; none if the system does not say.
fn networks() -> Vec<Network> {
    let mut first = null_mut();
    // SAFETY: `first` is ours to be written.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: the list lives until it is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: null, or addresses that live as long as the list.
        let (address, mask) = unsafe { (ip(entry.ifa_addr), ip(entry.ifa_netmask)) };
        if let (Some(address), Some(mask)) = (address, mask) {
            let bits = match mask {
                IpAddr::V4(mask) => mask.to_bits().count_ones(),
                IpAddr::V6(mask) => mask.to_bits().count_ones(),
            };
            found.push((address, bits));
        }
        next = entry.ifa_next;
    }
    // SAFETY: it came from `getifaddrs`, and is freed once.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// `address` is null, or as long as its family says.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller promises.
    match i32::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: of this family, so that it is one of these.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: of this family, so that it is one of these.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(Ipv6Addr::from(address.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::device::{Gid, Port};
    use super::*;

    fn device(active: bool, speed: Option<u32>, gids: &[(GidKind, &str)]) -> Device {
        let gid = |(index, &(kind, raw)): (usize, &(GidKind, &str))| Gid {
            index: index as u32,
            kind,
            raw: raw.parse().expect("an address"),
        };
        let gids = gids.iter().enumerate().map(gid).collect();
        Device { name: "d".to_owned(), ports: vec![Port { number: 1, active, mtu: Some(4096), speed, gids }] }
    }

    #[test]
    fn what_can_be_reached_is_named_once() {
        let v2 = GidKind::RoceV2;
        let devices = [
            device(true, None, &[(GidKind::RoceV1, "::ffff:10.7.0.1"), (v2, "fe80::1"), (v2, "::ffff:10.7.0.1")]),
            device(true, Some(100_000), &[(v2, "::"), (v2, "fd00::7"), (v2, "::ffff:10.7.0.1")]),
            device(false, None, &[(v2, "::ffff:10.8.0.1")]),
            device(true, None, &[(GidKind::InfiniBand, "fe80::2"), (GidKind::Other(9), "fd00::9")]),
        ];
        let networks = [("10.7.0.1".parse().unwrap(), 24), ("fd00::7".parse().unwrap(), 64)];
        let found = of(&devices, "0.0.0.0:4433".parse().unwrap(), &networks);
        let told = |endpoint: &RdmaEndpoint| format!("{} {} {}", endpoint.address, endpoint.mbps, endpoint.fabric);
        assert_eq!(found.iter().map(told).collect::<Vec<_>>(), ["10.7.0.1 0 10.7.0.0/24", "fd00::7 100000 fd00::/64"]);
        assert!(found.iter().all(|endpoint| (endpoint.port, endpoint.mtu) == (4433, 4096)));
        assert_eq!(of(&devices, "10.7.0.1:1".parse().unwrap(), &[])[0].fabric, "10.7.0.1/32");
        assert!(of(&devices, "127.0.0.1:1".parse().unwrap(), &networks).is_empty());
    }

    #[test]
    fn this_machines_own_addresses_are_known() {
        let networks = networks();
        assert!(networks.contains(&("127.0.0.1".parse().unwrap(), 8)), "{networks:?}");
    }
}

//! Which interface leads where, by the kernel's tables.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// A network, and the interface that leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub network: IpAddr,
    /// Bits of an address that are the network's.
    pub bits: u32,
    pub metric: u32,
    pub interface: String,
}

pub fn gather(root: &Path) -> Vec<Route> {
    let read = |name| fs::read_to_string(root.join("proc/net").join(name)).unwrap_or_default();
    let (four, six) = (read("route"), read("ipv6_route"));
    four.lines().skip(1).filter_map(route4).chain(six.lines().filter_map(route6)).collect()
}

/// The interface that leads to `address`: of the narrowest network that it is in, and the least metric.
pub fn towards(routes: &[Route], address: IpAddr) -> Option<&str> {
    let within = routes.iter().filter(|route| route.holds(address));
    let best = within.max_by_key(|route| (route.bits, std::cmp::Reverse(route.metric)));
    best.map(|route| route.interface.as_str())
}

impl Route {
    fn holds(&self, address: IpAddr) -> bool {
        let common = match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => (network.to_bits() ^ address.to_bits()).leading_zeros(),
            (IpAddr::V6(network), IpAddr::V6(address)) => (network.to_bits() ^ address.to_bits()).leading_zeros(),
            _ => return false,
        };
        common >= self.bits
    }
}

/// `eth0 000200C0 00000000 0001 0 0 0 00FFFFFF …`: addresses as a processor with the least byte first writes them.
fn route4(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let address = |word: &str| u32::from_str_radix(word, 16).ok().map(|bits| Ipv4Addr::from(bits.to_ne_bytes()));
    let mask = address(words.get(7)?)?;
    Some(Route {
        network: address(words.get(1)?)?.into(),
        bits: mask.to_bits().leading_ones(),
        metric: words.get(6)?.parse().ok()?,
        interface: (*words.first()?).to_owned(),
    })
}

/// `fd00…0000 40 source bits next-hop metric … lo`, all of it in hexadecimal.
fn route6(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let network = Ipv6Addr::from(u128::from_str_radix(words.first()?, 16).ok()?);
    let number = |word: &str| u32::from_str_radix(word, 16).ok();
    let (bits, metric) = (number(words.get(1)?)?, number(words.get(5)?)?);
    Some(Route { network: network.into(), bits, metric, interface: (*words.get(9)?).to_owned() })
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::Root;
    use super::*;

    const FOUR: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
ib0\t0007000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
";
    /// A line of the table for IPv6.
    fn six(network: &str, bits: &str, metric: &str, interface: &str) -> String {
        let zero = "0".repeat(32);
        format!("{network:0<31}1 {bits} {zero} 00 {zero} {metric} 00000001 00000000 00000001 {interface:>8}\n")
    }

    #[test]
    fn the_narrowest_network_leads_there() {
        let root = Root::new("routes");
        let text = six("fd", "40", "00000100", "eth1") + &six("", "80", "00000000", "lo");
        root.file("proc/net/route", FOUR).file("proc/net/ipv6_route", &text);
        let routes = gather(&root.0);
        assert_eq!(routes.len(), 6);
        let to = |address: &str| towards(&routes, address.parse().unwrap());
        assert_eq!(to("10.0.7.9"), Some("ib0"));
        assert_eq!(to("192.0.2.77"), Some("eth0"));
        assert_eq!(to("8.8.8.8"), Some("eth0"), "the default with the lower metric");
        assert_eq!((to("fd00::1:2"), to("::1"), to("2001::1")), (Some("eth1"), Some("lo"), None));
        assert_eq!(towards(&[], "8.8.8.8".parse().unwrap()), None);
    }

    #[test]
    fn lines_that_make_no_sense_are_passed_over() {
        for line in ["", "eth0", "eth0 0 0 0 0 0 x 0", "eth0 zz 0 0 0 0 0 0"] {
            assert_eq!(route4(line), None, "{line}");
            assert_eq!(route6(line), None, "{line}");
        }
    }
}

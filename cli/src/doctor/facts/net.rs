//! Network interfaces, and where they lead.

mod routes;

use std::net::IpAddr;
use std::path::Path;

use super::{line, names, number};
use routes::Route;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    pub interfaces: Vec<Interface>,
    pub routes: Vec<Route>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// Bytes of the largest packet that it carries whole.
    pub mtu: Option<u32>,
    /// It can carry something now.
    pub up: bool,
    /// It leads to this machine itself.
    pub loopback: bool,
}

/// What `operstate` says of an interface without a state of its own, such as loopback or a tunnel: as good as up.
const UP: &[&str] = &["up", "unknown"];
/// The kernel's number for the hardware that loopback is.
const LOOPBACK: u32 = 772;

impl Net {
    pub fn gather(root: &Path) -> Net {
        let folder = root.join("sys/class/net");
        let interface = |name: String| {
            let folder = folder.join(&name);
            // Some entries are files: `bonding_masters`.
            folder.join("type").exists().then(|| Interface {
                mtu: number(folder.join("mtu")),
                up: line(folder.join("operstate")).is_some_and(|state| UP.contains(&state.as_str())),
                loopback: number(folder.join("type")) == Some(LOOPBACK),
                name,
            })
        };
        Net { interfaces: names(&folder).into_iter().filter_map(interface).collect(), routes: routes::gather(root) }
    }

    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// The interface that leads to `address`.
    pub fn towards(&self, address: IpAddr) -> Option<&Interface> {
        match address.to_canonical() {
            address if address.is_loopback() => self.interfaces.iter().find(|interface| interface.loopback),
            address => self.interface(routes::towards(&self.routes, address)?),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::tests::Root;
    use super::*;

    impl Net {
        /// One more way.
        pub fn route(&mut self, network: &str, bits: u32, interface: &str) {
            self.routes.push(Route { network: network.parse().unwrap(), bits, metric: 0, interface: interface.into() });
        }
    }

    pub fn healthy() -> Net {
        let interface = |name: &str, mtu, loopback| Interface { name: name.into(), mtu: Some(mtu), up: true, loopback };
        let mut net =
            Net { interfaces: vec![interface("eth0", 9000, false), interface("lo", 65_536, true)], routes: vec![] };
        net.route("192.0.2.0", 24, "eth0");
        net
    }

    #[test]
    fn interfaces_are_found() {
        let root = Root::new("net");
        for (name, kind, mtu, state) in [("lo", "772", "65536", "unknown"), ("eth0", "1", "9000", "up")] {
            root.file(&format!("sys/class/net/{name}/type"), kind)
                .file(&format!("sys/class/net/{name}/mtu"), mtu)
                .file(&format!("sys/class/net/{name}/operstate"), state);
        }
        root.file("sys/class/net/bonding_masters", "");
        assert_eq!(Net::gather(&root.0).interfaces, healthy().interfaces);
        root.file("proc/net/route", "\neth0 00000000 0 0003 0 0 0 00000000\n");
        let net = Net::gather(&root.0);
        let to = |address: &str| net.towards(address.parse().unwrap()).map(|interface| interface.name.as_str());
        assert_eq!((to("8.8.8.8"), to("::ffff:8.8.8.8"), to("127.0.0.2")), (Some("eth0"), Some("eth0"), Some("lo")));
        root.file("sys/class/net/eth0/operstate", "down").file("sys/class/net/eth0/mtu", "many");
        let down = Net::gather(&root.0);
        let eth0 = down.interface("eth0").unwrap();
        assert!(!eth0.up && eth0.mtu.is_none());
    }
}

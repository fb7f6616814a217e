//! Network interfaces.

use std::path::Path;

use super::{line, names, number};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    pub interfaces: Vec<Interface>,
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
        Net { interfaces: names(&folder).into_iter().filter_map(interface).collect() }
    }

    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::tests::Root;
    use super::*;

    pub fn healthy() -> Net {
        let interface = |name: &str, mtu, loopback| Interface { name: name.into(), mtu: Some(mtu), up: true, loopback };
        Net { interfaces: vec![interface("eth0", 9000, false), interface("lo", 65_536, true)] }
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
        assert_eq!(Net::gather(&root.0), healthy());
        root.file("sys/class/net/eth0/operstate", "down").file("sys/class/net/eth0/mtu", "many");
        let down = Net::gather(&root.0);
        let eth0 = down.interface("eth0").unwrap();
        assert!(!eth0.up && eth0.mtu.is_none());
    }
}

//! Verbs on a device. Only where `FOREBAY_RDMA_TESTS=1` says that there is one, with address 10.7.0.1: a guest of
//! `tests/guest` sets it.
#![cfg(all(target_os = "linux", feature = "rdma"))]

use forebay_transport::rdma::device::{GidKind, Port, devices};

/// Whether there is a device here; said loudly if not.
fn is_here(test: &str) -> bool {
    let here = std::env::var_os("FOREBAY_RDMA_TESTS").is_some_and(|value| value == "1");
    if !here {
        // Past the capture of tests that pass.
        use std::io::Write;
        let _ = writeln!(
            std::io::stderr(),
            "!! SKIPPED: {test}: FOREBAY_RDMA_TESTS=1 does not say that there is RDMA here"
        );
    }
    here
}

#[test]
fn a_device_tells_its_port_and_addresses() {
    if !is_here("a_device_tells_its_port_and_addresses") {
        return;
    }
    let found = devices().expect("devices can be looked up");
    println!("{found:#?}");
    let ports = found.iter().flat_map(|device| &device.ports).filter(|port| port.active).collect::<Vec<_>>();
    let ours = |port: &&&Port| {
        port.gids.iter().any(|gid| gid.kind == GidKind::RoceV2 && gid.address().to_string() == "10.7.0.1")
    };
    let port = ports.iter().find(ours).expect("an active port has 10.7.0.1 by RoCE v2");
    assert_eq!(port.number, 1);
    assert!(port.mtu.is_some_and(|mtu| mtu >= 1024), "{port:?}");
    // Looked up again, it is the same: nothing was used up.
    assert_eq!(devices().expect("devices can be looked up"), found);
}

use super::super::super::facts::rdma::{Node, Provider};
use super::super::super::facts::tests::healthy;
use super::super::super::finding::Level;
use super::super::tests::{after, says};
use super::super::{CHECKS, Check};
use super::*;

fn port(facts: &mut Facts) -> &mut Port {
    &mut facts.rdma.devices[0].ports[0]
}

#[test]
fn a_machine_without_devices_is_noted_in_one_line() {
    let mut facts = healthy();
    facts.rdma.devices.clear();
    // Whatever else is missing.
    (facts.rdma.verbs, facts.rdma.manager, facts.rdma.manager_node) = (None, None, Node::default());
    let findings: Vec<Finding> = CHECKS.iter().filter_map(|check| check(&facts)).collect();
    let about: Vec<&Finding> = findings.iter().filter(|finding| finding.level != Level::Ok).collect();
    assert_eq!(about.len(), 1, "{about:?}");
    says(about[0], Level::Note, "none: samples travel by HTTP/3", "");
    assert!(!usable(&facts));
    let finding = after(devices, |facts| facts.rdma.devices[0].provider = Some("efa"));
    says(&finding, Level::Note, "only mlx5_0, without reliable connections", "");
}

/// The same when the devices could not be opened.
fn after_failing(check: Check, harm: impl FnOnce(&mut Facts)) -> Finding {
    after(check, |facts| {
        facts.probes.opened = Some(Err("cannot be loaded".into()));
        harm(facts);
    })
}

#[test]
fn missing_libraries() {
    let finding = after_failing(libraries, |facts| facts.rdma.verbs = None);
    says(&finding, Level::Wrong, "libibverbs.so.1 cannot", "libibverbs1");
    // What works lies where we did not look.
    says(&after(libraries, |facts| facts.rdma.verbs = None), Level::Ok, "loader finds them", "");
    says(&after(libraries, |facts| facts.rdma.manager = None), Level::Wrong, "librdmacm.so.1 cannot", "librdmacm1");
}

#[test]
fn missing_providers() {
    let finding = after_failing(providers, |facts| facts.rdma.providers.clear());
    says(&finding, Level::Wrong, "for mlx5 devices", "ibverbs-providers");
    let finding = after_failing(providers, |facts| facts.rdma.takes = Some(50));
    says(&finding, Level::Wrong, "IBVERBS_PRIVATE_50", "of one release");
    let other = Provider { name: "mlx5".into(), version: 50 };
    let finding = after_failing(providers, |facts| {
        facts.rdma.takes = Some(50);
        facts.rdma.providers.push(other);
    });
    says(&finding, Level::Ok, "mlx5", "");
    let finding = after_failing(providers, |facts| facts.rdma.configured = vec!["rxe".into()]);
    says(&finding, Level::Wrong, "not told of mlx5", "/etc/libibverbs.d/mlx5.driver");
    let finding = after_failing(providers, |facts| facts.rdma.devices[0].provider = None);
    says(&finding, Level::Note, "not known", "");
    let finding = after(providers, |facts| facts.rdma.providers.clear());
    says(&finding, Level::Ok, "mlx5", "");
}

#[test]
fn files_that_cannot_be_opened() {
    let finding = after(nodes, |facts| facts.rdma.devices[0].node = Node::default());
    says(&finding, Level::Wrong, "no way to mlx5_0", "modprobe ib_uverbs");
    let finding = after(nodes, |facts| facts.rdma.manager_node = Node::default());
    says(&finding, Level::Wrong, "no connections", "modprobe rdma_ucm");
    let finding = after(nodes, |facts| facts.rdma.devices[0].node.error = Some("No such file or directory".into()));
    says(&finding, Level::Wrong, "uverbs0: No such file", "docker run --device=/dev/infiniband");
    let finding = after(nodes, |facts| facts.rdma.manager_node.error = Some("Permission denied (os error 13)".into()));
    says(&finding, Level::Wrong, "Permission denied", "chmod a+rw /dev/infiniband/{rdma_");
}

#[test]
fn ports_that_are_down() {
    let finding = after(ports, |facts| (port(facts).state, port(facts).wire) = ("DOWN".into(), "Disabled".into()));
    says(&finding, Level::Better, "none is up: mlx5_0/1 is DOWN (Disabled)", "ip link set dev eth0 up");
    let infiniband = |facts: &mut Facts| (port(facts).ethernet, port(facts).state) = (false, "INIT".into());
    says(&after(ports, infiniband), Level::Better, "mlx5_0/1 is INIT (LinkUp)", "opensm");
    let finding = after(ports, |facts| {
        infiniband(facts);
        port(facts).wire = "Polling".into();
    });
    says(&finding, Level::Better, "INIT (Polling)", "cable");
    let finding = after(ports, |facts| {
        let second = Port { number: "2".into(), state: "DOWN".into(), ..port(facts).clone() };
        facts.rdma.devices[0].ports.push(second);
    });
    says(&finding, Level::Note, "up: mlx5_0/1 (100 Gb/sec (4X EDR)); mlx5_0/2 is DOWN", "ip link set");
    says(&after(ports, |facts| facts.rdma.devices[0].ports.clear()), Level::Better, "have none", "dmesg");
}

#[test]
fn addresses_nobody_can_reach() {
    let gid = |address: &str, kind: &str| Gid { address: address.parse().unwrap(), kind: Some(kind.into()) };
    let with = |gids: Vec<Gid>| after(addresses, |facts| port(facts).gids = gids);
    says(&with(vec![]), Level::Wrong, "mlx5_0/1 has none", "ip addr add ADDRESS/PREFIX dev eth0");
    says(&with(vec![gid("fe80::1", "RoCE v2")]), Level::Wrong, "link-local", "ip addr add ADDRESS/PREFIX dev eth0");
    let finding = with(vec![gid("fe80::1", "RoCE v2"), gid("::ffff:10.7.0.1", "IB/RoCE v1")]);
    says(&finding, Level::Wrong, "link-local", "ip addr add");
    let finding = with(vec![gid("::ffff:10.7.0.1", "IB/RoCE v1")]);
    says(&finding, Level::Wrong, "RoCE v1", "cma_roce_mode -d mlx5_0 -p 1 -m 2");
    says(&with(vec![gid("fd00::1", "RoCE v2")]), Level::Note, "mlx5_0/1 fd00::1: by IPv6 alone", "");
    let finding = with(vec![gid("fd00::1", "RoCE v2"), gid("::ffff:10.7.0.1", "RoCE v2")]);
    says(&finding, Level::Ok, "mlx5_0/1 10.7.0.1", "");
    let finding = after(addresses, |facts| (port(facts).ethernet, port(facts).interface) = (false, None));
    says(&finding, Level::Wrong, "no interface for IP", "modprobe ib_ipoib");
}

/// The device says this of the payload of its packets.
fn says_payload(facts: &mut Facts, payload: Option<u32>) {
    let opened = facts.probes.opened.as_mut().unwrap().as_mut().unwrap();
    opened[0].ports[0].payload = payload;
}

#[test]
fn devices_that_cannot_be_opened() {
    let finding = after(opened, |facts| facts.probes.opened = Some(Err("libnl-3.so.200: no such file".into())));
    says(&finding, Level::Wrong, "libnl-3.so.200", "apt install");
    says(
        &after(opened, |facts| facts.probes.opened = Some(Ok(vec![]))),
        Level::Wrong,
        "does not show mlx5_0",
        "apt install",
    );
    says(&after(opened, |facts| facts.probes.opened = None), Level::Better, "built without RDMA", "--features rdma");
    // Where the reason is told, it is told once.
    let mut facts = healthy();
    (facts.rdma.verbs, facts.probes.opened) = (None, Some(Err("no libibverbs.so.1".into())));
    let wrong = CHECKS.iter().filter_map(|check| check(&facts)).filter(|finding| finding.level == Level::Wrong);
    assert_eq!(wrong.map(|finding| finding.check).collect::<Vec<_>>(), ["RDMA libraries"]);
}

#[test]
fn small_packets() {
    let finding = after(packets, |facts| {
        facts.net.interfaces[0].mtu = Some(1500);
        says_payload(facts, None);
    });
    says(&finding, Level::Better, "mlx5_0/1 carries 1024 bytes at a time, since eth0 has an MTU of 1500", "mtu 4200");
    let finding = after(packets, |facts| says_payload(facts, Some(1024)));
    says(&finding, Level::Better, "1024 bytes at a time, though eth0 has an MTU of 9000", "ip link set dev eth0 down");
    let finding = after(packets, |facts| {
        says_payload(facts, Some(2048));
        port(facts).ethernet = false;
    });
    says(&finding, Level::Better, "mlx5_0/1 carries 2048 bytes", "opensm");
    // As measured with soft-RoCE.
    assert_eq!([1500, 4200, 9000].map(payload), [1024, 4096, 4096]);
    assert_eq!([0, 96, 351, 352].map(payload), [0, 0, 0, 256]);
}

#[test]
fn a_way_that_drops_packets_of_rdma() {
    let over =
        |payload| after(path, |facts| facts.server.as_mut().unwrap().reached.as_mut().unwrap().payload = payload);
    says(
        &over(1472),
        Level::Wrong,
        "4096 bytes of mlx5_0/1 do not get to storage: the way carries 1520",
        "ip link set dev eth0",
    );
    // An MTU of 4200, of which discovery finds all but a step.
    says(&over(4200 - 28 - 20), Level::Ok, "4096 bytes of mlx5_0/1 get to storage", "");
    let mut facts = healthy();
    port(&mut facts).interface = Some("eth1".into());
    assert_eq!(path(&facts), None, "another way than that to the server");
}

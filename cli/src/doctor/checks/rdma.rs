//! What stands between a program and the RDMA devices of the machine. That there are none is nothing wrong; that there are and
//! cannot be used is.

use std::net::Ipv6Addr;

use super::super::facts::{Device, Facts, Gid, Port};
use super::super::finding::{Finding, Level};

/// Amazon's devices have no connections of the kind that RDMA WRITE and rdma_cm need.
const WITHOUT_CONNECTIONS: &str = "efa";
/// Bytes around the payload of a RoCE packet, at most: what drivers take off an interface's MTU.
const AROUND: u32 = 96;
/// Bytes around the payload of a WRITE, over IPv4: without what no packet of ours has.
const HEADERS: u32 = 60;
/// The sizes that a payload may have.
const SIZES: &[u32] = &[4096, 2048, 1024, 512, 256];
/// The packages of Debian and Ubuntu, and of Fedora and its kin.
const INSTALL: &str = "apt install libibverbs1 librdmacm1 ibverbs-providers (or dnf install libibverbs librdmacm)";
const PASS: &str = "docker run --device=/dev/infiniband";

/// The devices that could carry samples.
fn candidates(facts: &Facts) -> impl Iterator<Item = &Device> {
    facts.rdma.devices.iter().filter(|device| device.provider != Some(WITHOUT_CONNECTIONS))
}

/// Their ports that are up.
fn active(facts: &Facts) -> impl Iterator<Item = (&Device, &Port)> {
    let ports = candidates(facts).flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    ports.filter(|(_, port)| is_up(port))
}

fn is_up(port: &Port) -> bool {
    port.state == "ACTIVE"
}

/// Whether RDMA could carry something, if everything else were right.
pub fn usable(facts: &Facts) -> bool {
    active(facts).next().is_some()
}

/// `mlx5_0/1`
fn name(device: &Device, port: &Port) -> String {
    format!("{}/{}", device.name, port.number)
}

fn interface(port: &Port) -> &str {
    port.interface.as_deref().unwrap_or("INTERFACE")
}

pub fn devices(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "RDMA devices";
    let names: Vec<&str> = candidates(facts).map(|device| device.name.as_str()).collect();
    if !names.is_empty() {
        return Some(Finding::ok(NAME, names.join(", ")));
    }
    let others: Vec<&str> = facts.rdma.devices.iter().map(|device| device.name.as_str()).collect();
    Some(match others.is_empty() {
        true => Finding::note(NAME, "none: samples travel by HTTP/3"),
        false => {
            let others = others.join(", ");
            Finding::note(NAME, format!("only {others}, without reliable connections: samples travel by HTTP/3"))
        }
    })
}

/// Whether the libraries open every device: then they lie where their loader finds them, wherever that is.
fn all_open(facts: &Facts) -> bool {
    match &facts.probes.opened {
        Some(Ok(opened)) => candidates(facts).all(|device| opened.iter().any(|one| one.name == device.name)),
        _ => false,
    }
}

pub fn libraries(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "RDMA libraries";
    candidates(facts).next()?;
    let rdma = &facts.rdma;
    let all =
        [("libibverbs.so.1", rdma.verbs.is_some() || all_open(facts)), ("librdmacm.so.1", rdma.manager.is_some())];
    let missing: Vec<&str> = all.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        return Some(Finding::wrong(NAME, format!("{} cannot be found", missing.join(" and ")), INSTALL));
    }
    let place =
        rdma.verbs.as_ref().map_or("where the system's loader finds them".into(), |path| path.display().to_string());
    Some(Finding::ok(NAME, place))
}

pub fn providers(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "RDMA providers";
    candidates(facts).next()?;
    let rdma = &facts.rdma;
    let mut needed: Vec<&str> = candidates(facts).filter_map(|device| device.provider).collect();
    needed.sort_unstable();
    needed.dedup();
    let works = all_open(facts);
    if !works {
        // That it is missing is told by another check.
        rdma.verbs.as_ref()?;
    }
    for &provider in needed.iter().filter(|_| !works) {
        let there: Vec<u32> = rdma.providers.iter().filter(|one| one.name == provider).map(|one| one.version).collect();
        if there.is_empty() {
            let found = format!("the plug-in for {provider} devices is not beside libibverbs");
            return Some(Finding::wrong(NAME, found, "apt install ibverbs-providers (or dnf install libibverbs)"));
        }
        if let Some(takes) = rdma.takes
            && !there.contains(&takes)
        {
            let found = format!(
                "libibverbs takes plug-ins of version {takes} (IBVERBS_PRIVATE_{takes}), and that for {provider} has {there:?}"
            );
            return Some(Finding::wrong(NAME, found, format!("{INSTALL}, all of one release")));
        }
        if !rdma.configured.iter().any(|one| one == provider) {
            let found = format!("libibverbs is not told of {provider}: no file of /etc/libibverbs.d names it");
            let mend = format!("echo 'driver {provider}' > /etc/libibverbs.d/{provider}.driver");
            return Some(Finding::wrong(NAME, found, mend));
        }
    }
    Some(match needed.is_empty() {
        true => Finding::note(NAME, "which one these devices need is not known"),
        false => Finding::ok(NAME, needed.join(", ")),
    })
}

/// The files below `/dev/infiniband`, of which containers often lack some.
pub fn nodes(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "/dev/infiniband";
    candidates(facts).next()?;
    let manager = &facts.rdma.manager_node;
    if let Some(device) = candidates(facts).find(|device| !device.node.known) {
        let found = format!("the kernel gives programs no way to {}", device.name);
        return Some(Finding::wrong(NAME, found, "modprobe ib_uverbs"));
    }
    if !manager.known {
        let found = "the kernel makes no connections for programs";
        return Some(Finding::wrong(NAME, found, "modprobe rdma_ucm"));
    }
    let all = candidates(facts).map(|device| &device.node).chain([manager]);
    let closed: Vec<String> = all.filter_map(|node| Some(format!("{}: {}", node.name, node.error.as_ref()?))).collect();
    if closed.is_empty() {
        return Some(Finding::ok(NAME, "can be opened"));
    }
    let files: Vec<&str> = closed.iter().filter_map(|text| text.split(':').next()).collect();
    let chmod = format!("chmod a+rw /dev/infiniband/{{{}}}", files.join(","));
    let denied = closed.iter().all(|text| text.contains("Permission denied"));
    let mend = if denied { chmod } else { PASS.to_owned() };
    Some(Finding::wrong(NAME, format!("cannot be opened: {}", closed.join("; ")), mend))
}

/// Whether the libraries open what the kernel has. Where another check says why not, nothing is said here.
pub fn opened(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "RDMA access";
    candidates(facts).next()?;
    if [libraries, providers, nodes].iter().any(|check| check(facts).is_some_and(|one| one.level == Level::Wrong)) {
        return None;
    }
    let opened = match &facts.probes.opened {
        None => {
            return Some(Finding::better(
                NAME,
                "this program was built without RDMA",
                "cargo build --release --features rdma",
            ));
        }
        Some(Err(why)) => return Some(Finding::wrong(NAME, why.clone(), format!("{INSTALL}; dmesg says more"))),
        Some(Ok(opened)) => opened,
    };
    let is_open = |device: &&Device| opened.iter().any(|one| one.name == device.name);
    let (open, hidden): (Vec<&Device>, Vec<&Device>) = candidates(facts).partition(is_open);
    let list = |these: &[&Device]| these.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
    Some(match hidden.is_empty() {
        true => Finding::ok(NAME, format!("{} can be opened", list(&open))),
        false => Finding::wrong(NAME, format!("libibverbs does not show {}", list(&hidden)), INSTALL),
    })
}

pub fn ports(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "RDMA ports";
    candidates(facts).next()?;
    let all = || candidates(facts).flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    let up: Vec<String> =
        active(facts).map(|(device, port)| format!("{} ({})", name(device, port), port.rate)).collect();
    let down: Vec<String> = all()
        .filter(|(_, port)| !is_up(port))
        .map(|(device, port)| format!("{} is {} ({})", name(device, port), port.state, port.wire))
        .collect();
    let first = all().find(|(_, port)| !is_up(port));
    let mend = match first {
        None if up.is_empty() => "see dmesg".to_owned(),
        None => return Some(Finding::ok(NAME, format!("up: {}", up.join(", ")))),
        Some((_, port)) if port.ethernet => format!("ip link set dev {} up, and its cable", interface(port)),
        // The wire is there; addresses are for the fabric's manager to give.
        Some((_, port)) if port.wire == "LinkUp" => "a subnet manager on the fabric: systemctl start opensm".to_owned(),
        Some(_) => "its cable, and the switch's port".to_owned(),
    };
    Some(match (up.is_empty(), down.is_empty()) {
        (true, true) => Finding::better(NAME, "the devices have none", mend),
        (true, false) => Finding::better(NAME, format!("none is up: {}", down.join(", ")), mend),
        _ => {
            let found = format!("up: {}; {}", up.join(", "), down.join(", "));
            Finding { mend: Some(mend), ..Finding::note(NAME, found) }
        }
    })
}

/// An address that only the next machine could be reached by.
fn is_link_local(address: &Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

/// Whether others can be reached from a port, by the addresses that it has.
pub fn addresses(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "RDMA addresses";
    let (mut good, mut six): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for (device, port) in active(facts) {
        let (name, interface) = (name(device, port), interface(port));
        let give = format!("ip addr add ADDRESS/PREFIX dev {interface}");
        if !port.ethernet {
            // Connections are asked for by IP addresses here too.
            match port.interface {
                Some(_) => good.push(format!("{name} ({interface})")),
                None => {
                    let found = format!("{name} is of InfiniBand and has no interface for IP");
                    return Some(Finding::wrong(NAME, found, "modprobe ib_ipoib; ip addr add ADDRESS/PREFIX dev ib0"));
                }
            }
            continue;
        }
        let newer = |gid: &&Gid| gid.kind.as_deref().is_none_or(|kind| kind == "RoCE v2");
        let routed: Vec<&Gid> = port.gids.iter().filter(newer).collect();
        if port.gids.is_empty() {
            return Some(Finding::wrong(NAME, format!("{name} has none (no GID)"), give));
        }
        if routed.is_empty() {
            let found = format!("{name} has only addresses of RoCE v1, which no router passes on");
            let mend = format!("cma_roce_mode -d {} -p {} -m 2", device.name, port.number);
            return Some(Finding::wrong(NAME, found, mend));
        }
        let mut far = routed.iter().map(|gid| gid.address).filter(|address| !is_link_local(address)).peekable();
        let Some(first) = far.peek().copied() else {
            let found = format!("{name} has only link-local addresses (fe80::): nobody can connect to them by IP");
            return Some(Finding::wrong(NAME, found, give));
        };
        match far.find_map(|address| address.to_ipv4_mapped()) {
            Some(four) => good.push(format!("{name} {four}")),
            None => six.push(format!("{name} {first}")),
        }
    }
    if six.is_empty() {
        return (!good.is_empty()).then(|| Finding::ok(NAME, good.join(", ")));
    }
    let found = format!("{}: by IPv6 alone, so both ends must be named by IPv6", six.join(", "));
    Some(Finding::note(NAME, found))
}

/// The largest payload of RoCE on an interface of this MTU.
fn payload(mtu: u32) -> u32 {
    let room = mtu.saturating_sub(AROUND);
    SIZES.iter().copied().find(|size| *size <= room).unwrap_or(0)
}

/// The payload of a port's packets: as the device says, else as its interface's MTU makes it.
fn payload_of(facts: &Facts, device: &Device, port: &Port) -> Option<u32> {
    let opened = facts.probes.opened.as_ref().and_then(|opened| opened.as_ref().ok());
    let said = opened.and_then(|all| {
        let device = all.iter().find(|one| one.name == device.name)?;
        device.ports.iter().find(|one| one.number == port.number)?.payload
    });
    said.or_else(|| Some(payload(mtu(facts, port)?)))
}

fn mtu(facts: &Facts, port: &Port) -> Option<u32> {
    facts.net.interface(port.interface.as_deref()?)?.mtu
}

/// How much a packet carries.
pub fn packets(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "RDMA packet size";
    let mut seen = Vec::new();
    for (device, port) in active(facts) {
        let Some(carries) = payload_of(facts, device, port) else { continue };
        let (name, interface) = (name(device, port), interface(port));
        if carries >= SIZES[0] {
            seen.push(format!("{name} {carries}"));
            continue;
        }
        let found = format!("{name} carries {carries} bytes at a time");
        return Some(match mtu(facts, port).filter(|_| port.ethernet) {
            // What the interface would allow is not what the device does.
            Some(mtu) if payload(mtu) > carries => {
                let found = format!("{found}, though {interface} has an MTU of {mtu}");
                Finding::better(NAME, found, format!("ip link set dev {interface} down, and up again"))
            }
            Some(mtu) => {
                let mend =
                    format!("ip link set dev {interface} mtu 4200 (or 9000), on both ends and all switches between");
                Finding::better(NAME, format!("{found}, since {interface} has an MTU of {mtu}"), mend)
            }
            None => Finding::better(NAME, found, "a larger MTU in the subnet manager's partition (opensm: mtu=5)"),
        });
    }
    (!seen.is_empty()).then(|| Finding::ok(NAME, seen.join(", ")))
}

/// Whether such packets get to the server that was named, by what is known of the way there.
pub fn path(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "RDMA path MTU";
    let (host, carried, there) = super::server::carried(facts)?;
    let leads = |(_, port): &(&Device, &Port)| port.ethernet && port.interface.as_ref() == Some(there);
    let (device, port) = active(facts).find(leads)?;
    let carries = payload_of(facts, device, port)?;
    if carried >= carries + HEADERS {
        return Some(Finding::ok(NAME, format!("packets of {carries} bytes of {} get to {host}", name(device, port))));
    }
    let found =
        format!("packets of {carries} bytes of {} do not get to {host}: the way carries {carried}", name(device, port));
    let mend =
        format!("ip link set dev {there} mtu {carried}; or raise the MTU of what lies between (tracepath -n {host})");
    Some(Finding::wrong(NAME, found, mend))
}

#[cfg(test)]
mod tests;

//! What holds whatever the fabric: memory, the disk, UDP.

use super::super::facts::Facts;
use super::super::finding::Finding;
use super::rdma;
use crate::units::size;
use forebay_client::transport::pool::MEMLOCK;

const HUGE: u64 = 2 << 20;
/// Bytes that a packet of a jumbo network has at the least: RDMA's largest, 4096, and what goes around it.
pub const JUMBO: u32 = 4200;

/// Whether the budget can be had.
pub fn memory(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "memory";
    let (limits, wanted) = (&facts.limits, facts.memory);
    let most = [limits.total, limits.container].into_iter().flatten().min();
    let now = [limits.available.map(|free| free.saturating_add(limits.huge_free)), most].into_iter().flatten().min();
    let (Some(most), Some(now)) = (most, now) else {
        return Some(Finding::note(NAME, "how much there is cannot be told here"));
    };
    let fits = format!("--memory {}MiB", ((now / 2) >> 20).max(32));
    if wanted > most {
        let owner = if limits.container == Some(most) { "this container may have" } else { "this machine has" };
        let found = format!("{} are to be used, and {owner} {}", size(wanted), size(most));
        return Some(Finding::wrong(NAME, found, fits));
    }
    if wanted > now {
        let found = format!("{} are to be used, of which {} are to be had now", size(wanted), size(now));
        return Some(Finding::better(NAME, found, fits));
    }
    Some(Finding::ok(NAME, format!("{} of the {} to be had", size(wanted), size(now))))
}

/// Whether the pool can be locked, without which no device may write to it.
pub fn locked(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "locked memory";
    let pool = facts.pool();
    let (soft, hard) = match facts.limits.locked {
        _ if facts.limits.privileged => return Some(Finding::ok(NAME, "without limit (CAP_IPC_LOCK)")),
        None => return Some(Finding::note(NAME, "its limit cannot be told here")),
        Some((u64::MAX, _)) => return Some(Finding::ok(NAME, "without limit")),
        Some(limits) => limits,
    };
    if soft >= pool {
        return Some(Finding::ok(NAME, format!("up to {}, the pool has {}", size(soft), size(pool))));
    }
    let raise = if hard < pool { " (by root: the hard limit is as low)" } else { "" };
    let found = format!("RLIMIT_MEMLOCK is {}, the pool has {}", size(soft), size(pool));
    let mend = format!("{MEMLOCK}{raise}");
    Some(match rdma::usable(facts) {
        true => Finding::wrong(NAME, format!("{found}: it cannot be registered for RDMA"), mend),
        false => Finding::better(NAME, format!("{found}: it can be paged out, and each read costs more"), mend),
    })
}

/// Whether the pool lies on large pages, which cost the processor and devices fewer translations.
pub fn huge_pages(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "huge pages";
    let pool = facts.pool();
    if facts.limits.huge_free >= pool {
        return Some(Finding::ok(NAME, format!("{} are set aside", size(facts.limits.huge_free))));
    }
    let mend = format!("sysctl -w vm.nr_hugepages={}", pool.div_ceil(HUGE));
    Some(match facts.limits.transparent.as_deref() {
        Some("always" | "madvise") => Finding::ok(NAME, "made as they are needed (transparent)"),
        Some(_) => {
            let mend = format!("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or {mend}");
            Finding::better(NAME, "turned off, and none are set aside: the pool lies on small pages", mend)
        }
        None => Finding::better(NAME, "none: the pool lies on small pages", mend),
    })
}

/// Whether shards on this machine can be read by io_uring.
pub fn uring(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "io_uring";
    Some(match &facts.probes.uring {
        Ok(()) => Finding::ok(NAME, "allowed"),
        Err(refusal) => {
            let found = format!("shards on this machine are read by threads: {}", refusal.reason);
            Finding::better(NAME, found, refusal.remedy.clone())
        }
    })
}

/// Whether a burst of packets fits into a socket.
pub fn udp_buffers(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "UDP buffers";
    let socket = match &facts.probes.socket {
        Ok(socket) => socket,
        Err(why) => {
            let mend = "docker run --network with a network, or a seccomp profile that allows socket";
            return Some(Finding::wrong(NAME, format!("this process gets no UDP socket: {why}"), mend));
        }
    };
    let (wanted, receive, send) = (socket.wanted, socket.receive_buffer, socket.send_buffer);
    if receive.min(send) >= wanted {
        return Some(Finding::ok(NAME, format!("{} each way", size(wanted as u64))));
    }
    let found = format!(
        "{} to receive and {} to send, of {} wanted: packets are lost at high rates",
        size(receive as u64),
        size(send as u64),
        size(wanted as u64)
    );
    let low = [("rmem", receive), ("wmem", send)].into_iter().filter(|(_, got)| *got < wanted);
    let settings: Vec<String> = low.map(|(name, _)| format!("net.core.{name}_max={wanted}")).collect();
    Some(Finding::better(NAME, found, format!("sysctl -w {}", settings.join(" "))))
}

/// Whether the kernel takes and gives many packets at once.
pub fn udp_offload(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "UDP offload";
    let socket = facts.probes.socket.as_ref().ok()?;
    let lacks = match (socket.cuts, socket.joins) {
        (true, true) => return Some(Finding::ok(NAME, "many packets are sent (GSO) and received (GRO) at once")),
        (false, true) => "sending (GSO)",
        (true, false) => "receiving (GRO)",
        (false, false) => "sending (GSO) and receiving (GRO)",
    };
    let found = format!("none for {lacks}: each packet costs a system call's share of its own");
    Some(Finding::better(NAME, found, "a kernel of 5.0 or newer, without a sandbox that hides it (gVisor)"))
}

/// How large packets may be.
pub fn packets(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "packet size";
    let outward = facts.net.interfaces.iter().filter(|interface| interface.up && !interface.loopback);
    let (large, small): (Vec<_>, Vec<_>) =
        outward.filter_map(|interface| Some((&interface.name, interface.mtu?))).partition(|(_, mtu)| *mtu >= JUMBO);
    let list = |these: &[(&String, u32)]| {
        these.iter().map(|(name, mtu)| format!("{name} {mtu}")).collect::<Vec<_>>().join(", ")
    };
    let Some((first, _)) = small.first() else {
        return Some(match large.is_empty() {
            true => Finding::note(NAME, "no network is up but this machine's own"),
            false => Finding::ok(NAME, format!("MTU of {}", list(&large))),
        });
    };
    let found = format!("MTU of {}: jumbo packets cost less for each byte", list(&small));
    let mend = format!("ip link set dev {first} mtu 9000, if all of its network does");
    Some(Finding { mend: Some(mend), ..Finding::note(NAME, found) })
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::tests::healthy;
    use super::super::super::finding::Level;
    use super::super::tests::{after, says};
    use super::*;
    use forebay_server::store::Refusal;

    #[test]
    fn more_memory_than_there_is() {
        let finding = after(memory, |facts| facts.memory = 65 << 30);
        says(&finding, Level::Wrong, "this machine has 64.0 GiB", "--memory 16384MiB");
        let finding = after(memory, |facts| facts.limits.container = Some(256 << 20));
        says(&finding, Level::Wrong, "this container may have 256.0 MiB", "--memory 128MiB");
        let finding = after(memory, |facts| facts.limits.available = Some(256 << 20));
        says(&finding, Level::Better, "256.0 MiB are to be had now", "--memory 128MiB");
        let finding = after(memory, |facts| (facts.limits.available, facts.limits.huge_free) = (Some(0), 512 << 20));
        says(&finding, Level::Ok, "512.0 MiB of the 512.0 MiB", "");
        let finding = after(memory, |facts| facts.limits.total = None);
        says(&finding, Level::Note, "cannot be told", "");
    }

    #[test]
    fn a_limit_on_locked_memory() {
        let low = |facts: &mut Facts| facts.limits.locked = Some((8 << 20, u64::MAX));
        says(&after(locked, low), Level::Wrong, "8.0 MiB, the pool has 256.0 MiB", "ulimit -l unlimited");
        let finding = after(locked, |facts| {
            low(facts);
            facts.rdma.devices.clear();
        });
        says(&finding, Level::Better, "paged out", "ulimit -l unlimited");
        assert!(!finding.mend.unwrap().contains("root"));
        let finding = after(locked, |facts| facts.limits.locked = Some((8 << 20, 8 << 20)));
        says(&finding, Level::Wrong, "RLIMIT_MEMLOCK", "by root");
        let finding = after(locked, |facts| (facts.limits.locked, facts.limits.privileged) = (Some((0, 0)), true));
        says(&finding, Level::Ok, "CAP_IPC_LOCK", "");
        says(&after(locked, |facts| facts.limits.locked = Some((256 << 20, 0))), Level::Ok, "up to 256.0 MiB", "");
        says(&after(locked, |facts| facts.limits.locked = None), Level::Note, "cannot be told", "");
    }

    #[test]
    fn no_huge_pages() {
        let finding = after(huge_pages, |facts| facts.limits.transparent = Some("never".into()));
        says(&finding, Level::Better, "turned off", "vm.nr_hugepages=128");
        let finding = after(huge_pages, |facts| facts.limits.transparent = None);
        says(&finding, Level::Better, "small pages", "sysctl -w vm.nr_hugepages=128");
        let finding = after(huge_pages, |facts| {
            (facts.limits.transparent, facts.limits.huge_free) = (Some("never".into()), 256 << 20);
        });
        says(&finding, Level::Ok, "set aside", "");
    }

    #[test]
    fn io_uring_refused() {
        let refusal = Refusal { reason: "seccomp".into(), remedy: "allow it".into() };
        let finding = after(uring, |facts| facts.probes.uring = Err(refusal));
        says(&finding, Level::Better, "by threads: seccomp", "allow it");
    }

    #[test]
    fn small_udp_buffers() {
        let socket = |change: fn(&mut forebay_client::transport::h3::endpoint::SocketProbe)| {
            after(udp_buffers, |facts| facts.probes.socket.iter_mut().for_each(change))
        };
        let finding = socket(|socket| socket.receive_buffer = 212_992);
        says(&finding, Level::Better, "208.0 KiB to receive", "sysctl -w net.core.rmem_max=4194304");
        assert!(!finding.mend.unwrap().contains("wmem"), "only what is too low");
        let finding = socket(|socket| (socket.receive_buffer, socket.send_buffer) = (1, 2));
        says(&finding, Level::Better, "2 B to send", "net.core.rmem_max=4194304 net.core.wmem_max=4194304");
        let none = |facts: &mut Facts| facts.probes.socket = Err("not permitted".into());
        says(&after(udp_buffers, none), Level::Wrong, "no UDP socket: not permitted", "network");
        let mut facts = healthy();
        none(&mut facts);
        assert_eq!(udp_offload(&facts), None, "told once");
    }

    #[test]
    fn no_offload() {
        for (cuts, joins, lacks) in
            [(false, true, "sending"), (true, false, "receiving"), (false, false, "sending (GSO) and")]
        {
            let finding = after(udp_offload, |facts| {
                facts.probes.socket.iter_mut().for_each(|socket| (socket.cuts, socket.joins) = (cuts, joins));
            });
            says(&finding, Level::Better, &format!("none for {lacks}"), "kernel");
        }
    }

    #[test]
    fn small_packets() {
        let finding = after(packets, |facts| facts.net.interfaces[0].mtu = Some(1500));
        says(&finding, Level::Note, "eth0 1500", "ip link set dev eth0 mtu 9000");
        let finding = after(packets, |facts| facts.net.interfaces[0].up = false);
        says(&finding, Level::Note, "no network is up", "");
    }
}

//! Memory, and how much of it this process may have and lock.

use std::fs;
use std::path::Path;

use super::{line, number};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that the machine has.
    pub total: Option<u64>,
    /// Bytes that could be had without paging.
    pub available: Option<u64>,
    /// Bytes that the control groups allow this process and those it shares them with.
    pub container: Option<u64>,
    /// Bytes that may be locked: now, and the most that this process could allow itself. `u64::MAX` is without limit.
    pub locked: Option<(u64, u64)>,
    /// The limit on locked memory does not hold for this process.
    pub privileged: bool,
    /// Bytes of huge pages of 2 MiB that are set aside and free.
    pub huge_free: u64,
    /// When the kernel joins pages into huge ones: `always`, `madvise` or `never`.
    pub transparent: Option<String>,
}

/// The capability to lock memory without a limit.
const IPC_LOCK: u32 = 14;

impl Limits {
    pub fn gather(root: &Path) -> Limits {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let huge = root.join("sys/kernel/mm/hugepages/hugepages-2048kB");
        let pages = |name| number::<u64>(huge.join(name)).unwrap_or(0);
        Limits {
            total: kib(&meminfo, "MemTotal:"),
            available: kib(&meminfo, "MemAvailable:"),
            container: container(root),
            locked: fs::read_to_string(root.join("proc/self/limits")).ok().and_then(|text| locked(&text)),
            privileged: privileged(root),
            huge_free: pages("free_hugepages").saturating_sub(pages("resv_hugepages")).saturating_mul(2 << 20),
            transparent: line(root.join("sys/kernel/mm/transparent_hugepage/enabled")).and_then(|text| chosen(&text)),
        }
    }
}

/// A line of `/proc/meminfo`, in bytes.
fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let figure = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    figure.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The least that the process's control group and those around it allow; of the older kind, what the container's own does.
fn container(root: &Path) -> Option<u64> {
    /// What the older kind says when there is no limit, or more.
    const NONE: u64 = 1 << 62;
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    let top = root.join("sys/fs/cgroup");
    // A path that leads out of the tree is that of a process seen from inside a container.
    let own = if own.split('/').any(|step| step == "..") { top.clone() } else { top.join(own) };
    own.ancestors()
        .take_while(|folder| folder.starts_with(&top))
        .filter_map(|folder| number(folder.join("memory.max")))
        .chain(number(top.join("memory/memory.limit_in_bytes")).filter(|limit| *limit < NONE))
        .min()
}

/// The soft and the hard limit on locked memory, of `/proc/self/limits`.
fn locked(limits: &str) -> Option<(u64, u64)> {
    let rest = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let mut figures = rest.split_whitespace().map(|figure| match figure {
        "unlimited" => Some(u64::MAX),
        figure => figure.parse().ok(),
    });
    Some((figures.next()??, figures.next()??))
}

/// Whether the process has the capability in the machine's own user namespace: in another the kernel does not honour it.
fn privileged(root: &Path) -> bool {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let users = line(root.join("proc/self/uid_map")).unwrap_or_default();
    capabilities >> IPC_LOCK & 1 == 1 && users.split_whitespace().eq(["0", "0", "4294967295"])
}

/// `always [madvise] never`: the one in brackets.
fn chosen(text: &str) -> Option<String> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']')).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Root;
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let root = Root::new("limits");
        root.file("proc/meminfo", "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:   4096 kB\n")
            .file(
                "proc/self/limits",
                "Limit   Soft Limit  Hard Limit  Units\nMax locked memory   8388608   unlimited  bytes\n",
            )
            .file("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n")
            .file("proc/self/uid_map", "         0          0 4294967295\n")
            .file("proc/self/cgroup", "0::/a.slice/b.scope\n")
            .file("sys/fs/cgroup/a.slice/memory.max", "5000\n")
            .file("sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n")
            .file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "10\n")
            .file("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "3\n")
            .file("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
        let expected = Limits {
            total: Some(16 << 20),
            available: Some(4 << 20),
            container: Some(5000),
            locked: Some((8 << 20, u64::MAX)),
            privileged: true,
            huge_free: 7 * (2 << 20),
            transparent: Some("never".into()),
        };
        assert_eq!(Limits::gather(&root.0), expected);
        root.file("proc/self/uid_map", "0 1000 1\n");
        assert!(!Limits::gather(&root.0).privileged, "root in a namespace of its own");
        root.file("proc/self/uid_map", "0 0 4294967295\n").file("proc/self/status", "CapEff:\t00000000a80425fb\n");
        assert!(!Limits::gather(&root.0).privileged, "what Docker leaves a container's root");
        root.file("proc/self/cgroup", "0::/../other\n").file("sys/fs/cgroup/memory.max", "77\n");
        assert_eq!(Limits::gather(&root.0).container, Some(77), "inside a container");
        std::fs::remove_file(root.0.join("sys/fs/cgroup/memory.max")).unwrap();
        root.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "88\n");
        assert_eq!(Limits::gather(&root.0).container, Some(88), "of the older kind");
        root.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(Limits::gather(&root.0).container, None);
    }

    #[test]
    fn what_makes_no_sense_is_not_known() {
        assert_eq!(locked("Max locked memory  x  y  bytes\n"), None);
        assert_eq!(locked("Max locked memory  1\n"), None);
        assert_eq!(kib("MemTotal: 99999999999999999999 kB", "MemTotal:"), None);
        assert_eq!(kib("MemTotal: 18446744073709551615 kB", "MemTotal:"), None);
        assert_eq!(chosen("always never"), None);
    }
}

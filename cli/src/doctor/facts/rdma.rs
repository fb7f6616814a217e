//! What there is for RDMA: devices, their ports and addresses, the files that programs reach them by, and libraries.

use std::fs::{self, OpenOptions};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use super::{line, names, number};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rdma {
    /// Where `libibverbs.so.1` lies.
    pub verbs: Option<PathBuf>,
    /// Where `librdmacm.so.1` lies.
    pub manager: Option<PathBuf>,
    /// Which plug-ins that library takes: those of this number and no others.
    pub takes: Option<u32>,
    /// Plug-ins, each of which drives one kind of device.
    pub providers: Vec<Provider>,
    /// The providers that the library is told to load.
    pub configured: Vec<String>,
    pub devices: Vec<Device>,
    /// The file by which connections are made.
    pub manager_node: Node,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    pub name: String,
    pub version: u32,
}

/// A file that stands for a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The kernel has it: whether it is in this root too is another matter.
    pub known: bool,
    /// Below `/dev/infiniband`; empty when the kernel has none.
    pub name: String,
    /// Why it cannot be opened, if it cannot.
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    /// The provider that drives it; not known for every kind.
    pub provider: Option<&'static str>,
    pub node: Node,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub number: String,
    /// `ACTIVE`, `INIT`, `DOWN`…
    pub state: String,
    /// Of the wire: `LinkUp`, `Polling`, `Disabled`…
    pub wire: String,
    /// As the kernel says it: `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// RoCE, as opposed to InfiniBand.
    pub ethernet: bool,
    /// The network interface that it shares the wire with.
    pub interface: Option<String>,
    pub gids: Vec<Gid>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    pub address: Ipv6Addr,
    /// `RoCE v2`, `IB/RoCE v1`; not known for every kernel.
    pub kind: Option<String>,
}

/// Drivers of the kernel, and the providers for their devices.
const PROVIDERS: &[(&str, &str)] = &[
    ("mlx5_core", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("bnxt_en", "bnxt_re"),
    ("cxgb4", "cxgb4"),
    ("efa", "efa"),
    ("erdma", "erdma"),
    ("hfi1", "hfi1verbs"),
    ("hns3", "hns"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("mana", "mana"),
    ("ib_mthca", "mthca"),
    ("be2net", "ocrdma"),
    ("qede", "qedr"),
    ("ib_qib", "ipathverbs"),
    ("vmw_pvrdma", "vmw_pvrdma"),
];

impl Rdma {
    pub fn gather(root: &Path, folders: &[PathBuf]) -> Rdma {
        let folders = libraries(root, folders);
        let find = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|path| path.exists());
        let verbs = find("libibverbs.so.1");
        let devices = root.join("sys/class/infiniband");
        Rdma {
            manager: find("librdmacm.so.1"),
            takes: verbs.as_ref().and_then(|path| takes(&fs::read(path).ok()?)),
            // Only beside the library: it looks nowhere else for them.
            providers: verbs.as_deref().and_then(Path::parent).map(providers).unwrap_or_default(),
            verbs,
            configured: configured(&root.join("etc/libibverbs.d")),
            devices: names(&devices).into_iter().map(|name| device(root, name)).collect(),
            manager_node: node(root, root.join("sys/class/misc/rdma_cm").exists().then(|| "rdma_cm".to_owned())),
        }
    }
}

/// Where the system's loader looks, as far as that can be told without asking it.
fn libraries(root: &Path, first: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders = first.to_vec();
    let settings = root.join("etc/ld.so.conf.d");
    for name in names(&settings).iter().filter(|name| name.ends_with(".conf")) {
        let text = fs::read_to_string(settings.join(name)).unwrap_or_default();
        folders.extend(text.lines().filter_map(|line| Some(root.join(line.trim().strip_prefix('/')?))));
    }
    for folder in ["lib64", "usr/lib64", "lib", "usr/lib", "usr/local/lib"] {
        let folder = root.join(folder);
        folders.extend(names(&folder).iter().filter(|name| name.contains("-linux-gnu")).map(|name| folder.join(name)));
        folders.push(folder);
    }
    folders
}

/// The library names the version of the interface it has for plug-ins, which is part of their names too.
fn takes(library: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"IBVERBS_PRIVATE_";
    let at = library.windows(NAME.len()).position(|window| window == NAME)? + NAME.len();
    let digits: String = library[at..].iter().take(9).map_while(|&b| b.is_ascii_digit().then_some(b as char)).collect();
    digits.parse().ok()
}

fn providers(folder: &Path) -> Vec<Provider> {
    let provider = |file: String| {
        let (name, version) = file.strip_prefix("lib")?.strip_suffix(".so")?.rsplit_once("-rdmav")?;
        Some(Provider { name: name.to_owned(), version: version.parse().ok()? })
    };
    names(folder.join("libibverbs")).into_iter().filter_map(provider).collect()
}

fn configured(folder: &Path) -> Vec<String> {
    let text = |name: &String| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let files = names(folder);
    let lines = files.iter().map(text).collect::<Vec<_>>().join("\n");
    lines.lines().filter_map(|line| Some(line.trim().strip_prefix("driver ")?.trim().to_owned())).collect()
}

fn device(root: &Path, name: String) -> Device {
    let folder = root.join("sys/class/infiniband").join(&name);
    let driver = fs::read_link(folder.join("device/driver")).ok();
    let driver = driver.as_deref().and_then(|path| path.file_name()?.to_str());
    let provider = match driver {
        Some(driver) => PROVIDERS.iter().find(|(kernel, _)| *kernel == driver).map(|(_, provider)| *provider),
        // What is not of hardware is one of the two that the kernel emulates; one says that it is iWARP.
        None if line(folder.join("node_type")).is_some_and(|kind| kind.contains("RNIC")) => Some("siw"),
        None => Some("rxe"),
    };
    let verbs = root.join("sys/class/infiniband_verbs");
    let own = |node: &String| line(verbs.join(node).join("ibdev")).as_ref() == Some(&name);
    let node = node(root, names(&verbs).into_iter().find(own));
    let ports = names(folder.join("ports")).into_iter().map(|number| port(&folder, number)).collect();
    Device { name, provider, node, ports }
}

/// Opens it as a program would. That by itself claims nothing of the device.
fn node(root: &Path, name: Option<String>) -> Node {
    let Some(name) = name else { return Node::default() };
    let opened = OpenOptions::new().read(true).write(true).open(root.join("dev/infiniband").join(&name));
    Node { known: true, name, error: opened.err().map(|error| error.to_string()) }
}

fn port(device: &Path, number: String) -> Port {
    let folder = device.join("ports").join(&number);
    // `4: ACTIVE`
    let word = |name| {
        let text: String = line(folder.join(name)).unwrap_or_default();
        text.split_once(": ").map_or(text.clone(), |(_, word)| word.to_owned())
    };
    let entries = folder.join("gids");
    let mut gids: Vec<(u32, Gid)> = names(&entries).iter().filter_map(|index| gid(&folder, index)).collect();
    gids.sort_by_key(|(index, _)| *index);
    let shared = |index: &String| line(folder.join("gid_attrs/ndevs").join(index));
    let interface = names(&entries).iter().find_map(shared);
    // Emulated devices name their interface themselves; others are its neighbours on the bus.
    let interface = interface.or_else(|| line(device.join("parent")));
    let interface = interface.or_else(|| names(device.join("device/net")).into_iter().next());
    Port {
        state: word("state"),
        wire: word("phys_state"),
        rate: line(folder.join("rate")).unwrap_or_default(),
        ethernet: line(folder.join("link_layer")).as_deref() == Some("Ethernet"),
        interface,
        gids: gids.into_iter().map(|(_, gid)| gid).collect(),
        number,
    }
}

/// An entry of a port's table of addresses, most of which are empty.
fn gid(port: &Path, index: &str) -> Option<(u32, Gid)> {
    let address: Ipv6Addr = number(port.join("gids").join(index))?;
    if address.is_unspecified() {
        return None;
    }
    let kind = line(port.join("gid_attrs/types").join(index));
    Some((index.parse().ok()?, Gid { address, kind }))
}

#[cfg(test)]
pub mod tests {
    use super::super::tests::Root;
    use super::*;

    pub fn healthy() -> Rdma {
        let node = |name: &str| Node { known: true, name: name.into(), error: None };
        let gid = |address: &str| Gid { address: address.parse().unwrap(), kind: Some("RoCE v2".into()) };
        let port = Port {
            number: "1".into(),
            state: "ACTIVE".into(),
            wire: "LinkUp".into(),
            rate: "100 Gb/sec (4X EDR)".into(),
            ethernet: true,
            interface: Some("eth0".into()),
            gids: vec![gid("fe80::1"), gid("::ffff:10.7.0.1")],
        };
        Rdma {
            verbs: Some("/usr/lib/libibverbs.so.1".into()),
            manager: Some("/usr/lib/librdmacm.so.1".into()),
            takes: Some(34),
            providers: vec![Provider { name: "mlx5".into(), version: 34 }],
            configured: vec!["mlx5".into()],
            devices: vec![Device {
                name: "mlx5_0".into(),
                provider: Some("mlx5"),
                node: node("uverbs0"),
                ports: vec![port],
            }],
            manager_node: node("rdma_cm"),
        }
    }

    /// The same, as the kernel and Debian's packages lay it out.
    fn machine(name: &str) -> Root {
        let root = Root::new(name);
        let device = "sys/class/infiniband/mlx5_0";
        for (file, text) in [("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", "100 Gb/sec (4X EDR)")] {
            root.file(&format!("{device}/ports/1/{file}"), text);
        }
        for (index, address) in [(0, "fe80::1"), (1, "::ffff:10.7.0.1"), (2, "::"), (10, "::")] {
            root.file(&format!("{device}/ports/1/gids/{index}"), &format!("{address}\n"));
        }
        for index in [0, 1] {
            root.file(&format!("{device}/ports/1/gid_attrs/types/{index}"), "RoCE v2\n")
                .file(&format!("{device}/ports/1/gid_attrs/ndevs/{index}"), "eth0\n");
        }
        root.file(&format!("{device}/ports/1/link_layer"), "Ethernet\n")
            .link(&format!("{device}/device/driver"), "../../../bus/pci/drivers/mlx5_core")
            .file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
            .file("sys/class/infiniband_verbs/abi_version", "6\n")
            .file("sys/class/misc/rdma_cm/dev", "10:1\n")
            .file("dev/infiniband/uverbs0", "")
            .file("dev/infiniband/rdma_cm", "")
            .file("etc/libibverbs.d/mlx5.driver", "# a comment\ndriver mlx5\n")
            .file("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "\0IBVERBS_1.1\0IBVERBS_PRIVATE_34\0")
            .file("usr/lib/x86_64-linux-gnu/librdmacm.so.1", "")
            .file("usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so", "")
            .file("usr/lib/x86_64-linux-gnu/libibverbs/README", "");
        root
    }

    #[test]
    fn a_machine_is_found_as_it_is() {
        let root = machine("rdma");
        let mut expected = healthy();
        let folder = root.0.join("usr/lib/x86_64-linux-gnu");
        expected.verbs = Some(folder.join("libibverbs.so.1"));
        expected.manager = Some(folder.join("librdmacm.so.1"));
        assert_eq!(Rdma::gather(&root.0, &[]), expected);
    }

    #[test]
    fn libraries_are_found_where_the_loader_is_told_to_look() {
        let root = machine("rdma-libraries");
        root.file("opt/ofed/lib/libibverbs.so.1", "IBVERBS_PRIVATE_57")
            .file("etc/ld.so.conf.d/ofed.conf", "/opt/ofed/lib\n");
        let found = Rdma::gather(&root.0, &[]);
        assert_eq!((found.takes, found.providers.len()), (Some(57), 0), "and only the plug-ins beside it");
        root.file("own/libibverbs.so.1", "");
        let found = Rdma::gather(&root.0, &[root.0.join("own")]);
        assert_eq!((found.verbs, found.takes), (Some(root.0.join("own/libibverbs.so.1")), None));
    }

    #[test]
    fn files_that_are_missing_or_closed_say_so() {
        let root = machine("rdma-nodes");
        fs::remove_file(root.0.join("dev/infiniband/uverbs0")).unwrap();
        fs::remove_file(root.0.join("dev/infiniband/rdma_cm")).unwrap();
        // What even root cannot open for writing.
        fs::create_dir(root.0.join("dev/infiniband/rdma_cm")).unwrap();
        let found = Rdma::gather(&root.0, &[]);
        let node = &found.devices[0].node;
        assert!(node.known && node.error.as_ref().is_some_and(|error| error.contains("No such file")), "{node:?}");
        let node = &found.manager_node;
        assert!(node.known && node.error.as_ref().is_some_and(|error| error.contains("directory")), "{node:?}");
        fs::remove_dir_all(root.0.join("sys/class/infiniband_verbs")).unwrap();
        assert_eq!(Rdma::gather(&root.0, &[]).devices[0].node, Node::default());
    }

    #[test]
    fn emulated_devices_are_told_apart() {
        let root = machine("rdma-emulated");
        fs::remove_file(root.0.join("sys/class/infiniband/mlx5_0/device/driver")).unwrap();
        root.file("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
        assert_eq!(Rdma::gather(&root.0, &[]).devices[0].provider, Some("rxe"));
        root.file("sys/class/infiniband/mlx5_0/node_type", "4: RNIC\n");
        assert_eq!(Rdma::gather(&root.0, &[]).devices[0].provider, Some("siw"));
        root.link("sys/class/infiniband/mlx5_0/device/driver", "../unheard_of");
        assert_eq!(Rdma::gather(&root.0, &[]).devices[0].provider, None);
    }
}

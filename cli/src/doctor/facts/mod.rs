//! What the machine says of itself. Files are looked for below a root, so that tests can make a machine up; what only a system
//! call can tell is found out apart ([`Probes`]). Nothing is judged here: what cannot be read is not known.

mod limits;
mod net;
pub mod rdma;
#[cfg_attr(not(all(feature = "rdma", target_os = "linux")), path = "no_verbs.rs")]
mod verbs;

use std::fs;
use std::path::{Path, PathBuf};

use forebay_client::transport::h3::endpoint::{SocketProbe, TransportConfig};
use forebay_server::store::{LocalStores, Refusal};

pub use limits::Limits;
pub use net::Net;
pub use rdma::{Device, Gid, Port, Rdma};

use super::server::Server;
use super::speed::Speed;

/// Everything the checks look at.
#[derive(Debug)]
pub struct Facts {
    /// Bytes that `--memory` says.
    pub memory: u64,
    pub limits: Limits,
    pub net: Net,
    pub rdma: Rdma,
    pub probes: Probes,
    /// The server that was named, and what came of connecting to it.
    pub server: Option<Server>,
    /// How fast each fabric was.
    pub speeds: Vec<Speed>,
}

/// What was found out by trying.
#[derive(Clone, Debug)]
pub struct Probes {
    /// Whether this process gets io_uring.
    pub uring: Result<(), Refusal>,
    /// What a UDP socket gets, or why there is none.
    pub socket: Result<SocketProbe, String>,
    /// What the RDMA devices say when they are opened, or why they cannot be. `None` when that was not tried, or is not built in.
    pub opened: Option<Result<Vec<Opened>, String>>,
}

/// An RDMA device that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    pub name: String,
    pub ports: Vec<OpenedPort>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedPort {
    pub number: String,
    /// Bytes of a packet's payload now, if the device says so.
    pub payload: Option<u32>,
}

impl Probes {
    pub fn take() -> Probes {
        let socket = SocketProbe::take(&TransportConfig::client()).map_err(|error| error.to_string());
        Probes { uring: LocalStores::probe_uring(), socket, opened: None }
    }
}

impl Facts {
    /// Reads what is below `root`; libraries are looked for in `folders` too, before the system's own.
    pub fn gather(root: &Path, folders: &[PathBuf], memory: u64, probes: Probes) -> Facts {
        Facts {
            memory,
            limits: Limits::gather(root),
            net: Net::gather(root),
            rdma: Rdma::gather(root, folders),
            probes,
            server: None,
            speeds: Vec::new(),
        }
    }

    /// Opens the RDMA devices, if there are any: loading libraries costs machines without them nothing.
    pub fn open_devices(&mut self) {
        if !self.rdma.devices.is_empty() {
            self.probes.opened = verbs::open();
        }
    }

    /// Bytes of the pool.
    pub fn pool(&self) -> u64 {
        self.memory / 2
    }
}

/// A small file's text without the line's end, if it can be read and has any.
fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn number<T: std::str::FromStr>(path: impl AsRef<Path>) -> Option<T> {
    line(path)?.parse().ok()
}

/// The names in a folder, in order; none when there is no such folder.
fn names(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A made-up machine: a folder that goes away.
    pub struct Root(pub PathBuf);

    impl Root {
        pub fn new(name: &str) -> Root {
            let path = std::env::temp_dir().join(format!("forebay-doctor-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Root(path)
        }

        pub fn file(&self, path: &str, text: &str) -> &Root {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        pub fn link(&self, path: &str, target: &str) -> &Root {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
            self
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A machine on which nothing is wrong.
    pub fn healthy() -> Facts {
        let socket =
            SocketProbe { wanted: 4 << 20, receive_buffer: 4 << 20, send_buffer: 4 << 20, cuts: true, joins: true };
        let port = OpenedPort { number: "1".into(), payload: Some(4096) };
        let opened = Opened { name: "mlx5_0".into(), ports: vec![port] };
        Facts {
            memory: 512 << 20,
            limits: Limits {
                total: Some(64 << 30),
                available: Some(32 << 30),
                container: None,
                locked: Some((u64::MAX, u64::MAX)),
                privileged: false,
                huge_free: 0,
                transparent: Some("madvise".into()),
            },
            net: net::tests::healthy(),
            rdma: rdma::tests::healthy(),
            probes: Probes { uring: Ok(()), socket: Ok(socket), opened: Some(Ok(vec![opened])) },
            server: Some(crate::doctor::server::tests::healthy()),
            speeds: vec![crate::doctor::speed::tests::healthy()],
        }
    }

    #[test]
    fn a_machine_that_says_nothing_is_a_machine_of_which_nothing_is_known() {
        let root = Root::new("nothing");
        let probes = healthy().probes;
        let facts = Facts::gather(&root.0, &[], 1 << 20, probes);
        assert_eq!(facts.pool(), 512 << 10);
        assert_eq!((facts.limits.available, facts.limits.locked, &facts.limits.transparent), (None, None, &None));
        assert!(facts.net.interfaces.is_empty() && facts.rdma.devices.is_empty() && facts.rdma.verbs.is_none());
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let facts = Facts::gather(Path::new("/"), &[], 1 << 20, Probes::take());
        if cfg!(target_os = "linux") {
            assert!(facts.limits.total > facts.limits.available && facts.limits.locked.is_some(), "{facts:?}");
            assert!(facts.net.interfaces.iter().any(|interface| interface.name == "lo"), "{facts:?}");
        }
        assert!(facts.probes.socket.is_ok(), "{facts:?}");
    }
}

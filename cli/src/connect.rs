//! From what a user names to a client.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_client::blocking::{Client, Dataset};
use forebay_client::{ClientConfig, Fabric, ServerUrl, Trust};

use crate::args::{DiskArgs, FabricArg, LocalArgs, TrustArgs};
use crate::failure::Failure;
use crate::local;

impl TrustArgs {
    fn is_given(&self) -> bool {
        self.insecure || self.trust.is_some() || self.ca.is_some()
    }

    pub fn trust(&self) -> Result<Trust, Failure> {
        // A flag beats the environment: clap reports a conflict only between flags.
        if self.insecure {
            eprintln!(
                "warning: --insecure: the server can be anyone, and anyone on the path can read and change the data"
            );
            return Ok(Trust::Insecure);
        }
        match (&self.trust, &self.ca) {
            (Some(fingerprint), _) => Ok(Trust::Pinned(fingerprint.parse().map_err(Failure::usage)?)),
            (None, Some(file)) => Ok(Trust::CaFile(file.clone())),
            (None, None) => Ok(Trust::System),
        }
    }
}

/// What a user names a dataset by.
#[derive(Debug)]
pub enum Place {
    /// On a server.
    Server(ServerUrl),
    /// Shards on this machine (files, folders, patterns or brace lists) or in a store elsewhere (URLs of them).
    Here(String),
}

impl Place {
    /// `https://HOST`, with at most a dataset's name behind it, is a server; other URLs name shards, as all else does.
    pub fn parse(text: &str) -> Result<Place, Failure> {
        match text.split_once("://") {
            Some((scheme, rest)) if !names_shards(scheme, rest) => {
                Ok(Place::Server(text.parse().map_err(Failure::usage)?))
            }
            _ => Ok(Place::Here(text.to_owned())),
        }
    }
}

/// Whether a URL is of shards. On web servers: what lies in a folder, is one, or cannot be a dataset's name. Forebay's own
/// servers speak TLS alone.
fn names_shards(scheme: &str, rest: &str) -> bool {
    let path = rest.split_once('/').map_or("", |(_, path)| path);
    let deep = path.trim_end_matches('/').contains('/');
    let file = [".tar", ".fbi"].iter().any(|end| path.ends_with(end));
    match scheme {
        "http" => !path.is_empty(),
        "https" => deep || file || path.contains(['*', '?', '[', '{']),
        _ => ["s3", "s3a", "az", "azure", "abfs", "abfss", "adl", "gs"].contains(&scheme),
    }
}

/// Who is on the other end, and over what.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    pub trust: &'a TrustArgs,
    pub fabric: FabricArg,
}

/// A client of the server that `url` names.
pub fn client(url: &ServerUrl, way: Way<'_>, memory: Option<u64>) -> Result<Client, Failure> {
    let fabric = match way.fabric {
        FabricArg::Auto => Fabric::Auto,
        FabricArg::Rdma => Fabric::Rdma,
        FabricArg::H3 => Fabric::H3,
        FabricArg::Local => {
            return Err(Failure::usage(format!(
                "--fabric local is for shards that are read from here: {url} is a server"
            )));
        }
    };
    let mut config = ClientConfig { trust: way.trust.trust()?, fabric, ..ClientConfig::default() };
    if let Some(memory) = memory {
        config.memory = memory;
    }
    let client = Client::connect(url, config)?;
    open().push(client.clone());
    Ok(client)
}

fn open() -> MutexGuard<'static, Vec<Client>> {
    static OPEN: Mutex<Vec<Client>> = Mutex::new(Vec::new());
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes leave of the servers, however the command ended: the program's last act.
pub fn close() {
    open().drain(..).for_each(Client::close);
}

/// The dataset that `place` names: of a server, or of shards on this machine, which are indexed first if they are not.
/// `disk` says how the latter are read, if more than a look is taken.
pub fn dataset(
    place: &str,
    way: Way<'_>,
    (local, disk): (&LocalArgs, Option<&DiskArgs>),
    memory: Option<u64>,
) -> Result<Dataset, Failure> {
    let url = match Place::parse(place)? {
        Place::Server(url) => url,
        Place::Here(path) => {
            let name = match way.fabric {
                FabricArg::Auto | FabricArg::Local => None,
                FabricArg::Rdma => Some("rdma"),
                FabricArg::H3 => Some("h3"),
            };
            if let Some(name) = name {
                return Err(Failure::usage(format!(
                    "--fabric {name} is for servers: {path} names shards, which are read from here"
                )));
            }
            if path.starts_with("https://") && way.trust.is_given() {
                eprintln!(
                    "warning: --trust, --ca and --insecure are for Forebay servers: web servers with shards are trusted as the \
                     system does, or as $SSL_CERT_FILE says"
                );
            }
            return local::open(&path, local, disk, memory);
        }
    };
    if local.index.is_some() {
        return Err(Failure::usage("--index is for shards: a server has its own"));
    }
    let Some(name) = &url.dataset else {
        return Err(Failure::usage(format!(
            "{url} names no dataset: expected {url}/DATASET (`forebay ls {url}` lists them)"
        )));
    };
    Ok(client(&url, way, memory)?.dataset(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_shards_are_told_apart() {
        for server in ["https://host", "https://host:4433/", "https://host/imagenet", "https://host/imagenet/"] {
            assert!(matches!(Place::parse(server), Ok(Place::Server(_))), "{server}");
        }
        let shards = [
            "/data/*.tar",
            "https://host/a.tar",
            "https://host/data/index",
            "https://host/a.fbi",
            "http://host/*",
            "s3://b/x/",
        ];
        for shards in shards {
            assert!(matches!(Place::parse(shards), Ok(Place::Here(_))), "{shards}");
        }
        for neither in ["ftp://host/a", "http://host", "http://host/"] {
            assert!(Place::parse(neither).is_err(), "{neither}");
        }
    }
}

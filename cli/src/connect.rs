//! From what a user names to a client.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_client::blocking::{Client, Dataset};
use forebay_client::{ClientConfig, ServerUrl, Trust};

use crate::args::{DiskArgs, LocalArgs, TrustArgs};
use crate::failure::Failure;
use crate::local;

impl TrustArgs {
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
    /// Shards on this machine: files, folders, patterns or brace lists.
    Here(String),
}

impl Place {
    /// What begins as a URL is one; all else is a path.
    pub fn parse(text: &str) -> Result<Place, Failure> {
        match text.contains("://") {
            true => Ok(Place::Server(text.parse().map_err(Failure::usage)?)),
            false => Ok(Place::Here(text.to_owned())),
        }
    }
}

/// A client of the server that `url` names.
pub fn client(url: &ServerUrl, trust: &TrustArgs, memory: Option<u64>) -> Result<Client, Failure> {
    let mut config = ClientConfig { trust: trust.trust()?, ..ClientConfig::default() };
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
    trust: &TrustArgs,
    (local, disk): (&LocalArgs, Option<&DiskArgs>),
    memory: Option<u64>,
) -> Result<Dataset, Failure> {
    let url = match Place::parse(place)? {
        Place::Server(url) => url,
        Place::Here(path) => return local::open(&path, local, disk, memory),
    };
    if local.index.is_some() {
        return Err(Failure::usage("--index is for shards on this machine: a server has its own"));
    }
    let Some(name) = &url.dataset else {
        return Err(Failure::usage(format!(
            "{url} names no dataset: expected {url}/DATASET (`forebay ls {url}` lists them)"
        )));
    };
    Ok(client(&url, trust, memory)?.dataset(name)?)
}

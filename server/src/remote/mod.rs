//! Shards that are objects elsewhere: on a web server, in S3, Azure Blob Storage or Google Cloud Storage.
//!
//! | module | holds |
//! | --- | --- |
//! | `connect` | from a URL to a client of its store, with the credentials that its users expect |
//! | `credentials` | the AWS profile files |
//! | `list` | which objects a URL names |
//! | `fetch` | bytes of one object: retried, checked, with a deadline of progress |
//! | `reader` | the same for threads, front to back |
//! | `index` | index files that are objects, in memory |
//!
//! What can be listed: in `s3://`, `az://` (`azure://`) and `gs://`, whatever a prefix or pattern names. A web server
//! lists a folder only if it makes an index page (nginx `autoindex`, Apache `mod_autoindex`, Caddy `file_server browse`);
//! without one, name the shards by brace lists, by an index, or by a text file that lists them, one a line.
//!
//! All of it runs on a runtime of its own: connections outlive whoever first needed them. Nothing is written to disk.

mod connect;
mod credentials;
mod fetch;
mod index;
mod list;
mod reader;

use std::future::Future;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::runtime::{Builder, Runtime};

#[cfg(test)]
pub(crate) use self::connect::Object;
pub(crate) use self::connect::locate;
pub(crate) use self::fetch::{Fetching, Target};
pub(crate) use self::index::index;
pub(crate) use self::list::find;
pub(crate) use self::reader::Reader;
use crate::catalog::Identity;

/// How long no progress is borne, in all attempts together, before a read fails: the default of
/// [`RemoteConfig::patience`](crate::store::RemoteConfig).
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(30);
/// Objects that are asked for at the same time when a dataset is opened.
const ASKED_AT_ONCE: usize = 32;
/// Threads that decrypt and copy. More than a few only move the bottleneck to the network.
const THREADS: usize = 4;

/// Why bytes of an object cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    #[error("{url}: {detail}")]
    Url { url: String, detail: String },
    /// It is not the object that was indexed, or is gone.
    #[error("{url} changed: {detail}")]
    Changed { url: String, detail: String },
    #[error("{url}: its server ignores Range and answers with the whole object: samples cannot be read from there")]
    NoRanges { url: String },
    #[error("{url}: {detail} (attempts: {attempts}, in {:.1} s)", elapsed.as_secs_f64())]
    Failed { url: String, attempts: u32, elapsed: Duration, detail: String, missing: bool },
}

impl From<RemoteError> for io::Error {
    fn from(error: RemoteError) -> io::Error {
        let kind = match &error {
            RemoteError::Failed { missing: true, .. } => io::ErrorKind::NotFound,
            RemoteError::Url { .. } => io::ErrorKind::InvalidInput,
            RemoteError::NoRanges { .. } => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Whether this error says that an object is another by now.
pub(crate) fn is_changed(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<RemoteError>());
    matches!(inner, Some(RemoteError::Changed { .. }))
}

/// The runtime that all requests run on: one for the process, because connections are shared by whoever reads.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(threads).thread_name("remote").enable_all();
        builder.build().expect("a process that cannot start threads cannot go on")
    })
}

/// Runs it there, and waits. Not for threads of a runtime.
pub(crate) fn wait<T>(work: impl Future<Output = T>) -> T {
    runtime().block_on(work)
}

/// What tells these objects from what they were or will be, in order; or which of them cannot be had, and why. Blocks.
pub(crate) fn identities(urls: &[String]) -> Result<Vec<Identity>, (usize, io::Error)> {
    if urls.is_empty() {
        return Ok(Vec::new());
    }
    wait(async {
        let asked = stream::iter(urls.iter().enumerate()).map(|(at, url)| async move {
            let identity = async { fetch::identity(&locate(url)?).await }.await;
            identity.map_err(|error| (at, io::Error::from(error)))
        });
        asked.buffered(ASKED_AT_ONCE).try_collect().await
    })
}

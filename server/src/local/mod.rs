//! The local fabric: a link to shards on this machine, without a server between.
//!
//! What a server does for a fetch is done here on the client's own thread: look up, place, read. The reads go where
//! [`place`](forebay_transport::place) puts each entry in the client's lease, so nothing is copied between the storage and
//! what the consumer sees. Catalog, store, registry and documents are the server's own; the client's loader and its
//! checks are those of every fabric.
//!
//! An operation ends when its reads do: until then the lease may be written to, so neither cancelling nor a deadline can
//! end one that storage has begun. Those that it has not begun end at once when they are cancelled.

mod link;
mod operation;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_transport::dial::{Asking, Control, Dialer, Dialled, Dialling, Document};
use forebay_transport::exchange::memory::{self, Ask};
use forebay_transport::pool::{Slab, SlabConfig, SlabError};
use tokio::runtime::Handle;

pub use link::LocalLink;

use crate::serve::{Registry, Service, ServiceConfig};

/// The default of the operations in flight on one link. Storage reads a few at a time; the others wait in line, so that
/// it is never idle.
pub const DEFAULT_WINDOW: usize = 32;

/// Makes links to the datasets of a registry. Dropping it, or [`close`](LocalFabric::close), ends the links.
pub struct LocalFabric {
    peer: String,
    service: Arc<Service>,
    window: usize,
    closed: Arc<AtomicBool>,
}

impl LocalFabric {
    /// `peer` names the data in messages: a folder, a pattern.
    ///
    /// # Errors
    /// When there is not even a page of memory.
    pub fn new(peer: impl Into<String>, registry: Arc<Registry>) -> Result<LocalFabric, SlabError> {
        // Documents need no pool, and samples go to the client's.
        let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(4096) })?;
        let config = ServiceConfig { max_group_bytes: u64::MAX, ..ServiceConfig::default() };
        let service = Arc::new(Service::new(registry, slab, config));
        Ok(LocalFabric { peer: peer.into(), service, window: DEFAULT_WINDOW, closed: Arc::default() })
    }

    /// Bounds the operations in flight on one link. Each holds a lease of the client's, and some hundred bytes.
    pub fn with_window(mut self, window: usize) -> LocalFabric {
        self.window = window.max(1);
        self
    }

    /// A link, whose reads run on `runtime`.
    pub fn link(&self, runtime: Handle) -> LocalLink {
        LocalLink::new(self.service.registry().clone(), self.window, self.closed.clone(), runtime)
    }

    /// Ends all links made so far: what is in flight completes as it does, and nothing new is taken.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

impl Drop for LocalFabric {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for LocalFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalFabric").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Dialer for LocalFabric {
    fn fabric(&self) -> &str {
        "local"
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    fn dial(&self) -> Dialling {
        let (link, service) = (Box::new(self.link(Handle::current())), self.service.clone());
        Box::pin(async move { Ok(Dialled { link, control: Box::new(Documents(service)) }) })
    }
}

/// The documents that a server would answer with.
struct Documents(Arc<Service>);

impl Control for Documents {
    fn get(&self, path: &str) -> Asking {
        let (service, ask) = (self.0.clone(), Ask::get(path));
        Box::pin(async move {
            let answer = memory::exchange(service, ask).await;
            Ok(Document { status: answer.status(), body: answer.body().into() })
        })
    }
}

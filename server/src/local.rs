//! The local fabric: a link to shards on this machine, without a server between.
//!
//! What a server does for a fetch is done here on the client's own thread: look up, place, read. The reads go where
//! [`place`](forebay_transport::place) puts each entry in the client's lease, so nothing is copied between the storage and
//! what the consumer sees. Catalog, store, registry and documents are the server's own; the client's loader and its
//! checks are those of every fabric.
//!
//! An operation ends when its reads do: until then the lease may be written to, so neither cancelling nor a deadline can
//! end one that storage has begun. Those that it has not begun end at once when they are cancelled.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_transport::dial::{Asking, Control, Dialer, Dialled, Dialling, Document};
use forebay_transport::exchange::memory::{self, Ask};
use forebay_transport::link::{Completion, Entry, Failure, Fetch, Link, LinkError, LinkStats, Status, Tag};
use forebay_transport::place::Placer;
use forebay_transport::pool::{Lease, Slab, SlabConfig, SlabError};
use forebay_transport::wire::ALIGN;
use forebay_transport::wire::problem::Kind;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::catalog::{CatalogError, Extent};
use crate::serve::{Registry, Served, Service, ServiceConfig, State};
use crate::store::{Read, ReadDone, ReadError};

/// The default of the operations in flight on one link. Storage reads a few at a time; the others wait in line, so that
/// it is never idle.
pub const DEFAULT_WINDOW: usize = 32;
/// When to ask again for a dataset that is being indexed.
const RETRY: Duration = Duration::from_millis(200);

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
        LocalLink {
            registry: self.service.registry().clone(),
            window: self.window,
            closed: self.closed.clone(),
            runtime,
            reads: JoinSet::new(),
            cancels: HashMap::new(),
            bytes: Arc::default(),
            waker: None,
        }
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

/// One client's path to the storage.
pub struct LocalLink {
    registry: Arc<Registry>,
    window: usize,
    closed: Arc<AtomicBool>,
    runtime: Handle,
    reads: JoinSet<Completion>,
    /// By operation in flight: whether it is wanted no more.
    cancels: HashMap<Tag, Arc<AtomicBool>>,
    bytes: Arc<AtomicU64>,
    /// Of whoever polled while nothing was in flight.
    waker: Option<Waker>,
}

impl Link for LocalLink {
    fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        if self.cancels.len() >= self.window || !self.is_alive() {
            return Err(fetch);
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        self.cancels.insert(fetch.tag, cancelled.clone());
        let (registry, bytes) = (self.registry.clone(), self.bytes.clone());
        let reading = async move {
            let completion = read(&registry, fetch, &cancelled).await;
            if let Ok(entries) = &completion.result {
                let placed = entries.iter().filter(|entry| entry.status == Status::Ok).map(|entry| entry.len);
                bytes.fetch_add(placed.sum(), Ordering::Relaxed);
            }
            completion
        };
        self.reads.spawn_on(reading, &self.runtime);
        Ok(())
    }

    fn flush(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn cancel(&mut self, tag: Tag) {
        if let Some(cancelled) = self.cancels.get(&tag) {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        match self.reads.poll_join_next(cx) {
            Poll::Ready(Some(Ok(completion))) => {
                self.cancels.remove(&completion.tag);
                Poll::Ready(completion)
            }
            // Its lease went back to the slab, but nobody can say what became of the operation.
            Poll::Ready(Some(Err(error))) => std::panic::resume_unwind(error.into_panic()),
            Poll::Ready(None) => {
                self.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_alive(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    fn stats(&self) -> LinkStats {
        LinkStats { rtt: Duration::ZERO, in_flight: self.cancels.len(), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}

/// One operation, from its submission to its completion.
async fn read(registry: &Registry, fetch: Fetch, cancelled: &AtomicBool) -> Completion {
    let Fetch { tag, dataset, version, ordinals, fields, lease, entries, .. } = fetch;
    let capacity = lease.len() as u64;
    let prepared = served(registry, &dataset, version).and_then(|served| {
        if cancelled.load(Ordering::Relaxed) {
            return Err(LinkError::Cancelled);
        }
        let group = Group::place(&served, &ordinals, &fields, capacity, entries)?;
        Ok((served, group))
    });
    let (lease, result) = match prepared {
        Ok((served, group)) => group.read(registry, &served, lease).await,
        Err(error) => (lease, Err(error)),
    };
    Completion { tag, lease, ordinals, result }
}

/// The dataset, if it can be read now and is of this version.
fn served(registry: &Registry, name: &str, version: forebay_transport::Version) -> Result<Arc<Served>, LinkError> {
    let refused = |kind: Kind, detail: String| Err(LinkError::Refused { status: kind.status(), detail });
    match registry.get(name) {
        None => refused(Kind::NotFound, format!("there is no dataset {name}")),
        Some(State::Ready(served)) if served.is(version) => match served.stopped() {
            Some(why) => Err(LinkError::DatasetChanged(why.to_owned())),
            None => Ok(served),
        },
        Some(State::Ready(served)) => {
            let now = served.dataset.version();
            Err(LinkError::DatasetChanged(format!("dataset {name} is {now}, not {version}")))
        }
        Some(State::Indexing { .. }) => Err(LinkError::Busy { retry_after: Some(RETRY) }),
        Some(State::Damaged { error }) => refused(Kind::Damaged, error),
        Some(State::Changed { error, .. }) => Err(LinkError::DatasetChanged(error)),
    }
}

/// A group that is placed: what it will answer, and what to read for it.
struct Group {
    entries: Vec<Entry>,
    reads: Vec<Read>,
    /// For each read, whose bytes it brings.
    owners: Vec<u32>,
}

impl Group {
    fn place(
        served: &Served,
        ordinals: &[u64],
        fields: &[u16],
        capacity: u64,
        mut entries: Vec<Entry>,
    ) -> Result<Group, LinkError> {
        entries.clear();
        let count = ordinals.len() * fields.len();
        let mut group = Group { entries, reads: Vec::with_capacity(count), owners: Vec::with_capacity(count) };
        let mut placer = Placer::new(capacity, ALIGN);
        let mut extents = Vec::with_capacity(fields.len());
        let (mut lens, mut offsets) = (Vec::with_capacity(fields.len()), Vec::with_capacity(fields.len()));
        for &ordinal in ordinals {
            extents.clear();
            served.dataset.extents(ordinal, fields, &mut extents).map_err(refused)?;
            lens.clear();
            lens.extend(extents.iter().map(|extent| extent.map(|extent| extent.len)));
            offsets.clear();
            let placed = placer.sample(&lens, &mut offsets);
            for (at, extent) in extents.iter().enumerate() {
                group.add(*extent, placed.then(|| offsets[at]));
            }
        }
        Ok(group)
    }

    /// The next entry: the bytes at `extent`, at `offset` of the lease if they have a place there.
    fn add(&mut self, extent: Option<Extent>, offset: Option<u64>) {
        let entry = match (extent, offset) {
            (None, _) => Entry { status: Status::Absent, offset: 0, len: 0, crc: None },
            (Some(Extent { len, crc, .. }), None) => Entry { status: Status::NotPlaced, offset: 0, len, crc },
            (Some(Extent { shard, offset: from, len, crc }), Some(offset)) => {
                if len > 0 {
                    // What is placed lies within the lease: both fit a `usize`.
                    self.reads.push(Read { shard, offset: from, len: len as usize, at: offset as usize });
                    self.owners.push(self.entries.len() as u32);
                }
                Entry { status: Status::Ok, offset, len, crc }
            }
        };
        self.entries.push(entry);
    }

    /// Reads what is placed. Entries that storage cannot give fail, the others are good.
    async fn read(
        mut self,
        registry: &Registry,
        served: &Arc<Served>,
        lease: Lease,
    ) -> (Lease, Result<Vec<Entry>, LinkError>) {
        if self.reads.is_empty() {
            return (lease, Ok(self.entries));
        }
        let ReadDone { mut lease, reads, result } = served.store.read(std::mem::take(&mut self.reads), lease).await;
        match result {
            Ok(()) => return (lease, Ok(self.entries)),
            Err(error) => {
                if let Err(error) = goes_on(registry, served, error) {
                    return (lease, Err(error));
                }
            }
        }
        // Which of them is it? Each by itself. A failure leaves nothing in the lease that may be used, so that the good
        // ones are then read again, together.
        let mut good = Vec::with_capacity(reads.len());
        for (read, owner) in reads.into_iter().zip(std::mem::take(&mut self.owners)) {
            let alone = served.store.read(vec![read], lease).await;
            lease = alone.lease;
            match alone.result.map_err(|error| goes_on(registry, served, error)) {
                Ok(()) => good.push((read, owner)),
                Err(Ok(())) => self.fail(owner),
                Err(Err(error)) => return (lease, Err(error)),
            }
        }
        if good.is_empty() {
            return (lease, Ok(self.entries));
        }
        let again = served.store.read(good.iter().map(|(read, _)| *read).collect(), lease).await;
        match again.result.map_err(|error| goes_on(registry, served, error)) {
            Ok(()) => {}
            Err(Ok(())) => good.iter().for_each(|(_, owner)| self.fail(*owner)),
            Err(Err(error)) => return (again.lease, Err(error)),
        }
        (again.lease, Ok(self.entries))
    }

    fn fail(&mut self, entry: u32) {
        self.entries[entry as usize] = Entry { status: Status::Failed(Failure::Storage), offset: 0, len: 0, crc: None };
    }
}

/// What a failed read means: nothing for other reads, or the end of the operation.
fn goes_on(registry: &Registry, served: &Arc<Served>, error: ReadError) -> Result<(), LinkError> {
    let name = served.dataset.name();
    match error {
        ReadError::Io { .. } => {
            tracing::warn!(dataset = name, %error, "storage failed");
            Ok(())
        }
        ReadError::Changed { .. } => {
            let why = error.to_string();
            if registry.stop(served, &why) {
                tracing::error!(dataset = name, version = %served.dataset.version(), why, "reads this version no more");
            }
            Err(LinkError::DatasetChanged(why))
        }
        ReadError::Closed => Err(LinkError::Closed(error.to_string())),
        error => Err(LinkError::Refused { status: Kind::Internal.status(), detail: error.to_string() }),
    }
}

fn refused(error: CatalogError) -> LinkError {
    let kind = match error {
        CatalogError::NoSuchSample { .. } | CatalogError::NoSuchField { .. } => Kind::NotFound,
        _ => Kind::Damaged,
    };
    LinkError::Refused { status: kind.status(), detail: error.to_string() }
}

//! One operation of the local fabric: what a server and a link between them do for a fetch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_transport::link::{Completion, Entry, Failure, Fetch, LinkError, Status};
use forebay_transport::place::Placer;
use forebay_transport::pool::Lease;
use forebay_transport::wire::ALIGN;
use forebay_transport::wire::problem::Kind;

use crate::catalog::{CatalogError, Extent};
use crate::serve::{Registry, Served, State};
use crate::store::{Read, ReadDone, ReadError, Space};

/// When to ask again for a dataset that is being indexed.
const RETRY: Duration = Duration::from_millis(200);

/// Does one operation after the other, and uses its memory again.
#[derive(Default)]
pub(super) struct Operation {
    group: Group,
    space: Space,
}

/// A group that is placed: what it will answer, and what to read for it.
#[derive(Default)]
struct Group {
    entries: Vec<Entry>,
    reads: Vec<Read>,
    /// For each read, whose bytes it brings.
    owners: Vec<u32>,
    /// Of one sample: where its fields are, how long, and where they go.
    extents: Vec<Option<Extent>>,
    lens: Vec<Option<u64>>,
    offsets: Vec<u64>,
}

impl Operation {
    /// From its submission to its completion.
    pub(super) async fn run(&mut self, registry: &Registry, fetch: Fetch, cancelled: &AtomicBool) -> Completion {
        let Fetch { tag, dataset, version, ordinals, fields, lease, entries, .. } = fetch;
        let capacity = lease.len() as u64;
        self.group.entries = entries;
        let prepared = served(registry, &dataset, version).and_then(|served| {
            if cancelled.load(Ordering::Relaxed) {
                return Err(LinkError::Cancelled);
            }
            self.group.place(&served, &ordinals, &fields, capacity)?;
            Ok(served)
        });
        let (lease, result) = match prepared {
            Ok(served) => self.read(registry, &served, lease).await,
            Err(error) => (lease, Err(error)),
        };
        let result = result.map(|()| std::mem::take(&mut self.group.entries));
        Completion { tag, lease, ordinals, result }
    }

    /// Reads what is placed. Entries that storage cannot give fail, the others are good.
    async fn read(
        &mut self,
        registry: &Registry,
        served: &Arc<Served>,
        lease: Lease,
    ) -> (Lease, Result<(), LinkError>) {
        if self.group.reads.is_empty() {
            return (lease, Ok(()));
        }
        let reads = std::mem::take(&mut self.group.reads);
        served.store.clone().read_in(reads, lease, &mut self.space);
        let ReadDone { lease, reads, result } = (&mut self.space).await;
        self.group.reads = reads;
        match result {
            Ok(()) => (lease, Ok(())),
            Err(error) => match goes_on(registry, served, error) {
                Ok(()) => self.each(registry, served, lease).await,
                Err(error) => (lease, Err(error)),
            },
        }
    }

    /// Which of them was it? Each by itself. A failure leaves nothing in the lease that may be used, so that the good ones
    /// are then read again, together.
    async fn each(
        &mut self,
        registry: &Registry,
        served: &Arc<Served>,
        mut lease: Lease,
    ) -> (Lease, Result<(), LinkError>) {
        let Group { reads, owners, .. } = &mut self.group;
        let mut good = Vec::with_capacity(reads.len());
        for (read, owner) in std::mem::take(reads).into_iter().zip(std::mem::take(owners)) {
            let alone = served.store.read(vec![read], lease).await;
            lease = alone.lease;
            match alone.result.map_err(|error| goes_on(registry, served, error)) {
                Ok(()) => good.push((read, owner)),
                Err(Ok(())) => self.group.fail(owner),
                Err(Err(error)) => return (lease, Err(error)),
            }
        }
        if good.is_empty() {
            return (lease, Ok(()));
        }
        let again = served.store.read(good.iter().map(|(read, _)| *read).collect(), lease).await;
        match again.result.map_err(|error| goes_on(registry, served, error)) {
            Ok(()) => {}
            Err(Ok(())) => good.iter().for_each(|(_, owner)| self.group.fail(*owner)),
            Err(Err(error)) => return (again.lease, Err(error)),
        }
        (again.lease, Ok(()))
    }
}

impl Group {
    fn place(&mut self, served: &Served, ordinals: &[u64], fields: &[u16], capacity: u64) -> Result<(), LinkError> {
        self.entries.clear();
        self.reads.clear();
        self.owners.clear();
        let mut placer = Placer::new(capacity, ALIGN);
        for &ordinal in ordinals {
            self.extents.clear();
            served.dataset.extents(ordinal, fields, &mut self.extents).map_err(refused)?;
            self.lens.clear();
            self.lens.extend(self.extents.iter().map(|extent| extent.map(|extent| extent.len)));
            self.offsets.clear();
            let placed = placer.sample(&self.lens, &mut self.offsets);
            for at in 0..self.extents.len() {
                self.add(self.extents[at], placed.then(|| self.offsets[at]));
            }
        }
        Ok(())
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

    fn fail(&mut self, entry: u32) {
        self.entries[entry as usize] = Entry { status: Status::Failed(Failure::Storage), offset: 0, len: 0, crc: None };
    }
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

//! Shards that are objects of other stores, read by ranges.

use std::ops::Range;
use std::sync::Arc;

use forebay_transport::pool::Lease;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::{Read, ReadDone, ReadError, Reading, RemoteConfig, Store};
use crate::catalog::ShardFile;
use crate::remote::{Fetching, RemoteError, Target, locate, runtime};

/// A store of objects elsewhere.
///
/// Every answer must be of the object that was indexed, by its size, entity tag and time of last change: not one byte of
/// another is used. Bytes are copied once, from the connection's buffers into the lease. Dropping a read's future ends its
/// requests.
pub struct RemoteStore {
    shared: Arc<Shared>,
}

struct Shared {
    shards: Vec<(ShardFile, Target)>,
    config: RemoteConfig,
    in_flight: Semaphore,
}

impl RemoteStore {
    /// A store of `shards`, which reads name by their index in this list. Talks to nobody yet.
    ///
    /// # Errors
    /// When a shard is not an object, or its URL is none.
    pub fn new(shards: Vec<ShardFile>, config: RemoteConfig) -> Result<RemoteStore, RemoteError> {
        let target = |shard: ShardFile| {
            let object = locate(&shard.place.to_string())?;
            let target = Target::new(object, shard.identity);
            Ok((shard, target))
        };
        let shards = shards.into_iter().map(target).collect::<Result<_, RemoteError>>()?;
        Ok(RemoteStore::of(shards, config))
    }

    fn of(shards: Vec<(ShardFile, Target)>, config: RemoteConfig) -> RemoteStore {
        let in_flight = Semaphore::new(config.in_flight.clamp(1, Semaphore::MAX_PERMITS));
        RemoteStore { shared: Arc::new(Shared { shards, config, in_flight }) }
    }
}

impl Store for RemoteStore {
    fn read(&self, reads: Vec<Read>, mut lease: Lease) -> Reading<'_> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let mut task = EndsWithUs(runtime().spawn(async move {
                let result = shared.fill(&reads, &mut lease).await;
                ReadDone { lease, reads, result }
            }));
            match (&mut task.0).await {
                Ok(done) => done,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        })
    }
}

/// A task that ends when nobody waits for it any more. Its lease goes back to the slab with it.
struct EndsWithUs<T>(JoinHandle<T>);

impl<T> Drop for EndsWithUs<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One request, and where its bytes go.
struct Request<'a> {
    shard: usize,
    range: Range<u64>,
    /// In the order of their offsets.
    pieces: Vec<(u64, &'a mut [u8])>,
}

impl Shared {
    async fn fill(&self, reads: &[Read], lease: &mut Lease) -> Result<(), ReadError> {
        for read in reads {
            self.bounds(read, lease.len())?;
        }
        let requests = requests(reads, lease.as_mut_slice(), &self.config)?;
        let mut running: FuturesUnordered<_> = requests.into_iter().map(|request| self.request(request)).collect();
        while let Some(done) = running.next().await {
            // The others end with this.
            done?;
        }
        Ok(())
    }

    async fn request(&self, mut request: Request<'_>) -> Result<(), ReadError> {
        let (shard, target) = &self.shards[request.shard];
        let Range { start, end } = request.range;
        let _permit = self.in_flight.acquire().await.map_err(|_| ReadError::Closed)?;
        let mut fetching = Fetching::new(target, start..end, self.config.patience);
        let mut at = start;
        loop {
            match fetching.next().await {
                Ok(Some(bytes)) => {
                    request.take(at, &bytes);
                    at += bytes.len() as u64;
                }
                Ok(None) => return Ok(()),
                Err(RemoteError::Changed { detail, .. }) => {
                    return Err(ReadError::Changed { shard: shard.name.clone(), detail });
                }
                Err(error) => {
                    let len = usize::try_from(end - start).unwrap_or(usize::MAX);
                    let (shard, source) = (shard.name.clone(), error.into());
                    return Err(ReadError::Io { shard, offset: start, len, source });
                }
            }
        }
    }

    fn bounds(&self, read: &Read, lease: usize) -> Result<(), ReadError> {
        let placed = read.at.checked_add(read.len).is_some_and(|end| end <= lease);
        let there = self.shards.get(read.shard as usize).is_some_and(|(shard, _)| {
            read.offset.checked_add(read.len as u64).is_some_and(|end| end <= shard.identity.size)
        });
        if placed && there { Ok(()) } else { Err(ReadError::OutOfBounds(*read)) }
    }
}

impl Request<'_> {
    /// Puts what came, from `at` of the shard, where it is wanted. Nothing before `at` will come any more.
    fn take(&mut self, at: u64, bytes: &[u8]) {
        let next = at + bytes.len() as u64;
        self.pieces.retain(|(offset, piece)| offset + piece.len() as u64 > at);
        for (offset, piece) in self.pieces.iter_mut().take_while(|(offset, _)| *offset < next) {
            let (begin, end) = ((*offset).max(at), (*offset + piece.len() as u64).min(next));
            // Both within what came, and within the piece.
            let (from, to, len) = ((begin - at) as usize, (begin - *offset) as usize, (end - begin) as usize);
            piece[to..to + len].copy_from_slice(&bytes[from..from + len]);
        }
    }
}

/// Which requests to make for these reads, all of them in bounds. Two that lie over each other in the lease are refused.
fn requests<'a>(reads: &[Read], lease: &'a mut [u8], config: &RemoteConfig) -> Result<Vec<Request<'a>>, ReadError> {
    let mut order = reads.to_vec();
    order.sort_unstable_by_key(|read| (read.at, read.len));
    let mut pieces: Vec<(Read, &mut [u8])> = Vec::with_capacity(reads.len());
    let (mut rest, mut cut) = (lease, 0);
    for read in order {
        let skip = match read.len {
            0 => 0,
            _ => read.at.checked_sub(cut).ok_or(ReadError::OutOfBounds(read))?,
        };
        let (piece, behind) = rest.split_at_mut(skip).1.split_at_mut(read.len);
        (rest, cut) = (behind, cut + skip + read.len);
        pieces.push((read, piece));
    }
    pieces.sort_unstable_by_key(|(read, _)| (read.shard, read.offset));
    let mut requests: Vec<Request<'_>> = Vec::new();
    for (Read { shard, offset, len, .. }, piece) in pieces {
        let (shard, end) = (shard as usize, offset + len as u64);
        if let Some(last) = requests.last_mut().filter(|last| last.shard == shard) {
            let reach = last.range.end.max(end);
            let near = offset <= last.range.end.saturating_add(config.gap);
            if near && (reach - last.range.start <= config.most || reach == last.range.end) {
                last.range.end = reach;
                last.pieces.push((offset, piece));
                continue;
            }
        }
        requests.push(Request { shard, range: offset..end, pieces: vec![(offset, piece)] });
    }
    Ok(requests)
}

#[cfg(test)]
mod tests;

//! Bytes from a dataset's store into the server's pool, a chunk at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use forebay_transport::pool::{Account, Lease, Slab};
use forebay_transport::wire::MAX_CHUNK;

use super::Served;
use crate::catalog::Extent;
use crate::metrics::Metrics;
use crate::store::{DEFAULT_GAP, Read, ReadError, coalesce, coalesce_aligned};

/// Why an answer cannot go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// A shard is not what was indexed.
    Changed(String),
    /// The bytes cannot be read.
    Storage(String),
    /// There was no memory in time.
    Busy,
    /// The index is damaged: no attempt will help.
    Damaged(String),
    /// The store is out of order.
    Internal(String),
    /// Nobody wants the answer any more.
    Gone,
}

/// A part of a field, and what became of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub shard: u32,
    pub offset: u64,
    pub len: usize,
    /// Where in the chunk its bytes are.
    pub at: usize,
    /// It could not be read.
    pub failed: bool,
}

impl Piece {
    /// `len` bytes of an extent, from its byte `from` on.
    pub fn of(extent: &Extent, from: u64, len: usize) -> Piece {
        Piece { shard: extent.shard, offset: extent.offset.saturating_add(from), len, at: 0, failed: false }
    }
}

/// Reads on behalf of one request.
pub(super) struct Reader {
    pub served: Arc<Served>,
    pub slab: Slab,
    pub account: Account,
    pub metrics: Arc<Metrics>,
    /// The most bytes asked for at a time: so many that two chunks fit the account, one under way and one being read.
    pub chunk: usize,
    /// The most bytes of the pool that a chunk takes. More than `chunk` where the store reads whole blocks.
    room: usize,
    /// What is being waited for is memory, not storage.
    waits_for_memory: AtomicBool,
}

impl Reader {
    /// `None` when the account can never lend anything.
    pub fn new(served: Arc<Served>, slab: Slab, account: Account, metrics: Arc<Metrics>) -> Option<Reader> {
        let frame = slab.frame();
        let half = account.limit().min(slab.capacity()) / 2 / frame * frame;
        let (chunk, room) = match served.store.align() {
            ..=1 => (half.clamp(frame, MAX_CHUNK), half.clamp(frame, MAX_CHUNK)),
            // A quarter more, for what lies around the wanted bytes in their blocks.
            _ => (half.saturating_sub(half / 5).clamp(frame, MAX_CHUNK), half.clamp(frame, MAX_CHUNK + MAX_CHUNK / 4)),
        };
        slab.can_lend(&account, room).then(|| Reader {
            served,
            slab,
            account,
            metrics,
            chunk,
            room,
            waits_for_memory: AtomicBool::new(false),
        })
    }

    /// What to say of a wait that took too long.
    pub fn overdue(&self) -> Stop {
        match self.waits_for_memory.load(Ordering::Relaxed) {
            true => Stop::Busy,
            false => Stop::Storage("storage did not answer in time".into()),
        }
    }

    /// Fails when nothing more of the dataset may be served.
    pub fn check(&self) -> Result<(), Stop> {
        self.served.stopped().map_or(Ok(()), |why| Err(Stop::Changed(why.to_owned())))
    }

    /// Reads all pieces, which have no more than a chunk's bytes together, and sets where each is. Those that storage
    /// cannot give are marked, the others are good.
    pub async fn read(&self, pieces: &mut [Piece]) -> Result<Bytes, Stop> {
        let (reads, len) = self.lay_out(pieces)?;
        if len == 0 {
            return Ok(Bytes::new());
        }
        self.waits_for_memory.store(true, Ordering::Relaxed);
        let lease = self.slab.lease(&self.account, len).await;
        self.waits_for_memory.store(false, Ordering::Relaxed);
        let (mut lease, result) = self.fill(reads, lease).await;
        if !self.failed(result)? {
            self.check()?;
            return Ok(lease.freeze().into_bytes());
        }
        // Which of them is it? Each by itself, unless there is but one.
        let single = pieces.iter().filter(|piece| piece.len > 0).count() == 1;
        for piece in pieces.iter_mut().filter(|piece| piece.len > 0) {
            if single {
                piece.failed = true;
                break;
            }
            let Piece { shard, offset, len, .. } = *piece;
            let result;
            (lease, result) = self.fill(vec![Read { shard, offset, len, at: 0 }], lease).await;
            piece.failed = self.failed(result)?;
        }
        // A failure leaves nothing in the lease that may be used: the good ones are read again, together, and nothing
        // of what lies between or around them: that may be what cannot be read.
        let (reads, _) = lay_out(pieces, 0).ok_or_else(beyond)?;
        let (lease, result) = self.fill(reads, lease).await;
        if self.failed(result)? {
            pieces.iter_mut().for_each(|piece| piece.failed |= piece.len > 0);
        }
        // Found out by somebody else meanwhile.
        self.check()?;
        Ok(lease.freeze().into_bytes())
    }

    async fn fill(&self, reads: Vec<Read>, lease: Lease) -> (Lease, Result<(), ReadError>) {
        self.metrics.bytes_read.add(reads.iter().map(|read| read.len as u64).sum());
        let done = self.served.store.read(reads, lease).await;
        (done.lease, done.result)
    }

    fn lay_out(&self, pieces: &mut [Piece]) -> Result<(Vec<Read>, usize), Stop> {
        let align = self.served.store.align();
        if align > 1 {
            let shards = self.served.dataset.shards();
            let size = |shard: u32| shards.get(shard as usize).map_or(0, |shard| shard.file.identity.size);
            // Where blocks would take too much room the store copies.
            if let Some(laid_out) = lay_out_aligned(pieces, align, self.room, size) {
                return Ok(laid_out);
            }
        }
        lay_out(pieces, self.chunk).ok_or_else(beyond)
    }

    /// Whether storage failed at this; an error when nothing can go on.
    fn failed(&self, result: Result<(), ReadError>) -> Result<bool, Stop> {
        match result {
            Ok(()) => Ok(false),
            Err(error @ ReadError::Io { .. }) => {
                tracing::warn!(dataset = self.served.dataset.name(), %error, "storage failed");
                Ok(true)
            }
            Err(error @ ReadError::Changed { .. }) => Err(Stop::Changed(error.to_string())),
            // The lease is gone, and trying again would only cost another.
            Err(error @ ReadError::Overdue { .. }) => Err(Stop::Storage(error.to_string())),
            Err(error) => Err(Stop::Internal(error.to_string())),
        }
    }
}

/// Sums of what the index says lie within its shards, unless the index is damaged.
fn beyond() -> Stop {
    Stop::Internal("the index places fields beyond any shard".into())
}

/// The pieces to read, in the order in which they lie in the shards, and as extents.
fn in_order(pieces: &[Piece]) -> (Vec<usize>, Vec<Extent>) {
    let wanted = |piece: &Piece| piece.len > 0 && !piece.failed;
    let mut order: Vec<usize> = (0..pieces.len()).filter(|&index| wanted(&pieces[index])).collect();
    order.sort_unstable_by_key(|&index| (pieces[index].shard, pieces[index].offset));
    let extent = |&index: &usize| {
        let Piece { shard, offset, len, .. } = pieces[index];
        Extent { shard, offset, len: len as u64, crc: None }
    };
    let extents = order.iter().map(extent).collect();
    (order, extents)
}

fn place(pieces: &mut [Piece], order: Vec<usize>, places: Vec<usize>) {
    for (index, at) in order.into_iter().zip(places) {
        pieces[index].at = at;
    }
}

/// Says where in a lease each piece goes that has not failed, and what to read. What lies between neighbours is read
/// along as far as all of it fits `limit`. Returns the reads and the lease's length; `None` when sums overflow.
fn lay_out(pieces: &mut [Piece], limit: usize) -> Option<(Vec<Read>, usize)> {
    let (order, extents) = in_order(pieces);
    let sum = extents.iter().map(|extent| extent.len).sum();
    let spare = (limit as u64).saturating_sub(sum) / extents.len().max(1) as u64;
    let (mut reads, mut places) = (Vec::new(), Vec::new());
    let len = coalesce(&extents, spare.min(DEFAULT_GAP), &mut reads, &mut places)?;
    place(pieces, order, places);
    Some((reads, len))
}

/// The same in whole blocks, with nothing read along but what lies in them; `None` too when that takes more than `room`.
fn lay_out_aligned(
    pieces: &mut [Piece],
    align: usize,
    room: usize,
    size: impl Fn(u32) -> u64,
) -> Option<(Vec<Read>, usize)> {
    let (order, extents) = in_order(pieces);
    let (mut reads, mut places) = (Vec::new(), Vec::new());
    let len = coalesce_aligned(&extents, 0, (align, room), size, &mut reads, &mut places)?;
    place(pieces, order, places);
    Some((reads, len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn piece(shard: u32, offset: u64, len: usize) -> Piece {
        Piece { shard, offset, len, at: usize::MAX, failed: false }
    }

    #[test]
    fn neighbours_are_read_in_one_go() {
        let mut pieces =
            [piece(0, 2048, 100), piece(0, 512, 1000), piece(1, 600, 5), piece(0, 512, 10), piece(0, 1, 0)];
        let (reads, len) = lay_out(&mut pieces, 1 << 20).unwrap();
        let read = |shard, offset, len, at| Read { shard, offset, len, at };
        assert_eq!(reads, [read(0, 512, 1636, 0), read(1, 600, 5, 1636)]);
        assert_eq!(len, 1641);
        assert_eq!([pieces[0].at, pieces[1].at, pieces[2].at, pieces[3].at], [1536, 0, 1636, 0]);
    }

    #[test]
    fn what_lies_far_apart_is_not() {
        let mut pieces = [piece(0, 0, 10), piece(0, 10 + DEFAULT_GAP + 1, 10)];
        let reads = |pieces: &mut [Piece], limit| lay_out(pieces, limit).unwrap().0.len();
        assert_eq!(reads(&mut pieces, 1 << 20), 2);
        pieces[1].offset -= 1;
        assert_eq!(reads(&mut pieces, 1 << 20), 1);
        // Nor where the chunk has no room for what lies between.
        assert_eq!(reads(&mut pieces, 100), 2);
    }

    #[test]
    fn whole_blocks_are_read_where_there_is_room_for_them() {
        let mut pieces = [piece(0, 1536, 1000), piece(1, 100, 5)];
        let (reads, len) = lay_out_aligned(&mut pieces, 512, 2048, |_| 1 << 20).unwrap();
        let read = |shard, offset, len, at| Read { shard, offset, len, at };
        assert_eq!((reads, len), (vec![read(0, 1536, 1024, 0), read(1, 0, 512, 1024)], 1536));
        assert_eq!([pieces[0].at, pieces[1].at], [0, 1124]);
        assert!(lay_out_aligned(&mut pieces, 512, 1535, |_| 1 << 20).is_none());
    }

    proptest! {
        /// Against a shard whose bytes are known: each piece finds its own, within the limit.
        #[test]
        fn pieces_get_their_bytes(
            wanted in prop::collection::vec((0u32..3, 0u64..40_000, 0usize..3000), 1..30),
            extra in 0usize..50_000,
        ) {
            let byte = |shard: u32, offset: u64| (offset * 31 + u64::from(shard) * 7 + offset / 256) as u8;
            let mut pieces: Vec<Piece> = wanted.iter().map(|&(shard, offset, len)| piece(shard, offset, len)).collect();
            let limit = wanted.iter().map(|&(_, _, len)| len).sum::<usize>() + extra;
            let (reads, len) = lay_out(&mut pieces, limit).unwrap();
            prop_assert!(len <= limit);
            let mut lease = vec![None; len];
            for read in reads {
                for (at, cell) in lease[read.at..][..read.len].iter_mut().enumerate() {
                    prop_assert!(cell.is_none(), "two reads write the same byte");
                    *cell = Some(byte(read.shard, read.offset + at as u64));
                }
            }
            for piece in pieces.iter().filter(|piece| piece.len > 0) {
                let found = &lease[piece.at..][..piece.len];
                let is = |at: usize| Some(byte(piece.shard, piece.offset + at as u64));
                let matches = |(at, cell): (usize, &Option<u8>)| *cell == is(at);
                prop_assert!(found.iter().enumerate().all(matches));
            }
        }
    }
}

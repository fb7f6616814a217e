//! The bytes of one field of one sample, as the body of a plain answer.

use super::pump::{Batch, Source};
use super::read::{Piece, Reader, Stop};
use crate::catalog::Extent;

/// Makes the body, chunk by chunk.
pub(super) struct Field<'a> {
    reader: &'a Reader,
    extent: Extent,
    done: u64,
}

impl<'a> Field<'a> {
    pub fn new(reader: &'a Reader, extent: Extent) -> Field<'a> {
        Field { reader, extent, done: 0 }
    }
}

impl Source for Field<'_> {
    async fn next(&mut self) -> Result<Option<Batch>, Stop> {
        self.reader.check()?;
        let left = self.extent.len - self.done;
        if left == 0 {
            return Ok(None);
        }
        let len = left.min(self.reader.chunk as u64);
        let mut pieces = [Piece::of(&self.extent, self.done, len as usize)];
        let bytes = self.reader.read(&mut pieces).await?;
        if pieces[0].failed {
            let Extent { shard, offset, .. } = self.extent;
            return Err(Stop::Storage(format!("cannot read {len} bytes at {} of shard {shard}", offset + self.done)));
        }
        self.done += len;
        let at = pieces[0].at;
        Ok(Some(Batch { chunks: vec![bytes.slice(at..at + len as usize)], payload: len }))
    }
}

//! An object's bytes, front to back, for a thread that reads.

use std::io;

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use super::{DEFAULT_PATIENCE, Fetching, RemoteError, Target, locate, runtime};
use crate::catalog::ShardFile;

/// Pieces that are read ahead. Each is what came off the connection at once: up to some hundred KiB.
const AHEAD: usize = 4;

/// Reads one object while what was read before is worked on.
#[derive(Debug)]
pub(crate) struct Reader {
    pieces: mpsc::Receiver<Result<Bytes, RemoteError>>,
    piece: Bytes,
}

impl Reader {
    /// Begins to read the whole shard. An object that is not the one meant fails the first read that finds out.
    pub fn open(shard: &ShardFile) -> io::Result<Reader> {
        let target = Target::new(locate(&shard.place.to_string())?, shard.identity);
        let (send, pieces) = mpsc::channel(AHEAD);
        runtime().spawn(async move {
            let mut fetching = Fetching::new(&target, 0..target.identity.size, DEFAULT_PATIENCE);
            while let Some(piece) = fetching.next().await.transpose() {
                let failed = piece.is_err();
                if send.send(piece).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Reader { pieces, piece: Bytes::new() })
    }
}

impl io::Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            if !self.piece.has_remaining() {
                match self.pieces.blocking_recv() {
                    Some(piece) => self.piece = piece?,
                    None => break,
                }
                continue;
            }
            let count = self.piece.len().min(buffer.len() - filled);
            self.piece.copy_to_slice(&mut buffer[filled..filled + count]);
            filled += count;
        }
        Ok(filled)
    }
}

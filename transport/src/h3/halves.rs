//! A request stream's two halves, past their heads: DATA frames written from memory that stays where it is, and read
//! from what quinn has, without `h3` in between. They know how to be dropped.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h3::error::Code;
use h3::quic::StreamErrorIncoming;
use quinn::VarInt;

use super::frames::{Piece, Reader};
use super::quic::{lost, taken, write_error};

/// The half of a request stream that we send. Dropped before [`finish`](SendHalf::finish) it is reset.
pub(super) struct SendHalf {
    stream: quinn::SendStream,
    /// What to say when it is dropped; nothing once it has ended.
    code: Option<Code>,
}

impl SendHalf {
    /// Reset with `code` when it is dropped before its end.
    pub(super) fn new(stream: quinn::SendStream, code: Code) -> SendHalf {
        SendHalf { stream, code: Some(code) }
    }

    /// Writes from `h3`'s memory: heads.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, StreamErrorIncoming>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes).map_err(write_error)
    }

    /// Hands quinn as much of the chunks, without a copy, as it has room for, and waits until that is something.
    /// Gives how many chunks are through; what is left of the next one stays in its place.
    pub(super) async fn write(&mut self, chunks: &mut [Bytes]) -> Result<usize, quinn::WriteError> {
        Ok(self.stream.write_chunks(chunks).await?.chunks)
    }

    pub(super) fn finish(&mut self) -> Result<(), quinn::ClosedStream> {
        self.code = None;
        self.stream.finish()
    }

    pub(super) fn reset(&mut self, code: u64) {
        self.code = None;
        let _ = self.stream.reset(VarInt::from_u64(code).unwrap_or(VarInt::MAX));
    }

    /// Ready with `true` when the peer has acknowledged everything up to the end, with `false` when it never will.
    pub(super) fn settled(&self) -> impl Future<Output = bool> + Send + use<> {
        let stopped = self.stream.stopped();
        async move { matches!(stopped.await, Ok(None)) }
    }
}

impl Drop for SendHalf {
    fn drop(&mut self) {
        if let Some(code) = self.code {
            self.reset(code.value());
        }
    }
}

/// The half of a request stream that the peer sends. Dropped before its end it is stopped.
pub(super) struct RecvHalf {
    stream: quinn::RecvStream,
    reader: Reader,
    /// Pieces that have arrived and are not looked at yet, from `next` on: quinn gives one for each packet, and taking
    /// many at once costs its lock once.
    arrived: [Bytes; BATCH],
    next: usize,
    code: Option<Code>,
}

/// Pieces taken from quinn at once.
const BATCH: usize = 16;

/// Why nothing more can be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("reset by the peer: {}", Code::from(*.0))]
    Reset(u64),
    #[error("{0}")]
    Lost(quinn::ConnectionError),
    /// The peer breaks the protocol: the connection must be closed with this code.
    #[error("{1}")]
    Violation(Code, &'static str),
}

impl RecvHalf {
    /// Stopped with `code` when it is dropped before its end. Heads of more than `max_head` bytes are not read.
    pub(super) fn new(stream: quinn::RecvStream, max_head: usize, code: Code) -> RecvHalf {
        let reader = Reader::new(max_head);
        RecvHalf { stream, reader, arrived: Default::default(), next: BATCH, code: Some(code) }
    }

    /// Lets `h3` read one more head.
    pub(super) fn expect_head(&mut self) {
        self.reader.expect_head();
    }

    /// Whether the peer's head was too large to be read.
    pub(super) fn head_too_large(&self) -> bool {
        self.reader.head_too_large()
    }

    /// The next bytes of the body, `None` at its end. Does nothing if it is dropped half-way.
    pub(super) async fn data(&mut self) -> Result<Option<Bytes>, Fault> {
        std::future::poll_fn(|cx| self.poll_data(cx)).await
    }

    /// See [`data`](RecvHalf::data).
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Fault>> {
        loop {
            match self.reader.next() {
                Ok(Piece::Data(bytes)) => return Poll::Ready(Ok(Some(bytes))),
                Ok(Piece::End) => {
                    self.code = None;
                    return Poll::Ready(Ok(None));
                }
                // Heads belong to `h3`, which is not asking: trailers, of which nobody here makes use.
                Ok(Piece::Head(_)) => {}
                Ok(Piece::Wanting) => ready!(self.poll_fill(cx))?,
                Err((code, reason)) => return Poll::Ready(Err(Fault::Violation(code, reason))),
            }
        }
    }

    /// The next bytes of the head, for `h3`.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        loop {
            match self.reader.next_of_head() {
                Ok(Piece::Head(bytes) | Piece::Data(bytes)) => return Poll::Ready(Ok(Some(bytes))),
                Ok(Piece::End) => return Poll::Ready(Ok(None)),
                Ok(Piece::Wanting) => ready!(self.poll_fill(cx)).map_err(|fault| match fault {
                    Fault::Reset(error_code) => StreamErrorIncoming::StreamTerminated { error_code },
                    Fault::Lost(error) => lost(error),
                    Fault::Violation(..) => taken(),
                })?,
                Err((_, reason)) => return Poll::Ready(Err(StreamErrorIncoming::Unknown(reason.into()))),
            }
        }
    }

    /// Gives the reader what has arrived.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if let Some(piece) = self.arrived.get_mut(self.next).map(std::mem::take).filter(|piece| !piece.is_empty()) {
            self.next += 1;
            self.reader.fill(Some(piece));
            return Poll::Ready(Ok(()));
        }
        let read = pin!(self.stream.read_chunks(&mut self.arrived)).poll(cx);
        match ready!(read) {
            Ok(Some(_)) => {
                self.next = 1;
                self.reader.fill(Some(std::mem::take(&mut self.arrived[0])));
                Poll::Ready(Ok(()))
            }
            Ok(None) => {
                self.reader.fill(None);
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                self.code = None;
                Poll::Ready(Err(match error {
                    quinn::ReadError::Reset(code) => Fault::Reset(code.into_inner()),
                    quinn::ReadError::ConnectionLost(error) => Fault::Lost(error),
                    _ => Fault::Lost(quinn::ConnectionError::LocallyClosed),
                }))
            }
        }
    }

    pub(super) fn stop(&mut self, code: u64) {
        self.code = None;
        let _ = self.stream.stop(VarInt::from_u64(code).unwrap_or(VarInt::MAX));
    }
}

impl Drop for RecvHalf {
    fn drop(&mut self) {
        if let Some(code) = self.code {
            self.stop(code.value());
        }
    }
}

//! The `h3` crate's QUIC traits over quinn, such that the payload passes it by.
//!
//! `h3` sends bodies through a trait that shows bytes only as slices, so that each is copied, and it buffers what it
//! receives without bound. Here it gets to see heads only: a request stream's two halves lie in a [`Cell`] that `h3`'s
//! view of the stream ([`RequestStream`]) and ours share. `h3` writes and reads HEADERS; then we take the halves out of the
//! cell and go on with DATA frames ourselves ([`SendHalf`], [`RecvHalf`]). The halves also know how to be dropped:
//! quinn's own streams, dropped in mid-answer, would pass half an answer off as a whole one, and stop a request with a
//! code that strict clients take for a failure.

use std::collections::HashMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use quinn::VarInt;

use super::frames::{Piece, Reader};

/// The most bytes that a peer may send on one control stream in a connection's life. There is no honest use for more
/// than a few dozen, and `h3` keeps a frame in memory until it is complete.
const MAX_CONTROL: usize = 64 << 10;

type Accepting = Pin<Box<dyn Future<Output = Result<Pair, quinn::ConnectionError>> + Send + Sync>>;
type Pair = (quinn::SendStream, quinn::RecvStream);

/// Which end of a connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// What is said to the peer about a stream that is dropped before its end.
impl Side {
    /// About the half that we send.
    fn reset_code(self) -> Code {
        match self {
            Side::Client => Code::H3_REQUEST_CANCELLED,
            Side::Server => Code::H3_INTERNAL_ERROR,
        }
    }

    /// About the half that the peer sends. A server that has answered has nothing against the rest of the request.
    fn stop_code(self) -> Code {
        match self {
            Side::Client => Code::H3_REQUEST_CANCELLED,
            Side::Server => Code::H3_NO_ERROR,
        }
    }
}

/// A QUIC connection as `h3` wants it.
pub(super) struct Connection {
    uni: h3_quinn::Connection,
    bidi: OpenStreams,
    accepting: Option<Accepting>,
}

/// The streams that `h3` has and we have not taken yet.
#[derive(Clone, Default)]
pub(super) struct Registry {
    cells: Arc<Mutex<HashMap<StreamId, Arc<Cell>>>>,
}

impl Registry {
    pub(super) fn take(&self, id: StreamId) -> Option<Arc<Cell>> {
        lock(&self.cells).remove(&id)
    }
}

impl Connection {
    /// Heads of more than `max_head` encoded bytes are not read.
    pub(super) fn new(conn: quinn::Connection, side: Side, max_head: usize) -> Connection {
        let uni = h3_quinn::Connection::new(conn.clone());
        let send = <h3_quinn::Connection as quic::Connection<Bytes>>::opener(&uni);
        let bidi = OpenStreams { conn, uni: send, opening: None, registry: Registry::default(), side, max_head };
        Connection { uni, bidi, accepting: None }
    }

    pub(super) fn registry(&self) -> Registry {
        self.bidi.registry.clone()
    }
}

impl quic::Connection<Bytes> for Connection {
    type RecvStream = ControlStream;
    type OpenStreams = OpenStreams;

    fn poll_accept_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<ControlStream, ConnectionErrorIncoming>> {
        let stream = ready!(quic::Connection::<Bytes>::poll_accept_recv(&mut self.uni, cx))?;
        Poll::Ready(Ok(ControlStream { stream, left: MAX_CONTROL }))
    }

    fn poll_accept_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<RequestStream, ConnectionErrorIncoming>> {
        let conn = &self.bidi.conn;
        let accepting = self.accepting.get_or_insert_with(|| {
            let conn = conn.clone();
            Box::pin(async move { conn.accept_bi().await })
        });
        let pair = ready!(accepting.as_mut().poll(cx));
        self.accepting = None;
        Poll::Ready(pair.map(|pair| self.bidi.register(pair)).map_err(connection_error))
    }

    fn opener(&self) -> OpenStreams {
        self.bidi.clone()
    }
}

impl quic::OpenStreams<Bytes> for Connection {
    type BidiStream = RequestStream;
    type SendStream = h3_quinn::SendStream<Bytes>;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<RequestStream, StreamErrorIncoming>> {
        self.bidi.poll_open_bidi(cx)
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        self.bidi.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.bidi.close(code, reason);
    }
}

/// Opens streams on a connection.
pub(super) struct OpenStreams {
    conn: quinn::Connection,
    uni: h3_quinn::OpenStreams,
    opening: Option<Accepting>,
    registry: Registry,
    side: Side,
    max_head: usize,
}

impl OpenStreams {
    fn register(&self, (send, recv): Pair) -> RequestStream {
        let id = stream_id(send.id());
        let halves = Halves {
            send: Some(SendHalf { stream: send, code: Some(self.side.reset_code()) }),
            recv: Some(Box::new(RecvHalf {
                stream: recv,
                reader: Reader::new(self.max_head),
                arrived: Default::default(),
                next: BATCH,
                code: Some(self.side.stop_code()),
            })),
        };
        let cell = Arc::new(Cell { halves: Mutex::new(halves) });
        lock(&self.registry.cells).insert(id, cell.clone());
        RequestStream { id, cell, writing: None, registry: self.registry.clone() }
    }
}

impl Clone for OpenStreams {
    fn clone(&self) -> OpenStreams {
        OpenStreams {
            conn: self.conn.clone(),
            uni: self.uni.clone(),
            opening: None,
            registry: self.registry.clone(),
            side: self.side,
            max_head: self.max_head,
        }
    }
}

impl quic::OpenStreams<Bytes> for OpenStreams {
    type BidiStream = RequestStream;
    type SendStream = h3_quinn::SendStream<Bytes>;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<RequestStream, StreamErrorIncoming>> {
        let conn = &self.conn;
        let opening = self.opening.get_or_insert_with(|| {
            let conn = conn.clone();
            Box::pin(async move { conn.open_bi().await })
        });
        let pair = ready!(opening.as_mut().poll(cx));
        self.opening = None;
        Poll::Ready(pair.map(|pair| self.register(pair)).map_err(lost))
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        quic::OpenStreams::<Bytes>::poll_open_send(&mut self.uni, cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.conn.close(var_int(code), reason);
    }
}

/// A peer's control stream, which says only so much.
pub(super) struct ControlStream {
    stream: h3_quinn::RecvStream,
    left: usize,
}

impl quic::RecvStream for ControlStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        let chunk = ready!(self.stream.poll_data(cx))?;
        let len = chunk.as_ref().map_or(0, Bytes::len);
        match self.left.checked_sub(len) {
            Some(left) => self.left = left,
            None => return Poll::Ready(Err(StreamErrorIncoming::Unknown("too much on a control stream".into()))),
        }
        Poll::Ready(Ok(chunk))
    }

    fn stop_sending(&mut self, code: u64) {
        self.stream.stop_sending(code);
    }

    fn recv_id(&self) -> StreamId {
        self.stream.recv_id()
    }
}

/// Where a request stream's halves lie while `h3` is at the heads.
pub(super) struct Cell {
    halves: Mutex<Halves>,
}

struct Halves {
    send: Option<SendHalf>,
    recv: Option<Box<RecvHalf>>,
}

impl Cell {
    /// The half that sends, once its head is written.
    pub(super) fn take_send(&self) -> Option<SendHalf> {
        lock(&self.halves).send.take()
    }

    /// The half that receives, once its head is read.
    pub(super) fn take_recv(&self) -> Option<Box<RecvHalf>> {
        lock(&self.halves).recv.take()
    }

    /// Lets `h3` read one more head: what came was an informational one.
    pub(super) fn expect_head(&self) {
        if let Some(recv) = &mut lock(&self.halves).recv {
            recv.reader.expect_head();
        }
    }

    /// Whether the peer's head was too large to be read.
    pub(super) fn head_too_large(&self) -> bool {
        lock(&self.halves).recv.as_ref().is_some_and(|recv| recv.reader.head_too_large())
    }

    /// Ready when the peer no longer reads what we send.
    pub(super) async fn gone(&self) {
        let stopped = lock(&self.halves).send.as_ref().map(|send| send.stream.stopped());
        if let Some(stopped) = stopped {
            let _ = stopped.await;
        }
    }
}

/// `h3`'s view of a request stream.
pub(super) struct RequestStream {
    id: StreamId,
    cell: Arc<Cell>,
    writing: Option<WriteBuf<Bytes>>,
    registry: Registry,
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        self.registry.take(self.id);
    }
}

impl quic::RecvStream for RequestStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        match &mut lock(&self.cell.halves).recv {
            Some(recv) => recv.poll_head(cx),
            None => Poll::Ready(Ok(None)),
        }
    }

    fn stop_sending(&mut self, code: u64) {
        if let Some(recv) = &mut lock(&self.cell.halves).recv {
            recv.stop(code);
        }
    }

    fn recv_id(&self) -> StreamId {
        self.id
    }
}

impl quic::SendStream<Bytes> for RequestStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        let mut halves = lock(&self.cell.halves);
        if let Some(data) = &mut self.writing {
            let Some(send) = &mut halves.send else { return Poll::Ready(Err(taken())) };
            while data.has_remaining() {
                let written = ready!(Pin::new(&mut send.stream).poll_write(cx, data.chunk())).map_err(write_error)?;
                data.advance(written);
            }
        }
        self.writing = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.writing = Some(data.into());
        Ok(())
    }

    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        match &mut lock(&self.cell.halves).send {
            Some(send) => Poll::Ready(send.finish().map_err(|_| taken())),
            None => Poll::Ready(Err(taken())),
        }
    }

    fn reset(&mut self, code: u64) {
        if let Some(send) = &mut lock(&self.cell.halves).send {
            send.reset(code);
        }
    }

    fn send_id(&self) -> StreamId {
        self.id
    }
}

/// The half of a request stream that we send. Dropped before [`finish`](SendHalf::finish) it is reset.
pub(super) struct SendHalf {
    stream: quinn::SendStream,
    /// What to say when it is dropped; nothing once it has ended.
    code: Option<Code>,
}

impl SendHalf {
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
    /// The next bytes of the body, `None` at its end. Does nothing if it is dropped half-way.
    pub(super) async fn data(&mut self) -> Result<Option<Bytes>, Fault> {
        std::future::poll_fn(|cx| self.poll_data(cx)).await
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Fault>> {
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

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
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

pub(super) fn var_int(code: Code) -> VarInt {
    VarInt::from_u64(code.value()).unwrap_or(VarInt::MAX)
}

fn stream_id(id: quinn::StreamId) -> StreamId {
    let id: u64 = VarInt::from(id).into_inner();
    id.try_into().expect("quinn's stream ids are QUIC's")
}

fn connection_error(error: quinn::ConnectionError) -> ConnectionErrorIncoming {
    match error {
        quinn::ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose { error_code: close.error_code.into_inner() }
        }
        quinn::ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        other => ConnectionErrorIncoming::Undefined(Arc::new(other)),
    }
}

fn lost(error: quinn::ConnectionError) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error: connection_error(error) }
}

fn write_error(error: quinn::WriteError) -> StreamErrorIncoming {
    match error {
        quinn::WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() },
        quinn::WriteError::ConnectionLost(error) => lost(error),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}

/// `h3` asked for a half that it no longer has.
fn taken() -> StreamErrorIncoming {
    StreamErrorIncoming::Unknown("the stream is past its head".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in the critical sections panics half-way through a change.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

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
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use quinn::VarInt;

use super::halves::{RecvHalf, SendHalf};

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
            send: Some(SendHalf::new(send, self.side.reset_code())),
            recv: Some(Box::new(RecvHalf::new(recv, self.max_head, self.side.stop_code()))),
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
            recv.expect_head();
        }
    }

    /// Whether the peer's head was too large to be read.
    pub(super) fn head_too_large(&self) -> bool {
        lock(&self.halves).recv.as_ref().is_some_and(|recv| recv.head_too_large())
    }

    /// Ready when the peer no longer reads what we send.
    pub(super) async fn gone(&self) {
        let settled = lock(&self.halves).send.as_ref().map(SendHalf::settled);
        if let Some(settled) = settled {
            settled.await;
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
                let written = ready!(send.poll_write(cx, data.chunk()))?;
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

pub(super) fn lost(error: quinn::ConnectionError) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error: connection_error(error) }
}

pub(super) fn write_error(error: quinn::WriteError) -> StreamErrorIncoming {
    match error {
        quinn::WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() },
        quinn::WriteError::ConnectionLost(error) => lost(error),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}

/// `h3` asked for a half that it no longer has.
pub(super) fn taken() -> StreamErrorIncoming {
    StreamErrorIncoming::Unknown("the stream is past its head".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in the critical sections panics half-way through a change.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

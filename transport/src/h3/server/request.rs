//! One request: its head, its body, its answer, and how it ends.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h3::error::{Code, StreamError};
use http::{Method, StatusCode, header};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::frames::frame_data;
use super::super::halves::{Fault, RecvHalf, SendHalf};
use super::super::quic::{self, Cell, var_int};
use super::{MAX_HEAD, Shared};
use crate::exchange::{self, BodyError, Handler, Request, Responder, SendError, Session};
use crate::pool::Account;

/// How much of a body that nobody reads is taken off the wire, so that the client sees its request taken to the end.
const DRAIN: usize = 1 << 20;
/// How long that may take.
const DRAIN_TIME: Duration = Duration::from_secs(2);

type Stream = h3::server::RequestStream<quic::RequestStream, Bytes>;
type Resolver = h3::server::RequestResolver<quic::Connection, Bytes>;

/// What all requests of a connection share.
pub(super) struct Link {
    pub(super) conn: quinn::Connection,
    pub(super) peer: SocketAddr,
    pub(super) id: u64,
    pub(super) account: Account,
    pub(super) session: Session,
    pub(super) patience: Duration,
}

impl Link {
    fn close(&self, code: Code, reason: &str) {
        self.conn.close(var_int(code), reason.as_bytes());
    }
}

/// Answers one request; whether there was one.
pub(super) async fn run(resolver: Resolver, cell: Arc<Cell>, shared: Arc<Shared>, link: Arc<Link>) -> bool {
    let Some((head, stream)) = head(resolver, &cell, &shared, &link).await else { return false };
    let (parts, ()) = head.into_parts();
    let declared = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let (body_back, body_returned) = oneshot::channel();
    let (answer_back, answer_returned) = oneshot::channel();
    let incoming = Incoming { recv: cell.take_recv(), declared, link: link.clone(), back: Some(body_back) };
    let out = Answer { stream, cell, send: None, state: State::Fresh, link: link.clone() };
    let outgoing =
        Outgoing { answer: Some(out), scratch: BytesMut::new(), framed: Vec::new(), back: Some(answer_back) };
    let request = Request {
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().map(str::to_owned),
        peer: link.peer,
        connection: link.id,
        account: link.account.clone(),
        session: link.session.clone(),
        body: exchange::Body::H3(Box::new(incoming)),
        headers: parts.headers,
        method: parts.method,
    };
    let head_only = request.method == Method::HEAD;
    let responder = Responder { outgoing: exchange::Outgoing::H3(Box::new(outgoing)), head_only };
    if request.path.starts_with('/') {
        contained(shared.handler.clone(), request, responder).await;
    } else {
        let mut bad = http::Response::new(());
        *bad.status_mut() = StatusCode::BAD_REQUEST;
        let _ = responder.send(bad, Bytes::new()).await;
    }
    // A handler may have handed its halves to a task of its own; they come back when they are dropped.
    let mut answer = answer_returned.await.ok();
    if let Some(answer) = &mut answer {
        answer.end().await;
    }
    if let Ok(recv) = body_returned.await {
        drain(recv, &link).await;
    }
    // What is not acknowledged when a connection is closed is lost: a request is over when its answer has arrived.
    if let Some(answer) = answer {
        answer.settled().await;
    }
    true
}

/// Reads a request's head. A stream that has none, or not in time, is sent away.
async fn head(resolver: Resolver, cell: &Cell, shared: &Shared, link: &Link) -> Option<(http::Request<()>, Stream)> {
    let mut resolving = pin!(resolver.resolve_request());
    // Nearly always all of it is there. If not, it is one of those that are counted.
    let first = std::future::poll_fn(|cx| Poll::Ready(resolving.as_mut().poll(cx))).await;
    let resolved = match first {
        Poll::Ready(resolved) => resolved,
        Poll::Pending => match shared.slow_heads.try_acquire() {
            Ok(_permit) => match timeout(link.patience, resolving).await {
                Ok(resolved) => resolved,
                Err(_) => return refuse(cell, Code::H3_REQUEST_INCOMPLETE),
            },
            Err(_) => return refuse(cell, Code::H3_REQUEST_REJECTED),
        },
    };
    match resolved {
        Ok(resolved) => Some(resolved),
        // `h3` has answered 431.
        Err(StreamError::HeaderTooBig { .. }) => {
            tracing::debug!(peer = %link.peer, "a request's head has more than {MAX_HEAD} bytes");
            if let Some(mut send) = cell.take_send() {
                let _ = send.finish();
            }
            None
        }
        Err(error) => {
            tracing::debug!(peer = %link.peer, %error, "no request on a stream");
            let code = if cell.head_too_large() { Code::H3_EXCESSIVE_LOAD } else { Code::H3_REQUEST_INCOMPLETE };
            refuse(cell, code)
        }
    }
}

fn refuse<T>(cell: &Cell, code: Code) -> Option<T> {
    if let Some(mut send) = cell.take_send() {
        send.reset(code.value());
    }
    if let Some(mut recv) = cell.take_recv() {
        recv.stop(code.value());
    }
    None
}

/// Runs the handler; a panic in it ends here. What it held is dropped, which ends the answer.
async fn contained(handler: Arc<dyn Handler>, request: Request, responder: Responder) {
    let Ok(mut handling) = catch_unwind(AssertUnwindSafe(|| handler.handle(request, responder))) else { return };
    std::future::poll_fn(|cx| {
        // What panicked is not polled again.
        catch_unwind(AssertUnwindSafe(|| handling.as_mut().poll(cx))).unwrap_or_else(|_| {
            tracing::error!("a handler panicked; its answer is lost, and nothing else");
            Poll::Ready(())
        })
    })
    .await;
}

/// Takes what is left of a request's body off the wire, up to a bound; what is left then is declined.
async fn drain(recv: Option<Box<RecvHalf>>, link: &Link) {
    let Some(mut recv) = recv else { return };
    let draining = async {
        let mut left = DRAIN;
        while let Ok(Some(bytes)) = recv.data().await {
            match left.checked_sub(bytes.len()) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    if timeout(DRAIN_TIME, draining).await.is_err() {
        tracing::debug!(peer = %link.peer, "a request's body was not sent to its end");
    }
    // Dropping it says H3_NO_ERROR, if it is not at its end.
}

/// A request's body.
pub(crate) struct Incoming {
    recv: Option<Box<RecvHalf>>,
    declared: Option<u64>,
    link: Arc<Link>,
    back: Option<oneshot::Sender<Option<Box<RecvHalf>>>>,
}

impl Incoming {
    pub(crate) async fn read(&mut self, limit: usize) -> Result<Bytes, BodyError> {
        if self.declared.is_some_and(|declared| declared > limit as u64) {
            return Err(BodyError::TooLarge { limit });
        }
        let Some(recv) = &mut self.recv else { return Ok(Bytes::new()) };
        let body = match timeout(self.link.patience, collect(recv, limit)).await {
            Ok(Ok(Some(body))) => body,
            Ok(Ok(None)) => return Err(BodyError::TooLarge { limit }),
            Err(_) => return Err(BodyError::Timeout),
            Ok(Err(fault)) => {
                if let Fault::Violation(code, reason) = fault {
                    self.link.close(code, reason);
                }
                return Err(BodyError::Gone);
            }
        };
        self.recv = None;
        match self.declared {
            Some(declared) if declared != body.len() as u64 => {
                Err(BodyError::Length { declared, got: body.len() as u64 })
            }
            _ => Ok(body),
        }
    }
}

/// All of a body, or `None` when it has more than `limit` bytes.
async fn collect(recv: &mut RecvHalf, limit: usize) -> Result<Option<Bytes>, Fault> {
    let Some(first) = recv.data().await? else { return Ok(Some(Bytes::new())) };
    let mut next = recv.data().await?;
    if next.is_none() {
        // In one piece: no need to copy it.
        return Ok((first.len() <= limit).then_some(first));
    }
    let mut body = BytesMut::from(first);
    while let Some(bytes) = next {
        if bytes.len() > limit.saturating_sub(body.len()) {
            return Ok(None);
        }
        body.extend_from_slice(&bytes);
        next = recv.data().await?;
    }
    Ok((body.len() <= limit).then(|| body.freeze()))
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(back) = self.back.take() {
            let _ = back.send(self.recv.take());
        }
    }
}

/// The way to a client.
pub(crate) struct Outgoing {
    /// There until it goes back.
    answer: Option<Answer>,
    /// Where frame headers and small chunks are put.
    scratch: BytesMut,
    /// What one write puts on the wire. Kept for its memory.
    framed: Vec<Bytes>,
    back: Option<oneshot::Sender<Answer>>,
}

/// What remains of an answer when the handler is done with it.
struct Answer {
    stream: Stream,
    cell: Arc<Cell>,
    send: Option<SendHalf>,
    state: State,
    link: Arc<Link>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Fresh,
    Body,
    Finished,
    Broken,
}

impl Outgoing {
    fn answer(&mut self) -> &mut Answer {
        self.answer.as_mut().expect("it goes back when this is dropped")
    }

    pub(crate) async fn send_head(&mut self, head: http::Response<()>) -> Result<(), SendError> {
        self.answer().send_head(head).await
    }

    pub(crate) async fn write_all(&mut self, chunks: &mut [Bytes]) -> Result<(), SendError> {
        let mut framed = std::mem::take(&mut self.framed);
        frame_data(chunks, &mut self.scratch, &mut framed);
        let result = self.answer().write(&mut framed).await;
        framed.clear();
        self.framed = framed;
        result
    }

    pub(crate) fn finish(&mut self) -> Result<(), SendError> {
        let answer = self.answer();
        if answer.state != State::Body {
            // Half a frame is out: no end would be an honest one.
            return Err(SendError::Gone);
        }
        answer.state = State::Finished;
        answer.send.as_mut().ok_or(SendError::Gone)?.finish().map_err(|_| SendError::Gone)
    }

    pub(crate) fn reset(&mut self, code: u64) {
        let answer = self.answer();
        answer.state = State::Broken;
        if let Some(mut send) = answer.send.take().or_else(|| answer.cell.take_send()) {
            send.reset(code);
        }
    }

    pub(crate) async fn gone(&mut self) {
        let answer = self.answer();
        match &answer.send {
            Some(send) => {
                send.settled().await;
            }
            None => answer.cell.gone().await,
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if let (Some(back), Some(answer)) = (self.back.take(), self.answer.take()) {
            let _ = back.send(answer);
        }
    }
}

impl Answer {
    async fn send_head(&mut self, head: http::Response<()>) -> Result<(), SendError> {
        self.state = State::Broken;
        let patience = self.link.patience;
        match timeout(patience, self.stream.send_response(head)).await {
            Ok(Ok(())) => {}
            Err(_) => return Err(SendError::Stalled(patience)),
            Ok(Err(error @ StreamError::HeaderTooBig { .. })) => {
                // Nothing was sent: another head may still do.
                self.state = State::Fresh;
                return Err(SendError::Head(error.to_string()));
            }
            Ok(Err(_)) => return Err(SendError::Gone),
        }
        self.send = self.cell.take_send();
        self.state = State::Body;
        Ok(())
    }

    async fn write(&mut self, mut chunks: &mut [Bytes]) -> Result<(), SendError> {
        let patience = self.link.patience;
        if self.state != State::Body {
            return Err(SendError::Gone);
        }
        let send = self.send.as_mut().ok_or(SendError::Gone)?;
        // A write that is given up half-way leaves half a frame behind, and nothing can follow it.
        self.state = State::Broken;
        while !chunks.is_empty() {
            match timeout(patience, send.write(chunks)).await {
                Ok(Ok(through)) => chunks = &mut chunks[through..],
                Ok(Err(_)) => return Err(SendError::Gone),
                Err(_) => return Err(SendError::Stalled(patience)),
            }
        }
        self.state = State::Body;
        Ok(())
    }

    /// Sees to it that the answer has an end.
    async fn end(&mut self) {
        if self.state == State::Fresh {
            let mut failed = http::Response::new(());
            *failed.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            if self.send_head(failed).await.is_ok() {
                self.state = State::Finished;
                let _ = self.send.as_mut().map(SendHalf::finish);
            }
        }
        if self.state != State::Finished {
            // Dropped before its end, it is reset.
            drop(self.send.take().or_else(|| self.cell.take_send()));
        }
    }

    /// Ready when the client has all of it, or never will; waits no longer than is due.
    async fn settled(self) {
        let Some(send) = &self.send else { return };
        if timeout(self.link.patience, send.settled()).await.is_err() {
            tracing::debug!(peer = %self.link.peer, "the end of an answer was not acknowledged");
        }
    }
}

//! A request and its answer, whatever carries them.
//!
//! What serves samples is a [`Handler`]: it gets a [`Request`] and a [`Responder`], and knows neither streams nor
//! sockets. HTTP/3 calls it ([`h3::server`](crate::h3::server)); so does [`memory`], for tests.
//!
//! The contract of an answer: [`Responder::send_head`] once, then [`BodyWriter::write`] as often as there is something to
//! say, then [`BodyWriter::finish`]. A responder that is dropped unused answers 500, a writer that is dropped before
//! `finish` resets the answer, so that a reader never takes half an answer for a whole one. An answer to `HEAD` has no
//! body, whatever is written to it.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

use crate::h3::server as h3;
use crate::pool::Account;

pub mod memory;
mod session;

pub use session::{Session, SessionLife};

/// What a handler's work is, to whoever polls it.
pub type Handling = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Answers requests. One is shared by all connections.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. Runs in a task of its own; a panic in it costs this answer only.
    fn handle(self: Arc<Self>, request: Request, responder: Responder) -> Handling;
}

impl<F, Answer> Handler for F
where
    F: Fn(Request, Responder) -> Answer + Send + Sync + 'static,
    Answer: Future<Output = ()> + Send + 'static,
{
    fn handle(self: Arc<Self>, request: Request, responder: Responder) -> Handling {
        Box::pin(self(request, responder))
    }
}

/// What a client asked for.
#[derive(Debug)]
pub struct Request {
    pub method: Method,
    /// The path, percent-encoded as it came. Begins with `/`.
    pub path: String,
    /// What follows the `?`, as it came.
    pub query: Option<String>,
    pub headers: HeaderMap,
    /// Where the client is.
    pub peer: SocketAddr,
    /// Which connection the request came by. Never used twice by one server.
    pub connection: u64,
    /// Lends what the connection's answers need from the pool: at most a quarter of it, shared by all its requests.
    pub account: Account,
    /// The life of that connection.
    pub session: Session,
    pub(crate) body: Body,
}

impl Request {
    /// The whole body, which may be empty. A second call finds it empty.
    ///
    /// Memory is bounded by `limit` bytes, time by the server's configuration.
    pub async fn read_body(&mut self, limit: usize) -> Result<Bytes, BodyError> {
        match &mut self.body {
            Body::H3(body) => body.read(limit).await,
            Body::Memory(body) => body.read(limit),
        }
    }
}

/// Where a request's body is.
pub(crate) enum Body {
    H3(Box<h3::Incoming>),
    Memory(memory::Incoming),
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Body")
    }
}

/// Why a request's body could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// Answer 413.
    #[error("the request's body has more than {limit} bytes")]
    TooLarge { limit: usize },
    /// Answer 408.
    #[error("the request's body did not arrive in time")]
    Timeout,
    /// Answer 400.
    #[error("the request's body has {got} bytes where {declared} were announced")]
    Length { declared: u64, got: u64 },
    /// Nobody is left to answer.
    #[error("the client gave the request up")]
    Gone,
}

impl BodyError {
    /// The status to answer with.
    pub fn status(&self) -> StatusCode {
        match self {
            BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::Timeout => StatusCode::REQUEST_TIMEOUT,
            BodyError::Length { .. } | BodyError::Gone => StatusCode::BAD_REQUEST,
        }
    }
}

/// Why an answer could not be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The client does not want the answer any more, or is not there.
    #[error("the client is gone")]
    Gone,
    /// The client took nothing of the answer for too long.
    #[error("the client took nothing for {0:?}")]
    Stalled(std::time::Duration),
    /// The head cannot be sent: too large for the client, or not HTTP.
    #[error("the answer's head cannot be sent: {0}")]
    Head(String),
}

/// The way to answer one request.
#[must_use = "dropped unused, it answers 500"]
pub struct Responder {
    pub(crate) outgoing: Outgoing,
    /// The request was `HEAD`.
    pub(crate) head_only: bool,
}

impl Responder {
    /// Sends status and headers.
    pub async fn send_head(mut self, head: http::Response<()>) -> Result<BodyWriter, SendError> {
        let bodyless = self.head_only || matches!(head.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        match &mut self.outgoing {
            Outgoing::H3(out) => out.send_head(head).await?,
            Outgoing::Memory(out) => out.send_head(head)?,
        }
        Ok(BodyWriter { outgoing: self.outgoing, bodyless })
    }

    /// Sends a whole answer. `content-length` is added.
    pub async fn send(self, mut head: http::Response<()>, body: Bytes) -> Result<(), SendError> {
        head.headers_mut().insert(http::header::CONTENT_LENGTH, body.len().into());
        let mut writer = self.send_head(head).await?;
        writer.write(body).await?;
        writer.finish().await
    }

    /// Ends the exchange without an answer, with a code of the fabric's own (for HTTP/3: RFC 9114, section 8.1).
    pub fn reset(mut self, code: u64) {
        self.outgoing.reset(code);
    }

    /// Ready when the client no longer wants the answer.
    pub async fn gone(&mut self) {
        self.outgoing.gone().await
    }
}

/// The way to send an answer's body.
#[must_use = "dropped before `finish`, it resets the answer"]
pub struct BodyWriter {
    outgoing: Outgoing,
    /// Nothing that is written may be sent.
    bodyless: bool,
}

impl BodyWriter {
    /// Sends some bytes. Returns when they are the transport's to send, which is when it has room for them: the wait for
    /// it is how a slow client slows the server. The memory is kept, without a copy, until the client has
    /// acknowledged it. Dropped before it is ready, it breaks the answer off: nothing can be written any more.
    pub async fn write(&mut self, chunk: Bytes) -> Result<(), SendError> {
        self.write_all(&mut [chunk]).await
    }

    /// As [`write`](BodyWriter::write), for many chunks at once. The chunks are taken; what stays in their places is empty.
    /// Chunks of less than a kilobyte are put together by copying, which costs less than keeping account of each.
    pub async fn write_all(&mut self, chunks: &mut [Bytes]) -> Result<(), SendError> {
        if self.bodyless {
            chunks.fill(Bytes::new());
            return Ok(());
        }
        match &mut self.outgoing {
            Outgoing::H3(out) => out.write_all(chunks).await,
            Outgoing::Memory(out) => out.write_all(chunks).await,
        }
    }

    /// Ends the answer. Without this it counts as broken off.
    pub async fn finish(mut self) -> Result<(), SendError> {
        match &mut self.outgoing {
            Outgoing::H3(out) => out.finish(),
            Outgoing::Memory(out) => out.finish(),
        }
    }

    /// Breaks the answer off, with a code of the fabric's own (for HTTP/3: RFC 9114, section 8.1).
    pub fn reset(mut self, code: u64) {
        self.outgoing.reset(code);
    }

    /// Ready when the client no longer wants the answer.
    pub async fn gone(&mut self) {
        self.outgoing.gone().await
    }

    /// Whether the answer has a body. What is written to one that has none is discarded: it need not be read from storage.
    pub fn has_body(&self) -> bool {
        !self.bodyless
    }
}

/// Where an answer goes.
pub(crate) enum Outgoing {
    H3(Box<h3::Outgoing>),
    Memory(memory::Outgoing),
}

impl Outgoing {
    fn reset(&mut self, code: u64) {
        match self {
            Outgoing::H3(out) => out.reset(code),
            Outgoing::Memory(out) => out.reset(code),
        }
    }

    async fn gone(&mut self) {
        match self {
            Outgoing::H3(out) => out.gone().await,
            Outgoing::Memory(out) => out.gone().await,
        }
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}

impl fmt::Debug for BodyWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyWriter")
    }
}

//! Connects, asks, and is a link.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use h3::ConnectionState;
use h3::error::{Code, StreamError};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::timeout;

use super::frames::frame_data;
use super::halves::{Fault, RecvHalf};
use super::quic::{self, var_int};
use super::tls::Fingerprint;

mod connect;
mod link;

pub use crate::dial::AskError;
pub use connect::{ConnectConfig, ConnectError, Connector};
pub use link::{DEFAULT_WINDOW, H3Link};

/// The most bytes that an answer's head may have.
const MAX_HEAD: usize = 64 << 10;

type Sender = h3::client::SendRequest<quic::OpenStreams, Bytes>;

/// One connection to a server. Cloning makes another handle; dropping the last closes it.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    conn: quinn::Connection,
    endpoint: quinn::Endpoint,
    sender: Mutex<Sender>,
    registry: quic::Registry,
    /// Host and port, as a request names them.
    authority: String,
    presented: Fingerprint,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.conn.close(var_int(Code::H3_NO_ERROR), b"");
    }
}

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Bounds of one question.
#[derive(Clone, Copy, Debug)]
pub struct AskLimits {
    /// Default 64 MiB.
    pub body: usize,
    /// Default 30 s.
    pub time: Duration,
}

impl Default for AskLimits {
    fn default() -> AskLimits {
        AskLimits { body: 64 << 20, time: Duration::from_secs(30) }
    }
}

impl Connection {
    /// The answer to `GET path`, whatever its status.
    pub async fn get(&self, path: &str, limits: AskLimits) -> Result<Answer, AskError> {
        self.ask(Method::GET, path, HeaderMap::new(), Bytes::new(), limits).await
    }

    /// The answer to any request, whatever its status.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
        limits: AskLimits,
    ) -> Result<Answer, AskError> {
        let started = Instant::now();
        let asking = async {
            let (head, mut recv) = self.call(method, path, headers, body).await?;
            let mut body = BytesMut::new();
            while let Some(bytes) = recv.data().await.map_err(|fault| self.fault(fault))? {
                if bytes.len() > limits.body - body.len() {
                    return Ok(Err(AskError::TooLarge { path: path.to_owned(), limit: limits.body }));
                }
                body.extend_from_slice(&bytes);
            }
            let (parts, ()) = head.into_parts();
            Ok(Ok(Answer { status: parts.status, headers: parts.headers, body: body.freeze() }))
        };
        let path = path.to_owned();
        match timeout(limits.time, asking).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(CallError::Closed(reason))) => Err(AskError::Closed { path, reason }),
            Ok(Err(CallError::Reset(code))) => Err(AskError::Reset { path, reason: code.to_string() }),
            Ok(Err(CallError::Protocol(reason))) => Err(AskError::Protocol { path, reason }),
            Err(_) => Err(AskError::Timeout { path, elapsed: started.elapsed() }),
        }
    }

    /// A link that carries up to `window` operations at once over this connection. A server allows so many streams and
    /// no more (ours: 256): operations beyond wait for one, within their deadlines. Must be called within a tokio runtime,
    /// whose tasks carry the operations.
    pub fn link(&self, window: usize) -> H3Link {
        H3Link::new(self.clone(), window)
    }

    /// Smoothed round-trip time.
    pub fn rtt(&self) -> Duration {
        self.inner.conn.rtt()
    }

    /// The largest UDP payload that is known to reach the server, in bytes: 1200 at first, and more as larger ones are tried
    /// and arrive.
    pub fn mtu(&self) -> u16 {
        self.inner.conn.stats().path.current_mtu
    }

    /// Where the server is.
    pub fn peer(&self) -> SocketAddr {
        self.inner.conn.remote_address()
    }

    /// Of the certificate that the server presented.
    pub fn presented(&self) -> Fingerprint {
        self.inner.presented
    }

    /// Whether it takes new requests: it is open, and the server has not said that it goes.
    pub fn is_alive(&self) -> bool {
        !self.sender(|sender| sender.is_closing()) && self.inner.conn.close_reason().is_none()
    }

    /// Closes at once: what is in flight ends with an error.
    pub fn close(&self) {
        self.inner.conn.close(var_int(Code::H3_NO_ERROR), b"");
    }

    /// Waits until the server has been told of a [`close`](Connection::close), one second at most. For programs about to
    /// end.
    pub async fn closed(&self) {
        let _ = timeout(Duration::from_secs(1), self.inner.endpoint.wait_idle()).await;
    }

    fn sender<T>(&self, use_it: impl FnOnce(&mut Sender) -> T) -> T {
        use_it(&mut self.inner.sender.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Sends a request, and reads the answer's head. Dropped half-way, it cancels the request.
    async fn call(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(http::Response<()>, Box<RecvHalf>), CallError> {
        let uri = http::Uri::builder().scheme("https").authority(self.inner.authority.as_str()).path_and_query(path);
        let uri = uri.build().map_err(|error| CallError::Protocol(error.to_string()))?;
        let mut request = http::Request::new(());
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri, headers);
        if !body.is_empty() {
            request.headers_mut().insert(http::header::CONTENT_LENGTH, body.len().into());
        }
        let mut sender = self.sender(|sender| sender.clone());
        let mut stream = sender.send_request(request).await.map_err(|error| self.error(error))?;
        let past = || CallError::Protocol("the stream's halves are not where they were put".to_owned());
        let cell = self.inner.registry.take(stream.id()).ok_or_else(past)?;
        let mut send = cell.take_send().ok_or_else(past)?;
        let mut framed = Vec::new();
        frame_data(&mut [body], &mut BytesMut::new(), &mut framed);
        let mut rest = framed.as_mut_slice();
        while !rest.is_empty() {
            match send.write(rest).await {
                Ok(through) => rest = &mut rest[through..],
                // A server may answer before it has the whole request, and not want the rest of it.
                Err(quinn::WriteError::Stopped(_)) => break,
                Err(error) => return Err(self.lost(&error)),
            }
        }
        let _ = send.finish();
        drop(send);
        loop {
            let head = stream.recv_response().await.map_err(|error| self.error(error))?;
            if !head.status().is_informational() {
                return Ok((head, cell.take_recv().ok_or_else(past)?));
            }
            cell.expect_head();
        }
    }

    fn error(&self, error: StreamError) -> CallError {
        match error {
            StreamError::RemoteTerminate { code } => CallError::Reset(code),
            StreamError::RemoteClosing => CallError::Closed("the server is going away".to_owned()),
            StreamError::ConnectionError(error) => self.lost(&error),
            _ if self.inner.conn.close_reason().is_some() => self.lost(&error),
            other => CallError::Protocol(other.to_string()),
        }
    }

    fn fault(&self, fault: Fault) -> CallError {
        match fault {
            Fault::Reset(code) => CallError::Reset(Code::from(code)),
            Fault::Lost(error) => self.lost(&error),
            Fault::Violation(code, reason) => {
                self.inner.conn.close(var_int(code), reason.as_bytes());
                CallError::Protocol(reason.to_owned())
            }
        }
    }

    fn lost(&self, error: &dyn fmt::Display) -> CallError {
        CallError::Closed(match self.inner.conn.close_reason() {
            Some(quinn::ConnectionError::TimedOut) => "nothing was heard from the server any more".to_owned(),
            Some(reason) => reason.to_string(),
            None => error.to_string(),
        })
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("authority", &self.inner.authority).field("peer", &self.peer()).finish()
    }
}

/// Why a request failed, without saying which.
enum CallError {
    Closed(String),
    Reset(Code),
    Protocol(String),
}

//! Requests and answers that never leave the process: how handlers are tested without sockets, and asked by fabrics that say
//! what they answer in another way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use tokio::sync::{mpsc, watch};

use super::{Body, BodyError, Handler, Request, Responder, SendError, Session};
use crate::pool::Account;

/// How many writes an answer's reader may be behind before the handler waits.
const DEPTH: usize = 4;

/// What to ask a handler.
#[derive(Debug)]
pub struct Ask {
    pub method: Method,
    /// Path and query.
    pub target: String,
    pub headers: http::HeaderMap,
    pub body: Bytes,
    /// Default: an account without limit.
    pub account: Account,
    /// Default: one that is over.
    pub session: Session,
    /// Default: a port of this machine's.
    pub peer: SocketAddr,
    /// Default: 0.
    pub connection: u64,
}

impl Ask {
    pub fn get(target: impl Into<String>) -> Ask {
        Ask::new(Method::GET, target, Bytes::new())
    }

    pub fn post(target: impl Into<String>, body: impl Into<Bytes>) -> Ask {
        Ask::new(Method::POST, target, body.into())
    }

    pub fn new(method: Method, target: impl Into<String>, body: Bytes) -> Ask {
        let account = Account::new("memory", usize::MAX);
        let (_, session) = Session::begin();
        let (target, headers, peer) = (target.into(), http::HeaderMap::new(), ([127, 0, 0, 1], 1).into());
        Ask { method, target, headers, body, account, session, peer, connection: 0 }
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub head: http::Response<()>,
    /// The chunks as they were written: their addresses are those of the memory they came from.
    pub chunks: Vec<Bytes>,
    /// How it ended: `Ok` after `finish`, else the code of the reset.
    pub end: Result<(), u64>,
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.head.status().as_u16()
    }

    /// The body in one piece.
    pub fn body(&self) -> Vec<u8> {
        self.chunks.concat()
    }
}

/// An answer that is being read as it is made.
#[derive(Debug)]
pub struct Reading {
    events: mpsc::Receiver<Event>,
    /// Dropping it is how the client goes.
    _present: watch::Sender<()>,
}

#[derive(Debug)]
pub enum Event {
    Head(http::Response<()>),
    Chunk(Bytes),
    Finished,
    Reset(u64),
}

impl Reading {
    /// The next thing that happens, or nothing after `Finished` or `Reset`.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// As [`next`](Reading::next).
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }
}

/// Asks `handler`, and gives the answer as it comes. The handler runs in a task of its own; dropping the result is
/// what a client does that goes away.
pub fn start(handler: Arc<impl Handler + ?Sized>, ask: Ask) -> Reading {
    let (sender, events) = mpsc::channel(DEPTH);
    let (present, gone) = watch::channel(());
    let (path, query) = match ask.target.split_once('?') {
        Some((path, query)) => (path.to_owned(), Some(query.to_owned())),
        None => (ask.target, None),
    };
    let head_only = ask.method == Method::HEAD;
    let request = Request {
        method: ask.method,
        path,
        query,
        headers: ask.headers,
        peer: ask.peer,
        connection: ask.connection,
        account: ask.account,
        session: ask.session,
        body: Body::Memory(Incoming { body: ask.body }),
    };
    let outgoing = super::Outgoing::Memory(Outgoing { sender, gone, state: State::Fresh });
    tokio::spawn(handler.handle(request, Responder { outgoing, head_only }));
    Reading { events, _present: present }
}

/// Asks `handler`, and waits for the whole answer. An answer without a head is a 500, as it would be on the wire.
pub async fn exchange(handler: Arc<impl Handler + ?Sized>, ask: Ask) -> Answer {
    let mut reading = start(handler, ask);
    let mut answer = Answer { head: failed(), chunks: Vec::new(), end: Err(0) };
    while let Some(event) = reading.next().await {
        match event {
            Event::Head(head) => answer.head = head,
            Event::Chunk(chunk) => answer.chunks.push(chunk),
            Event::Finished => answer.end = Ok(()),
            Event::Reset(code) => answer.end = Err(code),
        }
    }
    answer
}

fn failed() -> http::Response<()> {
    let mut head = http::Response::new(());
    *head.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
    head
}

pub(crate) struct Incoming {
    body: Bytes,
}

impl Incoming {
    pub(crate) fn read(&mut self, limit: usize) -> Result<Bytes, BodyError> {
        if self.body.len() > limit {
            return Err(BodyError::TooLarge { limit });
        }
        Ok(std::mem::take(&mut self.body))
    }
}

pub(crate) struct Outgoing {
    sender: mpsc::Sender<Event>,
    gone: watch::Receiver<()>,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Fresh,
    Body,
    Ended,
}

impl Outgoing {
    pub(crate) fn send_head(&mut self, head: http::Response<()>) -> Result<(), SendError> {
        self.state = State::Body;
        self.sender.try_send(Event::Head(head)).map_err(|_| SendError::Gone)
    }

    pub(crate) async fn write_all(&mut self, chunks: &mut [Bytes]) -> Result<(), SendError> {
        for chunk in chunks.iter_mut().map(std::mem::take).filter(|chunk| !chunk.is_empty()) {
            self.sender.send(Event::Chunk(chunk)).await.map_err(|_| SendError::Gone)?;
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> Result<(), SendError> {
        self.end(Event::Finished);
        if self.sender.is_closed() { Err(SendError::Gone) } else { Ok(()) }
    }

    pub(crate) fn reset(&mut self, code: u64) {
        self.end(Event::Reset(code));
    }

    pub(crate) async fn gone(&mut self) {
        while self.gone.changed().await.is_ok() {}
    }

    /// Tells the reader of the end, which must not wait: the queue may be full.
    fn end(&mut self, event: Event) {
        if std::mem::replace(&mut self.state, State::Ended) == State::Ended {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(event)) = self.sender.try_send(event) {
            let sender = self.sender.clone();
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { sender.send_timeout(event, Duration::from_secs(60)).await });
            }
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        match self.state {
            State::Fresh => {
                let _ = self.send_head(failed());
                self.end(Event::Finished);
            }
            State::Body => self.end(Event::Reset(0x102)),
            State::Ended => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn handler(mut request: Request, responder: Responder) {
        match request.path.as_str() {
            "/nothing" => {}
            "/half" => drop(responder.send_head(http::Response::new(())).await),
            "/endless" => {
                let mut writer = responder.send_head(http::Response::new(())).await.unwrap();
                while writer.write(Bytes::from_static(b"more")).await.is_ok() {}
                writer.gone().await;
            }
            _ => {
                let body = request.read_body(10).await;
                let mut head = http::Response::new(());
                *head.status_mut() = body.as_ref().err().map_or(http::StatusCode::OK, BodyError::status);
                let _ = responder.send(head, body.unwrap_or_default()).await;
            }
        }
    }

    #[tokio::test]
    async fn answers_are_what_they_would_be_on_the_wire() {
        let ask = async |ask| exchange(Arc::new(handler), ask).await;
        let body = Bytes::from_static(b"bytes");
        let answer = ask(Ask::post("/echo?x", body.clone())).await;
        assert_eq!((answer.status(), answer.end), (200, Ok(())));
        assert_eq!(answer.chunks[0].as_ptr(), body.as_ptr(), "the same memory");
        assert_eq!(ask(Ask::post("/echo", vec![0; 11])).await.status(), 413);
        assert!(ask(Ask::new(Method::HEAD, "/echo", body)).await.chunks.is_empty());
        assert_eq!(ask(Ask::get("/nothing")).await.status(), 500);
        assert_eq!(ask(Ask::get("/half")).await.end, Err(0x102));
    }

    #[tokio::test]
    async fn a_reader_that_goes_is_noticed() {
        let mut reading = start(Arc::new(handler), Ask::get("/endless"));
        assert!(matches!(reading.next().await, Some(Event::Head(_))));
        assert!(matches!(reading.next().await, Some(Event::Chunk(_))));
        drop(reading);
        // The handler's task ends; the runtime would otherwise wait for it.
    }
}

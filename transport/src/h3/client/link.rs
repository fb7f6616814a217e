//! An HTTP/3 connection as a link: each operation is a request of its own, in a task of its own.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use h3::error::Code;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

use super::super::halves::RecvHalf;
use super::{CallError, Connection};
use crate::link::{Completion, Entry, Fetch, Link, LinkError, LinkStats, Tag};
use crate::pool::Lease;
use crate::wire::problem::{self, MAX_PROBLEM};
use crate::wire::{AnswerDecoder, FetchRequest, TYPE_FETCH, WireError, path_segment};

/// How many operations a link carries at once unless it is told otherwise.
pub const DEFAULT_WINDOW: usize = 128;
/// An operation that gets nothing for this many of its deadlines, while the link carries twice as much as all that is in
/// flight can hold, is not waiting for its turn: it is forgotten.
const FORGOTTEN: u32 = 4;

/// An HTTP/3 connection as a [`Link`].
pub struct H3Link {
    connection: Connection,
    runtime: Handle,
    window: usize,
    /// What is accepted and not yet given out by `poll`. Dropping the sender cancels the operation.
    in_flight: HashMap<Tag, oneshot::Sender<()>>,
    shared: Arc<Shared>,
    done: mpsc::UnboundedSender<Completion>,
    completions: mpsc::UnboundedReceiver<Completion>,
}

/// What a link's operations know of one another.
struct Shared {
    base: Instant,
    /// Nanoseconds after `base` at which something last arrived.
    last: AtomicU64,
    /// Bytes that have arrived.
    bytes: AtomicU64,
    /// Bytes that the leases in flight can hold.
    capacity: AtomicU64,
}

impl Shared {
    fn progress(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.last.fetch_max(self.base.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.base + Duration::from_nanos(self.last.load(Ordering::Relaxed))
    }
}

impl H3Link {
    pub(super) fn new(connection: Connection, window: usize) -> H3Link {
        let (done, completions) = mpsc::unbounded_channel();
        let shared = Shared {
            base: Instant::now(),
            last: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
        };
        H3Link {
            connection,
            runtime: Handle::current(),
            window: window.max(1),
            in_flight: HashMap::new(),
            shared: Arc::new(shared),
            done,
            completions,
        }
    }

    /// The connection beneath.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Link for H3Link {
    fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        if self.in_flight.len() >= self.window || self.in_flight.contains_key(&fetch.tag) || !self.is_alive() {
            return Err(fetch);
        }
        let (cancel, cancelled) = oneshot::channel();
        self.in_flight.insert(fetch.tag, cancel);
        let operation = Operation::new(fetch, self.shared.clone(), self.done.clone());
        self.runtime.spawn(operation.run(self.connection.clone(), cancelled));
        Ok(())
    }

    /// Nothing to do: quinn gathers what is written until its task runs.
    fn flush(&mut self) {}

    fn cancel(&mut self, tag: Tag) {
        if let Some(cancel) = self.in_flight.get_mut(&tag) {
            // The tag stays until its completion is given out.
            let (closed, _) = oneshot::channel();
            drop(std::mem::replace(cancel, closed));
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        // The channel does not close: this holds a sender.
        let Some(completion) = ready!(self.completions.poll_recv(cx)) else { return Poll::Pending };
        self.in_flight.remove(&completion.tag);
        Poll::Ready(completion)
    }

    fn is_alive(&self) -> bool {
        self.connection.is_alive()
    }

    fn stats(&self) -> LinkStats {
        LinkStats {
            rtt: self.connection.rtt(),
            in_flight: self.in_flight.len(),
            bytes: self.shared.bytes.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for H3Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_flight = self.in_flight.len();
        f.debug_struct("H3Link").field("connection", &self.connection).field("in_flight", &in_flight).finish()
    }
}

/// An accepted operation. Whatever becomes of its task, dropping this completes it.
struct Operation {
    tag: Tag,
    /// There until it is completed.
    lease: Option<Lease>,
    capacity: u64,
    ordinals: Vec<u64>,
    entries: Vec<Entry>,
    done: mpsc::UnboundedSender<Completion>,
    shared: Arc<Shared>,
    request: Asked,
}

/// What an operation asks for.
struct Asked {
    dataset: Arc<str>,
    version: crate::Version,
    fields: Arc<[crate::link::FieldId]>,
    deadline: Duration,
}

impl Operation {
    fn new(fetch: Fetch, shared: Arc<Shared>, done: mpsc::UnboundedSender<Completion>) -> Operation {
        let Fetch { tag, dataset, version, ordinals, fields, lease, entries, deadline } = fetch;
        let capacity = lease.len() as u64;
        shared.capacity.fetch_add(capacity, Ordering::Relaxed);
        let request = Asked { dataset, version, fields, deadline };
        Operation { tag, lease: Some(lease), capacity, ordinals, entries, done, shared, request }
    }

    async fn run(mut self, connection: Connection, cancelled: oneshot::Receiver<()>) {
        let Operation { lease, shared, request, ordinals, entries, .. } = &mut self;
        let Some(lease) = lease else { return };
        let entries = std::mem::take(entries);
        let mine = Mine { last: AtomicU64::new(0), bytes: AtomicU64::new(shared.bytes.load(Ordering::Relaxed)) };
        mine.last.store(shared.base.elapsed().as_nanos() as u64, Ordering::Relaxed);
        // Whichever ends first, the others are dropped with it: nothing writes to the lease after that.
        let result = tokio::select! {
            biased;
            result = request.fetch(&connection, ordinals, lease, entries, (shared, &mine)) => result,
            _ = cancelled => Err(LinkError::Cancelled),
            () = stalled(shared, &mine, request.deadline) => Err(LinkError::Deadline(request.deadline)),
        };
        self.complete(result);
    }

    fn complete(&mut self, result: Result<Vec<Entry>, LinkError>) {
        let Some(lease) = self.lease.take() else { return };
        self.shared.capacity.fetch_sub(self.capacity, Ordering::Relaxed);
        let completion = Completion { tag: self.tag, lease, ordinals: std::mem::take(&mut self.ordinals), result };
        // Without a link nobody waits for it, and the lease goes back to the pool.
        let _ = self.done.send(completion);
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.complete(Err(LinkError::Closed("the runtime that carried the operation is gone".to_owned())));
    }
}

/// When an operation itself last got something, and how much the link had carried by then.
struct Mine {
    last: AtomicU64,
    bytes: AtomicU64,
}

impl Mine {
    fn progress(&self, shared: &Shared, bytes: usize) {
        shared.progress(bytes);
        self.last.store(shared.last.load(Ordering::Relaxed), Ordering::Relaxed);
        self.bytes.store(shared.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Ready when there has been no progress for `deadline`: none of the link, or none of this operation while the link has
/// carried so much else that its turn must have come.
async fn stalled(shared: &Shared, mine: &Mine, deadline: Duration) {
    loop {
        let own = shared.base + Duration::from_nanos(mine.last.load(Ordering::Relaxed));
        let due = shared.last().max(own) + deadline;
        let now = Instant::now();
        if now >= due {
            return;
        }
        let overtaken = shared.bytes.load(Ordering::Relaxed) - mine.bytes.load(Ordering::Relaxed);
        let all = shared.capacity.load(Ordering::Relaxed);
        if now >= own + deadline * FORGOTTEN && overtaken > all.saturating_mul(2) {
            return;
        }
        sleep_until(due.into()).await;
    }
}

impl Asked {
    async fn fetch(
        &self,
        connection: &Connection,
        ordinals: &[u64],
        lease: &mut Lease,
        entries: Vec<Entry>,
        (shared, mine): (&Shared, &Mine),
    ) -> Result<Vec<Entry>, LinkError> {
        let capacity = lease.len() as u64;
        let mut body = BytesMut::new();
        let request =
            FetchRequest { version: self.version, capacity, remaining: self.deadline, fields: &self.fields, ordinals };
        request.encode(&mut body).map_err(protocol)?;
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(TYPE_FETCH));
        let path = format!("/v1/datasets/{}/fetch", path_segment(&self.dataset));
        let called = connection.call(Method::POST, &path, headers, body.freeze()).await;
        let (head, mut recv) = called.map_err(link_error)?;
        mine.progress(shared, 0);
        if head.status() != StatusCode::OK {
            return Err(refusal(connection, &head, &mut recv).await);
        }
        let mut decoder = AnswerDecoder::new_in(entries, ordinals.len() * self.fields.len(), capacity);
        let target = lease.as_mut_slice();
        // What came since progress was last noted. That is done before waiting, not for each packet: it takes locked
        // instructions, which wait until all that was copied has reached the cache.
        let mut unnoted = 0;
        loop {
            let next = poll_fn(|cx| {
                let next = recv.poll_data(cx);
                if unnoted > 0 && !matches!(next, Poll::Ready(Ok(Some(_)))) {
                    mine.progress(shared, std::mem::take(&mut unnoted));
                }
                next
            });
            let Some(bytes) = next.await.map_err(|fault| link_error(connection.fault(fault)))? else { break };
            decoder.copy_into(&bytes, target).map_err(protocol)?;
            unnoted += bytes.len();
        }
        decoder.finish().map_err(protocol)
    }
}

/// What an answer other than 200 says.
async fn refusal(connection: &Connection, head: &http::Response<()>, recv: &mut RecvHalf) -> LinkError {
    let mut body = BytesMut::new();
    loop {
        match recv.data().await {
            Ok(Some(bytes)) if bytes.len() <= MAX_PROBLEM - body.len() => body.extend_from_slice(&bytes),
            // Too long to be a problem document; the status says enough.
            Ok(Some(_)) => {
                body.clear();
                break;
            }
            Ok(None) => break,
            Err(fault) => return link_error(connection.fault(fault)),
        }
    }
    let retry_after = head.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    problem::link_error(head.status().as_u16(), retry_after, &body)
}

fn protocol(error: WireError) -> LinkError {
    LinkError::Protocol(error.to_string())
}

fn link_error(error: CallError) -> LinkError {
    match error {
        CallError::Closed(reason) => LinkError::Closed(reason),
        CallError::Reset(Code::H3_REQUEST_REJECTED) => LinkError::Busy { retry_after: None },
        CallError::Reset(code) => {
            LinkError::Server { status: 500, detail: format!("the answer was broken off with {code}") }
        }
        CallError::Protocol(reason) => LinkError::Protocol(reason),
    }
}

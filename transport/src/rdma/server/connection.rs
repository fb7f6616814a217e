//! One client's connection: its queue, and the answers that are being made and sent.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderValue};
use tokio::time::{Sleep, sleep_until};

use super::super::area::Area;
use super::super::device::Error;
use super::super::frame::{CONTROL_SLOT, Frame, Head, Imm, Op, Target, fill_echo};
use super::super::hello::Welcome;
use super::super::manager::Id;
use super::super::memory::{Domain, Registration, Rights};
use super::super::queue::{Depths, Done, Fault, Queue, Work};
use super::super::table;
use super::End;
use super::answer::{Answer, Step};
use crate::exchange::Handler;
use crate::exchange::memory::{Ask, start};
use crate::link::{Entry, Status};
use crate::pool::Slab;
use crate::rdma::tickets::Grant;
use crate::wire::problem::Kind;
use crate::wire::{TYPE_FETCH, request};

/// Pieces of work that send and are not tables.
const WRITES: u32 = 224;
/// Bytes of payload that are being sent at once: more than what is under way on any wire, and little enough that the answer to
/// a heartbeat does not wait long behind it.
const IN_FLIGHT: u64 = 8 << 20;
/// After so many bytes a write tells when it is done, so that its memory is lent again.
const TELL: u64 = 512 << 10;
/// A problem's status of a fetch that was cancelled: nobody looks at it.
const CANCELLED: u16 = 499;

pub(super) struct Connection {
    queue: Queue,
    id: Id,
    frames: Area,
    tables: Area,
    /// The server's.
    pool: Arc<Registration>,
    slab: Slab,
    grant: Grant,
    handler: Arc<dyn Handler>,
    path: String,
    welcome: Welcome,
    /// By place in `tables`: what is being answered.
    ops: Vec<Option<Answering>>,
    /// Frames for which there is no place yet, because tables that the client may have had long ago are not known to be sent.
    waiting: VecDeque<(Head, u64, Bytes)>,
    /// What is being sent, in order.
    sending: VecDeque<Sending>,
    /// Bytes of payload in it, and of those after the last that tells.
    in_flight: u64,
    untold: u64,
    /// When the client was last heard of.
    heard: Instant,
    timer: Pin<Box<Sleep>>,
}

/// A frame that is being answered.
struct Answering {
    head: Head,
    /// `None` when the table is on its way.
    answer: Option<Answer>,
}

enum Sending {
    /// Kept until it is sent.
    Payload(Bytes),
    /// With its place.
    Table(usize),
}

impl Connection {
    pub(super) fn new(
        id: Id,
        welcome: Welcome,
        grant: Grant,
        handler: Arc<dyn Handler>,
        (domain, pool, slab): (&Arc<Domain>, Arc<Registration>, &Slab),
    ) -> Result<Connection, Error> {
        let credits = usize::from(welcome.credits);
        let depths = Depths { sends: WRITES + u32::from(welcome.credits), receives: welcome.credits.into(), pieces: 1 };
        let mut queue = Queue::new(domain, depths, false)?;
        let frames = Area::new(domain, credits, welcome.frame as usize, Rights::Local)?;
        let tables = Area::new(domain, credits, welcome.table as usize, Rights::Local)?;
        id.prepare(&mut queue)?;
        for place in 0..credits {
            // SAFETY: the place is looked at when the receive is done.
            unsafe { queue.receive(place as u32, Some(frames.piece(place, welcome.frame as usize)))? };
        }
        let path = format!("/v1/datasets/{}/fetch", crate::wire::path_segment(&grant.dataset));
        let now = Instant::now();
        Ok(Connection {
            queue,
            id,
            frames,
            tables,
            pool,
            slab: slab.clone(),
            grant,
            handler,
            path,
            welcome,
            ops: (0..credits).map(|_| None).collect(),
            waiting: VecDeque::new(),
            sending: VecDeque::new(),
            in_flight: 0,
            untold: 0,
            heard: now,
            timer: Box::pin(sleep_until(now.into())),
        })
    }

    /// Lets the client in, and waits until it is there.
    pub(super) async fn establish(&mut self, welcome: &Welcome) -> Result<(), Error> {
        self.id.accept(&mut self.queue, &welcome.encode())?;
        match self.id.event().await? {
            event if event.is_end() => {
                let source = std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
                Err(Error::System { what: "the client went away".to_owned(), source })
            }
            _ => {
                self.heard = Instant::now();
                Ok(())
            }
        }
    }

    /// Answers until it is over.
    pub(super) async fn run(mut self) -> End {
        let mut session = self.grant.session.clone();
        let mut over = pin!(async move { session.over().await });
        let end = poll_fn(|cx| match over.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(End::Over),
            Poll::Pending => match self.poll(cx) {
                Ok(Some(end)) | Err(end) => Poll::Ready(end),
                Ok(None) => Poll::Pending,
            },
        })
        .await;
        // Before what was being sent is lent again.
        if self.queue.close().is_err() {
            tracing::error!("RDMA: a queue pair is not destroyed: what it was sending is lost to the pool");
            std::mem::take(&mut self.sending).into_iter().for_each(std::mem::forget);
        }
        self.id.disconnect();
        end
    }

    /// Does what can be done now.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<Option<End>, End> {
        let mut done = Vec::new();
        loop {
            let mut busy = false;
            match self.queue.poll_done(cx, &mut done) {
                Poll::Ready(Ok(())) => busy = true,
                Poll::Ready(Err(error)) => return Err(End::Lost(error.to_string())),
                Poll::Pending => {}
            }
            for done in done.drain(..) {
                self.take(done)?;
            }
            for place in 0..self.ops.len() {
                busy |= self.advance(place, cx)?;
            }
            self.queue.post().map_err(|error| End::Lost(error.to_string()))?;
            if !busy {
                break;
            }
        }
        while let Poll::Ready(event) = self.id.poll_event(cx) {
            match event {
                Ok(event) if !event.is_end() => {}
                Ok(_) => return Ok(Some(End::Over)),
                Err(error) => return Err(End::Lost(error.to_string())),
            }
        }
        self.watch(cx)
    }

    /// Whether the client is still there.
    fn watch(&mut self, cx: &mut Context<'_>) -> Result<Option<End>, End> {
        let patience: Duration = self.welcome.heartbeat * 3;
        loop {
            let due = self.heard + patience;
            if Instant::now() >= due {
                return Err(End::Lost(format!("nothing was heard of the client for {patience:?}")));
            }
            self.timer.as_mut().reset(due.into());
            if self.timer.as_mut().poll(cx).is_pending() {
                return Ok(None);
            }
        }
    }

    fn take(&mut self, done: Done) -> Result<(), End> {
        match done {
            Done::Received { id, len, .. } => {
                self.heard = Instant::now();
                self.frame(id as usize, len as usize)
            }
            Done::Sent { .. } => {
                match self.sending.pop_front() {
                    Some(Sending::Payload(bytes)) => self.in_flight -= bytes.len() as u64,
                    Some(Sending::Table(place)) => {
                        self.ops[place] = None;
                        if let Some((head, nonce, body)) = self.waiting.pop_front() {
                            return self.begin(place, head, nonce, body);
                        }
                    }
                    None => {}
                }
                Ok(())
            }
            Done::Failed { fault: Fault::FLUSHED, .. } => Err(End::Over),
            Done::Failed { fault, .. } if fault.is_the_peers() => Err(End::Misbehaved(fault.to_string())),
            Done::Failed { fault, .. } => Err(End::Lost(fault.to_string())),
        }
    }

    /// A frame has come, into this place of `frames`.
    fn frame(&mut self, place: usize, len: usize) -> Result<(), End> {
        let nonsense = |why: &dyn std::fmt::Display| End::Misbehaved(why.to_string());
        // SAFETY: the receive is done, and no other is posted for the place yet.
        let bytes = unsafe { self.frames.bytes(place, len) };
        let frame = Frame::decode(bytes).map_err(|error| nonsense(&error))?;
        let (head, nonce, body) = (frame.head, frame.nonce(), Bytes::copy_from_slice(frame.body));
        // Before the answer, which gives the credit back that this costs.
        // SAFETY: the place is looked at when the receive is done.
        let posted =
            unsafe { self.queue.receive(place as u32, Some(self.frames.piece(place, self.welcome.frame as usize))) };
        posted.map_err(|error| End::Lost(error.to_string()))?;
        if head.table.capacity > self.welcome.table.into() {
            return Err(nonsense(&"a table may have more bytes than were agreed on"));
        }
        if matches!(head.op, Op::Fetch | Op::Cancel) && head.slot >= self.welcome.credits {
            return Err(nonsense(&"there is no such slot"));
        }
        // What has its table on the way may be long over for the client.
        let open = || self.ops.iter().flatten().filter(|op| op.answer.is_some()).map(|op| &op.head);
        let all = || open().chain(self.waiting.iter().map(|(head, ..)| head));
        if head.op == Op::Fetch && all().any(|other| other.op == Op::Fetch && other.slot == head.slot) {
            return Err(nonsense(&"a slot is used twice"));
        }
        if all().count() >= self.ops.len() {
            return Err(nonsense(&"more frames came than there are credits"));
        }
        match self.ops.iter().position(Option::is_none) {
            Some(place) => self.begin(place, head, nonce.unwrap_or_default(), body),
            None => {
                self.waiting.push_back((head, nonce.unwrap_or_default(), body));
                Ok(())
            }
        }
    }

    /// Begins to answer a frame, in this place, which is free.
    fn begin(&mut self, free: usize, head: Head, nonce: u64, body: Bytes) -> Result<(), End> {
        self.ops[free] = Some(Answering { head, answer: None });
        match head.op {
            Op::Fetch => self.fetch(free, &head, body),
            Op::Echo => self.echo(free, &head, nonce),
            Op::Heartbeat => self.entries(free, &[]),
            Op::Cancel => {
                for place in 0..self.ops.len() {
                    let cancelled = self.ops[place].as_ref().is_some_and(|op| {
                        let same = (op.head.slot, op.head.generation) == (head.slot, head.generation);
                        op.head.op == Op::Fetch && same && op.answer.is_some()
                    });
                    if cancelled {
                        self.problem(place, CANCELLED, None, b"")?;
                    }
                }
                self.entries(free, &[])
            }
        }
    }

    fn fetch(&mut self, place: usize, head: &Head, body: Bytes) -> Result<(), End> {
        let entries = request::entries(&body);
        let room = table::entries_in(head.table.capacity as usize);
        let Some(entries) = entries.filter(|&entries| entries <= room) else {
            let problem = Kind::TooLarge.problem(format!("a table has room for {room} entries"));
            let document = serde_json::to_vec(&problem).unwrap_or_default();
            return self.problem(place, problem.status, None, &document);
        };
        let Grant { session, connection, peer, account, .. } = &self.grant;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(TYPE_FETCH));
        let mut ask = Ask::post(self.path.clone(), body);
        (ask.headers, ask.account, ask.session) = (headers, account.clone(), session.clone());
        (ask.peer, ask.connection) = (*peer, *connection);
        let answer = Answer::new(start(self.handler.clone(), ask), entries, head.lease.capacity);
        if let Some(op) = &mut self.ops[place] {
            op.answer = Some(answer);
        }
        Ok(())
    }

    fn echo(&mut self, place: usize, head: &Head, nonce: u64) -> Result<(), End> {
        let len = head.lease.capacity as usize;
        let Some(mut lease) = self.slab.try_lease(&self.grant.account, len) else {
            return self.problem(place, Kind::Busy.status(), Some(1), b"");
        };
        fill_echo(nonce, lease.as_mut_slice());
        let crc = crc32c::crc32c(&lease);
        let bytes = lease.freeze().into_bytes();
        if !bytes.is_empty() {
            self.write(head.lease, 0, bytes)?;
        }
        self.entries(place, &[Entry { status: Status::Ok, offset: 0, len: len as u64, crc: Some(crc) }])
    }

    /// Whether payload may be sent now: tables always find room.
    fn has_room(&self) -> bool {
        self.queue.room() > self.ops.len() && self.in_flight < IN_FLIGHT
    }

    /// Goes on with an answer. Whether there was anything to do.
    fn advance(&mut self, place: usize, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut busy = false;
        while self.has_room() {
            let Some(op) = &mut self.ops[place] else { break };
            let (lease, Some(answer)) = (op.head.lease, &mut op.answer) else { break };
            let Poll::Ready(step) = answer.poll(cx) else { break };
            busy = true;
            match step {
                Step::Payload { at, bytes } => self.write(lease, at, bytes)?,
                Step::Entries(entries) => self.entries(place, &entries)?,
                Step::Problem { status, retry_after, document } => {
                    self.problem(place, status, retry_after, &document)?;
                }
            }
        }
        Ok(busy)
    }

    /// Writes payload at `at` of the client's lease.
    fn write(&mut self, lease: Target, at: u64, bytes: Bytes) -> Result<(), End> {
        let bytes = match self.pool.piece(&raw const *bytes) {
            Some(_) => bytes,
            // Not of the pool: what a handler says beside samples, or for lack of them.
            None => {
                let lease = self.slab.try_lease(&self.grant.account, bytes.len());
                let mut lease = lease.ok_or_else(|| End::Lost("no memory for an answer".to_owned()))?;
                lease.as_mut_slice().copy_from_slice(&bytes);
                lease.freeze().into_bytes()
            }
        };
        let piece =
            self.pool.piece(&raw const *bytes).ok_or_else(|| End::Lost("a pool that is not registered".to_owned()))?;
        self.untold += u64::from(piece.len);
        self.in_flight += u64::from(piece.len);
        let told = self.untold >= TELL;
        if told {
            self.untold = 0;
        }
        let to = Target { address: lease.address + at, ..lease };
        self.sending.push_back(Sending::Payload(bytes));
        // SAFETY: what is sent is kept in `sending`, shared and read-only, until it is sent or the queue is closed.
        unsafe { self.queue.add(0, Work::Write { from: &[piece], to }, told) }
            .map_err(|_| End::Lost("the queue takes no more".to_owned()))
    }

    /// Answers with entries.
    fn entries(&mut self, place: usize, entries: &[Entry]) -> Result<(), End> {
        self.table(place, |head, room| table::encode_entries(head, entries, room), table::status::ENTRIES)
    }

    /// Answers with a problem.
    fn problem(&mut self, place: usize, status: u16, retry_after: Option<u16>, document: &[u8]) -> Result<(), End> {
        let write = |head, room: &mut [u8]| table::encode_problem(head, (status, retry_after), document, room);
        self.table(place, write, table::status::PROBLEM)
    }

    /// Sends a table, which ends the answer.
    fn table(
        &mut self,
        place: usize,
        encode: impl FnOnce(table::Head, &mut [u8]) -> Result<usize, table::TableError>,
        status: u8,
    ) -> Result<(), End> {
        let Some(op) = &mut self.ops[place] else { return Ok(()) };
        op.answer = None;
        let Head { op: asked, slot, generation, table: to, .. } = op.head;
        let (slot, imm) = match asked {
            Op::Fetch => (slot, Imm::of_fetch(slot, generation, status)),
            other => (CONTROL_SLOT, Imm::of_control(other, generation)),
        };
        // SAFETY: the place is this frame's, and its table was not sent yet; nobody has a key of it.
        let room = unsafe { self.tables.bytes_mut(place) };
        let most = room.len().min(to.capacity as usize);
        let len = encode(table::Head { slot, generation }, &mut room[..most]);
        let len = len.map_err(|error| End::Lost(format!("a table that cannot be written: {error}")))?;
        self.sending.push_back(Sending::Table(place));
        self.untold = 0;
        let from = self.tables.piece(place, len);
        // SAFETY: the place stays as it is until the table is sent, or the queue is closed.
        unsafe { self.queue.add(0, Work::WriteImm { from, to, imm: imm.encode() }, true) }
            .map_err(|_| End::Misbehaved("more frames came than there are credits".to_owned()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A task that is given up in mid-run: memory goes back when nothing is sent from it any more.
        if self.queue.close().is_err() {
            std::mem::take(&mut self.sending).into_iter().for_each(std::mem::forget);
        }
    }
}

//! A connection to a server that answers by writing into our pool, as a link.
//!
//! The link is driven by whoever polls it: it has no thread and no task, and nothing in it is shared. A lease that was lent to the
//! server comes back when its answer has come and its window is shut, or when the queue pair is destroyed, and not before.
#![allow(unsafe_code)]

mod connect;
mod dial;
mod link;
mod place;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::time::Sleep;

pub use self::connect::{Config, Error};
pub use self::dial::Dialer;
use self::place::{Asked, Operation, Place};
use super::area::Area;
use super::frame::{CONTROL_SLOT, Frame, HEAD, Head, Imm, Op, Target};
use super::hello::Welcome;
use super::manager::Id;
use super::memory::{Domain, Registration, Rights};
use super::queue::{Done, Queue, Work};
use super::table::{self, Answer, Expected};
use crate::link::{Completion, Entry, Fetch, LinkError, Status, Tag};
use crate::pool::Lease;
use crate::wire::FetchRequest;
use crate::wire::problem;

/// Credits that fetches leave alone: for a heartbeat and a cancellation.
const RESERVED: u16 = 2;
/// How long the server may take to end what was given up, without any progress, before the connection is.
const GIVEN_UP: Duration = Duration::from_secs(5);
/// Bytes of a frame without a body, and of a table without entries, in places of their own.
const SMALL: usize = 64;

/// What work was for: in its number, above the place's.
mod purpose {
    pub const FRAME: u64 = 0;
    pub const BIND: u64 = 1;
    pub const SHUT: u64 = 2;
    pub const CANCEL: u64 = 3;
    pub const BEAT: u64 = 4;
}

fn number(purpose: u64, place: usize) -> u64 {
    purpose << 32 | place as u64
}

/// A connection as a [`Link`](crate::link::Link). Must be used within a tokio runtime.
pub struct RdmaLink {
    queue: Queue,
    id: Id,
    domain: Arc<Domain>,
    rights: Rights,
    /// The pool, and other slabs that leases came from.
    registered: Vec<Arc<Registration>>,
    /// By place. The last is for what the control slot asks.
    places: Vec<Place>,
    free: Vec<usize>,
    frames: Area,
    tables: Area,
    /// Small ones, by place: frames that cancel, and the tables that answer them. The last place's are a heartbeat's.
    small_frames: Area,
    small_tables: Area,
    by_tag: HashMap<Tag, usize>,
    ready: VecDeque<Completion>,
    /// The one dataset that can be read; the first that is asked for if nobody said.
    dataset: Option<Arc<str>>,
    welcome: Welcome,
    /// Frames that may be sent now.
    credits: u16,
    /// Cancellations that are not answered, by place and generation, in order.
    cancels: VecDeque<(usize, u32)>,
    beat: Option<Beat>,
    beats: u32,
    times: Times,
    rtt: Duration,
    bytes: u64,
    /// Why nothing more can be asked.
    dead: Option<String>,
    timer: Pin<Box<Sleep>>,
    /// Memory that is used again.
    body: BytesMut,
    scratch: Vec<u8>,
    done: Vec<Done>,
}

/// A heartbeat that is under way.
struct Beat {
    at: Instant,
    sent: bool,
    answered: bool,
}

/// When things last happened.
struct Times {
    /// A frame was sent.
    sent: Instant,
    /// The server was heard of.
    heard: Instant,
    /// An answer to a fetch came.
    progress: Instant,
}

impl RdmaLink {
    /// Lends the operation's lease to the server and asks. A place that is free has room for all of it.
    #[allow(clippy::result_large_err)]
    fn ask(&mut self, place: usize, mut operation: Operation) -> Result<(), (Operation, LinkError)> {
        match self.encode(&mut operation).and_then(|()| self.lend(place, &mut operation.lease)) {
            Ok(target) => operation.target = target,
            Err(error) => return Err((operation, error)),
        }
        self.places[place].operation = Some(operation);
        if let Err(why) = self.send(place) {
            // The window may be bound already, and is not to stay so: all ends.
            self.fail(why);
        }
        Ok(())
    }

    /// Writes the body of the operation's next frame.
    fn encode(&mut self, operation: &mut Operation) -> Result<(), LinkError> {
        self.body.clear();
        let Asked::Fetch { version, ordinals, fields, .. } = &operation.asked else {
            if let Asked::Echo { nonce } = operation.asked {
                self.body.extend_from_slice(&nonce.to_le_bytes());
                operation.count = 1;
            }
            return Ok(());
        };
        let rest = &ordinals[operation.answered..];
        // Before the first frame nothing is lent yet, and all of it will be.
        let capacity = if operation.answered == 0 { operation.lease.len() as u64 } else { operation.rest().capacity };
        let (entries, bytes) = (table::entries_in(self.welcome.table as usize), self.welcome.frame as usize);
        let mut samples = rest.len().min(entries / fields.len().max(1)).max(1);
        loop {
            self.body.clear();
            let (ordinals, remaining) = (&rest[..samples], operation.deadline);
            let request = FetchRequest { version: *version, capacity, remaining, fields, ordinals };
            request.encode(&mut self.body).map_err(|error| LinkError::Protocol(error.to_string()))?;
            operation.count = samples * fields.len();
            let fits = HEAD + self.body.len() <= bytes && operation.count <= entries;
            match samples {
                _ if fits => return Ok(()),
                1 => {
                    let detail = format!("{} fields are more than fit in one frame by RDMA", fields.len());
                    return Err(LinkError::Refused { status: 413, detail });
                }
                _ => samples /= 2,
            }
        }
    }

    /// Sends the frame whose body was written.
    fn send(&mut self, place: usize) -> Result<(), String> {
        let Place { generation, operation: Some(operation), .. } = &mut self.places[place] else { return Ok(()) };
        let (op, slot) = match operation.asked {
            Asked::Fetch { .. } => (Op::Fetch, place as u16),
            Asked::Echo { .. } => (Op::Echo, CONTROL_SLOT),
        };
        let table = Target { capacity: self.welcome.table.into(), ..self.tables.target(place) };
        let head = Head { op, slot, generation: *generation, lease: operation.rest(), table };
        operation.sent = false;
        // SAFETY: nothing of the place is being sent, and nobody has a key.
        let room = unsafe { self.frames.bytes_mut(place) };
        let len = Frame { head, body: &self.body }.encode(room).map_err(|error| error.to_string())?;
        let piece = self.frames.piece(place, len);
        // SAFETY: the frame stays as it is until it is sent; the lease is the operation's, which nobody gets before the window is
        // shut or the queue is closed.
        let added = unsafe { self.queue.add(number(purpose::FRAME, place), Work::Send(piece), true) };
        added.map_err(|_| "the queue takes no more".to_owned())?;
        self.credits -= 1;
        self.times.sent = Instant::now();
        Ok(())
    }

    /// Opens the lease to the server.
    fn lend(&mut self, place: usize, lease: &mut Lease) -> Result<Target, LinkError> {
        if lease.is_empty() {
            return Ok(Target::default());
        }
        let registration = self.registered.iter().find(|registration| registration.is_of(lease.slab())).cloned();
        let registration = match registration {
            Some(registration) => registration,
            None => {
                let new = Registration::new(&self.domain, lease.slab(), self.rights);
                let new = new.map_err(|error| LinkError::Refused { status: 507, detail: error.to_string() })?;
                self.registered.push(new.clone());
                new
            }
        };
        let (address, capacity) = (lease.as_mut_ptr() as u64, lease.len() as u64);
        let Some(window) = &mut self.places[place].window else {
            return Ok(Target { address, key: registration.remote_key(), capacity });
        };
        let shut =
            || LinkError::Refused { status: 413, detail: "a lease that no memory window can be bound to".to_owned() };
        let binding = window.binding(&registration, &raw const **lease).ok_or_else(shut)?;
        let key = binding.key;
        // SAFETY: the lease is moved into the operation, which keeps it until the window is shut or the queue is closed.
        let added = unsafe { self.queue.add(number(purpose::BIND, place), Work::Bind(binding), false) };
        debug_assert!(added.is_ok(), "there is room for all that places can ask");
        Ok(Target { address, key, capacity })
    }

    /// Takes what is done. An error ends the connection.
    fn take(&mut self, done: Done) -> Result<(), String> {
        match done {
            Done::Received { id, len, imm } => self.answered(id as u32, len as usize, imm),
            Done::Sent { id } => {
                let place = (id & 0xffff_ffff) as usize;
                let operation = self.places[place].operation.as_mut();
                match (id >> 32, operation) {
                    (purpose::FRAME, Some(operation)) => {
                        operation.sent = true;
                        self.go_on(place)?;
                    }
                    (purpose::SHUT, Some(operation)) => {
                        operation.shut = true;
                        if let Some(window) = &mut self.places[place].window {
                            window.ended();
                        }
                    }
                    (purpose::BEAT, _) => {
                        if let Some(beat) = &mut self.beat {
                            beat.sent = true;
                        }
                        self.beat.take_if(|beat| beat.sent && beat.answered);
                    }
                    _ => {}
                }
                self.settle(place);
                Ok(())
            }
            Done::Failed { fault, .. } => Err(fault.to_string()),
        }
    }

    /// The server has written a table.
    fn answered(&mut self, receive: u32, len: usize, imm: Option<u32>) -> Result<(), String> {
        // SAFETY: it receives into nothing.
        unsafe { self.queue.receive(receive, None) }.map_err(|error| error.to_string())?;
        let imm = imm.map(Imm::decode).ok_or("the server sent a message, which it never does")?;
        self.times.heard = Instant::now();
        self.credits += 1;
        if imm.slot != CONTROL_SLOT {
            let place = usize::from(imm.slot);
            if place + 1 >= self.places.len() {
                return Err(format!("the server answers in slot {place}, which was never used"));
            }
            return self.answer(place, imm, len);
        }
        let control = self.places.len() - 1;
        match imm.control().ok_or("the server answers what was never asked")? {
            Op::Echo => self.answer(control, imm, len),
            Op::Heartbeat => {
                let expected = table::Head { slot: CONTROL_SLOT, generation: self.beats };
                self.small_tables.copy(control, len, &mut self.scratch);
                check_empty(&self.scratch, expected)?;
                let beat = self.beat.as_mut().filter(|beat| !beat.answered).ok_or("a heartbeat is answered twice")?;
                beat.answered = true;
                let rtt = beat.at.elapsed();
                self.rtt = if self.rtt.is_zero() { rtt } else { (self.rtt * 7 + rtt) / 8 };
                self.beat.take_if(|beat| beat.sent && beat.answered);
                Ok(())
            }
            _ => {
                let (place, generation) = self.cancels.pop_front().ok_or("what was not cancelled is answered")?;
                self.small_tables.copy(place, len, &mut self.scratch);
                check_empty(&self.scratch, table::Head { slot: CONTROL_SLOT, generation })?;
                self.places[place].cancelling = false;
                self.settle(place);
                Ok(())
            }
        }
    }

    /// The answer to what a place has asked.
    fn answer(&mut self, place: usize, imm: Imm, len: usize) -> Result<(), String> {
        let this = &mut self.places[place];
        let generation = this.generation;
        let open = this.operation.as_mut().filter(|operation| operation.result.is_none() && !operation.more);
        let operation = open.filter(|_| imm.generation == generation as u8);
        let operation = operation.ok_or_else(|| format!("slot {} is answered, which asks nothing", imm.slot))?;
        // Once: the server could write to it at any time.
        self.tables.copy(place, len.min(self.welcome.table as usize), &mut self.scratch);
        let (entries, capacity) = (operation.count, operation.rest().capacity);
        let expected = Expected { head: table::Head { slot: imm.slot, generation }, entries, capacity };
        let from = operation.entries.len();
        let answer =
            table::decode(&self.scratch, &expected, &mut operation.entries).map_err(|error| error.to_string())?;
        self.times.progress = Instant::now();
        match answer {
            Answer::Entries => {
                let placed = operation.entries[from..].iter().filter(|entry| entry.status == Status::Ok);
                self.bytes += placed.map(|entry| entry.len).sum::<u64>();
                if operation.take(from) {
                    operation.more = true;
                    return self.go_on(place);
                }
                self.end(place, Ok(()))
            }
            Answer::Problem { status, retry_after, document } => {
                let retry_after = retry_after.map(|seconds| seconds.to_string());
                let error = problem::link_error(status, retry_after.as_deref(), document);
                let given_up = operation.given_up.clone();
                self.end(place, Err(given_up.unwrap_or(error)))
            }
        }
    }

    /// Asks for the rest of what a place has asked for in part, once the frame before is sent and there is a credit.
    fn go_on(&mut self, place: usize) -> Result<(), String> {
        let this = &mut self.places[place];
        let Some(mut operation) = this.operation.take_if(|operation| operation.more && operation.sent) else {
            return Ok(());
        };
        let stop = match operation.given_up.clone() {
            Some(why) => Some(why),
            None if self.credits == 0 => {
                this.operation = Some(operation);
                return Ok(());
            }
            None => self.encode(&mut operation).err(),
        };
        operation.more = false;
        let this = &mut self.places[place];
        this.generation = this.generation.wrapping_add(1);
        this.operation = Some(operation);
        match stop {
            Some(why) => self.end(place, Err(why)),
            None => self.send(place),
        }
    }

    /// What a place has asked is answered: shuts the lease to the server.
    fn end(&mut self, place: usize, result: Result<(), LinkError>) -> Result<(), String> {
        let this = &mut self.places[place];
        let Some(operation) = &mut this.operation else { return Ok(()) };
        operation.result = Some(result);
        match &this.window {
            Some(window) if window.is_bound() => {
                let work = Work::Invalidate { key: window.key() };
                // SAFETY: it names no memory.
                let added = unsafe { self.queue.add(number(purpose::SHUT, place), work, true) };
                added.map_err(|_| "the queue takes no more".to_owned())
            }
            _ => {
                operation.shut = true;
                self.settle(place);
                Ok(())
            }
        }
    }

    /// Completes what a place has asked if all of it is over, and frees the place if nothing of it is under way.
    fn settle(&mut self, place: usize) {
        let this = &mut self.places[place];
        if let Some(operation) = this.operation.take_if(|operation| operation.is_over()) {
            this.generation = this.generation.wrapping_add(1);
            this.resting = false;
            let tag = operation.asked.tag();
            self.by_tag.remove(&tag);
            self.ready.push_back(operation.complete());
        }
        if this.operation.is_none() && !this.cancelling && !this.resting {
            this.resting = true;
            // The last is never lent to a fetch.
            if place + 1 < self.places.len() {
                self.free.push(place);
            }
        }
    }

    /// Sends what is due by the clock. When to look again.
    fn tend(&mut self) -> Result<Instant, String> {
        let now = Instant::now();
        let heartbeat = self.welcome.heartbeat;
        let control = self.places.len() - 1;
        let silent = || format!("nothing was heard of the server for {:?}", now - self.times.heard);
        // Silence means something only after a question: nobody may have looked here for a while.
        let mut due = match &self.beat {
            Some(beat) => beat.at.max(self.times.heard) + heartbeat * 2,
            None if self.credits == 0 => self.times.sent.max(self.times.heard) + heartbeat * 3,
            None => now + heartbeat,
        };
        if now >= due {
            return Err(silent());
        }
        if self.beat.is_none() && self.credits > 0 && self.places[control].operation.is_none() {
            let next = self.times.sent.min(self.times.heard) + heartbeat;
            if now >= next {
                self.beats = self.beats.wrapping_add(1);
                self.small(control, purpose::BEAT, Op::Heartbeat, (CONTROL_SLOT, self.beats))?;
                self.beat = Some(Beat { at: now, sent: false, answered: false });
            } else {
                due = due.min(next);
            }
        }
        for place in 0..control {
            let this = &mut self.places[place];
            let Some(operation) = this.operation.as_mut().filter(|operation| operation.result.is_none()) else {
                continue;
            };
            let last = self.times.progress.max(operation.begun);
            match operation.given_up_at {
                None if now - last >= operation.deadline => {
                    operation.give_up(LinkError::Deadline(operation.deadline), now);
                    due = due.min(now + GIVEN_UP);
                }
                // One that is beyond the clock's end is none.
                None => due = last.checked_add(operation.deadline).map_or(due, |end| due.min(end)),
                Some(at) if now >= last.max(at) + GIVEN_UP => {
                    return Err("the server does not end what was given up".to_owned());
                }
                Some(at) => due = due.min(last.max(at) + GIVEN_UP),
            }
            if operation.more {
                self.go_on(place)?;
            } else if operation.given_up.is_some() && !operation.told && self.credits > 0 {
                operation.told = true;
                this.cancelling = true;
                let generation = this.generation;
                self.cancels.push_back((place, generation));
                self.small(place, purpose::CANCEL, Op::Cancel, (place as u16, generation))?;
            }
        }
        Ok(due)
    }

    /// Sends a frame without a lease or a body.
    fn small(&mut self, place: usize, purpose: u64, op: Op, (slot, generation): (u16, u32)) -> Result<(), String> {
        let table = self.small_tables.target(place);
        let frame = Frame { head: Head { op, slot, generation, lease: Target::default(), table }, body: &[] };
        // SAFETY: nothing of the place is being sent: its last frame was answered.
        let room = unsafe { self.small_frames.bytes_mut(place) };
        let len = frame.encode(room).map_err(|error| error.to_string())?;
        let work = Work::Send(self.small_frames.piece(place, len));
        // SAFETY: the frame stays as it is until it is answered.
        let added = unsafe { self.queue.add(number(purpose, place), work, true) };
        added.map_err(|_| "the queue takes no more".to_owned())?;
        self.credits -= 1;
        self.times.sent = Instant::now();
        Ok(())
    }

    /// Does what can be done now. Whether there was anything.
    fn drive(&mut self, cx: &mut Context<'_>) -> Result<bool, String> {
        let mut done = std::mem::take(&mut self.done);
        let polled = self.queue.poll_done(cx, &mut done);
        let busy = polled.is_ready();
        let taken = done.drain(..).try_for_each(|done| self.take(done));
        self.done = done;
        taken?;
        if let Poll::Ready(Err(error)) = polled {
            return Err(error.to_string());
        }
        while let Poll::Ready(event) = self.id.poll_event(cx) {
            if event.map_err(|error| error.to_string())?.is_end() {
                return Err("the server ended the connection".to_owned());
            }
        }
        let due = self.tend()?;
        self.queue.post().map_err(|error| error.to_string())?;
        self.timer.as_mut().reset(due.into());
        let rang = self.timer.as_mut().poll(cx).is_ready();
        Ok(busy || rang)
    }

    /// Ends the connection. All that is in flight completes.
    fn fail(&mut self, why: String) {
        if self.dead.is_some() {
            return;
        }
        self.queue.stop(&mut Vec::new());
        for place in &mut self.places {
            place.window = None;
        }
        let closed = self.queue.close();
        self.id.disconnect();
        self.free.clear();
        self.by_tag.clear();
        for place in &mut self.places {
            let Some(mut operation) = place.operation.take() else { continue };
            if let Err(error) = &closed {
                tracing::error!(%error, bytes = operation.lease.len(), "RDMA: a lease is lost to the pool");
                // Whatever device it was may still write there.
                let _ = operation.lease.quarantine();
                continue;
            }
            let error = operation.given_up.take().unwrap_or_else(|| LinkError::Closed(why.clone()));
            operation.result.get_or_insert(Err(error));
            self.ready.push_back(operation.complete());
        }
        self.dead = Some(why);
    }

    /// Completes what cannot be asked.
    fn refuse(&mut self, operation: Operation, error: LinkError) {
        let mut operation = operation;
        operation.result = Some(Err(error));
        self.ready.push_back(operation.complete());
    }

    /// Why this fetch cannot be asked for here, if so.
    fn forbids(&mut self, fetch: &Fetch) -> Option<LinkError> {
        let dataset = self.dataset.get_or_insert_with(|| fetch.dataset.clone());
        (*dataset != fetch.dataset).then(|| {
            let detail = format!("this connection may read {dataset}, and not {}", fetch.dataset);
            LinkError::Refused { status: 404, detail }
        })
    }
}

/// Whether this is a table without entries, of `expected`.
fn check_empty(bytes: &[u8], head: table::Head) -> Result<(), String> {
    let mut none: Vec<Entry> = Vec::new();
    let expected = Expected { head, entries: 0, capacity: 0 };
    match table::decode(bytes, &expected, &mut none) {
        Ok(Answer::Entries) => Ok(()),
        Ok(Answer::Problem { status, .. }) => Err(format!("the server answers {status} to what cannot fail")),
        Err(error) => Err(error.to_string()),
    }
}

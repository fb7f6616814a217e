//! A queue pair with a completion queue of its own, and one owner.
//!
//! The owner [adds](Queue::add) work, [posts](Queue::post) it in one list, and [takes](Queue::poll) what is done. All work
//! that was posted is done exactly once, in order for sending and in order for receiving, until the queue is
//! [closed](Queue::close); after that no device touches memory on its behalf. Must be used within a tokio runtime.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rdma_sys::{
    bind_mw_t, bind_mw_tso_union_t, ibv_access_flags, ibv_comp_channel, ibv_cq, ibv_poll_cq, ibv_qp, ibv_qp_attr,
    ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_req_notify_cq,
    ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_flags, ibv_wc_status, ibv_wr_opcode,
    imm_data_invalidated_rkey_union_t, rdma_t,
};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::device::{Error, checked, system};
use super::frame::Target;
use super::memory::{Binding, Domain, Piece};

/// How often a packet is sent again for want of an acknowledgement. 7 would mean: for ever.
pub(super) const RETRIES: u8 = 6;
/// How often a message is sent again for want of a receive. Those are posted beforehand: a few are for what a wire may do.
pub(super) const RECEIVE_RETRIES: u8 = 6;
/// After what time a packet is sent again: 4.096 µs × 2^14, 67 ms. So a path that is gone is known to be after half a second.
const ACKNOWLEDGED_WITHIN: u8 = 14;
/// For how long whoever finds no receive posted is to wait: 5.12 ms.
const RECEIVE_WITHIN: u8 = 18;
/// How long closing waits for what was posted to come back. It does so at once, if ever.
const DRAIN: Duration = Duration::from_millis(200);
/// In completions' numbers: of receiving.
const RECEIVE: u64 = 1 << 63;
/// How many completions are taken at a time.
const BATCH: usize = 32;

/// How much may be under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depths {
    /// Pieces of work that send.
    pub(super) sends: u32,
    /// Receives.
    pub(super) receives: u32,
    /// Pieces of memory of one that sends.
    pub(super) pieces: u32,
}

/// Work that sends.
pub(super) enum Work<'a> {
    /// A message, into a receive of the peer's.
    Send(Piece),
    /// Into the peer's memory, which is not told.
    Write { from: &'a [Piece], to: Target },
    /// As before, and then a receive of the peer's completes with `imm`.
    WriteImm { from: Piece, to: Target, imm: u32 },
    /// From now on the peer may write through a window.
    Bind(Binding),
    /// From now on it may not any more, by this key.
    Invalidate { key: u32 },
}

/// What became of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Work that sends: the peer has it. `id` is as it was added.
    Sent { id: u64 },
    /// A receive. `len` is of what was received, or was written with `imm`.
    Received { id: u64, len: u32, imm: Option<u32> },
    /// Work of either kind, and with it the queue: nothing more will be done. The first says why, the others
    /// [`FLUSHED`](Fault::FLUSHED).
    Failed { id: u64, fault: Fault },
}

/// Why work failed, as a number of verbs' own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault(u32);

impl Fault {
    /// Because of something else's failure before it, or because the queue was closed.
    pub(super) const FLUSHED: Fault = Fault(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    /// The peer had no receive posted for what came.
    #[cfg(test)]
    pub(super) const NO_RECEIVE: Fault = Fault(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
    /// The peer does not allow access to that memory.
    #[cfg(test)]
    pub(super) const REMOTE_ACCESS: Fault = Fault(ibv_wc_status::IBV_WC_REM_ACCESS_ERR);

    /// Whether it is because of what the peer sent or asked for, given that the work itself makes sense. What devices say of a
    /// message that is longer than its receive differs: the second is what soft-RoCE does.
    pub(super) fn is_the_peers(self) -> bool {
        [
            ibv_wc_status::IBV_WC_LOC_LEN_ERR,
            ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
        ]
        .contains(&self.0)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self.0 {
            ibv_wc_status::IBV_WC_LOC_LEN_ERR => "a message was longer than the receive for it",
            ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => "the device cannot do that work",
            ibv_wc_status::IBV_WC_LOC_PROT_ERR | ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => {
                "memory here is not registered so"
            }
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => "the connection had ended",
            ibv_wc_status::IBV_WC_MW_BIND_ERR => "a memory window could not be bound",
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => "the peer takes it for an invalid request",
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR => "the peer does not allow access to that memory",
            ibv_wc_status::IBV_WC_REM_OP_ERR => "the peer could not do its part",
            ibv_wc_status::IBV_WC_RETRY_EXC_ERR => "the peer acknowledges nothing any more",
            ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => "the peer had no receive posted",
            other => return write!(f, "completion status {other}"),
        };
        f.write_str(text)
    }
}

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fault({}: {self})", self.0)
    }
}

/// There is no room for more work: some must be done first; or the queue has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

pub(super) struct Queue {
    domain: Arc<Domain>,
    /// Null once it is closed.
    pair: *mut ibv_qp,
    completions: NonNull<ibv_cq>,
    notices: AsyncFd<Notices>,
    number: u32,
    depths: Depths,
    /// The peer may write to memory that it has keys of.
    writable: bool,
    /// What was added and is not done, by the owner's numbers, and whether it tells when it is: the front one is number `first`
    /// of all there ever were.
    sending: VecDeque<(u64, bool)>,
    first: u64,
    /// Of these, how many at the end are not posted yet.
    added: usize,
    /// How many were added since the last that tells.
    untold: usize,
    /// Receives that are posted and not done.
    receiving: u32,
    /// Work that is added and not posted.
    list: Vec<ibv_send_wr>,
    /// Its pieces of memory, one after the other.
    pieces: Vec<ibv_sge>,
    /// Nothing more can be done.
    failed: bool,
}

// SAFETY: rdma-core's calls may be made from any thread; who has the queue is its one owner. The pointers in `list` are set
// when it is posted, and are not used after that.
unsafe impl Send for Queue {}

impl Queue {
    /// A new one, that is connected to nothing. `writable`: the peer is to write to memory that it gets keys of.
    pub(super) fn new(domain: &Arc<Domain>, depths: Depths, writable: bool) -> Result<Queue, Error> {
        let (verbs, context) = (domain.context.verbs, domain.context.raw.as_ptr());
        // All that can complete fits: what does not would be lost, and nobody would be told.
        let entries = i32::try_from(depths.sends + depths.receives).unwrap_or(i32::MAX);
        let notices = watch(Notices::new(domain)?)?;
        let channel = notices.get_ref().channel.as_ptr();
        // SAFETY: the context is open, and lives as long as the domain, which is kept below; the channel is destroyed later.
        let completions = NonNull::new(unsafe { (verbs.create_cq)(context, entries, null_mut(), channel, 0) });
        let completions = completions.ok_or_else(|| system(&format!("a completion queue of {entries}")))?;
        let mut queue = Queue {
            domain: domain.clone(),
            pair: null_mut(),
            completions,
            notices,
            number: 0,
            depths,
            writable,
            sending: VecDeque::with_capacity(depths.sends as usize),
            first: 0,
            added: 0,
            untold: 0,
            receiving: 0,
            list: Vec::with_capacity(depths.sends as usize),
            pieces: Vec::with_capacity((depths.sends * depths.pieces.min(4)) as usize),
            failed: false,
        };
        // From here on, dropping it gives back what there is.
        let cap = ibv_qp_cap {
            max_send_wr: depths.sends,
            max_recv_wr: depths.receives,
            max_send_sge: depths.pieces.max(1),
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let completions = completions.as_ptr();
        let mut wanted = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: completions,
            recv_cq: completions,
            srq: null_mut(),
            cap,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and completion queue live, the latter until the pair is destroyed.
        queue.pair = unsafe { (verbs.create_qp)(domain.raw.as_ptr(), &raw mut wanted) };
        // SAFETY: null, or just made.
        let Some(pair) = (unsafe { queue.pair.as_ref() }) else {
            return Err(system(&format!("a queue pair of {} and {}", depths.sends, depths.receives)));
        };
        queue.number = pair.qp_num;
        Ok(queue)
    }

    /// What the peer calls it by.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Takes the next state, as the connection manager wants it; what is ours to say is set here.
    pub(super) fn step(&mut self, mut attr: ibv_qp_attr, mask: i32) -> Result<(), Error> {
        let remote = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        attr.qp_access_flags = if self.writable { remote } else { 0 };
        attr.min_rnr_timer = RECEIVE_WITHIN;
        attr.timeout = ACKNOWLEDGED_WITHIN;
        (attr.retry_cnt, attr.rnr_retry) = (RETRIES, RECEIVE_RETRIES);
        // Nobody reads.
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (0, 0);
        self.modify(attr, mask)
    }

    fn modify(&mut self, mut attr: ibv_qp_attr, mask: i32) -> Result<(), Error> {
        if self.pair.is_null() {
            return Err(Error::System { what: "a queue".to_owned(), source: io::ErrorKind::NotConnected.into() });
        }
        // SAFETY: the pair lives, and `attr` is ours to be read.
        let done = unsafe { (self.domain.context.verbs.modify_qp)(self.pair, &raw mut attr, mask) };
        checked("taking a queue pair to its next state", done)
    }

    /// How much work that sends could be added now.
    pub(super) fn room(&self) -> usize {
        self.depths.sends as usize - self.sending.len()
    }

    /// Adds work, to be posted with the next [`post`](Queue::post). If `told`, its being done shows by itself; else it does
    /// with the next such work, or when half the queue is full of others.
    ///
    /// # Safety
    /// From the post on until the work is done or the queue is closed, what is sent from must not change, and only who may
    /// read what is received, or is written through a window, may have what is bound.
    pub(super) unsafe fn add(&mut self, id: u64, work: Work<'_>, told: bool) -> Result<(), Full> {
        if self.failed || self.room() == 0 {
            return Err(Full);
        }
        let told = told || self.untold + 1 >= self.depths.sends.div_ceil(2) as usize;
        self.untold = if told { 0 } else { self.untold + 1 };
        let flags = if told { ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 };
        // SAFETY: numbers and pointers, for all of which zeros are a value.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = self.first + self.sending.len() as u64;
        request.send_flags = flags;
        let single;
        let to = |to: Target| rdma_t { remote_addr: to.address, rkey: to.key };
        let (opcode, pieces) = match work {
            Work::Send(piece) => {
                single = [piece];
                (ibv_wr_opcode::IBV_WR_SEND, single.as_slice())
            }
            Work::Write { from, to: target } => {
                request.wr.rdma = to(target);
                (ibv_wr_opcode::IBV_WR_RDMA_WRITE, from)
            }
            Work::WriteImm { from, to: target, imm } => {
                request.wr.rdma = to(target);
                request.imm_data_invalidated_rkey_union = imm_data_invalidated_rkey_union_t { imm_data: imm.to_be() };
                single = [from];
                (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, single.as_slice())
            }
            Work::Bind(Binding { window, key, info }) => {
                let bind_mw = bind_mw_t { mw: window.as_ptr(), rkey: key, bind_info: info };
                request.bind_mw_tso_union = bind_mw_tso_union_t { bind_mw };
                (ibv_wr_opcode::IBV_WR_BIND_MW, &[][..])
            }
            Work::Invalidate { key } => {
                request.imm_data_invalidated_rkey_union = imm_data_invalidated_rkey_union_t { invalidated_rkey: key };
                (ibv_wr_opcode::IBV_WR_LOCAL_INV, &[][..])
            }
        };
        (request.opcode, request.num_sge) = (opcode, pieces.len() as i32);
        self.pieces.extend(pieces.iter().map(sge));
        self.list.push(request);
        self.sending.push_back((id, told));
        self.added += 1;
        Ok(())
    }

    /// Rings the bell for what was added, once. After an error the queue is good for closing only.
    pub(super) fn post(&mut self) -> Result<(), Error> {
        if self.list.is_empty() {
            return Ok(());
        }
        let mut from = self.pieces.as_mut_ptr();
        for request in &mut self.list {
            request.sg_list = from;
            // SAFETY: so many were added for it, and all together are as many as there are.
            from = unsafe { from.add(request.num_sge as usize) };
        }
        let base = self.list.as_mut_ptr();
        for at in 1..self.list.len() {
            // SAFETY: both are within the list, which does not move before it is posted.
            unsafe { (*base.add(at - 1)).next = base.add(at) };
        }
        let mut bad = null_mut();
        // SAFETY: null, or it lives.
        let posted = match unsafe { self.pair.as_ref() } {
            // SAFETY: the list is linked, its pieces are there, and both are only read, until the call returns. That the memory it
            // names stays as it is was promised to `add`.
            Some(pair) if !self.failed => unsafe { post_send(pair, self.pair, base, &raw mut bad) },
            _ => libc::ENOTCONN,
        };
        // Of a list that is refused, what stands before the culprit is under way.
        let culprit = self.list.iter().position(|request| std::ptr::eq(request, bad)).unwrap_or(0);
        self.added = if posted == 0 { 0 } else { self.list.len() - culprit };
        self.list.clear();
        self.pieces.clear();
        self.failed |= posted != 0;
        checked("posting work", posted)
    }

    /// Posts a receive, into `piece` or, for what is written with an immediate, into nothing.
    ///
    /// # Safety
    /// Nobody may look at the piece's memory before the receive is done or the queue is closed.
    pub(super) unsafe fn receive(&mut self, id: u32, piece: Option<Piece>) -> Result<(), Error> {
        let full = self.receiving >= self.depths.receives;
        let mut sge = piece.as_ref().map(sge);
        let (sg_list, num_sge) = sge.as_mut().map_or((null_mut(), 0), |sge| (sge as *mut ibv_sge, 1));
        let mut request = ibv_recv_wr { wr_id: RECEIVE | u64::from(id), next: null_mut(), sg_list, num_sge };
        let mut bad = null_mut();
        // SAFETY: null, or it lives.
        let posted = match unsafe { self.pair.as_ref() } {
            // SAFETY: the request is ours until the call returns. What it names is as it was promised to us.
            Some(pair) if !full => unsafe { post_receive(pair, self.pair, &raw mut request, &raw mut bad) },
            Some(_) => libc::ENOMEM,
            None => libc::ENOTCONN,
        };
        checked("posting a receive", posted)?;
        self.receiving += 1;
        Ok(())
    }

    /// Adds what is done to `done`, a batch at most. Pending if that is nothing. One task may wait for it.
    pub(super) fn poll_done(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) -> Poll<Result<(), Error>> {
        loop {
            if self.poll(done)? > 0 {
                return Poll::Ready(Ok(()));
            }
            self.arm()?;
            // What was done before that makes no notice.
            if self.poll(done)? > 0 {
                return Poll::Ready(Ok(()));
            }
            let failed = |source| Error::System { what: "watching a completion queue".to_owned(), source };
            ready!(self.notices.poll_read_ready(cx)).map_err(failed)?.clear_ready();
        }
    }

    /// Adds what is done to `done`: what can be had without waiting, or a batch of it. How much it was.
    pub(super) fn poll(&mut self, done: &mut Vec<Done>) -> Result<usize, Error> {
        // SAFETY: numbers, for which zeros are a value.
        let mut found: [ibv_wc; BATCH] = std::array::from_fn(|_| unsafe { std::mem::zeroed() });
        // SAFETY: the completion queue lives, and there is room for so many.
        let count = unsafe { ibv_poll_cq(self.completions.as_ptr(), BATCH as i32, found.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| Error::System {
            what: "taking completions".to_owned(),
            source: io::ErrorKind::Other.into(),
        })?;
        let before = done.len();
        for completion in found.iter().take(count) {
            self.take(completion, done);
        }
        Ok(done.len() - before)
    }

    fn take(&mut self, completion: &ibv_wc, done: &mut Vec<Done>) {
        let fault = Fault(completion.status);
        let good = completion.status == ibv_wc_status::IBV_WC_SUCCESS;
        self.failed |= !good;
        if completion.wr_id & RECEIVE != 0 {
            self.receiving = self.receiving.saturating_sub(1);
            let id = completion.wr_id & !RECEIVE;
            done.push(match good {
                true => {
                    let with = completion.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
                    // SAFETY: a number, whichever of the two it is.
                    let imm = unsafe { completion.imm_data_invalidated_rkey_union.imm_data };
                    Done::Received { id, len: completion.byte_len, imm: with.then(|| u32::from_be(imm)) }
                }
                false => Done::Failed { id, fault },
            });
            return;
        }
        // What was before it is done as well: work that sends is done in order.
        while self.first <= completion.wr_id {
            let Some((id, _)) = self.sending.pop_front() else { return };
            let last = self.first == completion.wr_id;
            self.first += 1;
            done.push(if last && !good { Done::Failed { id, fault } } else { Done::Sent { id } });
        }
    }

    /// Asks for a notice when something is done from now on.
    fn arm(&mut self) -> Result<(), Error> {
        let channel = self.notices.get_ref().channel.as_ptr();
        let verbs = self.domain.context.verbs;
        loop {
            let (mut which, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel lives and does not block; both are ours to be written.
            if unsafe { (verbs.get_cq_event)(channel, &raw mut which, &raw mut context) } != 0 {
                break;
            }
            // SAFETY: the channel has but one completion queue, which lives. It waits for this before it is destroyed.
            unsafe { (verbs.ack_cq_events)(self.completions.as_ptr(), 1) };
        }
        // SAFETY: the completion queue lives.
        checked("asking for a notice", unsafe { ibv_req_notify_cq(self.completions.as_ptr(), 0) })
    }

    /// Nothing more can be done with it.
    #[cfg(test)]
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Ends all work. What was under way is added to `done`: whatever sends, and receives as far as the device tells of them.
    /// Windows that are bound here are to be dropped after this and before [`close`](Queue::close).
    pub(super) fn stop(&mut self, done: &mut Vec<Done>) {
        if self.pair.is_null() {
            return;
        }
        // SAFETY: numbers, for which zeros are a value.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
        // From a state in which nothing can be under way it fails, and there is nothing to end.
        let stopped = self.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE.0 as i32).is_ok();
        self.failed = true;
        let flushed = |(id, _): (u64, bool)| Done::Failed { id, fault: Fault::FLUSHED };
        // What was added and never posted is not done.
        let posted = self.sending.len() - self.added;
        done.extend(self.sending.drain(posted..).map(flushed));
        self.list.clear();
        self.pieces.clear();
        self.added = 0;
        // By count: a marker that is posted now might never come. What does not tell may have been done before.
        let until = Instant::now() + DRAIN;
        let tells = |sending: &VecDeque<(u64, bool)>| sending.iter().any(|&(_, told)| told);
        while stopped && (tells(&self.sending) || self.receiving > 0) && Instant::now() < until {
            match self.poll(done) {
                Ok(0) => std::thread::sleep(Duration::from_micros(50)),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        done.extend(self.sending.drain(..).map(flushed));
    }

    /// Stops, and destroys the pair. After this, and not before, no device touches memory for it.
    ///
    /// # Errors
    /// If the system does not destroy it: what was lent to it must not be used any more.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        if self.pair.is_null() {
            return Ok(());
        }
        self.stop(&mut Vec::new());
        // SAFETY: the pair lives; it is not used any more if this succeeds.
        checked("destroying a queue pair", unsafe { (self.domain.context.verbs.destroy_qp)(self.pair) })?;
        self.pair = null_mut();
        self.sending.clear();
        self.receiving = 0;
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.close().is_err() {
            // It still uses the others.
            return;
        }
        let verbs = self.domain.context.verbs;
        // SAFETY: the pair is gone, and all notices were acknowledged when they were taken.
        unsafe { (verbs.destroy_cq)(self.completions.as_ptr()) };
    }
}

/// Where a completion queue says that there is something to take.
struct Notices {
    domain: Arc<Domain>,
    channel: NonNull<ibv_comp_channel>,
}

// SAFETY: rdma-core's calls may be made from any thread.
unsafe impl Send for Notices {}
// SAFETY: as above.
unsafe impl Sync for Notices {}

impl Notices {
    fn new(domain: &Arc<Domain>) -> Result<Notices, Error> {
        // SAFETY: the context is open, and lives as long as the domain, which is kept.
        let channel = NonNull::new(unsafe { (domain.context.verbs.create_comp_channel)(domain.context.raw.as_ptr()) });
        Ok(Notices { domain: domain.clone(), channel: channel.ok_or_else(|| system("a completion channel"))? })
    }
}

impl AsRawFd for Notices {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel lives until this is dropped.
        unsafe { self.channel.as_ref() }.fd
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once. It fails if its completion queue is still there, which then keeps it.
        unsafe { (self.domain.context.verbs.destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

fn sge(piece: &Piece) -> ibv_sge {
    ibv_sge { addr: piece.address, length: piece.len, lkey: piece.key }
}

/// `ibv_post_send`, which is inline in the header.
///
/// # Safety
/// As that: `pair` is of `raw`, which lives, and the list from `first` on may be read.
unsafe fn post_send(pair: &ibv_qp, raw: *mut ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> i32 {
    // SAFETY: a pair's context lives.
    let Some(post) = (unsafe { (*pair.context).ops.post_send }) else { return libc::EOPNOTSUPP };
    // SAFETY: as the caller promises.
    unsafe { post(raw, first, bad) }
}

/// `ibv_post_recv`, which is inline in the header.
///
/// # Safety
/// As that: `pair` is of `raw`, which lives, and the list from `first` on may be read.
unsafe fn post_receive(pair: &ibv_qp, raw: *mut ibv_qp, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> i32 {
    // SAFETY: a pair's context lives.
    let Some(post) = (unsafe { (*pair.context).ops.post_recv }) else { return libc::EOPNOTSUPP };
    // SAFETY: as the caller promises.
    unsafe { post(raw, first, bad) }
}

/// To be told when `source` has something: reading it must then not block. Must be called within a tokio runtime.
pub(super) fn watch<T: AsRawFd>(source: T) -> Result<AsyncFd<T>, Error> {
    let fd = source.as_raw_fd();
    // SAFETY: flags of a descriptor that is ours.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if set != 0 {
        return Err(system("a descriptor that does not block"));
    }
    // SAFETY: `source` keeps its descriptor open until it is dropped, and never has another.
    let watched = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) };
    watched.map_err(|error| Error::System { what: "watching a descriptor".to_owned(), source: error.into() })
}

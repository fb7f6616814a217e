//! The connection manager: how queues of two machines are connected, and how one is told that the other is gone.
//!
//! All that it tells comes by a descriptor, so that nothing here blocks a thread. Waiting has no bound here: an address where
//! nobody speaks RDMA tells nothing for a minute and a half. Must be used within a tokio runtime.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::task::{Context, Poll, ready};

use rdma_sys::{
    ibv_qp_attr, ibv_qp_state, rdma_cm_event, rdma_cm_event_type as kind, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space,
};
use socket2::SockAddr;
use tokio::io::unix::AsyncFd;

use super::device::{Error, name, system};
use super::library::{Manager, Verbs};
use super::queue::{Queue, watch};

/// Milliseconds that the system may take to find an address or a route: longer than anybody waits for us.
const RESOLVE_MS: i32 = 10_000;
/// How many that ask may wait for their answer.
const BACKLOG: i32 = 128;
/// What the manager needs of the kernel.
const DEVICE: &str = "/dev/infiniband/rdma_cm";

/// Why two ends are not connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    #[error(transparent)]
    Device(#[from] Error),
    /// There is no device here that leads there, or no way.
    #[error("RDMA does not lead to {to}: {why} ({source})")]
    NoWay { to: SocketAddr, why: &'static str, source: io::Error },
    /// The other end said no, or there is none: then it said nothing.
    #[error("RDMA: the connection was rejected")]
    Rejected { said: Vec<u8> },
    /// It was lost before it stood.
    #[error("RDMA: connecting ended with event {0}")]
    Lost(u32),
}

/// Where events of one [`Id`] arrive.
struct Channel {
    manager: &'static Manager,
    raw: NonNull<rdma_event_channel>,
}

// SAFETY: rdma-core's calls may be made from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    fn new() -> Result<Channel, Error> {
        let manager = Manager::get()?;
        // The library would say it on standard error, and less plainly.
        std::fs::metadata(DEVICE).map_err(|source| Error::System {
            what: format!("{DEVICE}, which kernel module rdma_ucm provides"),
            source,
        })?;
        // SAFETY: takes nothing.
        let raw = NonNull::new(unsafe { (manager.create_event_channel)() });
        Ok(Channel { manager, raw: raw.ok_or_else(|| system("opening the connection manager"))? })
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel lives until this is dropped.
        unsafe { self.raw.as_ref() }.fd
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; its id went before, and all its events were acknowledged when they were taken.
        unsafe { (self.manager.destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// One end of a connection, or what listens for some. Dropping it ends the connection; queues are their owner's.
pub(super) struct Id {
    manager: &'static Manager,
    raw: NonNull<rdma_cm_id>,
    channel: AsyncFd<Channel>,
}

// SAFETY: rdma-core's calls may be made from any thread, and from several at once.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

/// What the manager tells.
pub(super) struct Event {
    /// A number of the manager's own.
    pub(super) kind: u32,
    status: i32,
    /// What the other end said with it, and perhaps zeros.
    pub(super) said: Vec<u8>,
    /// Of what listens: the new connection.
    incoming: Option<Incoming>,
}

impl Event {
    /// The connection is over.
    pub(super) fn is_end(&self) -> bool {
        !matches!(self.kind, kind::RDMA_CM_EVENT_ESTABLISHED | kind::RDMA_CM_EVENT_ADDR_CHANGE)
    }
}

/// A new connection that has no channel of its own yet; destroyed when dropped.
struct Incoming(NonNull<rdma_cm_id>, &'static Manager);

// SAFETY: as for `Id`.
unsafe impl Send for Incoming {}

impl Drop for Incoming {
    fn drop(&mut self) {
        // SAFETY: it came with an event that was acknowledged, and nobody else has it.
        unsafe { (self.1.destroy_id)(self.0.as_ptr()) };
    }
}

impl Id {
    fn new() -> Result<Id, Error> {
        let channel = Channel::new()?;
        let mut raw = null_mut();
        // SAFETY: the channel lives, and is kept below until the id is gone.
        let made = unsafe {
            (channel.manager.create_id)(channel.raw.as_ptr(), &raw mut raw, null_mut(), rdma_port_space::RDMA_PS_TCP)
        };
        match NonNull::new(raw) {
            Some(raw) if made == 0 => Id::of(raw, channel),
            _ => Err(system("an id of the connection manager's")),
        }
    }

    fn of(raw: NonNull<rdma_cm_id>, channel: Channel) -> Result<Id, Error> {
        let manager = channel.manager;
        let incoming = Incoming(raw, manager);
        let channel = watch(channel)?;
        std::mem::forget(incoming);
        Ok(Id { manager, raw, channel })
    }

    /// Listens at `address`; with port 0 at one of the system's choice.
    pub(super) fn listen(address: SocketAddr) -> Result<Id, Error> {
        let id = Id::new()?;
        let raw = id.raw.as_ptr();
        let what = || format!("listening at {address}");
        let address = SockAddr::from(address);
        // SAFETY: the id lives; the address is only read, until the call returns.
        let bound = unsafe { (id.manager.bind_addr)(raw, address.as_ptr().cast_mut().cast()) };
        // SAFETY: the id lives.
        if bound != 0 || unsafe { (id.manager.listen)(raw, BACKLOG) } != 0 {
            return Err(system(&what()));
        }
        Ok(id)
    }

    /// Where it listens.
    pub(super) fn port(&self) -> u16 {
        // SAFETY: the id lives.
        u16::from_be(unsafe { (self.manager.get_src_port)(self.raw.as_ptr()) })
    }

    /// Finds the way to `to`, and with it the device here.
    pub(super) async fn resolve(to: SocketAddr) -> Result<Id, ConnectError> {
        let id = Id::new()?;
        let no_way = |why, source| ConnectError::NoWay { to, why, source };
        let status = |event: &Event| io::Error::from_raw_os_error(event.status.saturating_abs());
        id.ask_address(to).map_err(|source| no_way("no device here leads to it", source))?;
        match id.event().await? {
            event if event.kind == kind::RDMA_CM_EVENT_ADDR_RESOLVED => {}
            event => return Err(no_way("no device here leads to it", status(&event))),
        }
        id.ask_route().map_err(|source| no_way("there is no route", source))?;
        match id.event().await? {
            event if event.kind == kind::RDMA_CM_EVENT_ROUTE_RESOLVED => Ok(id),
            event => Err(no_way("there is no route", status(&event))),
        }
    }

    fn ask_address(&self, to: SocketAddr) -> io::Result<()> {
        let to = SockAddr::from(to);
        let address = to.as_ptr().cast_mut().cast();
        // SAFETY: the id lives; the address is only read, until the call returns.
        let asked = unsafe { (self.manager.resolve_addr)(self.raw.as_ptr(), null_mut(), address, RESOLVE_MS) };
        if asked == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn ask_route(&self) -> io::Result<()> {
        // SAFETY: the id lives.
        let asked = unsafe { (self.manager.resolve_route)(self.raw.as_ptr(), RESOLVE_MS) };
        if asked == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The device that it goes by; `None` of what listens on all of them.
    pub(super) fn device(&self) -> Option<String> {
        let verbs = Verbs::get().ok()?;
        // SAFETY: the id lives, and so does the context that the manager has opened, if there is one.
        let device = unsafe { self.raw.as_ref().verbs.as_ref() }?.device;
        Some(name(verbs, device))
    }

    /// Makes `queue` ready to have receives posted. It must be of this id's device.
    pub(super) fn prepare(&self, queue: &mut Queue) -> Result<(), Error> {
        self.step(queue, ibv_qp_state::IBV_QPS_INIT)
    }

    /// Connects `queue`, which is prepared, saying `say`; what the other end says.
    pub(super) async fn connect(&self, queue: &mut Queue, say: &[u8]) -> Result<Vec<u8>, ConnectError> {
        self.ask_connection(queue, say)?;
        let answer = self.event().await?;
        match answer.kind {
            kind::RDMA_CM_EVENT_CONNECT_RESPONSE => {}
            kind::RDMA_CM_EVENT_REJECTED => return Err(ConnectError::Rejected { said: answer.said }),
            other => return Err(ConnectError::Lost(other)),
        }
        self.step(queue, ibv_qp_state::IBV_QPS_RTR)?;
        self.step(queue, ibv_qp_state::IBV_QPS_RTS)?;
        // SAFETY: the id lives.
        match unsafe { (self.manager.establish)(self.raw.as_ptr()) } {
            0 => Ok(answer.said),
            _ => Err(system("completing a connection").into()),
        }
    }

    fn ask_connection(&self, queue: &Queue, say: &[u8]) -> Result<(), Error> {
        let mut param = param(queue, say);
        // SAFETY: the id lives; what is said is read until the call returns.
        let asked = unsafe { (self.manager.connect)(self.raw.as_ptr(), &raw mut param) };
        if asked == 0 { Ok(()) } else { Err(system("connecting")) }
    }

    /// Of what listens: the next that wants to connect, and what it says.
    pub(super) async fn incoming(&self) -> Result<(Id, Vec<u8>), Error> {
        loop {
            let event = self.event().await?;
            let Some(incoming) = event.incoming else { continue };
            let channel = Channel::new()?;
            // SAFETY: both live; the event that it came by was acknowledged. From here on its events go to its own channel.
            if unsafe { (self.manager.migrate_id)(incoming.0.as_ptr(), channel.raw.as_ptr()) } != 0 {
                return Err(system("taking a connection"));
            }
            let raw = incoming.0;
            std::mem::forget(incoming);
            return Ok((Id::of(raw, channel)?, event.said));
        }
    }

    /// Lets who wants to connect in. `queue` is prepared, and its receives are posted.
    pub(super) fn accept(&self, queue: &mut Queue, say: &[u8]) -> Result<(), Error> {
        self.step(queue, ibv_qp_state::IBV_QPS_RTR)?;
        self.step(queue, ibv_qp_state::IBV_QPS_RTS)?;
        let mut param = param(queue, say);
        // SAFETY: the id lives; what is said is read until the call returns.
        match unsafe { (self.manager.accept)(self.raw.as_ptr(), &raw mut param) } {
            0 => Ok(()),
            _ => Err(system("accepting a connection")),
        }
    }

    /// Does not let who wants to connect in.
    pub(super) fn reject(self, say: &[u8]) {
        let len = u8::try_from(say.len()).unwrap_or(0);
        // SAFETY: the id lives; what is said is read until the call returns. If it fails, the other end is gone.
        unsafe { (self.manager.reject)(self.raw.as_ptr(), say.as_ptr().cast(), len) };
    }

    /// Tells the other end that it is over.
    pub(super) fn disconnect(&self) {
        // SAFETY: the id lives. If it fails, it was over before.
        unsafe { (self.manager.disconnect)(self.raw.as_ptr()) };
    }

    fn step(&self, queue: &mut Queue, state: u32) -> Result<(), Error> {
        // SAFETY: numbers, for which zeros are a value.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = state;
        let mut mask = 0;
        // SAFETY: the id lives; both are ours to be written.
        if unsafe { (self.manager.init_qp_attr)(self.raw.as_ptr(), &raw mut attr, &raw mut mask) } != 0 {
            return Err(system("asking for a queue pair's next state"));
        }
        queue.step(attr, mask)
    }

    /// The next thing that the manager tells.
    pub(super) async fn event(&self) -> Result<Event, Error> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// The next thing that the manager tells. One task may wait for it.
    pub(super) fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Result<Event, Error>> {
        loop {
            if let Some(event) = self.take()? {
                return Poll::Ready(Ok(event));
            }
            let ready = ready!(self.channel.poll_read_ready(cx));
            let failed = |source| Error::System { what: "watching the connection manager".to_owned(), source };
            let mut ready = ready.map_err(failed)?;
            match self.take()? {
                Some(event) => return Poll::Ready(Ok(event)),
                None => ready.clear_ready(),
            }
        }
    }

    fn take(&self) -> Result<Option<Event>, Error> {
        let mut raw: *mut rdma_cm_event = null_mut();
        // SAFETY: the channel lives and does not block; `raw` is ours to be written.
        if unsafe { (self.manager.get_cm_event)(self.channel.get_ref().raw.as_ptr(), &raw mut raw) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Error::System { what: "asking the connection manager".to_owned(), source: error }),
            };
        }
        // SAFETY: an event that is ours until it is acknowledged.
        let event = unsafe { &*raw };
        // SAFETY: connections of this port space have these parameters, whichever event it is: zeros if there are none.
        let conn = unsafe { &event.param.conn };
        let (data, len) = (conn.private_data.cast::<u8>(), usize::from(conn.private_data_len));
        let said = match data.is_null() {
            true => Vec::new(),
            // SAFETY: so many bytes are there until the event is acknowledged.
            false => unsafe { std::slice::from_raw_parts(data, len) }.to_vec(),
        };
        let request = event.event == kind::RDMA_CM_EVENT_CONNECT_REQUEST;
        let incoming = NonNull::new(event.id).filter(|_| request).map(|id| Incoming(id, self.manager));
        let taken = Event { kind: event.event, status: event.status, said, incoming };
        // SAFETY: taken once, acknowledged once, and not looked at after that.
        unsafe { (self.manager.ack_cm_event)(raw) };
        Ok(Some(taken))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once, before its channel; all its events were acknowledged when they were taken.
        unsafe { (self.manager.destroy_id)(self.raw.as_ptr()) };
    }
}

/// What is said, and which queue it is about. How often things are tried again is the queue's own.
fn param(queue: &Queue, say: &[u8]) -> rdma_conn_param {
    // SAFETY: numbers and a pointer, for which zeros are a value.
    let mut param: rdma_conn_param = unsafe { std::mem::zeroed() };
    param.private_data = say.as_ptr().cast::<c_void>();
    param.private_data_len = u8::try_from(say.len()).unwrap_or(0);
    param.qp_num = queue.number();
    (param.retry_count, param.rnr_retry_count) = (super::queue::RETRIES, super::queue::RECEIVE_RETRIES);
    param
}

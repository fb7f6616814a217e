//! How a link is made: the way there, the greeting, and what proves that bytes arrive.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::time::sleep_until;

use super::super::area::{Area, Pinned};
use super::super::device;
use super::super::frame::fill_echo;
use super::super::hello::{Hello, HelloError, Reason, Rejection, Ticket, Welcome};
use super::super::manager::{ConnectError, Id};
use super::super::memory::{Rights, Window};
use super::super::queue::{Depths, Queue};
use super::{Asked, Operation, Place, RESERVED, RdmaLink, SMALL, Times};
use crate::link::{Link, LinkError};
use crate::pool::{Account, Slab, SlabConfig};

/// How a client connects.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Whether the server gets a key for each lease, which ends with its answer, instead of one for the whole pool. Default true.
    pub windows: bool,
    /// Frames that it would like to have under way: fetches, and two. Default 34, of which a server may grant fewer; each costs
    /// what the server takes for a frame and a table, 80 KiB from ours.
    pub credits: u16,
}

impl Default for Config {
    fn default() -> Config {
        Config { windows: true, credits: 34 }
    }
}

impl Config {
    pub(in super::super) fn rights(&self) -> Rights {
        if self.windows { Rights::Windows } else { Rights::RemoteWrite }
    }
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error(transparent)]
    Connect(ConnectError),
    /// By the server.
    #[error("the server rejects the connection: {0}")]
    Rejected(Reason),
    #[error("what the server says makes no sense: {0}")]
    Nonsense(HelloError),
    /// The link stood, and what was to show that bytes arrive did not.
    #[error("the path was tried with {bytes} bytes, and failed: {why}")]
    Echo { bytes: usize, why: LinkError },
    #[error("the path was tried with {bytes} bytes, and others arrived")]
    Corrupt { bytes: usize },
}

impl RdmaLink {
    /// Connects to `to` with a ticket, and lets the server write into leases of the pool. `dataset` is the ticket's.
    pub(in super::super) async fn connect(
        config: &Config,
        pinned: &Arc<Pinned>,
        to: SocketAddr,
        ticket: Ticket,
        dataset: Option<Arc<str>>,
    ) -> Result<RdmaLink, Error> {
        let id = Id::resolve(to).await.map_err(Error::Connect)?;
        let device = id.device().unwrap_or_default();
        let (domain, pool) = pinned.with(device).await?;
        let hello = Hello::new(ticket, config.credits.max(4));
        let asked = u32::from(hello.credits);
        // All that every place can have under way: binding, frame, cancellation, shutting; and a heartbeat.
        let depths = Depths { sends: 4 * asked + 8, receives: asked, pieces: 1 };
        let mut queue = Queue::new(&domain, depths, true)?;
        id.prepare(&mut queue)?;
        let welcome = greet(&id, &mut queue, &hello).await?;
        let credits = welcome.credits;
        let places = usize::from(credits - RESERVED) + 1;
        let rights = config.rights();
        let window = |_| match config.windows {
            true => Window::new(&domain).map(Some),
            false => Ok(None),
        };
        let windows = (0..places).map(window).collect::<Result<Vec<_>, _>>()?;
        let place = |window| Place { generation: 0, operation: None, window, cancelling: false, resting: true };
        let now = Instant::now();
        Ok(RdmaLink {
            queue,
            id,
            rights,
            registered: vec![pool],
            places: windows.into_iter().map(place).collect(),
            free: (0..places - 1).rev().collect(),
            frames: Area::new(&domain, places, welcome.frame as usize, Rights::Local)?,
            tables: Area::new(&domain, places, welcome.table as usize, Rights::RemoteWrite)?,
            small_frames: Area::new(&domain, places, SMALL, Rights::Local)?,
            small_tables: Area::new(&domain, places, SMALL, Rights::RemoteWrite)?,
            domain,
            by_tag: HashMap::new(),
            ready: VecDeque::new(),
            dataset,
            welcome,
            credits,
            cancels: VecDeque::new(),
            beat: None,
            beats: 0,
            times: Times { sent: now, heard: now, progress: now },
            rtt: Duration::ZERO,
            bytes: 0,
            dead: None,
            timer: Box::pin(sleep_until(now.into())),
            body: BytesMut::new(),
            scratch: Vec::new(),
            done: Vec::new(),
        })
    }

    /// Tries the path: a little, and then what takes many packets of every size there is.
    pub(in super::super) async fn prove(&mut self) -> Result<(), Error> {
        for bytes in [64, 1 << 20] {
            self.echo(bytes).await?;
        }
        Ok(())
    }

    async fn echo(&mut self, bytes: usize) -> Result<(), Error> {
        // Of its own, so that a pool that is all lent keeps no path from being tried.
        let failed = |why: &dyn std::fmt::Display| Error::Echo { bytes, why: LinkError::Closed(why.to_string()) };
        let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(bytes) }).map_err(|error| failed(&error))?;
        let lease = slab.try_lease(&Account::new("echo", usize::MAX), bytes).ok_or_else(|| failed(&"no memory"))?;
        let nonce = fastrand::u64(..);
        let control = self.places.len() - 1;
        let operation = Operation::new(Asked::Echo { nonce }, lease, Vec::new(), Duration::MAX);
        if let Err((_, why)) = self.ask(control, operation) {
            return Err(Error::Echo { bytes, why });
        }
        self.flush();
        let completion = poll_fn(|cx| self.poll(cx)).await;
        let entries = completion.result.map_err(|why| Error::Echo { bytes, why })?;
        let mut expected = vec![0; bytes];
        fill_echo(nonce, &mut expected);
        let crc = Some(crc32c::crc32c(&completion.lease));
        if completion.lease[..] != expected || entries.first().is_none_or(|entry| entry.crc != crc) {
            return Err(Error::Corrupt { bytes });
        }
        // What it was registered with goes as well.
        self.registered.truncate(1);
        Ok(())
    }
}

/// Connects the queue, which is prepared.
async fn greet(id: &Id, queue: &mut Queue, hello: &Hello) -> Result<Welcome, Error> {
    for receive in 0..u32::from(hello.credits) {
        post_empty(queue, receive)?;
    }
    let said = match id.connect(queue, &hello.encode()).await {
        Ok(said) => said,
        Err(ConnectError::Rejected { said }) => {
            return Err(match Rejection::decode(&said) {
                Ok(rejection) => Error::Rejected(rejection.reason),
                Err(_) => Error::Connect(ConnectError::Rejected { said }),
            });
        }
        Err(error) => return Err(Error::Connect(error)),
    };
    let welcome = Welcome::decode(&said).map_err(Error::Nonsense)?;
    let useful = RESERVED + 1..=hello.credits;
    if !useful.contains(&welcome.credits) {
        let (value, min, max) = (welcome.credits.into(), (*useful.start()).into(), (*useful.end()).into());
        return Err(Error::Nonsense(HelloError::Range { what: "the count of credits", value, min, max }));
    }
    Ok(welcome)
}

/// A receive for what is written with an immediate.
#[allow(unsafe_code)]
fn post_empty(queue: &mut Queue, receive: u32) -> Result<(), device::Error> {
    // SAFETY: it receives into nothing.
    unsafe { queue.receive(receive, None) }
}

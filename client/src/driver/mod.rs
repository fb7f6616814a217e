//! The thread that owns the links, sockets and timers, and carries events to the step machines and actions from them.
//!
//! It decides nothing: what to fetch, when to try again and when to give up are the machines' business. One thread serves
//! all loaders of a client; consumers talk to it through channels, from async code of any runtime or from plain threads.
#![allow(clippy::disallowed_methods)] // Clocks, threads and tasks are what this module is for.

mod first;
mod h3;
mod path;
mod rails;
mod rdma;
mod slots;
mod verify;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_transport::dial::{AskError, DialError, Dialer, Document};
use forebay_transport::link::LinkStats;
use forebay_transport::pool::Slab;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep};

use first::First;
pub(crate) use h3::H3Dialer;
use path::{Change, Path};
pub(crate) use rails::Beside;
use rails::{News, Rails};
pub(crate) use rdma::rdma;
use slots::Slots;

use crate::config::InUse;
use crate::loader::{Batch, Event, LoaderError, LoaderStats, Machine};

/// What consumers ask of the driver.
pub(crate) enum Command {
    /// Runs a machine made by `make` with the tag prefix it is given; `reply` gets the loader's seat, or `None` when there
    /// are too many.
    Open {
        make: Box<dyn FnOnce(u16) -> Machine + Send>,
        out: mpsc::UnboundedSender<Delivery>,
        /// For the seat.
        commands: mpsc::UnboundedSender<Command>,
        reply: oneshot::Sender<Option<Seat>>,
    },
    Want(u16, u32),
    Waiting(u16, bool),
    Stats(u16, oneshot::Sender<LoaderStats>),
    Close(u16),
    /// A control document.
    Ask {
        path: String,
        reply: oneshot::Sender<Result<Document, AskError>>,
    },
    /// Which fabric samples of a dataset take: as it stands, or as soon as that is settled.
    InUse {
        dataset: Arc<str>,
        settled: bool,
        reply: oneshot::Sender<InUse>,
    },
    /// Whether there is a path now, and its round trip.
    Rtt(oneshot::Sender<Option<Duration>>),
    /// What is known about the way of a dataset's samples, if there is one now.
    Way {
        dataset: Arc<str>,
        reply: oneshot::Sender<Option<LinkStats>>,
    },
    /// The thread ends, whoever still has a handle. The sender is dropped once the server was told.
    End(oneshot::Sender<()>),
}

/// A loader's place in the driver. Dropping it ends the loader, wherever it is dropped: also in a reply that nobody waits
/// for any more.
#[derive(Debug)]
pub(crate) struct Seat {
    pub id: u16,
    commands: mpsc::UnboundedSender<Command>,
}

impl Seat {
    pub(crate) fn new(id: u16, commands: mpsc::UnboundedSender<Command>) -> Seat {
        Seat { id, commands }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Close(self.id));
    }
}

/// What the driver hands a consumer.
pub(crate) enum Delivery {
    Batch(Batch),
    /// The last: every batch of every epoch was delivered, or why not.
    End(Result<(), LoaderError>, Box<LoaderStats>),
}

/// What the thread said when it panicked, if it did.
pub(crate) type Panicked = Arc<OnceLock<String>>;

/// A question waiting for a path.
struct Waiting {
    path: String,
    reply: oneshot::Sender<Result<Document, AskError>>,
    since: Instant,
}

/// How long a question may wait for a path.
const ASK_PATIENCE: Duration = Duration::from_secs(30);
/// How often the machines are told what the link knows.
const STATS_EVERY: Duration = Duration::from_secs(1);
/// Completions handled in one turn, before the sockets' tasks get theirs.
const TURN: usize = 16;

struct Driver {
    path: Path,
    slab: Slab,
    /// The last return of memory seen.
    seen: u64,
    slots: Slots,
    asks: Vec<Waiting>,
    commands: mpsc::UnboundedReceiver<Command>,
    origin: Instant,
    timer: std::pin::Pin<Box<Sleep>>,
    stats_due: Instant,
    /// Why the path is down, while it is.
    down: Option<String>,
    /// Who waits for the thread's end. Dropped with it, after the server was told.
    ending: Vec<oneshot::Sender<()>>,
    /// Fields that came without a checksum.
    unverified: Arc<AtomicU64>,
}

/// Starts the thread and connects. Ready when the first connection stands, or failed.
pub(crate) async fn start(
    dialer: Box<dyn Dialer>,
    beside: Beside,
    commands: mpsc::UnboundedReceiver<Command>,
    panicked: Panicked,
    unverified: Arc<AtomicU64>,
) -> Result<Result<(), DialError>, std::io::Error> {
    let (connected, first) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("forebay-client".into()).spawn(move || {
        runtime.block_on(async move {
            match dialer.dial().await {
                Err(error) => _ = connected.send(Err(error)),
                Ok(dialled) => {
                    if connected.send(Ok(())).is_ok() {
                        let slab = beside.pool.clone();
                        let path = Path::new(First::new(dialer, dialled), Rails::new(beside));
                        let mut driver = Driver::new(path, slab, commands, unverified);
                        driver.run(&panicked).await;
                        driver.path.close().await;
                    }
                }
            }
        });
        // What the transport's tasks still hold is theirs to let go of, but not for ever.
        runtime.shutdown_timeout(Duration::from_secs(1));
    })?;
    first.await.map_err(|_| std::io::Error::other("the client's thread ended while connecting"))
}

impl Driver {
    fn new(path: Path, slab: Slab, commands: mpsc::UnboundedReceiver<Command>, unverified: Arc<AtomicU64>) -> Driver {
        let now = Instant::now();
        Driver {
            path,
            slab,
            seen: 0,
            slots: Slots::default(),
            asks: Vec::new(),
            commands,
            origin: now,
            timer: Box::pin(tokio::time::sleep_until(now)),
            stats_due: now + STATS_EVERY,
            down: None,
            ending: Vec::new(),
            unverified,
        }
    }

    /// Runs until every handle is gone and every machine has ended. A panic ends it too, and is told before the consumers'
    /// channels close, so that they can say more than that they are closed.
    async fn run(&mut self, panicked: &Panicked) {
        poll_fn(|cx| {
            catch_unwind(AssertUnwindSafe(|| self.turn(cx))).unwrap_or_else(|payload| {
                let text = payload.downcast_ref::<String>().map(String::as_str);
                let text =
                    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("for a reason it did not say");
                let _ = panicked.set(text.to_owned());
                Poll::Ready(())
            })
        })
        .await
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn step(&mut self, id: u16, event: Event) {
        self.slots.step(self.now(), id, event, &mut self.path);
    }

    fn step_all(&mut self, event: impl FnMut(&Path, &Arc<str>) -> Option<Event>) {
        self.slots.step_all(self.now(), event, &mut self.path);
    }

    /// One round over everything that can have happened. Ends only when nothing has, so that every waker is in place.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut handled = 0;
        loop {
            let mut idle = true;
            match self.commands.poll_recv(cx) {
                Poll::Ready(Some(command)) => {
                    self.obey(command);
                    idle = false;
                }
                Poll::Ready(None) if self.slots.is_empty() => return Poll::Ready(()),
                Poll::Ready(None) => self.slots.close_all(self.now(), &mut self.path),
                Poll::Pending => {}
            }
            if let Poll::Ready(change) = self.path.poll_change(self.now(), cx) {
                self.changed(change);
                idle = false;
            }
            if let Poll::Ready((origin, mut completion)) = self.path.poll_completion(cx) {
                let without = verify::verify(&mut completion);
                self.unverified.fetch_add(without, Ordering::Relaxed);
                let (now, id) = (self.now(), Slots::owner(completion.tag));
                self.path.judge(now, origin, &mut completion, || self.slots.dataset(id));
                self.step(id, Event::Completed(completion));
                handled += 1;
                idle = false;
            } else if self.path.watch(self.now()) {
                idle = false;
            }
            if self.slab.poll_returned(cx, &mut self.seen).is_ready() {
                self.step_all(|_, _| Some(Event::MemoryReturned));
                idle = false;
            }
            if idle {
                self.slots.retry_refused(self.now(), &mut self.path);
                if self.poll_timer(cx).is_pending() {
                    return Poll::Pending;
                }
            } else if handled >= TURN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open { make, out, commands, reply } => {
                let id = self.slots.open(make, out);
                // If the consumer is gone already, the seat closes itself.
                let _ = reply.send(id.map(|id| Seat::new(id, commands)));
                if let Some(dataset) = id.and_then(|id| self.slots.dataset(id)) {
                    self.path.open(self.now(), &dataset);
                }
                if let Some(id) = id {
                    let event = self.link_state(id);
                    self.step(id, event);
                }
            }
            Command::Want(id, batches) => self.step(id, Event::Want(batches)),
            Command::Waiting(id, waiting) => self.step(id, Event::ConsumerWaiting(waiting)),
            Command::Close(id) => self.step(id, Event::Close),
            Command::Stats(id, reply) => {
                if let Some(stats) = self.slots.stats(id) {
                    let _ = reply.send(stats.clone());
                }
            }
            Command::Ask { path, reply } => {
                self.asks.push(Waiting { path, reply, since: Instant::now() });
                self.ask();
            }
            Command::InUse { dataset, settled: false, reply } => _ = reply.send(self.path.in_use(&dataset)),
            Command::InUse { dataset, settled: true, reply } => self.path.settle(self.now(), &dataset, reply),
            Command::End(reply) => {
                self.ending.push(reply);
                self.commands.close();
            }
            Command::Rtt(reply) => {
                let _ = reply.send(self.path.stats().map(|stats| stats.rtt));
            }
            Command::Way { dataset, reply } => _ = reply.send(self.path.stats_of(&dataset)),
        }
    }

    /// Sends what questions there are, if there is a path; gives up those that waited too long for one.
    fn ask(&mut self) {
        if self.path.is_up() {
            for Waiting { path, reply, .. } in self.asks.drain(..) {
                if let Some(answer) = self.path.ask(&path) {
                    tokio::spawn(async move { reply.send(answer.await) });
                }
            }
        } else {
            let cause = self.down.clone().unwrap_or_default();
            for waiting in self.asks.extract_if(.., |waiting| waiting.since.elapsed() >= ASK_PATIENCE) {
                let error = AskError::Closed { path: waiting.path, reason: cause.clone() };
                let _ = waiting.reply.send(Err(error));
            }
        }
    }

    /// What a machine is told about whether there is a path.
    fn link_state(&self, id: u16) -> Event {
        let barred = self.slots.dataset(id).and_then(|dataset| self.path.barred(&dataset));
        match self.down.clone().or(barred) {
            None => Event::LinkUp,
            Some(cause) => Event::LinkDown(cause),
        }
    }

    fn changed(&mut self, change: Change) {
        match change {
            Change::Rail(News { dataset, used }) => {
                // Otherwise the first path is there all the same.
                if self.path.is_barred() {
                    self.step_all(|path, of| {
                        let why = path.barred(of).unwrap_or_default();
                        (*of == dataset).then(|| if used { Event::LinkUp } else { Event::LinkDown(why) })
                    });
                }
            }
            Change::First(first::Change::Up) => {
                if let Some(cause) = self.down.take() {
                    tracing::info!("connected again (it was down: {cause})");
                }
                self.step_all(|path, dataset| path.barred(dataset).is_none().then_some(Event::LinkUp));
                self.ask();
            }
            Change::First(first::Change::Down(cause)) => {
                if self.down.is_none() {
                    tracing::warn!("connection lost, connecting again: {cause}");
                }
                self.step_all(|_, _| Some(Event::LinkDown(cause.clone())));
                self.down = Some(cause);
            }
        }
    }

    /// Ready when a time had come; what was due has then been done.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        if self.path.tick(self.now(), |dataset| self.slots.read(dataset)) {
            return Poll::Ready(());
        }
        if self.slots.tick(self.now(), &mut self.path) {
            return Poll::Ready(());
        }
        if now >= self.stats_due {
            self.stats_due = now + STATS_EVERY;
            self.step_all(|path, dataset| path.stats_of(dataset).map(Event::Stats));
            self.ask();
            self.path.expire();
            return Poll::Ready(());
        }
        // Without loaders and questions nothing is due.
        let waiting = !self.slots.is_empty() || !self.asks.is_empty() || self.path.is_asked();
        let stats = waiting.then_some(self.stats_due);
        let rails = self.path.wake(|dataset| self.slots.read(dataset));
        let wakes = self.slots.wake().into_iter().chain(rails).map(|wake| self.origin + wake);
        let Some(due) = wakes.chain(stats).min() else { return Poll::Pending };
        self.timer.as_mut().reset(due);
        std::future::Future::poll(self.timer.as_mut(), cx)
    }
}

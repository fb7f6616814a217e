//! What a program uses: a client, its datasets, their loaders.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use forebay_transport::Version;
use forebay_transport::dial::{Dialer, Document, RailDialer};
use forebay_transport::h3::client::{ConnectConfig, Connector};
use forebay_transport::h3::endpoint::TransportConfig;
use forebay_transport::link::LinkStats;
use forebay_transport::pool::{Account, Ledger, Slab, SlabConfig, Usage};
use forebay_transport::wire::describe::{DatasetList, Description, Problem, SampleDescription, WireRange};
use tokio::sync::{mpsc, oneshot};

use crate::config::{ClientConfig, Fabric, InUse, LoaderOptions};
use crate::driver::{self, Beside, Command, Delivery, H3Dialer, Panicked, Seat};
use crate::error::Error;
use crate::loader::{Batch, LoaderConfig, LoaderStats, Machine, Source};
use crate::plan::{Plan, PlanSpec};
use crate::select::SelectConfig;
use crate::url::{ServerUrl, encode};
use crate::window::WindowConfig;

/// The most entries (samples times fields) in one group: of each the client keeps account beside the pool, so that groups
/// of samples with next to nothing in many fields must not be as large in samples as their bytes would let them be.
const GROUP_ENTRIES: u32 = 16 << 10;

/// A connection to one server: one pool, one thread, shared by everything made from it. Cloning makes another handle;
/// when the last one, of its datasets and loaders too, is gone, the thread ends.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Who is on the other end, and over which fabric: for messages.
    peer: String,
    fabric: String,
    slab: Slab,
    ledger: Ledger,
    /// Bytes that the transport lets be under way.
    path_bytes: u64,
    /// Samples come over this fabric or not at all.
    only: Option<String>,
    commands: mpsc::UnboundedSender<Command>,
    panicked: Panicked,
    unverified: Arc<AtomicU64>,
}

fn slab(bytes: u64) -> Result<Slab, Error> {
    Ok(Slab::new(SlabConfig::new(usize::try_from(bytes).unwrap_or(usize::MAX)))?)
}

impl Client {
    /// Connects to the server that `url` names (a dataset in it is ignored), within `connect_timeout`.
    ///
    /// Needs no runtime: the returned future can be awaited on any.
    pub async fn connect(url: &ServerUrl, config: ClientConfig) -> Result<Client, Error> {
        Client::connect_beside(url, config, driver::rdma()).await
    }

    /// The same with another rail than RDMA: `config.fabric` then says whether that is used.
    ///
    /// Needs no runtime: the returned future can be awaited on any.
    pub async fn connect_beside(
        url: &ServerUrl,
        config: ClientConfig,
        rail: Arc<dyn RailDialer>,
    ) -> Result<Client, Error> {
        let pool = config.memory / 2;
        let mut ledger = Ledger::new(config.memory);
        ledger.claim("pool", pool)?;
        // What the transport may hold is credit given to the server; it limits a path's speed just as the pool does, so
        // it gets all that is left.
        let transport = TransportConfig { max_mtu: config.max_mtu, ..TransportConfig::client() };
        let transport = transport.within(ledger.remaining());
        let path_bytes = transport.receive_window;
        let connector =
            Connector::new(ConnectConfig { trust: config.trust, transport, timeout: config.connect_timeout })?;
        for claim in connector.claims() {
            ledger.claim(claim.name, claim.bytes)?;
        }
        let dialer = H3Dialer::new(connector, &url.host, url.port, url.authority(), config.window);
        let (rail, only) = match config.fabric {
            Fabric::Auto => (Some(rail), false),
            Fabric::H3 => (None, false),
            Fabric::Rdma => (Some(rail), true),
        };
        let beside = Beside { dialer: rail, only, pool: slab(pool)?, config: SelectConfig::default() };
        Client::start(Box::new(dialer), beside, ledger, path_bytes).await
    }

    /// A client of whatever `dialer` dials, with all of `memory` for its pool: this is for fabrics that hold no data
    /// beside it.
    ///
    /// Needs no runtime: the returned future can be awaited on any.
    pub async fn with_dialer(dialer: Box<dyn Dialer>, memory: u64) -> Result<Client, Error> {
        let mut ledger = Ledger::new(memory);
        ledger.claim("pool", memory)?;
        Client::with_pool(dialer, slab(memory)?, ledger).await
    }

    /// The same with a pool that was made before, because the fabric's own machinery is to know it (memory is registered
    /// with io_uring and with network cards before anything is read into it). `ledger` has been told of the pool, and of what the
    /// fabric holds beside it.
    pub async fn with_pool(dialer: Box<dyn Dialer>, pool: Slab, ledger: Ledger) -> Result<Client, Error> {
        let beside = Beside { dialer: None, only: false, pool, config: SelectConfig::default() };
        Client::start(dialer, beside, ledger, u64::MAX).await
    }

    async fn start(dialer: Box<dyn Dialer>, beside: Beside, ledger: Ledger, path_bytes: u64) -> Result<Client, Error> {
        let slab = beside.pool.clone();
        let only = beside.dialer.as_ref().filter(|_| beside.only).map(|dialer| dialer.fabric().to_owned());
        if !slab.is_locked() {
            tracing::info!(
                "the pool is not locked in memory: raise the limit (`ulimit -l`) to keep it from being paged out"
            );
        }
        let (peer, fabric) = (dialer.peer().to_owned(), dialer.fabric().to_owned());
        let (commands, receiver) = mpsc::unbounded_channel();
        let (panicked, unverified) = (Panicked::default(), Arc::<AtomicU64>::default());
        driver::start(dialer, beside, receiver, panicked.clone(), unverified.clone())
            .await
            .map_err(Error::Thread)??;
        Ok(Client {
            shared: Arc::new(Shared { peer, fabric, slab, ledger, path_bytes, only, commands, panicked, unverified }),
        })
    }

    /// Who is on the other end, as messages name it: `HOST:PORT`, or a folder.
    pub fn peer(&self) -> &str {
        &self.shared.peer
    }

    /// What the pool's memory is doing.
    pub fn pool(&self) -> Usage {
        self.shared.slab.usage()
    }

    /// How many fields came without a checksum that they could be compared with: the server's index is still being
    /// completed.
    pub fn unverified(&self) -> u64 {
        self.shared.unverified.load(Ordering::Relaxed)
    }

    /// Everything that may hold memory for data, and the budget it fits in.
    pub fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// Round trip of the path, smoothed; `None` while there is no path.
    pub async fn rtt(&self) -> Option<std::time::Duration> {
        let (reply, rtt) = oneshot::channel();
        self.send(Command::Rtt(reply)).ok()?;
        rtt.await.ok().flatten()
    }

    /// Ends the client, whatever handles are left, and waits until the server was told: a moment. For programs about to
    /// exit: a server that shuts down waits for clients that vanished without a word. Dropping the last handle tells it
    /// as well, in the background.
    pub async fn close(self) {
        let (reply, ended) = oneshot::channel();
        if self.send(Command::End(reply)).is_ok() {
            let _ = ended.await;
        }
    }

    /// The datasets of the server, whatever state they are in.
    pub async fn datasets(&self) -> Result<DatasetList, Error> {
        let list: DatasetList = self.document("/v1/datasets").await?;
        self.check_wire(list.wire)?;
        Ok(list)
    }

    /// One dataset, as it is now: what is read through the handle is of this version and no other.
    pub async fn dataset(&self, name: &str) -> Result<Dataset, Error> {
        let path = format!("/v1/datasets/{}", encode(name));
        let description: Description = self.document(&path).await?;
        self.check_wire(description.wire)?;
        if Version::parse(&description.version).is_none() {
            let reason = format!("{:?} is no version", description.version);
            return Err(Error::Answer { server: self.peer().to_owned(), path, reason });
        }
        Ok(Dataset { client: self.clone(), description: Arc::new(description) })
    }

    fn check_wire(&self, theirs: WireRange) -> Result<(), Error> {
        let ours = WireRange::ours();
        if theirs.min > ours.max || theirs.max < ours.min {
            return Err(Error::Wire { server: self.peer().to_owned(), theirs, ours });
        }
        Ok(())
    }

    fn send(&self, command: Command) -> Result<(), Error> {
        self.shared.commands.send(command).map_err(|_| self.gone())
    }

    /// Why there is no answer from the thread.
    fn gone(&self) -> Error {
        self.shared.panicked.get().map_or(Error::Closed, |text| Error::Panicked(text.clone()))
    }

    /// The control document at `path`.
    async fn document<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Ask { path: path.to_owned(), reply })?;
        let Document { status, body } = answer.await.map_err(|_| self.gone())??;
        let server = self.peer().to_owned();
        if status == 200 {
            return serde_json::from_slice(&body).map_err(|error| Error::Answer {
                server,
                path: path.to_owned(),
                reason: error.to_string(),
            });
        }
        let problem = serde_json::from_slice(&body).unwrap_or_else(|_| Problem {
            kind: "about:blank".into(),
            title: "no reason given".into(),
            status,
            detail: None,
        });
        Err(Error::Refused { server, path: path.to_owned(), problem: Box::new(problem) })
    }
}

/// One version of a dataset on a server.
#[derive(Clone, Debug)]
pub struct Dataset {
    client: Client,
    description: Arc<Description>,
}

impl Dataset {
    pub fn description(&self) -> &Description {
        &self.description
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Key, shard and fields of one sample.
    pub async fn sample(&self, ordinal: u64) -> Result<SampleDescription, Error> {
        self.check(ordinal)?;
        self.client.document(&format!("/v1/datasets/{}/samples/{ordinal}", encode(&self.description.name))).await
    }

    /// All samples with this key: keys need not be unique.
    pub async fn find(&self, key: &str) -> Result<Vec<SampleDescription>, Error> {
        let path = format!("/v1/datasets/{}/keys/{}", encode(&self.description.name), encode(key));
        match self.client.document(&path).await {
            Err(Error::Refused { problem, .. }) if problem.status == 404 => Ok(Vec::new()),
            other => other,
        }
    }

    /// The ordinal of the one sample with this key.
    pub async fn ordinal(&self, key: &str) -> Result<u64, Error> {
        let found = self.find(key).await?;
        let (dataset, key) = (self.description.name.clone(), key.to_owned());
        match found.as_slice() {
            [] => Err(Error::NoSuchKey { dataset, key }),
            [one] => Ok(one.ordinal),
            many => {
                Err(Error::AmbiguousKey { dataset, key, ordinals: many.iter().map(|sample| sample.ordinal).collect() })
            }
        }
    }

    /// Which fabric samples come over now, and why, and how often that changed.
    pub async fn in_use(&self) -> Result<InUse, Error> {
        self.ask_in_use(false).await
    }

    /// The same, but while a faster fabric is being tried, this waits for what comes of that; where none was tried yet, it begins
    /// to. That takes a second at most, or half a minute where there is no connection.
    pub async fn settled(&self) -> Result<InUse, Error> {
        self.ask_in_use(true).await
    }

    /// What is known about the way that samples come by: also what has arrived of groups that are not whole yet, for all loaders of
    /// the client together. `None` while there is no way.
    ///
    /// # Errors
    /// When the client is closed.
    pub async fn link_stats(&self) -> Result<Option<LinkStats>, Error> {
        let (reply, stats) = oneshot::channel();
        self.client.send(Command::Way { dataset: self.description.name.as_str().into(), reply })?;
        stats.await.map_err(|_| self.client.gone())
    }

    async fn ask_in_use(&self, settled: bool) -> Result<InUse, Error> {
        let (reply, in_use) = oneshot::channel();
        let dataset = self.description.name.as_str().into();
        self.client.send(Command::InUse { dataset, settled, reply })?;
        in_use.await.map_err(|_| self.client.gone())
    }

    /// Where only one fabric may be taken: that it can be, or could.
    async fn check_fabric(&self) -> Result<(), Error> {
        let Some(fabric) = &self.client.shared.only else { return Ok(()) };
        let in_use = self.settled().await?;
        if in_use.fabric.is_some() || in_use.promotions > 0 {
            return Ok(());
        }
        let (fabric, server) = (fabric.clone(), self.client.peer().to_owned());
        Err(Error::Fabric { fabric, dataset: self.description.name.clone(), server, reason: in_use.reason })
    }

    /// Samples by ordinal, in the order asked for, as one batch. `fields` by name, or all of them.
    pub async fn fetch(&self, ordinals: &[u64], fields: Option<&[&str]>) -> Result<Batch, Error> {
        ordinals.iter().try_for_each(|&ordinal| self.check(ordinal))?;
        let source = self.source(fields)?;
        let plan = Plan::list(source.version, self.description.samples, ordinals)?;
        let mut loader = self.open(source, plan, LoaderConfig::default()).await?;
        match loader.next().await {
            Some(batch) => Ok(batch?),
            None => Err(self.client.gone()),
        }
    }

    /// A loader of whole epochs.
    pub async fn loader(&self, options: LoaderOptions) -> Result<Loader, Error> {
        let names: Option<Vec<&str>> = options.fields.as_ref().map(|names| names.iter().map(String::as_str).collect());
        let source = self.source(names.as_deref())?;
        let plan = Plan::new(PlanSpec {
            version: source.version,
            samples: source.samples,
            shuffle: options.shuffle,
            seed: options.seed,
            rank: options.rank,
            world_size: options.world_size,
            batch_size: options.batch_size,
            drop_last: options.drop_last,
        })?;
        let config = LoaderConfig {
            first_epoch: options.first_epoch,
            epochs: options.epochs,
            on_error: options.on_error,
            pool_timeout: options.pool_timeout,
            stall_timeout: options.stall_timeout,
            seed: options.seed ^ u64::from(options.rank),
            ..LoaderConfig::default()
        };
        self.open(source, plan, config).await
    }

    fn check(&self, ordinal: u64) -> Result<(), Error> {
        let samples = self.description.samples;
        if ordinal < samples {
            return Ok(());
        }
        Err(Error::NoSuchSample { dataset: self.description.name.clone(), ordinal, samples })
    }

    fn source(&self, fields: Option<&[&str]>) -> Result<Source, Error> {
        let shared = &self.client.shared;
        // What goes wrong on a faster fabric beside another one is said by what happened, not by this name.
        let fabric = shared.only.as_ref().unwrap_or(&shared.fabric);
        Ok(Source::new(self.client.peer(), fabric, &self.description, fields)?)
    }

    async fn open(&self, source: Source, plan: Plan, config: LoaderConfig) -> Result<Loader, Error> {
        let slab = &self.client.shared.slab;
        let pool = slab.capacity() as u64;
        let too_small = |what: String, needed| {
            let dataset = self.description.name.clone();
            Err(Error::PoolTooSmall { dataset, what, needed, pool })
        };
        if source.largest_sample > pool {
            return too_small("the largest sample".into(), source.largest_sample);
        }
        let batch = plan.batch(0).end;
        let needed = batch.saturating_mul(source.mean_sample);
        if needed > pool {
            return too_small(format!("a batch of {batch} samples"), needed);
        }
        self.check_fabric().await?;
        let account = Account::new(format!("loader of {}", self.description.name), slab.capacity());
        let fields = u32::try_from(source.fields.len()).unwrap_or(u32::MAX).max(1);
        let group_samples = config.window.group_samples.min(GROUP_ENTRIES / fields).max(1);
        let window = WindowConfig { bytes: pool, group_samples, ..config.window };
        let config = LoaderConfig { window, path_bytes: self.client.shared.path_bytes, ..config };
        let slab = slab.clone();
        let make = Box::new(move |tag_prefix| {
            Machine::new(source, plan, LoaderConfig { tag_prefix, ..config }, slab, account)
        });
        let (out, batches) = mpsc::unbounded_channel();
        let (reply, seat) = oneshot::channel();
        let commands = self.client.shared.commands.clone();
        self.client.send(Command::Open { make, out, commands, reply })?;
        let seat = seat.await.map_err(|_| self.client.gone())?.ok_or(Error::TooManyLoaders(1 << 16))?;
        let loader = Loader { client: self.client.clone(), seat, batches, ended: None };
        // The first batch is made ready before it is asked for.
        loader.client.send(Command::Want(loader.seat.id, 1))?;
        Ok(loader)
    }
}

/// Delivers a plan's batches, in exact order. Dropping it ends it: nothing stays in flight, and its memory goes back.
/// Batches and samples already delivered stay valid.
#[derive(Debug)]
pub struct Loader {
    client: Client,
    seat: Seat,
    batches: mpsc::UnboundedReceiver<Delivery>,
    ended: Option<Box<LoaderStats>>,
}

impl Loader {
    /// The next batch; `None` when every batch of every epoch was delivered, or after an error. Dropping the future loses
    /// nothing.
    pub async fn next(&mut self) -> Option<Result<Batch, Error>> {
        if self.ended.is_some() {
            return None;
        }
        let delivery = match self.batches.try_recv() {
            Ok(delivery) => Some(delivery),
            Err(_) => {
                let _waiting = Waiting::begin(&self.client, self.seat.id);
                self.batches.recv().await
            }
        };
        match delivery {
            Some(Delivery::Batch(batch)) => {
                // One batch is kept ready; the driver's end is noticed at the next call.
                let _ = self.client.send(Command::Want(self.seat.id, 1));
                Some(Ok(batch))
            }
            Some(Delivery::End(result, stats)) => {
                self.ended = Some(stats);
                result.err().map(|error| Err(error.into()))
            }
            None => {
                self.ended = Some(Box::default());
                Some(Err(self.client.gone()))
            }
        }
    }

    /// What the loader did so far.
    pub async fn stats(&self) -> LoaderStats {
        if let Some(stats) = &self.ended {
            return (**stats).clone();
        }
        let (reply, stats) = oneshot::channel();
        let _ = self.client.send(Command::Stats(self.seat.id, reply));
        stats.await.unwrap_or_default()
    }
}

/// While it lives, the machine knows that the consumer waits.
struct Waiting {
    commands: mpsc::UnboundedSender<Command>,
    id: u16,
}

impl Waiting {
    fn begin(client: &Client, id: u16) -> Waiting {
        let commands = client.shared.commands.clone();
        let _ = commands.send(Command::Waiting(id, true));
        Waiting { commands, id }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Waiting(self.id, false));
    }
}

/// Runs a future of this crate on a thread that has no runtime.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    fn waker() -> Waker {
        Waker::from(Arc::new(Unpark(std::thread::current())))
    }
    thread_local! {
        // One for all calls: a thread that takes batch after batch allocates nothing for it.
        static WAKER: Waker = waker();
    }
    // The thread may be ending, and drop a loader that it kept.
    let waker = WAKER.try_with(Waker::clone).unwrap_or_else(|_| waker());
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use forebay_transport::h3::tls::Trust;

    use super::*;

    /// A client of a server that has nothing.
    fn client() -> (Client, tokio::runtime::Runtime) {
        use forebay_transport::exchange::{Request, Responder};
        use forebay_transport::h3::{Identity, Server, ServerConfig};
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let state = tempfile::tempdir().unwrap();
        let identity = Identity::self_signed(state.path(), &["127.0.0.1".to_owned()]).unwrap();
        let trust = Trust::Pinned(identity.fingerprint());
        let server = Server::bind(ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity, 1 << 20)).unwrap();
        let url = format!("https://{}", server.local_addr()).parse().unwrap();
        let nothing = |_: Request, responder: Responder| async move {
            let _ = responder.send(http::Response::new(()), bytes::Bytes::new()).await;
        };
        runtime.spawn(server.serve(Arc::new(nothing), std::future::pending(), std::time::Duration::ZERO));
        let config = ClientConfig { trust, memory: 32 << 20, ..ClientConfig::default() };
        (runtime.block_on(Client::connect(&url, config)).unwrap(), runtime)
    }

    #[test]
    fn a_panic_of_the_thread_is_told_to_all() {
        let (client, runtime) = client();
        let (out, batches) = mpsc::unbounded_channel();
        let seat = Seat::new(7, client.shared.commands.clone());
        let mut waiting = Loader { client: client.clone(), seat, batches, ended: None };
        let (reply, _) = oneshot::channel();
        // The channel of a loader that is there already is the driver's, and goes with it: not while the panic unwinds.
        type Kept = std::cell::RefCell<Option<mpsc::UnboundedSender<Delivery>>>;
        thread_local!(static KEPT: Kept = Kept::default());
        let make = Box::new(move |_| {
            KEPT.set(Some(out));
            panic!("of {} kinds", 3)
        });
        let (other, _) = mpsc::unbounded_channel();
        let commands = client.shared.commands.clone();
        client.send(Command::Open { make, out: other, commands, reply }).unwrap();
        let says = |error: Error| error.to_string().contains("of 3 kinds");
        assert!(says(runtime.block_on(waiting.next()).unwrap().unwrap_err()));
        assert!(says(runtime.block_on(client.datasets()).unwrap_err()));
        assert_eq!(runtime.block_on(waiting.stats()), LoaderStats::default());
    }
}

//! A delay line for real sockets: what a long path does to UDP, on one machine.
//!
//! It listens on loopback and forwards to a target, and back: each datagram arrives a fixed time later, over a wire of a given
//! rate with a bounded queue before it, with losses and jitter drawn from a seed. Segmentation and receive offload carry up to 64
//! KiB for each system call, so that it is faster than what is measured through it; the test `a_delay_line_has_room` prints
//! its ceiling on this machine. Made for demos, tests and benches: it needs no privileges, and keeps no secrets.
//!
//! Threads block in the kernel until there is something to do; none spins. Stopping takes up to 50 ms.

mod lane;
mod socket;

use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quinn_udp::EcnCodepoint;

use self::lane::{Fate, Lane};
use self::socket::Socket;

/// How often a thread that waits for datagrams looks whether it should stop.
const WAKE: Duration = Duration::from_millis(50);
/// Clients that one line serves; datagrams of further ones are dropped.
const CLIENTS: usize = 256;
/// With a rate, datagrams that came in one system call leave in portions of at most this much of the wire's time.
const PORTION: Duration = Duration::from_micros(200);

/// What the path is like. The default is a path that costs nothing.
#[derive(Clone, Debug)]
pub struct DelayConfig {
    /// How long a datagram travels, each way: half of the round trip. Default: 0.
    pub one_way: Duration,
    /// Bytes per second that each direction carries (UDP payload). Default: as fast as the machine goes.
    pub rate: Option<u64>,
    /// Bytes that may wait for the wire in each direction when there is a rate, and that may be on their way when there is none.
    /// What comes on top is dropped. Costs as much memory, each way, when it is full. Default: 64 MiB.
    pub queue: usize,
    /// The share of datagrams that is lost, each way, 0 to 1. Default: 0.
    pub loss: f64,
    /// Up to this much more travelling time, evenly distributed: datagrams overtake each other. Default: 0.
    pub jitter: Duration,
    /// What losses and jitter are drawn from. Default: 0.
    pub seed: u64,
}

impl Default for DelayConfig {
    fn default() -> Self {
        let none = Duration::ZERO;
        Self { one_way: none, rate: None, queue: 64 << 20, loss: 0.0, jitter: none, seed: 0 }
    }
}

impl DelayConfig {
    /// A path with this round trip, and no other fault.
    pub fn round_trip(time: Duration) -> Self {
        Self { one_way: time / 2, ..Self::default() }
    }
}

/// What became of the datagrams of one direction so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayStats {
    /// Datagrams handed to the kernel.
    pub forwarded: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Datagrams lost because [`DelayConfig::loss`] said so.
    pub lost: u64,
    /// Datagrams dropped because the queue was full.
    pub overflowed: u64,
}

/// A running delay line. Dropping it stops it; datagrams on their way are lost.
#[derive(Debug)]
pub struct DelayLine {
    addr: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    there: Direction,
    back: Direction,
    /// The threads that read what the target answers, one for each client.
    answers: Mutex<Vec<JoinHandle<()>>>,
}

/// One direction: what is on its way, and the counters.
#[derive(Debug)]
struct Direction {
    queue: Mutex<Queue>,
    changed: Condvar,
    forwarded: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    overflowed: AtomicU64,
}

#[derive(Debug)]
struct Queue {
    lane: Lane,
    heap: BinaryHeap<Flight>,
    next: u64,
}

/// Datagrams of one size (the last may be shorter) that arrive together.
#[derive(Debug)]
struct Flight {
    due: Instant,
    sequence: u64,
    socket: Arc<Socket>,
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    stride: usize,
    bytes: Vec<u8>,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Flight {}
impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
/// The soonest is the greatest, as a heap wants it; what is due at the same time leaves in the order in which it came.
impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due, other.sequence).cmp(&(self.due, self.sequence))
    }
}

impl DelayLine {
    /// Starts a line to `target` on a free port of loopback.
    ///
    /// # Errors
    /// When the operating system gives no socket or no thread.
    pub fn start(target: SocketAddr, config: DelayConfig) -> io::Result<Self> {
        let ip: IpAddr = if target.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        let listener = Arc::new(Socket::bind(ip)?);
        let addr = listener.addr()?;
        let there = Direction::new(Lane::new(&config, config.seed));
        let back = Direction::new(Lane::new(&config, config.seed ^ 1));
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), there, back, answers: Mutex::new(Vec::new()) });
        let mut line = Self { addr, shared, threads: Vec::new() };
        // From here on a failure drops `line`, which stops the threads that run.
        let shared = Arc::clone(&line.shared);
        line.spawn("delay-there", move || shared.there.deliver(&shared.stop))?;
        let shared = Arc::clone(&line.shared);
        line.spawn("delay-back", move || shared.back.deliver(&shared.stop))?;
        let shared = Arc::clone(&line.shared);
        line.spawn("delay-listen", move || listen(&shared, &listener, target))?;
        Ok(line)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name(name.to_owned()).spawn(body)?);
        Ok(())
    }

    /// Where to send to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What became of datagrams towards the target, and of those back.
    pub fn stats(&self) -> (DelayStats, DelayStats) {
        (self.shared.there.stats(), self.shared.back.stats())
    }
}

impl Drop for DelayLine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.there.wake();
        self.shared.back.wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic there was printed there
        }
        // Only now: the listener, which adds to these, has ended.
        for thread in lock(&self.shared.answers).drain(..) {
            let _ = thread.join();
        }
    }
}

impl Direction {
    fn new(lane: Lane) -> Self {
        let queue = Mutex::new(Queue { lane, heap: BinaryHeap::new(), next: 0 });
        let zero = || AtomicU64::new(0);
        Self { queue, changed: Condvar::new(), forwarded: zero(), bytes: zero(), lost: zero(), overflowed: zero() }
    }

    fn stats(&self) -> DelayStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DelayStats {
            forwarded: read(&self.forwarded),
            bytes: read(&self.bytes),
            lost: read(&self.lost),
            overflowed: read(&self.overflowed),
        }
    }

    fn wake(&self) {
        let _guard = lock(&self.queue); // so that no thread is between looking at `stop` and waiting
        self.changed.notify_all();
    }

    /// Sends `received` on its way, in portions that the wire and the losses make of it.
    fn accept(&self, received: &[u8], stride: usize, ecn: Option<EcnCodepoint>, socket: &Arc<Socket>, to: SocketAddr) {
        let now = Instant::now();
        let mut queue = lock(&self.queue);
        let portion = queue.lane.portion(stride, PORTION);
        for bytes in received.chunks(portion) {
            let datagrams = bytes.len().div_ceil(stride) as u64;
            match queue.lane.admit(now, bytes.len()) {
                Fate::Arrives(due) => {
                    let sequence = queue.next;
                    queue.next += 1;
                    let (socket, bytes) = (Arc::clone(socket), bytes.to_vec());
                    queue.heap.push(Flight { due, sequence, socket, destination: to, ecn, stride, bytes });
                }
                Fate::Lost => drop(self.lost.fetch_add(datagrams, Ordering::Relaxed)),
                Fate::Overflows => drop(self.overflowed.fetch_add(datagrams, Ordering::Relaxed)),
            }
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Delivers until told to stop.
    fn deliver(&self, stop: &AtomicBool) {
        let mut queue = lock(&self.queue);
        while !stop.load(Ordering::SeqCst) {
            let now = Instant::now();
            let wait = match queue.heap.peek() {
                None => WAKE,
                Some(flight) => flight.due.saturating_duration_since(now),
            };
            if !wait.is_zero() {
                queue = self.changed.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let Some(flight) = queue.heap.pop() else { continue };
            queue.lane.arrived(flight.bytes.len());
            drop(queue);
            // Counted first, so that who has received a datagram finds it in the statistics.
            self.forwarded.fetch_add(flight.bytes.len().div_ceil(flight.stride) as u64, Ordering::Relaxed);
            self.bytes.fetch_add(flight.bytes.len() as u64, Ordering::Relaxed);
            flight.socket.send(&flight.bytes, flight.stride, flight.ecn, flight.destination);
            queue = lock(&self.queue);
        }
    }
}

/// Takes what clients send; each gets a socket of its own towards the target, so that the target can tell them apart.
fn listen(shared: &Arc<Shared>, listener: &Arc<Socket>, target: SocketAddr) {
    let mut clients: HashMap<SocketAddr, Arc<Socket>> = HashMap::new();
    receive(&shared.stop, listener, |bytes, stride, ecn, client| {
        let upstream = match clients.get(&client) {
            Some(upstream) => upstream,
            None if clients.len() >= CLIENTS => return,
            None => match add_client(shared, listener, client, target) {
                Ok(upstream) => clients.entry(client).or_insert(upstream),
                Err(error) => {
                    tracing::warn!(%client, %error, "the delay line cannot take another client");
                    return;
                }
            },
        };
        shared.there.accept(bytes, stride, ecn, upstream, target);
    });
}

fn add_client(
    shared: &Arc<Shared>,
    listener: &Arc<Socket>,
    client: SocketAddr,
    target: SocketAddr,
) -> io::Result<Arc<Socket>> {
    let upstream = Arc::new(Socket::bind(listener.addr()?.ip())?);
    let (shared, listener, answers) = (Arc::clone(shared), Arc::clone(listener), Arc::clone(&upstream));
    let keep = Arc::clone(&shared);
    let thread = thread::Builder::new().name("delay-answers".to_owned()).spawn(move || {
        receive(&shared.stop, &answers, |bytes, stride, ecn, from| {
            if from == target {
                shared.back.accept(bytes, stride, ecn, &listener, client);
            }
        });
    })?;
    lock(&keep.answers).push(thread);
    Ok(upstream)
}

/// Calls `each` with what arrives at `socket`, until told to stop.
fn receive(stop: &AtomicBool, socket: &Socket, mut each: impl FnMut(&[u8], usize, Option<EcnCodepoint>, SocketAddr)) {
    let mut buffer = vec![0; 1 << 16];
    while !stop.load(Ordering::SeqCst) {
        match socket.receive(&mut buffer) {
            Ok(got) if got.len > 0 => each(&buffer[..got.len], got.stride.max(1), got.ecn, got.addr),
            Ok(_) => {} // an empty datagram: nothing that speaks QUIC sends one
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            // The other side's port is closed, for now: a server may be restarting.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => {
                tracing::warn!(%error, "the delay line cannot receive");
                thread::sleep(WAKE);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The link of the local fabric: operations in their seats.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_transport::link::{Completion, Fetch, Link, LinkStats, Status, Tag};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::operation::Operation;
use crate::serve::Registry;

/// One client's path to the storage.
///
/// Each operation has a seat while it is in flight: a task that does one after the other, so that their memory is used
/// again and an operation allocates nothing. There are as many as were ever needed at the same time.
pub struct LocalLink {
    registry: Arc<Registry>,
    window: usize,
    closed: Arc<AtomicBool>,
    runtime: Handle,
    seats: Vec<Arc<Seat>>,
    /// The seats' tasks, which end with the link.
    tasks: JoinSet<()>,
    /// Seats that nobody sits in.
    free: Vec<usize>,
    /// Operations in flight, and where they sit.
    taken: Vec<(Tag, usize)>,
    done: Arc<Mutex<Finished>>,
    bytes: u64,
}

#[derive(Default)]
struct Seat {
    order: Mutex<Order>,
    /// The operation is wanted no more.
    cancelled: AtomicBool,
}

/// What a seat is to do next.
#[derive(Default)]
struct Order {
    fetch: Option<Fetch>,
    /// Of the seat's task, while there is nothing to do.
    waker: Option<Waker>,
}

/// Operations that have ended, each with its seat.
#[derive(Default)]
struct Finished {
    ended: VecDeque<(usize, Completion)>,
    /// Of whoever polls the link.
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that runs under these locks panics.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl LocalLink {
    pub(super) fn new(registry: Arc<Registry>, window: usize, closed: Arc<AtomicBool>, runtime: Handle) -> LocalLink {
        LocalLink {
            registry,
            window,
            closed,
            runtime,
            seats: Vec::new(),
            tasks: JoinSet::new(),
            free: Vec::new(),
            taken: Vec::new(),
            done: Arc::default(),
            bytes: 0,
        }
    }

    /// One more.
    fn seat(&mut self) -> usize {
        let (number, seat) = (self.seats.len(), Arc::new(Seat::default()));
        self.seats.push(seat.clone());
        let (registry, done) = (self.registry.clone(), self.done.clone());
        let work = async move {
            let mut operation = Operation::default();
            loop {
                let fetch = seat.next().await;
                let completion = operation.run(&registry, fetch, &seat.cancelled).await;
                let mut done = lock(&done);
                done.ended.push_back((number, completion));
                let waker = done.waker.take();
                drop(done);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        };
        self.tasks.spawn_on(work, &self.runtime);
        number
    }
}

impl Seat {
    fn put(&self, fetch: Fetch) {
        self.cancelled.store(false, Ordering::Relaxed);
        let mut order = lock(&self.order);
        order.fetch = Some(fetch);
        let waker = order.waker.take();
        drop(order);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn next(&self) -> Fetch {
        poll_fn(|cx| {
            let mut order = lock(&self.order);
            match order.fetch.take() {
                Some(fetch) => Poll::Ready(fetch),
                None => {
                    order.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Link for LocalLink {
    fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        if self.taken.len() >= self.window || !self.is_alive() {
            return Err(fetch);
        }
        let number = self.free.pop().unwrap_or_else(|| self.seat());
        self.taken.push((fetch.tag, number));
        self.seats[number].put(fetch);
        Ok(())
    }

    /// Each submission has rung its seat's own.
    fn flush(&mut self) {}

    fn cancel(&mut self, tag: Tag) {
        if let Some((_, number)) = self.taken.iter().find(|(taken, _)| *taken == tag) {
            self.seats[*number].cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        let mut done = lock(&self.done);
        if let Some((number, completion)) = done.ended.pop_front() {
            drop(done);
            self.taken.retain(|(_, taken)| *taken != number);
            self.free.push(number);
            if let Ok(entries) = &completion.result {
                let placed = entries.iter().filter(|entry| entry.status == Status::Ok).map(|entry| entry.len);
                self.bytes += placed.sum::<u64>();
            }
            return Poll::Ready(completion);
        }
        if done.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            done.waker = Some(cx.waker().clone());
        }
        drop(done);
        // A seat's task ends only by a panic. Its lease went back to the slab, but nobody can say what became of the
        // operation.
        if let Poll::Ready(Some(Err(error))) = self.tasks.poll_join_next(cx) {
            std::panic::resume_unwind(error.into_panic());
        }
        Poll::Pending
    }

    fn is_alive(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    fn stats(&self) -> LinkStats {
        LinkStats { rtt: Duration::ZERO, in_flight: self.taken.len(), bytes: self.bytes }
    }
}

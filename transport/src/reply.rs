//! Answers that are given once, without an allocation for each: a `oneshot` channel whose cells are used again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// Cells kept for later use; more than are ever in use at a time are not made again often enough to matter.
const SPARE: usize = 1024;

/// Makes pairs of [`Reply`] and [`Answer`]. Clones share their cells.
pub struct Replies<T> {
    spare: Arc<Mutex<Vec<Arc<Cell<T>>>>>,
}

/// The end that gives the answer. Dropping it tells the other end that none comes.
pub struct Reply<T>(End<T>);

/// The end that waits for the answer: a future of `None` when none comes. Dropping it gives the answer up.
#[must_use = "the answer is given up when this is dropped"]
pub struct Answer<T>(End<T>);

struct End<T> {
    cell: Arc<Cell<T>>,
    spare: Arc<Mutex<Vec<Arc<Cell<T>>>>>,
}

type Cell<T> = Mutex<State<T>>;

struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
    replied: bool,
    given_up: bool,
}

impl<T> Default for State<T> {
    fn default() -> State<T> {
        State { value: None, waker: None, replied: false, given_up: false }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that runs under these locks panics.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl<T> Replies<T> {
    pub fn new() -> Replies<T> {
        Replies { spare: Arc::default() }
    }

    /// Two ends of one answer.
    pub fn pair(&self) -> (Reply<T>, Answer<T>) {
        let cell = lock(&self.spare).pop().unwrap_or_default();
        let other = End { cell: cell.clone(), spare: self.spare.clone() };
        (Reply(End { cell, spare: self.spare.clone() }), Answer(other))
    }
}

impl<T> Default for Replies<T> {
    fn default() -> Replies<T> {
        Replies::new()
    }
}

impl<T> Clone for Replies<T> {
    fn clone(&self) -> Replies<T> {
        Replies { spare: self.spare.clone() }
    }
}

impl<T> Reply<T> {
    /// Gives the answer, or gives it back when nobody waits for it any more.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut state = lock(&self.0.cell);
        if state.given_up {
            return Err(value);
        }
        state.value = Some(value);
        // What wakes whoever waits is the end of this, in `drop`: once for both.
        drop(state);
        Ok(())
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_closed(&self) -> bool {
        lock(&self.0.cell).given_up
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.cell);
        state.replied = true;
        let waker = state.waker.take();
        let over = state.given_up;
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        if over {
            self.0.put_away();
        }
    }
}

impl<T> Future for Answer<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0.cell);
        if state.replied {
            return Poll::Ready(state.value.take());
        }
        if state.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            let before = state.waker.replace(cx.waker().clone());
            drop(state);
            drop(before);
        }
        Poll::Pending
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.cell);
        state.given_up = true;
        // Dropped after the lock is free: they are other people's, and may do anything.
        let rest = (state.value.take(), state.waker.take());
        let over = state.replied;
        drop(state);
        drop(rest);
        if over {
            self.0.put_away();
        }
    }
}

impl<T> End<T> {
    /// Both ends are gone.
    fn put_away(&self) {
        *lock(&self.cell) = State::default();
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE {
            spare.push(self.cell.clone());
        }
    }
}

impl<T> fmt::Debug for Replies<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies").field("spare", &lock(&self.spare).len()).finish()
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_answer_arrives_and_wakes_once() {
        let replies = Replies::new();
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut cx = Context::from_waker(&waker);
        let (reply, answer) = replies.pair();
        let mut answer = pin!(answer);
        assert!(answer.as_mut().poll(&mut cx).is_pending());
        assert!(answer.as_mut().poll(&mut cx).is_pending());
        reply.send(7).unwrap();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(answer.as_mut().poll(&mut cx), Poll::Ready(Some(7)));
    }

    #[test]
    fn no_answer_is_told_and_a_given_up_one_comes_back() {
        let replies = Replies::<Arc<()>>::new();
        let mut cx = Context::from_waker(Waker::noop());
        let (reply, answer) = replies.pair();
        drop(reply);
        assert_eq!(pin!(answer).poll(&mut cx), Poll::Ready(None));
        let (reply, answer) = replies.pair();
        assert!(!reply.is_closed());
        drop(answer);
        assert!(reply.is_closed());
        assert!(reply.send(Arc::new(())).is_err());
        // Sent, and never taken: it is dropped with the end that would have taken it, not kept for the next.
        let value = Arc::new(());
        let (reply, answer) = replies.pair();
        reply.send(value.clone()).unwrap();
        drop(answer);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn cells_are_used_again_and_start_afresh() {
        let replies = Replies::new();
        let mut cx = Context::from_waker(Waker::noop());
        for round in 0..10 {
            let (reply, answer) = replies.pair();
            let mut answer = pin!(answer);
            assert!(answer.as_mut().poll(&mut cx).is_pending(), "nothing is left of the one before");
            if round % 3 == 0 {
                drop(reply);
                assert_eq!(answer.as_mut().poll(&mut cx), Poll::Ready(None));
            } else {
                reply.send(round).unwrap();
                assert_eq!(answer.as_mut().poll(&mut cx), Poll::Ready(Some(round)));
            }
        }
        assert_eq!(lock(&replies.spare).len(), 1);
    }

    #[test]
    fn ends_on_two_threads_lose_nothing() {
        let replies = Replies::new();
        let (ends, theirs) = std::sync::mpsc::channel::<(u32, Reply<u32>)>();
        let thread = std::thread::spawn(move || theirs.into_iter().for_each(|(n, reply)| reply.send(n).unwrap_or(())));
        for n in 0..2000 {
            let (reply, answer) = replies.pair();
            ends.send((n, reply)).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            assert_eq!(runtime.block_on(answer), Some(n));
        }
        drop(ends);
        thread.join().unwrap();
    }
}

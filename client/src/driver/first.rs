//! The first path to the server: dialled, up, or waiting to be dialled again.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_transport::dial::{Asking, Dialer, Dialled, Dialling};
use forebay_transport::link::{Completion, Fetch, Link, LinkStats, Tag};
use tokio::time::{Instant, Sleep};

/// The first pause between two dials; it doubles from there.
const BASE: Duration = Duration::from_millis(50);
/// The longest pause: short, so that delivery resumes soon once the wire is back.
const CEILING: Duration = Duration::from_millis(1000);

enum State {
    Dialling(Dialling),
    Up(Dialled),
    Waiting(Pin<Box<Sleep>>),
}

/// What became of the path.
pub(crate) enum Change {
    Up,
    /// A dial failed, or an established path was lost.
    Down(String),
}

pub(crate) struct First {
    dialer: Box<dyn Dialer>,
    state: State,
    /// Dials that failed in a row.
    failures: u32,
    /// Dead links of which operations are still to complete.
    retiring: Vec<Box<dyn Link>>,
}

impl First {
    /// A path that is up.
    pub(crate) fn new(dialer: Box<dyn Dialer>, dialled: Dialled) -> First {
        First { dialer, state: State::Up(dialled), failures: 0, retiring: Vec::new() }
    }

    /// Moves on as far as it can; ready when something changed.
    pub(crate) fn poll_change(&mut self, cx: &mut Context<'_>) -> Poll<Change> {
        loop {
            match &mut self.state {
                State::Up(Dialled { link, .. }) => {
                    if link.is_alive() {
                        return Poll::Pending;
                    }
                    let cause = "the connection was lost".to_owned();
                    let next = State::Dialling(self.dialer.dial());
                    if let State::Up(Dialled { link, .. }) = std::mem::replace(&mut self.state, next) {
                        self.retiring.push(link);
                    }
                    return Poll::Ready(Change::Down(cause));
                }
                State::Dialling(dial) => match dial.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(dialled)) => {
                        self.failures = 0;
                        self.state = State::Up(dialled);
                        return Poll::Ready(Change::Up);
                    }
                    Poll::Ready(Err(error)) => {
                        let pause = BASE.saturating_mul(1 << self.failures.min(10)).min(CEILING);
                        self.failures += 1;
                        self.state = State::Waiting(Box::pin(tokio::time::sleep_until(Instant::now() + pause)));
                        return Poll::Ready(Change::Down(error.to_string()));
                    }
                },
                State::Waiting(sleep) => match sleep.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(()) => self.state = State::Dialling(self.dialer.dial()),
                },
            }
        }
    }

    /// Tells the server that nobody is left here: it would otherwise wait for what it sent to be acknowledged.
    pub(crate) async fn close(&self) {
        if let State::Up(Dialled { control, .. }) = &self.state {
            control.close().await;
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    pub(crate) fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        if let State::Up(Dialled { link, .. }) = &mut self.state
            && let Poll::Ready(completion) = link.poll(cx)
        {
            return Poll::Ready(completion);
        }
        for link in &mut self.retiring {
            if let Poll::Ready(completion) = link.poll(cx) {
                return Poll::Ready(completion);
            }
        }
        self.retiring.retain(|link| link.stats().in_flight > 0);
        Poll::Pending
    }

    #[allow(clippy::result_large_err)]
    pub(crate) fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        match &mut self.state {
            State::Up(Dialled { link, .. }) => link.submit(fetch),
            _ => Err(fetch),
        }
    }

    pub(crate) fn flush(&mut self) {
        if let State::Up(Dialled { link, .. }) = &mut self.state {
            link.flush();
        }
    }

    pub(crate) fn cancel(&mut self, tag: Tag) {
        if let State::Up(Dialled { link, .. }) = &mut self.state {
            link.cancel(tag);
        }
        self.retiring.iter_mut().for_each(|link| link.cancel(tag));
    }

    pub(crate) fn stats(&self) -> Option<LinkStats> {
        match &self.state {
            State::Up(Dialled { link, .. }) => Some(link.stats()),
            _ => None,
        }
    }

    pub(crate) fn fabric(&self) -> &str {
        self.dialer.fabric()
    }

    /// The answer to an empty POST over the present connection, if there is one.
    pub(crate) fn post(&self, path: &str) -> Option<Asking> {
        match &self.state {
            State::Up(Dialled { control, .. }) => Some(control.post(path)),
            _ => None,
        }
    }

    /// A question over the present connection, if there is one.
    pub(crate) fn ask(&self, path: &str) -> Option<Asking> {
        match &self.state {
            State::Up(Dialled { control, .. }) => Some(control.get(path)),
            _ => None,
        }
    }
}

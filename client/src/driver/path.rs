//! The way to the server: the first path, and the rails beside it.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_transport::dial::Asking;
use forebay_transport::link::{Completion, Fetch, LinkStats, Tag};
use tokio::sync::oneshot;

use super::first::{self, First};
use super::rails::{News, Rails};
use crate::config::InUse;
use crate::select::Try;

pub(crate) struct Path {
    first: First,
    rails: Rails,
    /// Whose turn it is to complete first, so that neither waits for the other to be idle.
    turn: bool,
}

/// What became of the path.
pub(crate) enum Change {
    /// Of the first path.
    First(first::Change),
    /// Of a rail.
    Rail(News),
}

/// Which link an operation completed on.
pub(crate) enum Origin {
    First,
    Rail(Arc<str>, Try),
}

impl Path {
    pub(crate) fn new(first: First, rails: Rails) -> Path {
        Path { first, rails, turn: false }
    }

    /// Moves on as far as it can; ready when something changed.
    pub(crate) fn poll_change(&mut self, now: Duration, cx: &mut Context<'_>) -> Poll<Change> {
        if let Some(news) = self.rails.news() {
            return Poll::Ready(Change::Rail(news));
        }
        if let Poll::Ready(change) = self.first.poll_change(cx) {
            match change {
                first::Change::Up => self.rails.up(now, &self.first),
                first::Change::Down(_) => self.rails.down(now, &self.first),
            }
            return Poll::Ready(Change::First(change));
        }
        self.rails.poll(now, cx, &self.first);
        self.rails.news().map_or(Poll::Pending, |news| Poll::Ready(Change::Rail(news)))
    }

    pub(crate) fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<(Origin, Completion)> {
        self.turn = !self.turn;
        // Both are asked when the one whose turn it is has nothing.
        for first in [self.turn, !self.turn] {
            let polled = match first {
                true => self.first.poll_completion(cx).map(|completion| (Origin::First, completion)),
                false => self.rails.poll_completion(cx),
            };
            if polled.is_ready() {
                return polled;
            }
        }
        Poll::Pending
    }

    /// What a completion, the bytes of which were checked, says about where it came from. It may be changed by that.
    /// `dataset` tells which dataset it is of.
    pub(crate) fn judge(
        &mut self,
        now: Duration,
        origin: Origin,
        completion: &mut Completion,
        dataset: impl FnOnce() -> Option<Arc<str>>,
    ) {
        match origin {
            Origin::Rail(dataset, of) => self.rails.judge(now, &dataset, of, completion, &self.first),
            Origin::First if self.rails.are_blamed() => {
                if let Some(dataset) = dataset() {
                    self.rails.absolve(now, &dataset, completion);
                }
            }
            Origin::First => {}
        }
    }

    /// Notices rails that died without a word; whether one had. Called when nothing completes: what does may say why.
    pub(crate) fn watch(&mut self, now: Duration) -> bool {
        self.rails.watch(now, &self.first)
    }

    /// There is a reader of `dataset`: a rail may be of use.
    pub(crate) fn open(&mut self, now: Duration, dataset: &Arc<str>) {
        self.rails.open(now, dataset, &self.first);
    }

    /// When [`tick`](Path::tick) is due, `read` saying of which datasets there are readers.
    pub(crate) fn wake(&self, read: impl Fn(&str) -> bool) -> Option<Duration> {
        self.rails.wake(read)
    }

    /// Whether anything was due.
    pub(crate) fn tick(&mut self, now: Duration, read: impl Fn(&str) -> bool) -> bool {
        self.rails.tick(now, read, &self.first)
    }

    /// Which fabric samples of a dataset take.
    pub(crate) fn in_use(&self, dataset: &str) -> InUse {
        self.rails.in_use(dataset, &self.first)
    }

    /// Tells which fabric samples of a dataset take, once that is settled.
    pub(crate) fn settle(&mut self, now: Duration, dataset: &Arc<str>, reply: oneshot::Sender<InUse>) {
        self.rails.settle(now, dataset, reply, &self.first);
    }

    /// Gives up telling those who waited for too long that it is settled: they are told how it stands.
    pub(crate) fn expire(&mut self) {
        self.rails.expire(&self.first);
    }

    /// Whether somebody waits to be told.
    pub(crate) fn is_asked(&self) -> bool {
        self.rails.is_asked()
    }

    /// Why samples of `dataset` cannot come at all, if the rail is the only way and not in use.
    pub(crate) fn barred(&self, dataset: &str) -> Option<String> {
        self.rails.barred(dataset)
    }

    /// Whether rails are the only way.
    pub(crate) fn is_barred(&self) -> bool {
        self.rails.only()
    }

    pub(crate) async fn close(&self) {
        self.first.close().await;
    }

    pub(crate) fn is_up(&self) -> bool {
        self.first.is_up()
    }

    #[allow(clippy::result_large_err)]
    pub(crate) fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        let only = self.rails.only();
        match self.rails.used(&fetch.dataset) {
            Some(rail) => rail.submit(fetch),
            None if only => Err(fetch),
            None => self.first.submit(fetch),
        }
    }

    pub(crate) fn flush(&mut self) {
        self.first.flush();
        self.rails.flush();
    }

    /// Whoever has it ends it: a tag is known to one link only.
    pub(crate) fn cancel(&mut self, tag: Tag) {
        self.first.cancel(tag);
        self.rails.cancel(tag);
    }

    /// What the first path knows about itself.
    pub(crate) fn stats(&self) -> Option<LinkStats> {
        self.first.stats()
    }

    /// What is known about the way of a dataset's samples: the bytes of both links, since both may be on the way.
    pub(crate) fn stats_of(&self, dataset: &str) -> Option<LinkStats> {
        let first = self.first.stats();
        match (self.rails.stats(dataset), first) {
            (Some(rail), Some(first)) => Some(LinkStats { bytes: rail.bytes.saturating_add(first.bytes), ..rail }),
            (rail, first) => rail.or(first),
        }
    }

    /// A question over the present connection, if there is one.
    pub(crate) fn ask(&self, path: &str) -> Option<Asking> {
        self.first.ask(path)
    }
}

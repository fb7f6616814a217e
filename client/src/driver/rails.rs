//! The rails beside the first path: one for each dataset that is read, since a server lets clients in for one.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_transport::dial::{RailDialer, RailDialling};
use forebay_transport::link::{Completion, Link, LinkStats, Tag};
use forebay_transport::pool::Slab;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::first::First;
use super::path::Origin;
use crate::config::InUse;
use crate::select::{self, Change, SelectConfig, Try};
use crate::url::encode;

pub(crate) type Rail = select::Rail<Box<dyn Link>>;

/// How long who asks may wait for a try to come to an end. A try takes a second; the rest is for there being a session.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is new about a rail.
pub(crate) struct News {
    pub dataset: Arc<str>,
    /// Whether samples take it now.
    pub used: bool,
}

/// Whether there are rails, and of what they are made.
pub(crate) struct Beside {
    /// `None`: there are none.
    pub dialer: Option<Arc<dyn RailDialer>>,
    /// Nothing but a rail is to be used.
    pub only: bool,
    pub pool: Slab,
    /// How long tries and pauses are.
    pub config: SelectConfig,
}

pub(crate) struct Rails {
    beside: Beside,
    sides: BTreeMap<Arc<str>, Side>,
    news: VecDeque<News>,
}

/// One rail, and what it takes to dial it.
struct Side {
    rail: Rail,
    dialling: Option<(Try, RailDialling)>,
    /// Who wants to know how the present try ends, and since when.
    asked: Vec<(oneshot::Sender<InUse>, Instant)>,
    /// What was last said in the log.
    said: String,
}

impl Rails {
    pub(crate) fn new(beside: Beside) -> Rails {
        Rails { beside, sides: BTreeMap::new(), news: VecDeque::new() }
    }

    pub(crate) fn only(&self) -> bool {
        self.beside.only
    }

    pub(crate) fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    pub(crate) fn open(&mut self, now: Duration, dataset: &Arc<str>, first: &First) {
        let Some(dialer) = &self.beside.dialer else { return };
        if self.sides.contains_key(dataset) {
            return;
        }
        let seed = RandomState::new().hash_one(dataset);
        let rail = Rail::new(self.beside.config, dialer.fabric(), seed, self.beside.only);
        let side = Side { rail, dialling: None, asked: Vec::new(), said: String::new() };
        self.sides.insert(dataset.clone(), side);
        if first.is_up() {
            self.change(dataset, first, |rail| rail.up(now));
        }
    }

    pub(crate) fn up(&mut self, now: Duration, first: &First) {
        self.change_all(first, |rail| rail.up(now));
    }

    pub(crate) fn down(&mut self, now: Duration, first: &First) {
        self.change_all(first, |rail| rail.down(now));
    }

    /// Whether any of them was dead.
    pub(crate) fn watch(&mut self, now: Duration, first: &First) -> bool {
        self.change_all(first, |rail| rail.watch(now));
        !self.news.is_empty()
    }

    /// Moves on with what is dialled.
    pub(crate) fn poll(&mut self, now: Duration, cx: &mut Context<'_>, first: &First) {
        let Rails { beside, sides, news } = self;
        for (dataset, side) in sides {
            if let Some((of, dialling)) = &mut side.dialling {
                let Poll::Ready(result) = dialling.as_mut().poll(cx) else { continue };
                let of = *of;
                side.dialling = None;
                let change = side.rail.dialled(now, of, result);
                side.carry_out(dataset, change, beside, first, news);
            }
        }
    }

    pub(crate) fn wake(&self, read: impl Fn(&str) -> bool) -> Option<Duration> {
        self.sides
            .iter()
            .filter(|(dataset, side)| side.is_wanted(dataset, &read))
            .filter_map(|(_, side)| side.rail.wake())
            .min()
    }

    pub(crate) fn tick(&mut self, now: Duration, read: impl Fn(&str) -> bool, first: &First) -> bool {
        let Rails { beside, sides, news } = self;
        let mut any = false;
        for (dataset, side) in sides {
            if side.is_wanted(dataset, &read) && side.rail.wake().is_some_and(|wake| wake <= now) {
                let change = side.rail.tick(now);
                side.carry_out(dataset, change, beside, first, news);
                any = true;
            }
        }
        any
    }

    pub(crate) fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<(Origin, Completion)> {
        for (dataset, side) in &mut self.sides {
            if let Poll::Ready((of, completion)) = side.rail.poll(cx) {
                return Poll::Ready((Origin::Rail(dataset.clone(), of), completion));
            }
        }
        Poll::Pending
    }

    pub(crate) fn judge(
        &mut self,
        now: Duration,
        dataset: &Arc<str>,
        of: Try,
        completion: &mut Completion,
        first: &First,
    ) {
        self.change(dataset, first, |rail| rail.judge(now, of, completion));
    }

    /// Whether what completes on the first path may say something about a rail.
    pub(crate) fn are_blamed(&self) -> bool {
        self.sides.values().any(|side| side.rail.is_blamed())
    }

    pub(crate) fn absolve(&mut self, now: Duration, dataset: &str, completion: &Completion) {
        if let Some(side) = self.sides.get_mut(dataset) {
            side.rail.absolve(now, completion);
        }
    }

    /// The rail that samples of a dataset take, if they take one.
    pub(crate) fn used(&mut self, dataset: &str) -> Option<&mut Rail> {
        self.sides.get_mut(dataset).map(|side| &mut side.rail).filter(|rail| rail.is_used())
    }

    pub(crate) fn flush(&mut self) {
        self.sides.values_mut().for_each(|side| side.rail.flush());
    }

    pub(crate) fn cancel(&mut self, tag: Tag) {
        self.sides.values_mut().for_each(|side| side.rail.cancel(tag));
    }

    pub(crate) fn stats(&self, dataset: &str) -> Option<LinkStats> {
        self.sides.get(dataset)?.rail.stats()
    }

    pub(crate) fn barred(&self, dataset: &str) -> Option<String> {
        if !self.beside.only {
            return None;
        }
        match self.sides.get(dataset) {
            Some(side) if side.rail.is_used() => None,
            Some(side) => Some(side.rail.reason()),
            None => Some("there is nothing to take it with".to_owned()),
        }
    }

    pub(crate) fn in_use(&self, dataset: &str, first: &First) -> InUse {
        if let Some(side) = self.sides.get(dataset) {
            return side.in_use(&self.beside, first);
        }
        let fabric = (!self.beside.only).then(|| first.fabric().to_owned());
        let reason = match &self.beside.dialer {
            Some(dialer) => format!("{} has not been tried yet", dialer.fabric()),
            None => "no other is to be taken".to_owned(),
        };
        InUse { fabric, reason, promotions: 0, failovers: 0 }
    }

    pub(crate) fn settle(&mut self, now: Duration, dataset: &Arc<str>, reply: oneshot::Sender<InUse>, first: &First) {
        self.open(now, dataset, first);
        // Without a reader, a pause goes on until somebody asks.
        if self.sides.get(dataset).is_some_and(|side| side.rail.wake().is_some_and(|wake| wake <= now)) {
            self.change(dataset, first, |rail| rail.tick(now));
        }
        match self.sides.get_mut(dataset) {
            Some(side) if !side.rail.is_settled() => side.asked.push((reply, Instant::now())),
            _ => _ = reply.send(self.in_use(dataset, first)),
        }
    }

    pub(crate) fn expire(&mut self, first: &First) {
        for side in self.sides.values_mut() {
            let in_use = side.in_use(&self.beside, first);
            for (reply, _) in side.asked.extract_if(.., |(_, since)| since.elapsed() >= PATIENCE) {
                let _ = reply.send(in_use.clone());
            }
        }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.sides.values().any(|side| !side.asked.is_empty())
    }

    fn change(&mut self, dataset: &Arc<str>, first: &First, change: impl FnOnce(&mut Rail) -> Option<Change>) {
        let Rails { beside, sides, news } = self;
        if let Some(side) = sides.get_mut(dataset) {
            let change = change(&mut side.rail);
            side.carry_out(dataset, change, beside, first, news);
        }
    }

    fn change_all(&mut self, first: &First, mut change: impl FnMut(&mut Rail) -> Option<Change>) {
        let Rails { beside, sides, news } = self;
        for (dataset, side) in sides {
            let change = change(&mut side.rail);
            side.carry_out(dataset, change, beside, first, news);
        }
    }
}

impl Side {
    /// Whether anything should be done about it: without a reader nothing is tried again, but what was begun ends.
    fn is_wanted(&self, dataset: &str, read: impl Fn(&str) -> bool) -> bool {
        self.rail.is_probed() || read(dataset)
    }

    fn in_use(&self, beside: &Beside, first: &First) -> InUse {
        let fabric = match self.rail.is_used() {
            true => Some(self.rail.fabric().to_owned()),
            false => (!beside.only).then(|| first.fabric().to_owned()),
        };
        let (promotions, failovers) = self.rail.counts();
        InUse { fabric, reason: self.rail.reason(), promotions, failovers }
    }

    fn carry_out(
        &mut self,
        dataset: &Arc<str>,
        change: Option<Change>,
        beside: &Beside,
        first: &First,
        news: &mut VecDeque<News>,
    ) {
        match change {
            None => return,
            Some(Change::Probe(of)) => {
                let Some(dialer) = &beside.dialer else { return };
                let path = format!("/v1/datasets/{}/{}", encode(dataset), dialer.fabric());
                // There is no path only if it was lost since: then the rail hears of that next.
                let offer = first.post(&path).unwrap_or_else(|| Box::pin(std::future::pending()));
                self.dialling = Some((of, dialer.dial(offer, &beside.pool)));
            }
            Some(Change::Unproved) => self.dialling = None,
            Some(Change::Used) => news.push_back(News { dataset: dataset.clone(), used: true }),
            Some(Change::Left) => news.push_back(News { dataset: dataset.clone(), used: false }),
        }
        let in_use = self.in_use(beside, first);
        if change == Some(Change::Left) && !first.is_up() {
            // That the path was lost says it all; what comes after that is new again.
            self.said.clear();
        }
        if self.rail.is_settled() {
            self.say(dataset, change, &in_use);
            for (reply, _) in self.asked.drain(..) {
                let _ = reply.send(in_use.clone());
            }
        }
    }

    /// One line in the log for each thing that is new.
    fn say(&mut self, dataset: &str, change: Option<Change>, in_use: &InUse) {
        let line = format!("samples of {dataset} {in_use}");
        if change == Some(Change::Left) {
            tracing::warn!("{line}");
        } else if line != self.said {
            tracing::info!("{line}");
        } else {
            tracing::debug!("{line}, as before");
        }
        self.said = line;
    }
}

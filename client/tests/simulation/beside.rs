//! A rail beside the path of a world: how its tries end, how its links are, and what must hold of how it is used.

use std::task::{Context, Poll};
use std::time::Duration;

use forebay_client::select::{Change, Rail, SelectConfig, Try};
use forebay_transport::dial::RailError;
use forebay_transport::link::{Completion, Fetch, LinkError, Tag};
use forebay_transport::sim::{Content, Faults, SimClock, SimConfig, SimLink};

use super::case::log;

/// A faster path beside the first, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct RailCase {
    pub link: SimConfig,
    /// How long its links live, about.
    pub lives: Option<Duration>,
    /// The shares of tries that fail, are refused, or come to no end.
    pub fails: f64,
    pub refused: f64,
    pub hangs: f64,
    /// How long tries take, about.
    pub takes: Duration,
    /// Nothing comes over the first path.
    pub only: bool,
    pub seed: u64,
}

impl RailCase {
    pub fn new(seed: u64) -> RailCase {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x7a11);
        let rng = &mut rng;
        let mut some = |most: f64| if rng.u8(0..2) == 0 { rng.f64() * most } else { 0.0 };
        // Only what may be a rail's fault: the server is the same as the first path's.
        let faults = Faults {
            corrupt: some(0.05),
            protocol: some(0.1),
            refused: some(0.02),
            silent: some(0.05),
            busy: some(0.2),
            late: some(1.0),
            ..Faults::default()
        };
        let (fails, refused, hangs) = (some(0.6), some(0.1), some(0.4));
        let late_for = Duration::from_millis(log(rng, 1, 5_000));
        let link = SimConfig {
            latency: Duration::from_micros(log(rng, 5, 20_000)),
            jitter: Duration::from_micros(log(rng, 1, 100_000)),
            bandwidth: log(rng, 1_000_000, 10_000_000_000),
            window: log(rng, 1, 64) as usize,
            faults: Faults { late_for, ..faults },
            ..SimConfig::default()
        };
        let lives = (rng.u8(0..3) > 0).then(|| Duration::from_millis(log(rng, 1, 10_000)));
        let takes = Duration::from_micros(log(rng, 10, 1_500_000));
        RailCase { link, lives, fails, refused, hangs, takes, only: rng.u8(0..8) == 0, seed: rng.u64(..) }
    }

    /// One that works.
    pub fn quiet() -> RailCase {
        let (link, takes) = (SimConfig::default(), Duration::from_millis(1));
        RailCase { link, lives: None, fails: 0.0, refused: 0.0, hangs: 0.0, takes, only: false, seed: 1 }
    }
}

/// What is dialled: which try, when it ends, and how.
type Dialling = (Try, Duration, Result<SimLink, RailError>);

pub struct Beside {
    pub case: RailCase,
    rail: Rail<SimLink>,
    clock: SimClock,
    content: Content,
    rng: fastrand::Rng,
    dialling: Option<Dialling>,
    /// Before that, no try may begin: the last one failed.
    not_before: Duration,
    /// The same, of one that was refused: as long as the session lasts.
    refused_until: Duration,
    pub dials: u64,
    pub completed: u64,
}

impl Beside {
    pub fn new(case: &RailCase, clock: SimClock, content: Content) -> Beside {
        let rng = fastrand::Rng::with_seed(case.seed);
        let rail = Rail::new(SelectConfig::default(), "rail", case.seed, case.only);
        let (not_before, refused_until) = (Duration::ZERO, Duration::ZERO);
        let case = case.clone();
        Beside { case, rail, clock, content, rng, dialling: None, not_before, refused_until, dials: 0, completed: 0 }
    }

    pub fn up(&mut self) {
        let change = self.rail.up(self.clock.now());
        self.carry_out(change);
    }

    pub fn down(&mut self) {
        let change = self.rail.down(self.clock.now());
        self.carry_out(change);
        self.refused_until = Duration::ZERO;
        assert!(!self.rail.is_used() && self.dialling.is_none(), "of the session that is over");
    }

    /// Does what is due; whether samples take the rail now, if that changed.
    pub fn advance(&mut self) -> Option<bool> {
        let (before, now) = (self.rail.is_used(), self.clock.now());
        if let Some((of, _, result)) = self.dialling.take_if(|(_, at, _)| *at <= now) {
            let (failed, refused) = (result.is_err(), matches!(result, Err(RailError::Refused(_))));
            let change = self.rail.dialled(now, of, result);
            assert!(change.is_some(), "a try that was not given up says something");
            self.failed(failed, refused);
            self.carry_out(change);
        }
        let change = self.rail.watch(now);
        self.failed(change.is_some(), false);
        self.carry_out(change);
        if self.rail.wake().is_some_and(|wake| wake <= now) {
            let change = self.rail.tick(now);
            self.failed(change == Some(Change::Unproved), false);
            self.carry_out(change);
        }
        let after = self.rail.is_used();
        (before != after).then_some(after)
    }

    /// After each failure there is a pause, and a long one after a refusal.
    fn failed(&mut self, failed: bool, refused: bool) {
        let (now, config) = (self.clock.now(), SelectConfig::default());
        match (failed, refused) {
            (false, _) => {}
            (true, false) => self.not_before = now + config.base / 2,
            (true, true) => self.refused_until = now + config.ceiling / 2,
        }
    }

    fn carry_out(&mut self, change: Option<Change>) {
        let now = self.clock.now();
        match change {
            None | Some(Change::Used | Change::Left) => {}
            Some(Change::Unproved) => self.dialling = None,
            Some(Change::Probe(of)) => {
                assert!(self.dialling.is_none() && !self.rail.is_used(), "one try at a time");
                assert!(now >= self.not_before.max(self.refused_until), "tried again without a pause");
                self.not_before = now + SelectConfig::default().base / 2;
                self.dials += 1;
                let takes = self.about(self.case.takes);
                self.dialling = Some((of, now + takes, self.fate(takes)));
                if self.rng.f64() < self.case.hangs {
                    self.dialling = self.dialling.take().map(|(of, _, result)| (of, Duration::MAX, result));
                }
            }
        }
    }

    /// How a try ends that takes so long.
    fn fate(&mut self, takes: Duration) -> Result<SimLink, RailError> {
        let draw = self.rng.f64();
        if draw < self.case.fails {
            return Err(RailError::Failed("simulated".into()));
        }
        if draw < self.case.fails + self.case.refused {
            return Err(RailError::Refused("simulated".into()));
        }
        let mut config = self.case.link.clone();
        config.seed = self.rng.u64(..);
        let lives = self.case.lives.map(|lives| self.about(lives));
        config.faults.cut_at = lives.map(|lives| self.clock.now() + takes + lives);
        Ok(SimLink::new(self.clock.clone(), self.content.clone(), config))
    }

    fn about(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.rng.f64() * 2.0)
    }

    pub fn is_used(&self) -> bool {
        self.rail.is_used()
    }

    #[allow(clippy::result_large_err)]
    pub fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        self.rail.submit(fetch)
    }

    pub fn flush(&mut self) {
        self.rail.flush();
    }

    pub fn cancel(&mut self, tag: Tag) {
        self.rail.cancel(tag);
    }

    /// The next completion, checked by `verify`, as its owner is told of it.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        verify: impl FnOnce(&mut Completion),
        judge: bool,
    ) -> Option<Completion> {
        let Poll::Ready((of, mut completion)) = self.rail.poll(cx) else { return None };
        verify(&mut completion);
        self.completed += u64::from(completion.result.is_ok());
        if judge {
            let refused = matches!(completion.result, Err(LinkError::Refused { .. }));
            let change = self.rail.judge(self.clock.now(), of, &mut completion);
            self.failed(change.is_some(), refused);
            self.carry_out(change);
        }
        Some(completion)
    }

    /// Shows it what completed on the first path.
    pub fn absolve(&mut self, completion: &Completion) {
        self.rail.absolve(self.clock.now(), completion);
    }

    /// When something happens next by itself.
    pub fn next_event(&self) -> Option<Duration> {
        let links = self.rail.links().filter_map(SimLink::next_event);
        let dialling = self.dialling.as_ref().map(|(_, at, _)| *at).filter(|&at| at < Duration::MAX);
        links.chain(dialling).chain(self.rail.wake()).min()
    }

    pub fn counts(&self) -> (u64, u64) {
        self.rail.counts()
    }

    /// Bytes that came over the link in use.
    pub fn bytes(&self) -> u64 {
        self.rail.stats().map_or(0, |stats| stats.bytes)
    }
}

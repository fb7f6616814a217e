//! Which path samples take, and why. Pure: `(now, event) → commands`. A [`Rail`] carries them out as far as links go.
//!
//! There is always a first path, over which documents come as well. Beside it there may be a rail: a faster one, which is
//! probed while samples come over the first, is used when it has proved itself, is left when it breaks, and is tried again
//! after pauses that grow. Each try has a number; what is said of an earlier one than the last is late, and ignored.

mod rail;

use std::time::Duration;

pub use rail::{Change, Rail};

use crate::fetch::{Backoff, RetryConfig};

/// Limits of one rail. Fixed for a client's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectConfig {
    /// How long a probe may take, all of it. Default 1 s.
    pub probe: Duration,
    /// The pause after the first failure, of which at least half is waited; it doubles from there. Default 1 s.
    pub base: Duration,
    /// The longest pause, and the one after a refusal, which asking again soon would not change. Default 300 s.
    pub ceiling: Duration,
    /// A rail that was used for so long without a failure has its failures forgiven: one that flaps faster has not.
    /// Default 30 s.
    pub steady: Duration,
}

impl Default for SelectConfig {
    fn default() -> SelectConfig {
        let (probe, base) = (Duration::from_secs(1), Duration::from_secs(1));
        SelectConfig { probe, base, ceiling: Duration::from_secs(300), steady: Duration::from_secs(30) }
    }
}

/// A number of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Try(pub u64);

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first path stands.
    Up,
    /// It is gone, and with it the session that a rail needs.
    Down,
    /// The time of [`Select::wake`] has come.
    Tick,
    /// A probe got back what it asked for.
    Proved(Try),
    /// A probe did not, or a rail in use broke; why.
    Failed(Try, String),
    /// The server will not have it; why.
    Refused(Try, String),
    /// What a try failed for is the same over the first path: it was not the rail's fault.
    Absolved(Try),
}

/// What is to be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Try the rail: ask for a ticket, connect, echo.
    Probe(Try),
    /// Samples take the rail from now on. What is under way on the first path ends there.
    Promote(Try),
    /// Done with this try, whatever became of it: nothing new is submitted there, and what it holds ends. After a [`Promote`]
    /// samples take the first path from now on.
    ///
    /// [`Promote`]: Command::Promote
    Leave(Try),
}

enum State {
    /// The first path does not stand. A pause that began before it was lost is kept to all the same: or a rail that fails would
    /// be tried as often as a path is lost.
    Idle {
        until: Option<Duration>,
    },
    Probing {
        since: Duration,
    },
    Used {
        since: Duration,
    },
    Paused {
        until: Duration,
        /// By the server's word, which was that session's.
        refused: bool,
    },
}

/// Decides about one rail.
pub struct Select {
    config: SelectConfig,
    fabric: String,
    backoff: Backoff,
    state: State,
    number: u64,
    /// When the last try began.
    tried: Option<Duration>,
    /// Failures in a row.
    failures: u32,
    /// What came of the last try that failed.
    last: Option<String>,
}

impl Select {
    /// `fabric` is the rail's name, for the reason; `seed` is what pauses vary by.
    pub fn new(config: SelectConfig, fabric: &str, seed: u64) -> Select {
        let pauses = RetryConfig { attempts: 0, base: config.base, ceiling: config.ceiling };
        let backoff = Backoff::new(&pauses, seed);
        Select {
            config,
            fabric: fabric.to_owned(),
            backoff,
            state: State::Idle { until: None },
            number: 0,
            tried: None,
            failures: 0,
            last: None,
        }
    }

    /// When [`Event::Tick`] is due.
    pub fn wake(&self) -> Option<Duration> {
        match self.state {
            State::Probing { since } => Some(since.saturating_add(self.config.probe)),
            State::Paused { until, .. } => Some(until),
            State::Idle { .. } | State::Used { .. } => None,
        }
    }

    /// Whether samples take the rail.
    pub fn is_used(&self) -> bool {
        matches!(self.state, State::Used { .. })
    }

    fn is_probing(&self) -> bool {
        matches!(self.state, State::Probing { .. })
    }

    fn is_paused(&self) -> bool {
        matches!(self.state, State::Paused { .. })
    }

    /// Why samples take the path that they take, for people.
    pub fn reason(&self) -> String {
        let Select { fabric, last, .. } = self;
        let last = last.as_ref().map(|last| format!(": {last}")).unwrap_or_default();
        match self.state {
            State::Used { .. } => format!("{fabric} has proved itself"),
            State::Probing { .. } if last.is_empty() => format!("{fabric} is being tried"),
            State::Probing { .. } => format!("{fabric} is being tried again; it failed before{last}"),
            State::Paused { .. } => format!("{fabric} is not used{last}"),
            State::Idle { .. } => format!("there is no session that {fabric} could be asked for in{last}"),
        }
    }

    pub fn step(&mut self, now: Duration, event: Event, out: &mut Vec<Command>) {
        match event {
            Event::Up => {
                if let State::Idle { until } = self.state {
                    // Nor more often than that when it is the first path that comes and goes.
                    let soonest = self.tried.map(|tried| tried.saturating_add(self.config.base / 2));
                    match until.max(soonest).filter(|&until| until > now) {
                        Some(until) => self.state = State::Paused { until, refused: false },
                        None => self.probe(now, out),
                    }
                }
            }
            Event::Down => {
                // What did not fail by itself may be tried at once in the next session, as may what this one did not allow.
                self.leave(now, out);
                let until = match self.state {
                    State::Paused { until, refused: false } => Some(until),
                    State::Idle { until } => until,
                    _ => None,
                };
                self.state = State::Idle { until };
            }
            Event::Tick => match self.state {
                State::Probing { since } if now >= since.saturating_add(self.config.probe) => {
                    let why = format!("it did not prove itself within {:?}", self.config.probe);
                    self.failed(now, why, out);
                }
                State::Paused { until, .. } if now >= until => self.probe(now, out),
                _ => {}
            },
            Event::Proved(of) => {
                if self.is_current(of) && matches!(self.state, State::Probing { .. }) {
                    self.state = State::Used { since: now };
                    out.push(Command::Promote(of));
                }
            }
            Event::Failed(of, why) => {
                if self.is_current(of) {
                    self.failed(now, why, out);
                }
            }
            Event::Absolved(of) => {
                if let State::Paused { until, refused: false } = self.state
                    && of.0 == self.number
                {
                    self.failures = self.failures.saturating_sub(1);
                    // A pause there is all the same: the next try may end as soon as this one.
                    let until = until.min(now.saturating_add(self.backoff.delay(self.failures.max(1))));
                    self.state = State::Paused { until, refused: false };
                }
            }
            Event::Refused(of, why) => {
                if self.is_current(of) {
                    self.leave(now, out);
                    // At least half of the longest pause.
                    self.pause(now, u32::MAX, why, true);
                }
            }
        }
    }

    fn is_current(&self, of: Try) -> bool {
        of.0 == self.number && matches!(self.state, State::Probing { .. } | State::Used { .. })
    }

    fn probe(&mut self, now: Duration, out: &mut Vec<Command>) {
        self.number += 1;
        self.tried = Some(now);
        self.state = State::Probing { since: now };
        out.push(Command::Probe(Try(self.number)));
    }

    fn failed(&mut self, now: Duration, why: String, out: &mut Vec<Command>) {
        self.leave(now, out);
        self.failures = self.failures.saturating_add(1);
        self.pause(now, self.failures, why, false);
    }

    /// Ends the present try, if there is one.
    fn leave(&mut self, now: Duration, out: &mut Vec<Command>) {
        match self.state {
            State::Used { since } if now.saturating_sub(since) >= self.config.steady => self.failures = 0,
            State::Used { .. } | State::Probing { .. } => {}
            State::Idle { .. } | State::Paused { .. } => return,
        }
        out.push(Command::Leave(Try(self.number)));
    }

    fn pause(&mut self, now: Duration, failures: u32, why: String, refused: bool) {
        self.last = Some(why);
        self.state = State::Paused { until: now.saturating_add(self.backoff.delay(failures)), refused };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    struct World {
        select: Select,
        now: Duration,
    }

    impl World {
        fn new() -> World {
            World { select: Select::new(SelectConfig::default(), "rdma", 1), now: seconds(100) }
        }

        fn step(&mut self, event: Event) -> Vec<Command> {
            let mut out = Vec::new();
            self.select.step(self.now, event, &mut out);
            out
        }

        /// Lets the time come that it waits for; how long that took.
        fn wake(&mut self) -> (Duration, Vec<Command>) {
            let due = self.select.wake().expect("something to wait for");
            let took = due - self.now;
            self.now = due;
            (took, self.step(Event::Tick))
        }
    }

    #[test]
    fn a_rail_is_tried_used_left_and_tried_again() {
        let mut world = World::new();
        assert!(world.select.reason().contains("no session"));
        assert_eq!(world.step(Event::Up), [Command::Probe(Try(1))]);
        assert_eq!((world.step(Event::Up), world.step(Event::Tick)), (vec![], vec![]));
        assert!(world.select.reason().contains("being tried"));
        assert_eq!(world.step(Event::Proved(Try(1))), [Command::Promote(Try(1))]);
        assert!(world.select.is_used() && world.select.reason().contains("proved itself"));
        assert_eq!(world.step(Event::Failed(Try(1), "the wire was cut".into())), [Command::Leave(Try(1))]);
        assert!(!world.select.is_used() && world.select.reason().contains("the wire was cut"));
        // Nothing that is said of it afterwards means anything.
        for late in [Event::Proved(Try(1)), Event::Failed(Try(1), String::new()), Event::Refused(Try(1), String::new())]
        {
            assert_eq!(world.step(late), []);
        }
        let (pause, commands) = world.wake();
        assert!(pause >= seconds(1) / 2 && pause <= seconds(1), "{pause:?}");
        assert_eq!(commands, [Command::Probe(Try(2))]);
        assert!(world.select.reason().contains("tried again") && world.select.reason().contains("the wire was cut"));
    }

    #[test]
    fn a_probe_has_a_second() {
        let mut world = World::new();
        world.step(Event::Up);
        assert_eq!(world.wake(), (seconds(1), vec![Command::Leave(Try(1))]));
        assert_eq!(world.step(Event::Proved(Try(1))), [], "too late");
        assert!(world.select.reason().contains("within 1s"), "{}", world.select.reason());
    }

    #[test]
    fn pauses_grow_until_a_rail_was_steady() {
        let mut world = World::new();
        world.step(Event::Up);
        let mut flap = |used: Duration, number: u64| {
            world.step(Event::Proved(Try(number)));
            world.now += used;
            world.step(Event::Failed(Try(number), "cut".into()));
            world.wake().0
        };
        let pauses: Vec<Duration> = (1..=12).map(|number| flap(seconds(1), number)).collect();
        for (at, pause) in pauses.iter().enumerate() {
            let full = seconds(1 << at).min(seconds(300));
            assert!(*pause >= full / 2 && *pause <= full, "{at}: {pause:?}");
        }
        assert!(flap(seconds(30), 13) <= seconds(1), "it was steady before it failed");
    }

    #[test]
    fn what_was_not_its_fault_does_not_count_but_is_paused_for() {
        let mut world = World::new();
        world.step(Event::Up);
        for number in 1..=20 {
            world.step(Event::Proved(Try(number)));
            world.step(Event::Failed(Try(number), "damaged".into()));
            assert_eq!(world.step(Event::Absolved(Try(number - 1))), [], "an earlier one");
            assert_eq!(world.step(Event::Absolved(Try(number))), []);
            let (pause, commands) = world.wake();
            assert!(pause >= seconds(1) / 2 && pause <= seconds(1), "{number}: {pause:?}");
            assert_eq!(commands, [Command::Probe(Try(number + 1))]);
        }
        world.step(Event::Refused(Try(21), "not allowed".into()));
        world.step(Event::Absolved(Try(21)));
        assert!(world.wake().0 >= seconds(150), "a refusal is none of that");
    }

    #[test]
    fn who_is_refused_waits_long() {
        let mut world = World::new();
        world.step(Event::Up);
        assert_eq!(world.step(Event::Refused(Try(1), "403: not allowed".into())), [Command::Leave(Try(1))]);
        assert!(world.select.reason().contains("403"));
        assert!(world.wake().0 >= seconds(150));
    }

    #[test]
    fn a_rail_ends_with_the_session_and_begins_with_the_next() {
        let mut world = World::new();
        world.step(Event::Up);
        world.step(Event::Proved(Try(1)));
        assert_eq!((world.step(Event::Down), world.select.wake()), (vec![Command::Leave(Try(1))], None));
        assert_eq!(world.step(Event::Failed(Try(1), "closed".into())), []);
        world.now += seconds(1) / 2;
        assert_eq!(world.step(Event::Up), [Command::Probe(Try(2))], "at once");
        assert_eq!(world.step(Event::Down), [Command::Leave(Try(2))]);
        assert_eq!(world.step(Event::Down), []);
        // The path flaps: the rail is not tried with each of its connections.
        assert_eq!((world.step(Event::Up), world.step(Event::Down)), (vec![], vec![]));
        assert_eq!(world.step(Event::Up), []);
        assert_eq!(world.wake(), (seconds(1) / 2, vec![Command::Probe(Try(3))]));
    }

    #[test]
    fn a_pause_outlasts_the_session_but_a_refusal_does_not() {
        let mut world = World::new();
        world.step(Event::Up);
        assert_eq!(world.step(Event::Failed(Try(1), "no answer".into())), [Command::Leave(Try(1))]);
        for _ in 0..3 {
            assert_eq!((world.step(Event::Down), world.step(Event::Down), world.select.wake()), (vec![], vec![], None));
            assert_eq!(world.step(Event::Up), [], "the path flaps, and the rail is as broken as before");
        }
        let (pause, commands) = world.wake();
        assert!(pause >= seconds(1) / 2 && commands == [Command::Probe(Try(2))], "{pause:?}, {commands:?}");
        assert_eq!(world.step(Event::Refused(Try(2), "not allowed".into())), [Command::Leave(Try(2))]);
        world.step(Event::Down);
        world.now += seconds(1);
        assert_eq!(world.step(Event::Up), [Command::Probe(Try(3))], "another session, perhaps of a server set up anew");
        // Nor one that is over when the next session begins.
        world.step(Event::Failed(Try(3), "no answer".into()));
        world.step(Event::Down);
        world.now += seconds(300);
        assert_eq!(world.step(Event::Up), [Command::Probe(Try(4))]);
    }

    /// Whatever happens, in whatever order: one try at a time, each left exactly once, used only when it proved itself.
    #[test]
    fn commands_make_sense_whatever_happens() {
        let (mut promoted, mut failed) = (0, 0);
        for seed in 0..3000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut world = World { select: Select::new(SelectConfig::default(), "rdma", seed), now: Duration::ZERO };
            let (mut current, mut used, mut last) = (None, false, 0);
            for _ in 0..200 {
                world.now += Duration::from_millis(rng.u64(0..3000));
                let of = Try(rng.u64(last.max(2) - 2..last + 2));
                let event = match rng.u8(0..9) {
                    8 => Event::Absolved(of),
                    0 => Event::Down,
                    1 | 2 => Event::Up,
                    3 => Event::Failed(of, "x".into()),
                    4 if rng.bool() => Event::Refused(of, "y".into()),
                    5 | 6 => Event::Proved(of),
                    _ => Event::Tick,
                };
                let down = event == Event::Down;
                for command in world.step(event.clone()) {
                    match command {
                        Command::Probe(Try(number)) => {
                            assert!(current.is_none() && number == last + 1, "seed {seed}");
                            (current, last) = (Some(number), number);
                        }
                        Command::Promote(Try(number)) => {
                            assert_eq!((current, used), (Some(number), false), "seed {seed}");
                            assert_eq!(event, Event::Proved(Try(number)), "seed {seed}");
                            (used, promoted) = (true, promoted + 1);
                        }
                        Command::Leave(Try(number)) => {
                            assert_eq!(current.take(), Some(number), "seed {seed}");
                            (used, failed) = (false, failed + 1);
                        }
                    }
                }
                assert_eq!(world.select.is_used(), used, "seed {seed}");
                assert!(!down || (current.is_none() && world.select.wake().is_none()), "seed {seed}");
                assert!(world.select.wake().is_none_or(|wake| wake <= world.now + seconds(300)), "seed {seed}");
            }
        }
        assert!(promoted > 1000 && failed > 1000, "{promoted}, {failed}");
    }
}

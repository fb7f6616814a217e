//! Whatever is done with a slab, against a model that only counts frames.

use proptest::prelude::*;

use super::super::*;
use super::{FRAME, anyone, slab};

#[derive(Clone, Debug)]
enum Step {
    Lease { account: usize, len: usize },
    Shrink { which: usize, to: usize },
    Freeze { which: usize },
    Slice { which: usize, offset: usize, len: usize },
    DropLease { which: usize },
    DropView { which: usize },
    Quarantine { which: usize },
    Release { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let n = || 0usize..1 << 16;
    prop_oneof![
        4 => (0usize..2, 0usize..6 * FRAME).prop_map(|(account, len)| Step::Lease { account, len }),
        1 => (n(), n()).prop_map(|(which, to)| Step::Shrink { which, to }),
        2 => n().prop_map(|which| Step::Freeze { which }),
        2 => (n(), n(), n()).prop_map(|(which, offset, len)| Step::Slice { which, offset, len }),
        1 => n().prop_map(|which| Step::DropLease { which }),
        2 => n().prop_map(|which| Step::DropView { which }),
        1 => n().prop_map(|which| Step::Quarantine { which }),
        1 => n().prop_map(|which| Step::Release { which }),
    ]
}

/// A lease, a view or a quarantined lease: what its bytes must be, and which lease it comes from.
struct Holding<T> {
    it: T,
    pattern: u8,
    origin: usize,
}

impl<T> Holding<T> {
    fn map<U>(self, into: impl FnOnce(T) -> U) -> Holding<U> {
        Holding { it: into(self.it), pattern: self.pattern, origin: self.origin }
    }
}

struct World {
    slab: Slab,
    accounts: [Account; 2],
    leases: Vec<Holding<Lease>>,
    views: Vec<Holding<View>>,
    quarantined: Vec<Holding<Quarantined>>,
    /// Of each lease there ever was: the frames it holds now, and for which account.
    origins: Vec<(usize, usize)>,
}

/// What the accounts may hold, in frames.
const LIMITS: [usize; 2] = [24, 9];

fn frames(len: usize) -> usize {
    len.div_ceil(FRAME).max(1)
}

fn take<T>(list: &mut Vec<T>, which: usize) -> Option<T> {
    (!list.is_empty()).then(|| list.swap_remove(which % list.len()))
}

impl World {
    fn new() -> World {
        World {
            slab: slab(24),
            // The second limit is no whole number of frames: it counts as nine.
            accounts: [anyone(), Account::new("limited", 8 * FRAME + 1)],
            leases: Vec::new(),
            views: Vec::new(),
            quarantined: Vec::new(),
            origins: Vec::new(),
        }
    }

    fn held(&self, account: usize) -> usize {
        self.origins.iter().filter(|origin| origin.1 == account).map(|origin| origin.0).sum()
    }

    fn lease(&mut self, account: usize, len: usize, pattern: u8) {
        let longest = self.slab.usage().longest_free / FRAME;
        let fits = frames(len) <= longest && self.held(account) + frames(len) <= LIMITS[account];
        let lease = self.slab.try_lease(&self.accounts[account], len);
        assert_eq!(lease.is_some(), fits, "{len} bytes of {longest} frames, account {account}");
        let Some(mut it) = lease else { return };
        assert_eq!(it.len(), len);
        it.as_mut_slice().fill(pattern);
        self.origins.push((frames(len), account));
        self.leases.push(Holding { it, pattern, origin: self.origins.len() - 1 });
    }

    fn apply(&mut self, step: Step, pattern: u8) {
        match step {
            Step::Lease { account, len } => self.lease(account, len, pattern),
            Step::Shrink { which, to } => {
                if let Some(mut lease) = take(&mut self.leases, which) {
                    let to = to % (lease.it.len() + 1);
                    lease.it.shrink(to);
                    self.origins[lease.origin].0 = frames(to);
                    self.leases.push(lease);
                }
            }
            Step::Freeze { which } => {
                self.views.extend(take(&mut self.leases, which).map(|lease| lease.map(Lease::freeze)));
            }
            Step::Slice { which, offset, len } => {
                if let Some(whole) = take(&mut self.views, which) {
                    let offset = offset % (whole.it.len() + 1);
                    let it = whole.it.slice(offset, len % (whole.it.len() - offset + 1));
                    self.views.push(Holding { it, ..whole });
                    self.views.push(whole);
                }
            }
            Step::DropLease { which } => {
                if let Some(lease) = take(&mut self.leases, which) {
                    self.origins[lease.origin].0 = 0;
                }
            }
            Step::DropView { which } => {
                if let Some(view) = take(&mut self.views, which) {
                    let more = self.views.iter().any(|other| other.origin == view.origin);
                    self.origins[view.origin].0 *= more as usize;
                }
            }
            Step::Quarantine { which } => {
                self.quarantined.extend(take(&mut self.leases, which).map(|lease| lease.map(Lease::quarantine)));
            }
            Step::Release { which } => {
                self.leases.extend(take(&mut self.quarantined, which).map(|aside| aside.map(Quarantined::release)));
            }
        }
    }

    fn check(&self) {
        for lease in &self.leases {
            assert!(lease.it.iter().all(|&byte| byte == lease.pattern), "another wrote to a lease");
        }
        for view in &self.views {
            assert!(view.it.iter().all(|&byte| byte == view.pattern), "another wrote to a view");
        }
        let usage = self.slab.usage();
        let held = [self.held(0) * FRAME, self.held(1) * FRAME];
        assert_eq!(usage.free + held[0] + held[1], usage.capacity);
        assert_eq!(self.accounts.each_ref().map(Account::held), held);
        assert_eq!(usage.leases, self.origins.iter().filter(|origin| origin.0 > 0).count());
        let aside: usize = self.quarantined.iter().map(|aside| self.origins[aside.origin].0 * FRAME).sum();
        assert_eq!(usage.quarantined, aside);
    }

    /// Drops everything: all memory is back.
    fn end(self) {
        let World { slab, accounts, leases, views, quarantined, .. } = self;
        drop((leases, views));
        quarantined.into_iter().for_each(|aside| drop(aside.it.release()));
        let whole = slab.capacity();
        let empty = Usage { capacity: whole, free: whole, longest_free: whole, quarantined: 0, leases: 0 };
        assert_eq!(slab.usage(), empty);
        assert_eq!(accounts.map(|account| account.held()), [0, 0]);
    }
}

proptest! {
    #[test]
    fn memory_adds_up_and_is_not_shared(steps in prop::collection::vec(step(), 1..150)) {
        let mut world = World::new();
        for (n, step) in steps.into_iter().enumerate() {
            world.apply(step, n as u8);
            world.check();
        }
        world.end();
    }
}

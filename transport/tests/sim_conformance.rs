//! The simulated link keeps the contract that every link keeps, quiet or not.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_transport::link::{Completion, Fetch, Link, LinkStats, Tag};
use forebay_transport::sim::conformance::{Rig, check_all};
use forebay_transport::sim::{Content, Faults, Known, SimClock, SimConfig, SimLink};

/// A link that the test can reach while the check has it.
#[derive(Clone)]
struct Shared(Arc<Mutex<SimLink>>);

impl Link for Shared {
    fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        self.0.lock().unwrap().submit(fetch)
    }
    fn flush(&mut self) {
        self.0.lock().unwrap().flush();
    }
    fn cancel(&mut self, tag: Tag) {
        self.0.lock().unwrap().cancel(tag);
    }
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        self.0.lock().unwrap().poll(cx)
    }
    fn is_alive(&self) -> bool {
        self.0.lock().unwrap().is_alive()
    }
    fn stats(&self) -> LinkStats {
        self.0.lock().unwrap().stats()
    }
}

struct SimRig {
    clock: SimClock,
    content: Content,
    config: SimConfig,
    links: Vec<Shared>,
}

impl Rig for SimRig {
    fn content(&self) -> &dyn Known {
        &self.content
    }
    fn link(&mut self) -> Box<dyn Link> {
        let link = SimLink::new(self.clock.clone(), self.content.clone(), self.config.clone());
        self.links.push(Shared(Arc::new(Mutex::new(link))));
        Box::new(self.links.last().unwrap().clone())
    }
    fn pass(&mut self) {
        let next = self.links.iter().filter_map(|link| link.0.lock().unwrap().next_event()).min();
        self.clock.advance_to(next.unwrap_or(self.clock.now() + Duration::from_millis(1)));
    }
    fn cut(&mut self) {
        self.links.iter().for_each(|link| link.0.lock().unwrap().cut());
    }
    fn stall(&mut self) -> bool {
        self.links.iter().for_each(|link| link.0.lock().unwrap().stall());
        true
    }
}

#[test]
fn the_simulated_link_keeps_the_contract() {
    for seed in 0..30 {
        let late = seed % 3 == 1;
        check_all(|| {
            let content = Content { fields: 1 + seed % 3, absent: 0.1, ..Content::new(1, 100, 1, 8 << 10) };
            let faults =
                Faults { late: if late { 0.7 } else { 0.0 }, late_for: Duration::from_millis(50), ..Faults::default() };
            let jitter = Duration::from_millis(u64::from(seed) % 5);
            let config = SimConfig { seed: seed.into(), jitter, faults, ..SimConfig::default() };
            SimRig { clock: SimClock::default(), content, config, links: Vec::new() }
        });
    }
}

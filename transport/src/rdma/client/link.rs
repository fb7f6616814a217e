//! The connection as a link: what is accepted, and what comes out.

use std::fmt;
use std::task::{Context, Poll};
use std::time::Instant;

use super::{Operation, RESERVED, RdmaLink};
use crate::link::{Completion, Fetch, Link, LinkError, LinkStats, Tag};

impl Link for RdmaLink {
    fn submit(&mut self, fetch: Fetch) -> Result<(), Fetch> {
        let full = self.credits <= RESERVED || self.free.is_empty();
        if self.dead.is_some() || full || self.by_tag.contains_key(&fetch.tag) {
            return Err(fetch);
        }
        let refused = self.forbids(&fetch);
        let operation = Operation::of(fetch);
        if let Some(error) = refused {
            self.refuse(operation, error);
            return Ok(());
        }
        let Some(place) = self.free.pop() else { return Ok(()) };
        self.places[place].resting = false;
        let tag = operation.asked.tag();
        match self.ask(place, operation) {
            Ok(()) => _ = self.by_tag.insert(tag, place),
            Err((operation, error)) => {
                self.refuse(operation, error);
                self.settle(place);
            }
        }
        Ok(())
    }

    fn flush(&mut self) {
        if self.dead.is_none()
            && let Err(error) = self.queue.post()
        {
            self.fail(error.to_string());
        }
    }

    fn cancel(&mut self, tag: Tag) {
        let Some(&place) = self.by_tag.get(&tag) else { return };
        if let Some(operation) = &mut self.places[place].operation {
            operation.give_up(LinkError::Cancelled, Instant::now());
        }
        match self.tend() {
            Ok(_) => self.flush(),
            Err(why) => self.fail(why),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        loop {
            if let Some(completion) = self.ready.pop_front() {
                return Poll::Ready(completion);
            }
            if self.dead.is_some() {
                return Poll::Pending;
            }
            match self.drive(cx) {
                Ok(true) => {}
                Ok(false) if self.ready.is_empty() => return Poll::Pending,
                Ok(false) => {}
                Err(why) => self.fail(why),
            }
        }
    }

    fn is_alive(&self) -> bool {
        self.dead.is_none()
    }

    fn stats(&self) -> LinkStats {
        let open = self.places.iter().filter(|place| place.operation.is_some()).count();
        LinkStats { rtt: self.rtt, in_flight: open + self.ready.len(), bytes: self.bytes }
    }
}

impl Drop for RdmaLink {
    fn drop(&mut self) {
        // Leases go back to the pool only after this.
        self.fail("the link was dropped".to_owned());
    }
}

impl fmt::Debug for RdmaLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaLink").field("welcome", &self.welcome).field("stats", &self.stats()).finish()
    }
}

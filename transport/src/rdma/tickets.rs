//! Who may connect: tickets that were given out over TLS, each good for one connection within a few seconds.
//!
//! Tickets themselves are not kept, only their digests, which are compared in constant time.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom, SystemRandom};

use super::hello::{Reason, Ticket};
use crate::exchange::Session;
use crate::pool::Account;

/// How long a ticket is good for.
pub const LIFETIME: Duration = Duration::from_secs(5);
/// How long it is remembered after that, so that a client is told what was wrong with it.
const MEMORY: Duration = Duration::from_secs(30);
/// Tickets of one session that may be outstanding at once: a probe needs one, a few network cards one each.
pub const PER_SESSION: usize = 8;
/// Tickets that are remembered at once, of all sessions.
const MOST: usize = 4096;

/// What a ticket stands for: whose connection it makes, and what may be read over it.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The one dataset that may be read.
    pub dataset: Arc<str>,
    /// The session that got the ticket: when it is over, so is the connection.
    pub session: Session,
    /// Which connection that session is, and where its client is.
    pub connection: u64,
    pub peer: SocketAddr,
    /// Lends what answers need, together with the session's.
    pub account: Account,
}

/// Why no ticket is given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    #[error("{PER_SESSION} tickets of this session are outstanding")]
    Session,
    #[error("{MOST} tickets are outstanding")]
    Server,
    #[error("the system gives no random bytes")]
    Randomness,
}

struct Entry {
    digest: blake3::Hash,
    issued: Instant,
    connection: u64,
    /// `None` once it was used.
    grant: Option<Grant>,
}

/// The tickets of one server. Memory is bounded whatever clients ask for.
pub struct Tickets {
    entries: Mutex<VecDeque<Entry>>,
    random: SystemRandom,
}

impl Default for Tickets {
    fn default() -> Tickets {
        Tickets { entries: Mutex::default(), random: SystemRandom::new() }
    }
}

impl Tickets {
    pub fn new() -> Tickets {
        Tickets::default()
    }

    /// A ticket for `grant`, good for [`LIFETIME`] from `now` on.
    pub fn issue(&self, now: Instant, grant: Grant) -> Result<Ticket, IssueError> {
        let mut bytes = [0; Ticket::LEN];
        self.random.fill(&mut bytes).map_err(|_| IssueError::Randomness)?;
        let ticket = Ticket::new(bytes);
        let connection = grant.connection;
        let mut entries = self.entries();
        forget(&mut entries, now);
        let outstanding = entries.iter().filter(|entry| {
            entry.connection == connection && entry.grant.is_some() && now.duration_since(entry.issued) < LIFETIME
        });
        if outstanding.count() >= PER_SESSION {
            return Err(IssueError::Session);
        }
        if entries.len() >= MOST {
            // Those that are of no use any more are remembered as a courtesy only.
            let spent = |entry: &Entry| entry.grant.is_none() || now.duration_since(entry.issued) >= LIFETIME;
            let at = entries.iter().position(spent).ok_or(IssueError::Server)?;
            entries.remove(at);
        }
        entries.push_back(Entry { digest: ticket.digest(), issued: now, connection, grant: Some(grant) });
        Ok(ticket)
    }

    /// Takes a ticket: no second call gets the same grant.
    pub fn redeem(&self, now: Instant, ticket: &Ticket) -> Result<Grant, Reason> {
        let digest = ticket.digest();
        let mut entries = self.entries();
        forget(&mut entries, now);
        // Comparing digests takes the same time wherever they differ.
        let entry = entries.iter_mut().find(|entry| entry.digest == digest).ok_or(Reason::UnknownTicket)?;
        let grant = entry.grant.take().ok_or(Reason::UsedTicket)?;
        if now.duration_since(entry.issued) >= LIFETIME {
            entry.grant = Some(grant);
            return Err(Reason::ExpiredTicket);
        }
        if grant.session.is_over() { Err(Reason::SessionOver) } else { Ok(grant) }
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        // Nothing done under the lock leaves half a change behind.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// They stand in the order in which they were given out.
fn forget(entries: &mut VecDeque<Entry>, now: Instant) {
    while entries.front().is_some_and(|entry| now.duration_since(entry.issued) >= LIFETIME + MEMORY) {
        entries.pop_front();
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").field("remembered", &self.entries().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::SessionLife;

    fn grant(connection: u64) -> (SessionLife, Grant) {
        let (life, session) = Session::begin();
        let (account, peer) = (Account::new("test", 1 << 20), ([127, 0, 0, 1], 4433).into());
        (life, Grant { dataset: "d".into(), session, connection, peer, account })
    }

    #[test]
    fn a_ticket_is_good_once_and_for_a_while() {
        let (tickets, start, (_life, grant)) = (Tickets::new(), Instant::now(), grant(1));
        let soon = start + LIFETIME - Duration::from_millis(1);
        let (one, other) = (tickets.issue(start, grant.clone()).unwrap(), tickets.issue(start, grant).unwrap());
        assert_ne!(one.to_hex(), other.to_hex());
        assert_eq!(tickets.redeem(soon, &one).map(|grant| grant.dataset.to_string()), Ok("d".to_owned()));
        assert_eq!(tickets.redeem(soon, &one).err(), Some(Reason::UsedTicket));
        for _ in 0..2 {
            assert_eq!(tickets.redeem(start + LIFETIME, &other).err(), Some(Reason::ExpiredTicket));
        }
        assert_eq!(tickets.redeem(soon, &Ticket::new([0; 32])).err(), Some(Reason::UnknownTicket));
        let late = start + LIFETIME + MEMORY;
        assert_eq!(tickets.redeem(late, &one).err(), Some(Reason::UnknownTicket), "forgotten");
    }

    #[test]
    fn the_end_of_a_session_ends_its_tickets() {
        let (tickets, now) = (Tickets::new(), Instant::now());
        let ((life, of_one), (_other_life, of_other)) = (grant(1), grant(2));
        let (one, other) = (tickets.issue(now, of_one).unwrap(), tickets.issue(now, of_other).unwrap());
        drop(life);
        assert_eq!(tickets.redeem(now, &one).err(), Some(Reason::SessionOver));
        assert_eq!(
            tickets.redeem(now, &other).map(|grant| grant.connection),
            Ok(2),
            "the other one's is as good as ever"
        );
    }

    #[test]
    fn nobody_gets_more_than_a_few_and_all_together_not_more_than_can_be_remembered() {
        let (tickets, now) = (Tickets::new(), Instant::now());
        let (_life, greedy) = grant(0);
        let held: Vec<Ticket> = (0..PER_SESSION).map(|_| tickets.issue(now, greedy.clone()).unwrap()).collect();
        assert_eq!(tickets.issue(now, greedy.clone()).err(), Some(IssueError::Session));
        tickets.redeem(now, &held[3]).unwrap();
        assert!(tickets.issue(now, greedy.clone()).is_ok(), "one was used");
        assert!(tickets.issue(now + LIFETIME, greedy.clone()).is_ok(), "and all the others are too old");

        let crowd = |tickets: &Tickets, now| {
            let (_life, grant) = grant(0);
            let given = (1..).take_while(|&connection| {
                let grant = Grant { connection, ..grant.clone() };
                tickets.issue(now, grant).inspect_err(|&error| assert_eq!(error, IssueError::Server)).is_ok()
            });
            given.count()
        };
        let tickets = Tickets::new();
        assert_eq!((crowd(&tickets, now), crowd(&tickets, now)), (MOST, 0));
        // Not for longer than they are good.
        assert_eq!(crowd(&tickets, now + LIFETIME), MOST);
        assert_eq!(tickets.entries().len(), MOST);
    }

    #[test]
    fn one_ticket_lets_one_of_many_in() {
        let (tickets, now, (_life, grant)) = (Tickets::new(), Instant::now(), grant(1));
        let ticket = tickets.issue(now, grant).unwrap();
        let let_in = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let in_now = tickets.redeem(now, &ticket).is_ok();
                    let_in.fetch_add(usize::from(in_now), std::sync::atomic::Ordering::Relaxed);
                });
            }
        });
        assert_eq!(let_in.into_inner(), 1);
    }
}

//! Lets clients in that want samples by RDMA: which datasets may go out so, tickets, and where to go with them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use forebay_transport::exchange::Request;
use forebay_transport::rdma::frame::{VERSION_MAX, VERSION_MIN};
use forebay_transport::rdma::tickets::{Grant, IssueError, LIFETIME, Tickets};
use forebay_transport::wire::describe::{RdmaEndpoint, RdmaOffer, WireRange};
use forebay_transport::wire::problem::Kind;

use super::reply::Refusal;

/// Says where the server listens now, or why nowhere. Asked for each ticket, since addresses come and go.
pub type Endpoints = Arc<dyn Fn() -> Result<Vec<RdmaEndpoint>, String> + Send + Sync>;

/// What a server's owner allows, and what there is to allow it with.
pub struct Rdma {
    allowed: BTreeSet<String>,
    tickets: Arc<Tickets>,
    endpoints: Endpoints,
}

impl Rdma {
    /// Samples of the datasets with these names may leave by RDMA, which means unencrypted.
    pub fn new(allowed: impl IntoIterator<Item = String>, tickets: Arc<Tickets>, endpoints: Endpoints) -> Rdma {
        Rdma { allowed: allowed.into_iter().collect(), tickets, endpoints }
    }

    /// Nothing is allowed.
    pub fn denied() -> Rdma {
        Rdma::new([], Arc::default(), Arc::new(|| Err("it was not asked to".to_owned())))
    }

    /// A ticket for whoever asks, and where it is taken.
    pub(super) fn offer(&self, dataset: &str, request: &Request) -> Result<RdmaOffer, Refusal> {
        if !self.allowed.contains(dataset) {
            let detail =
                format!("dataset {dataset} may not be read by RDMA: `forebay serve … --rdma {dataset}` allows it");
            return Err(Refusal::new(Kind::Forbidden, detail));
        }
        let unavailable =
            |why: &str| Refusal::new(Kind::Unavailable, format!("the server does not listen for RDMA: {why}"));
        let mut endpoints = (self.endpoints)().map_err(|why| unavailable(&why))?;
        if endpoints.is_empty() {
            return Err(unavailable("none of its devices has a port that is up and has an address"));
        }
        endpoints.sort_by_key(|endpoint| std::cmp::Reverse(endpoint.mbps));
        let grant = Grant {
            dataset: dataset.into(),
            session: request.session.clone(),
            connection: request.connection,
            peer: request.peer,
            account: request.account.clone(),
        };
        let ticket = self.tickets.issue(Instant::now(), grant).map_err(|error| {
            let kind = if error == IssueError::Randomness { Kind::Internal } else { Kind::Busy };
            Refusal::new(kind, error.to_string())
        })?;
        Ok(RdmaOffer {
            wire: WireRange { min: VERSION_MIN, max: VERSION_MAX },
            ticket: ticket.to_hex(),
            expires_ms: LIFETIME.as_millis() as u32,
            endpoints,
        })
    }
}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rdma").field("allowed", &self.allowed).field("tickets", &self.tickets).finish()
    }
}

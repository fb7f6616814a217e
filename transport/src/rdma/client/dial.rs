//! Makes links beside a path that stands: the rail that the client's core decides about.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::area::Pinned;
use super::super::device::{self, devices};
use super::super::hello::Reason;
use super::super::offer::offer;
use super::RdmaLink;
use super::connect::{Config, Error};
use crate::dial::{Asking, RailDialer, RailDialling, RailError};
use crate::link::Link;
use crate::pool::Slab;

/// Dials by RDMA. What it registers stays registered as long as it lives, and is used again by the next link: one for each server,
/// so that no server reaches what another one may.
#[derive(Clone, Default)]
pub struct Dialer {
    config: Config,
    /// By the slab's address.
    pinned: Arc<Mutex<HashMap<usize, Arc<Pinned>>>>,
}

impl Dialer {
    pub fn new(config: Config) -> Dialer {
        Dialer { config, pinned: Arc::default() }
    }

    fn pinned(&self, pool: &Slab) -> Arc<Pinned> {
        let address = NonNull::as_ptr(pool.region().0) as usize;
        // Nothing done under the lock leaves half a change behind.
        let mut all = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(address).or_insert_with(|| Arc::new(Pinned::new(pool, self.config.rights()))).clone()
    }

    async fn link(self, asking: Asking, pool: Slab) -> Result<RdmaLink, RailError> {
        // Before the server is troubled.
        let found = tokio::task::spawn_blocking(devices).await.map_err(|error| RailError::Failed(error.to_string()))?;
        if found.map_err(|error| rail_error(error.into()))?.is_empty() {
            return Err(RailError::Refused("this machine has no RDMA device".to_owned()));
        }
        let (offer, ticket) = offer(asking).await?;
        let mut tried = None;
        // A ticket is good once: for the best of those that lead anywhere.
        for endpoint in &offer.endpoints {
            let to = SocketAddr::new(endpoint.address, endpoint.port);
            let pinned = self.pinned(&pool);
            match RdmaLink::connect(&self.config, &pinned, to, ticket.clone(), None).await {
                Ok(mut link) => {
                    link.prove().await.map_err(rail_error)?;
                    return Ok(link);
                }
                Err(error @ Error::Connect(_)) => tried = Some(error),
                Err(error) => return Err(rail_error(error)),
            }
        }
        Err(tried.map_or_else(|| RailError::Failed("the server names no endpoint".to_owned()), rail_error))
    }
}

impl RailDialer for Dialer {
    fn fabric(&self) -> &str {
        "rdma"
    }

    fn dial(&self, offer: Asking, pool: &Slab) -> RailDialling {
        let linking = self.clone().link(offer, pool.clone());
        Box::pin(async move { Ok(Box::new(linking.await?) as Box<dyn Link>) })
    }
}

fn rail_error(error: Error) -> RailError {
    let why = error.to_string();
    match error {
        Error::Device(device::Error::Missing(_) | device::Error::Limit { .. }) | Error::Rejected(Reason::Version) => {
            RailError::Refused(why)
        }
        _ => RailError::Failed(why),
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("config", &self.config).finish()
    }
}

//! What may be read by RDMA, and who listens for it.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_client::transport::pool::Slab;
use forebay_server::serve::Service;
use forebay_server::serve::rdma::Rdma;

use crate::output;

/// What clients are told of datasets that may be `allowed`, and what listens beside `address`, the address of HTTP/3, with at most
/// `budget` bytes besides the pool. Where that cannot be, it is said here, and to clients that ask.
pub(super) fn listen(allowed: &[String], address: SocketAddr, budget: u64, pool: &Slab) -> (Rdma, Option<Listener>) {
    if allowed.is_empty() {
        return (Rdma::denied(), None);
    }
    match verbs::listen(allowed, address, budget, pool) {
        Ok((rdma, listener)) => (rdma, Some(listener)),
        Err(why) => {
            output::note(format!("--rdma: {why}; everything goes over HTTP/3"));
            (Rdma::new(allowed.iter().cloned(), Arc::default(), Arc::new(move || Err(why.clone()))), None)
        }
    }
}

pub(super) use verbs::Listener;

#[cfg(all(feature = "rdma", target_os = "linux"))]
mod verbs {
    use forebay_client::transport::rdma::server::{Config, Server, endpoints};
    use forebay_client::transport::rdma::tickets::Tickets;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    pub(in super::super) struct Listener(Server);

    pub(in super::super) struct Listening {
        end: oneshot::Sender<()>,
        serving: JoinHandle<()>,
    }

    pub(super) fn listen(
        allowed: &[String],
        address: SocketAddr,
        budget: u64,
        pool: &Slab,
    ) -> Result<(Rdma, Listener), String> {
        if address.ip().is_loopback() {
            return Err(format!("no RDMA device leads to {}: --listen names another address", address.ip()));
        }
        let tickets = Arc::new(Tickets::new());
        // The same number, of another kind of port; another one where that is taken.
        let bind = |port| {
            let config = Config::new(SocketAddr::new(address.ip(), port)).within(budget);
            Server::bind(config, tickets.clone(), pool)
        };
        let server = bind(address.port()).or_else(|_| bind(0)).map_err(|error| error.to_string())?;
        let listening = SocketAddr::new(address.ip(), server.port());
        let rdma = Rdma::new(allowed.iter().cloned(), tickets, Arc::new(move || endpoints(listening)));
        Ok((rdma, Listener(server)))
    }

    impl Listener {
        /// From now on clients are let in.
        pub(in super::super) fn start(self, service: Arc<Service>) -> Listening {
            let (end, ended) = oneshot::channel::<()>();
            let serving = tokio::spawn(self.0.serve(service, async move { drop(ended.await) }));
            Listening { end, serving }
        }
    }

    impl Listening {
        /// Ends all connections.
        pub(in super::super) async fn end(self) {
            drop(self.end);
            let _ = self.serving.await;
        }
    }
}

#[cfg(not(all(feature = "rdma", target_os = "linux")))]
mod verbs {
    use super::*;

    pub(in super::super) enum Listener {}

    pub(super) fn listen(_: &[String], _: SocketAddr, _: u64, _: &Slab) -> Result<(Rdma, Listener), String> {
        Err("this build has no listener for it".to_owned())
    }

    impl Listener {
        pub(in super::super) fn start(self, _: Arc<Service>) -> Listener {
            self
        }

        pub(in super::super) async fn end(self) {}
    }
}

//! The rail that clients of servers have. The only module of the client that names RDMA.

use std::sync::Arc;

use forebay_transport::dial::RailDialer;

/// What dials by RDMA.
#[cfg(all(feature = "rdma", target_os = "linux"))]
pub(crate) fn rdma() -> Arc<dyn RailDialer> {
    use forebay_transport::rdma::client::{Config, Dialer};
    Arc::new(Dialer::new(Config::default()))
}

/// What says why there is nothing to dial by.
#[cfg(not(all(feature = "rdma", target_os = "linux")))]
pub(crate) fn rdma() -> Arc<dyn RailDialer> {
    use forebay_transport::dial::NoRail;
    Arc::new(NoRail { fabric: "rdma".into(), why: "this program was built without it".into() })
}

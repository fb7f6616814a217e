//! The rail that clients of servers have. The only module of the client that names RDMA.

use std::sync::Arc;

use forebay_transport::dial::{NoRail, RailDialer};

/// Dials by RDMA, or says why that is not to be had here.
pub(crate) fn rdma() -> Arc<dyn RailDialer> {
    Arc::new(NoRail { fabric: "rdma".into(), why: "this program was built without it".into() })
}

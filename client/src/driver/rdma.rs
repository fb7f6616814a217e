//! The rail that clients of servers have. The only module of the client that names RDMA.

use std::sync::Arc;

use forebay_transport::dial::{Asking, RailDialer, RailDialling, RailError};
use forebay_transport::pool::Slab;
use forebay_transport::rdma::offer::offer as offered;

/// What dials by RDMA.
pub(crate) fn rdma() -> Arc<dyn RailDialer> {
    Arc::new(Rdma)
}

/// Finds out how far it is to a link by RDMA. The link itself is not in this version.
struct Rdma;

impl RailDialer for Rdma {
    fn fabric(&self) -> &str {
        "rdma"
    }

    fn dial(&self, offer: Asking, _: &Slab) -> RailDialling {
        Box::pin(async move {
            // Loading libraries and opening devices takes its time.
            let found = tokio::task::spawn_blocking(device).await;
            found.unwrap_or_else(|error| Err(error.to_string())).map_err(RailError::Refused)?;
            offered(offer).await?;
            let why = "the server offers it, and this version of the client cannot read by it yet";
            Err(RailError::Refused(why.to_owned()))
        })
    }
}

/// Whether there is a device to take it with; why not.
#[cfg(all(feature = "rdma", target_os = "linux"))]
fn device() -> Result<(), String> {
    match forebay_transport::rdma::device::devices() {
        Ok(devices) if devices.is_empty() => Err("this machine has no device for it".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(not(all(feature = "rdma", target_os = "linux")))]
fn device() -> Result<(), String> {
    Err("this program was built without it".to_owned())
}

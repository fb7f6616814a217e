//! What devices say when they are opened by the libraries, as reading by RDMA would.

use forebay_client::transport::rdma::device::{Device, Port, devices};

use super::{Opened, OpenedPort};

/// Loads the libraries, and opens every device.
pub fn open() -> Option<Result<Vec<Opened>, String>> {
    Some(devices().map(|found| found.iter().map(opened).collect()).map_err(|error| error.to_string()))
}

fn opened(device: &Device) -> Opened {
    let port = |port: &Port| OpenedPort { number: port.number.to_string(), payload: port.mtu };
    Opened { name: device.name.clone(), ports: device.ports.iter().map(port).collect() }
}

//! In the place of `uring`, where it is not built in.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use forebay_transport::pool::Slab;

use super::Store;
use super::local::{LocalConfig, Refusal};
use crate::catalog::ShardFile;

pub(super) fn probe() -> Result<(), Refusal> {
    Err(refusal())
}

fn refusal() -> Refusal {
    Refusal {
        reason: "this program was built without it".into(),
        remedy: "a build for Linux with the feature `uring`, which is on by default".into(),
    }
}

/// There is none.
pub(super) struct Rings(Infallible);

impl Rings {
    pub(super) fn start(_: &LocalConfig, _: &Slab, _: bool) -> Result<Rings, Refusal> {
        Err(refusal())
    }

    pub(super) fn open(&self, _: Vec<ShardFile>) -> io::Result<Arc<dyn Store>> {
        match self.0 {}
    }

    pub(super) fn unregistered(&self) -> Option<Refusal> {
        match self.0 {}
    }

    pub(super) fn registered(&self) -> u64 {
        match self.0 {}
    }

    pub(super) fn bounce(&self) -> u64 {
        match self.0 {}
    }
}

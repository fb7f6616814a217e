// Exclusive means one.
use forebay_transport::pool::{Lease, Quarantined};

fn clone<T: Clone>(_: T) {}

pub fn not_a_lease(lease: Lease) {
    clone(lease); //~ E0277
}

pub fn not_a_quarantined_lease(aside: Quarantined) {
    clone(aside); //~ E0277
}

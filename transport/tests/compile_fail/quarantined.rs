// Something may still write to it: nobody else reads or writes it, and it has no bytes to be lent.
use forebay_transport::pool::{Lease, Quarantined};

pub fn not_read(aside: Quarantined) -> u8 {
    aside[0] //~ E0608
}

pub fn not_written(mut aside: Quarantined) {
    aside.as_mut_slice(); //~ E0599
}

pub fn not_frozen(aside: Quarantined) {
    aside.freeze(); //~ E0599
}

pub fn not_used_after(lease: Lease) -> usize {
    let aside = lease.quarantine();
    drop(aside.release());
    lease.len() //~ E0382
}

pub fn not_released_twice(aside: Quarantined) {
    drop(aside.release());
    drop(aside.release()); //~ E0382
}

// The link owns the lease from submission to completion: it can be neither read, written, dropped, reused nor shared.
use forebay_transport::link::{Fetch, Link};
use forebay_transport::pool::Lease;

pub fn not_read(link: &mut dyn Link, fetch: Fetch) -> u8 {
    let _ = link.submit(fetch);
    fetch.lease[0] //~ E0382
}

pub fn not_written(link: &mut dyn Link, mut fetch: Fetch) {
    let _ = link.submit(fetch);
    fetch.lease.as_mut_slice()[0] = 1; //~ E0382
}

pub fn not_dropped(link: &mut dyn Link, fetch: Fetch) {
    let _ = link.submit(fetch);
    drop(fetch.lease); //~ E0382
}

pub fn not_submitted_again(link: &mut dyn Link, fetch: Fetch) {
    let _ = link.submit(fetch);
    let _ = link.submit(fetch); //~ E0382
}

pub fn not_of_another(link: &mut dyn Link, mut first: Fetch, mut second: Fetch, lease: Lease) {
    first.lease = lease;
    second.lease = lease; //~ E0382
    let _ = link.submit(first);
    let _ = link.submit(second);
}

pub fn not_kept_beside_the_fetch(link: &mut dyn Link, mut fetch: Fetch, lease: Lease) -> usize {
    fetch.lease = lease;
    let _ = link.submit(fetch);
    lease.len() //~ E0382
}

pub fn not_while_borrowed<'a>(link: &mut dyn Link, mut fetch: Fetch) -> u8 {
    let slice = fetch.lease.as_mut_slice();
    let _ = link.submit(fetch); //~ E0505
    slice[0]
}

pub fn not_frozen_in_flight(link: &mut dyn Link, fetch: Fetch) {
    let _ = link.submit(fetch);
    fetch.lease.freeze(); //~ E0382
}

// What is frozen can be shared, and no longer changed.
use forebay_transport::pool::{Lease, View};

pub fn not_written_through_the_view(mut view: View) {
    view[0] = 1; //~ E0594
}

pub fn not_a_lease_again(mut view: View) {
    view.shrink(1); //~ E0599
}

pub fn not_written_through_the_lease(mut lease: Lease) -> View {
    let view = lease.freeze();
    lease.as_mut_slice()[0] = 1; //~ E0382
    view
}

pub fn not_outlived_by_a_slice(mut lease: Lease) -> View {
    let slice = lease.as_mut_slice();
    let view = lease.freeze(); //~ E0505
    slice[0] = 1;
    view
}

pub fn not_outlived_by_a_shared_slice(lease: Lease) -> u8 {
    let slice: &[u8] = &lease;
    drop(lease.freeze()); //~ E0505
    slice[0]
}

pub fn not_outliving_the_view(view: View) -> &'static [u8] {
    let slice: &'static [u8] = &view; //~ E0597
    slice
}

pub fn not_shrunk_under_a_slice(mut lease: Lease) -> u8 {
    let slice = lease.as_mut_slice();
    lease.shrink(1); //~ E0499
    slice[0]
}

pub fn not_read_while_written(mut lease: Lease) {
    let writing = lease.as_mut_slice();
    let reading = &lease[0]; //~ E0502
    writing[0] = *reading;
}

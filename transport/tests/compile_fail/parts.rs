// A lease cannot be taken apart.
use forebay_transport::pool::Lease;

pub fn not_from_parts(lease: Lease) {
    let Lease { view } = lease; //~ E0451
    drop(view);
}

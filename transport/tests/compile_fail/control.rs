// Everything that the other files use, in an order that is right.
use forebay_transport::link::{Completion, Fetch, Link, Tag};
use forebay_transport::pool::{Account, Lease, Quarantined, Slab, View};

pub fn lend(slab: &Slab, account: &Account) -> Option<Lease> {
    let mut lease = slab.try_lease(account, 8)?;
    lease.as_mut_slice()[0] = 1;
    lease.shrink(4);
    let aside: Quarantined = lease.quarantine();
    Some(aside.release())
}

pub fn share(mut lease: Lease) -> (View, View, u8) {
    let slice = lease.as_mut_slice();
    slice[0] = 1;
    let view = lease.freeze();
    let part = view.slice(0, 1);
    let first = view[0];
    (view.clone(), part, first)
}

pub fn fly(link: &mut dyn Link, mut fetch: Fetch, lease: Lease, completion: Completion) -> Lease {
    fetch.lease = lease;
    link.submit(fetch).unwrap();
    link.cancel(Tag(1));
    completion.lease
}

pub fn across_threads(lease: Lease, view: View, aside: Quarantined) {
    fn send<T: Send + 'static>(_: T) {}
    fn share<T: Sync>(_: &T) {}
    share(&lease);
    share(&view);
    share(&aside);
    send(lease);
    send(view);
    send(aside);
}

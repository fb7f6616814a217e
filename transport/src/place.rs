//! Where a group's entries lie in a lease.

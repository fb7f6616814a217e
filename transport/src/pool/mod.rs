//! The pool: one slab of pinned memory per process, lent out in leases.
//!
//! - [`Slab`]: the memory, allocated once.
//! - [`Lease`]: exclusive, writable use of one slice of it.
//! - [`View`]: shared, read-only use of a frozen lease or part of one. Dropping the last view gives the slice back:
//!   that is the flow-control credit.
//! - [`Quarantined`]: a lease that something outside this process's control may still write to.
//! - [`Account`]: who holds how much, with a limit.
//! - [`Ledger`]: the sum of everything that holds memory, against one budget.
//!
//! Only `region` (which maps the memory) and `lease` (which hands out its bytes) contain unsafe code.

mod account;
mod extents;
mod lease;
mod ledger;
mod queue;
#[cfg_attr(forebay_loom, path = "region_model.rs")]
mod region;
mod slab;
mod sync;
#[cfg(all(test, not(forebay_loom)))]
mod tests;

pub use account::Account;
pub use lease::{Lease, Quarantined, View};
pub use ledger::{Claim, Ledger, OverBudget};
pub use slab::{Slab, SlabConfig, SlabError, Usage};

/// How the limit on locked memory is raised, for messages.
pub const MEMLOCK: &str = "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity; docker run --ulimit memlock=-1)";

//! The pool: one slab of pinned memory per process, lent out in leases.
//!
//! - [`Slab`]: the memory, allocated once.
//! - [`Lease`]: exclusive, writable use of one slice of it.
//! - [`View`]: shared, read-only use of a frozen lease or part of one. Dropping the last view gives the slice back:
//!   that is the flow-control credit.
//! - [`Quarantined`]: a lease that something outside this process's control may still write to.
//! - [`Account`]: who holds how much, with a limit.
//! - [`Ledger`]: the sum of everything that holds memory, against one budget.

mod extents;
mod ledger;
mod region;
mod slab;
mod sync;

pub use ledger::{Claim, Ledger, OverBudget};
pub use slab::{Account, Lease, Quarantined, Slab, SlabConfig, SlabError, Usage, View};

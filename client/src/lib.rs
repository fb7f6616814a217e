//! Reads samples in any order, as if the data were local.
//!
//! | module | holds | must not hold |
//! | --- | --- | --- |
//! | [`plan`] | which sample stands at which position of an epoch, for which rank (pure) | I/O, state |
//! | [`window`] | how much to have in flight, and how large a group is (pure) | clocks |
//! | [`fetch`] | attempts, back-off, what an error means (pure) | I/O |
//! | [`loader`] | the step machine: events in, actions out; batches and samples | I/O, clocks, threads, unseeded randomness |

pub mod fetch;
pub mod loader;
pub mod plan;
pub mod window;

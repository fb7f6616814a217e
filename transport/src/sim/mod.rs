//! A seeded simulated link under virtual time, the suite that every fabric's link passes, and a delay line for real
//! sockets.
//!
//! | module | holds |
//! | --- | --- |
//! | [`content`] | a dataset that is a function, so that any byte can be checked without storing it |
//! | [`link`] | `SimLink`: delays, reorders, fails, cuts, corrupts, writes late |
//! | [`conformance`] | the contract of [`Link`](crate::link::Link), as checks |
//! | [`delay`] | a delay line between real sockets, for benches and demonstrations |

pub mod conformance;
pub mod content;
pub mod delay;
pub mod link;

pub use content::{Content, Known};
pub use link::{Faults, SimClock, SimConfig, SimLink};

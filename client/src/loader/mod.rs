//! The loader: a plan's batches, in exact order, out of whatever the links deliver.
//!
//! [`Machine`] is the whole of it without I/O: [`step`](Machine::step) takes the time and an [`Event`] and answers with
//! [`Action`]s. A driver owns links, threads and timers, and carries one to the other.

mod batch;
mod config;
mod delivery;
mod error;
mod event;
mod limit;
mod machine;
mod memory;
mod ops;
mod requests;
mod segment;
mod source;
mod stats;
mod tables;

pub use batch::{Batch, Sample};
pub use config::{LoaderConfig, OnError};
pub use error::{FetchError, LoaderError, PoolExhausted, Reason};
pub use event::{Action, Event, Note};
pub use machine::Machine;
pub use source::{Source, SourceError};
pub use stats::{Histogram, LoaderStats};

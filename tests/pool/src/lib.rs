//! The transport's pool, compiled by itself: with its own tests, and with models of its concurrency.

#[cfg(all(test, forebay_loom))]
mod model;
#[path = "../../../transport/src/pool/mod.rs"]
pub mod pool;

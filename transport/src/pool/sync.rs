//! The primitives the pool synchronises with, so that a model checker can stand in for them.

#[cfg(not(forebay_loom))]
pub(super) use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicUsize, Ordering, fence},
};

#[cfg(forebay_loom)]
pub(super) use loom::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicUsize, Ordering, fence},
};

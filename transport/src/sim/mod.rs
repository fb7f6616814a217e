//! A seeded simulated link.

pub mod delay;

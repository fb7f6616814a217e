//! A seeded simulated link.

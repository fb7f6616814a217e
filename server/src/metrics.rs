//! Figures of a running server.

//! Reads samples in any order, as if the data were local.

//! What the whole-system tests and benches share.
//!
//! | module | holds |
//! | --- | --- |
//! | [`program`] | the `forebay` program: built if need be, run, watched, ended |
//! | [`python`] | the tests' Python environment, and the scripts in `tests/python` |
//! | [`tars`] | shards made in a moment, when it does not matter what is in them |
//! | [`clouds`] | object stores of others: S3's and Azure's ways, on this machine |
//! | [`web`] | web servers of others, over a folder |
//! | [`world`] | our own library against a server that runs |
//! | [`scratch`] | folders that go away |
//! | [`allocations`] | an allocator that counts |
//! | [`figures`] | results of benches, as JSON lines |
//! | [`guest`] | emulated machines with soft-RoCE and netem |
//! | [`scale`] | what a dataset costs by the number of its samples |

pub mod allocations;
pub mod clouds;
pub mod figures;
pub mod guest;
pub mod program;
pub mod python;
pub mod scale;
pub mod scratch;
pub mod tars;
pub mod web;
pub mod world;

use std::path::Path;

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

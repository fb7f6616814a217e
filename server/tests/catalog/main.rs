//! The catalog as a server uses it: shards on disk in, an open dataset out.

mod building;
mod content;
mod portable;
mod processes;
mod speed;
mod support;

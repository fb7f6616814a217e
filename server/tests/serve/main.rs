//! The service over real tars, a real index and a real store; only the network is made up.

mod documents;
mod faults;
mod groups;
mod http3;
mod memory;
mod random;
mod tickets;
mod world;

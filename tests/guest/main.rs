//! What needs another kernel than this machine's, or two machines: run in guests (`tests/guest/run`). In `make test`, not in
//! `make test-fast`.
#![cfg(target_os = "linux")]

mod alone;
mod doctor;
mod harness;
mod pair;
mod rdma;

//! Why there is no ring, and what befell a job.

use std::io;
use std::time::Duration;

use crate::pool::{MEMLOCK, SlabError};

/// Why this process gets no ring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// Its owner has turned it off for this machine, or for everybody but some.
    #[error("io_uring is turned off on this machine (kernel.io_uring_disabled = {0})")]
    Disabled(u32),
    /// As containers' default seccomp filters do.
    #[error("io_uring is refused to this process, as by a container's seccomp filter ({0})")]
    Refused(io::Error),
    #[error("this kernel has no io_uring, or a seccomp filter hides it")]
    Missing,
    #[error("this kernel's io_uring is too old: 5.11 is needed")]
    TooOld,
    /// Kernels before 5.12 count the ring itself against the limit.
    #[error("no memory for a ring: RLIMIT_MEMLOCK is too small, or the machine has none left")]
    Memory,
    #[error("cannot set a ring up: {0}")]
    Other(io::Error),
}

impl Unavailable {
    pub(super) fn of(error: io::Error) -> Unavailable {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
                match setting.trim().parse() {
                    Ok(disabled) if disabled > 0 => Unavailable::Disabled(disabled),
                    _ => Unavailable::Refused(error),
                }
            }
            Some(libc::ENOSYS) => Unavailable::Missing,
            Some(libc::ENOMEM) => Unavailable::Memory,
            _ => Unavailable::Other(error),
        }
    }

    /// What mends it, in a line.
    pub fn remedy(&self) -> &'static str {
        match self {
            Unavailable::Disabled(_) => "sysctl -w kernel.io_uring_disabled=0",
            Unavailable::Refused(_) => {
                "docker run --security-opt seccomp=PROFILE with io_uring_setup, io_uring_enter and io_uring_register allowed (or seccomp=unconfined)"
            }
            Unavailable::Missing | Unavailable::TooOld => {
                "a kernel of 5.11 or newer; in a container also a seccomp profile that knows io_uring"
            }
            Unavailable::Memory => MEMLOCK,
            Unavailable::Other(_) => "see dmesg",
        }
    }
}

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error("cannot start the ring's thread: {0}")]
    Thread(io::Error),
    #[error("no memory to read unaligned parts through: {0}")]
    Bounce(#[from] SlabError),
}

/// What befell a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    #[error("part {part}: {source}")]
    Io { part: usize, source: io::Error },
    #[error("part {part}: the file ends before it")]
    Ended { part: usize },
    /// The kernel has not answered for so long. The lease is not there, if the kernel had been asked.
    #[error("part {part}: no answer from the kernel for {after:?}")]
    Overdue { part: usize, after: Duration },
    #[error("part {part} is out of bounds of its lease, or its source of the job")]
    OutOfBounds { part: usize },
    #[error("the engine is closed")]
    Closed,
}

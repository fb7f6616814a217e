//! What the index needs of the operating system and the standard library does not offer safely.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use memmap2::Mmap;

/// Maps an index file for reading.
pub(super) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the bytes of a mapping must not change while slices of it are alive. An index file is never written to after
    // it got its name: a build writes another file and renames it over this one, whose pages live as long as the mapping
    // does. The file is readable and writable by its owner alone (0600), in the server's own state folder. One in memory is
    // written to by nobody once it is mapped: whoever made it has the only descriptor.
    unsafe { Mmap::map(file) }
}

/// A file that is only in memory, and is gone with the last who has it open or mapped.
#[cfg(target_os = "linux")]
pub(crate) fn memory() -> io::Result<File> {
    Ok(rustix::fs::memfd_create("forebay-index", rustix::fs::MemfdFlags::CLOEXEC)?.into())
}

/// Files that are only in memory are Linux's.
#[cfg(not(target_os = "linux"))]
pub(crate) fn memory() -> io::Result<File> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "an index without a file needs Linux: say where to keep one"))
}

/// Takes the exclusive lock of `file`; false when another process has it. The lock ends with the file, or the process.
pub(super) fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: `flock` touches no memory, and the descriptor is open for as long as `file` is borrowed.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

//! Only one process builds an index at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::os;

/// The right to build one index, until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct BuildLock {
    _file: File,
}

/// Why the lock was not had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    #[error("process {holder} is building it")]
    Held { holder: String },
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("cancelled")]
    Cancelled,
}

/// How often a waiting process looks again.
const POLL: Duration = Duration::from_millis(50);

impl BuildLock {
    /// Takes the lock file `path`, waiting for at most `wait` (without end if `None`) or until `cancelled` says so.
    pub fn take(path: &Path, wait: Option<Duration>, cancelled: impl Fn() -> bool) -> Result<BuildLock, LockError> {
        // Never truncated here, nor removed ever: what it says is its holder's, and a removed file could be locked twice.
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let begun = Instant::now();
        let mut told = false;
        while !os::try_lock(&file)? {
            if cancelled() {
                return Err(LockError::Cancelled);
            }
            if wait.is_some_and(|wait| begun.elapsed() >= wait) {
                return Err(LockError::Held { holder: holder(&mut file) });
            }
            if !std::mem::replace(&mut told, true) {
                let holder = holder(&mut file);
                tracing::warn!(index = %path.with_extension("").display(), "process {holder} is building it: waiting for that");
            }
            std::thread::sleep(POLL);
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(BuildLock { _file: file })
    }
}

/// Who holds the lock, by what it wrote: for people, it proves nothing.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.take(32).read_to_string(&mut text));
    match text.trim() {
        digits if read.is_ok() && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.to_owned()
        }
        _ => "(unknown)".to_owned(),
    }
}

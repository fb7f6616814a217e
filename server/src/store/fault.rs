//! A store that fails where it is told to.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_transport::pool::Lease;

use super::{Read, ReadError, Reading, Store};

/// What happens to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The operating system's error with this number, as `EIO` (5) of a bad disk.
    Os(i32),
    /// The file ends in the middle of it, as one that was truncated.
    Short,
    /// The file is another by now.
    Changed,
}

/// Another store, with faults at chosen reads. What lies in the lease after a fault is scribbled over, so that whoever
/// uses it nevertheless is found out.
pub struct Faulty<S, F> {
    inner: S,
    choose: F,
    count: AtomicU64,
}

impl<S, F> Faulty<S, F>
where
    S: Store,
    F: Fn(u64, &Read) -> Option<Fault> + Send + Sync,
{
    /// `choose` is asked for each read, with how many there were before it in all batches, and says what is to happen
    /// to it.
    pub fn new(inner: S, choose: F) -> Faulty<S, F> {
        Faulty { inner, choose, count: AtomicU64::new(0) }
    }

    /// How many reads there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl<S, F> Store for Faulty<S, F>
where
    S: Store,
    F: Fn(u64, &Read) -> Option<Fault> + Send + Sync + 'static,
{
    fn read(&self, reads: Vec<Read>, lease: Lease) -> Reading<'_> {
        let before = self.count.fetch_add(reads.len() as u64, Ordering::Relaxed);
        let fault = (before..).zip(&reads).find_map(|(n, read)| Some((*read, (self.choose)(n, read)?)));
        Box::pin(async move {
            let mut done = self.inner.read(reads, lease).await;
            if let Some((read, fault)) = fault {
                done.lease.as_mut_slice().fill(0xee);
                done.result = Err(error(&read, fault));
            }
            done
        })
    }

    fn align(&self) -> usize {
        self.inner.align()
    }
}

fn error(read: &Read, fault: Fault) -> ReadError {
    let Read { shard, offset, len, .. } = *read;
    let shard = format!("#{shard}");
    match fault {
        Fault::Os(number) => ReadError::Io { shard, offset, len, source: std::io::Error::from_raw_os_error(number) },
        Fault::Short => ReadError::Changed { shard, detail: format!("it ends before the {len} bytes at {offset}") },
        Fault::Changed => ReadError::Changed { shard, detail: "it is another file now".into() },
    }
}

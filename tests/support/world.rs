//! Our own library against a server that runs: connected, read, and never waited for without end.

use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use forebay_client::blocking::{Client, Dataset};
use forebay_client::{Batch, ClientConfig, Error, LoaderOptions, Sample, Trust};

use crate::program::{PATIENCE, Server, forebay};
use crate::tars::{self, Shards, Written};

/// Runs `body` on a thread of its own and gives up on it after `limit`: a test that hangs fails.
///
/// # Panics
/// When it panics or takes longer.
pub fn within<T: Send + 'static>(limit: Duration, body: impl FnOnce() -> T + Send + 'static) -> T {
    // Building the program is not what is timed.
    forebay();
    let (send, done) = channel();
    let thread = thread::spawn(move || {
        let result = body();
        let _ = send.send(());
        result
    });
    // An error other than a timeout: it panicked, and joining tells how.
    assert!(
        !matches!(done.recv_timeout(limit), Err(std::sync::mpsc::RecvTimeoutError::Timeout)),
        "still not done after {limit:?}"
    );
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Waits until `holds`, looking every few milliseconds.
///
/// # Panics
/// When it does not within [`PATIENCE`].
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A client of `server` with `memory` bytes, of which half is its pool.
///
/// # Panics
/// When it cannot connect.
pub fn connect(server: &Server, memory: u64) -> Client {
    let url = server.url.parse().expect("a server's URL");
    Client::connect(&url, config(server, memory)).unwrap_or_else(|error| panic!("{}: {error}", server.url))
}

/// How [`connect`] sets a client up.
///
/// # Panics
/// When the server printed no fingerprint.
pub fn config(server: &Server, memory: u64) -> ClientConfig {
    let trust = Trust::Pinned(server.trust.parse().expect("a fingerprint"));
    ClientConfig { memory, trust, ..ClientConfig::default() }
}

/// Makes shards in `folder`, and returns the samples in order and the pattern that names the shards.
///
/// # Panics
/// When they cannot be written.
pub fn shards(folder: &Path, what: &Shards) -> (Vec<Written>, String) {
    std::fs::create_dir_all(folder).expect("a folder for shards");
    let mut samples = Vec::new();
    tars::write(folder, what, |sample| samples.push(sample)).expect("shards are written");
    (samples, folder.join("*.tar").to_str().expect("UTF-8 path").to_owned())
}

/// One sample as it was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    pub epoch: u64,
    pub step: u64,
    pub position: u64,
    pub ordinal: u64,
}

/// Reads to the end, comparing every field of every sample with what was written; batches are given to `each`, which may
/// keep them.
///
/// # Panics
/// When bytes differ, or when a batch contradicts itself.
pub fn read(
    dataset: &Dataset,
    options: LoaderOptions,
    written: &[Written],
    mut each: impl FnMut(Batch),
) -> Result<Vec<Delivered>, Error> {
    let mut delivered = Vec::new();
    for batch in dataset.loader(options)? {
        let batch = batch?;
        for sample in batch.iter() {
            same(&sample, &written[sample.ordinal() as usize]);
            let (epoch, step) = (batch.epoch(), batch.step());
            delivered.push(Delivered { epoch, step, position: sample.position(), ordinal: sample.ordinal() });
        }
        each(batch);
    }
    Ok(delivered)
}

/// # Panics
/// When the sample's fields are not what was written. A field that was not asked for is not compared.
pub fn same(sample: &Sample, written: &Written) {
    for (name, bytes) in [("jpg", &written.jpg), ("cls", &written.cls)] {
        if sample.fields().iter().any(|field| &**field == name) {
            let got = sample.field_by_name(name);
            assert!(got == Some(bytes.as_slice()), "{sample:?}: other bytes in {name} than were written");
        }
    }
}
